//! Kernel DAMON and Isotherm on the same workload, one after the other, scored by the same metric.
//!
//! Kernel DAMON clears accessed bits without flushing the TLB. A processor evicts its few entries within milliseconds.
//! The emulator's TLB is large and is emptied only when address spaces are switched. While it holds an entry, no
//! accessed bit is set. DAMON then misses from a little to everything, depending on how the hot set fits. It is
//! therefore shown twice: with the TLB left alone, and with a process that wakes on the workload's processor every
//! millisecond, which switches address spaces. Isotherm clears through MADV_COLD, which flushes, and needs no such
//! help.

use isotherm_engine::Snapshot;

use super::Report;
use super::record::LEAST_REGIONS;
use super::workload::{self, SCATTERED, SLOW};
use crate::error::VmError;
use crate::kernel::Kernel;
use crate::vm::VmOutput;

const SECONDS: u32 = 24;

/// Returns shell that records `$target` with kernel DAMON into /out/NAME.jsonl.
fn damon(name: &str, flush: bool) -> String {
    let record = format!(
        "taskset $other_cpu vm-guest kdamond --pid $target --seconds {SECONDS} --out /out/{name}.jsonl || exit 1\n"
    );
    if flush {
        format!("taskset 1 vm-guest wake &\nwaker=$!\n{record}kill $waker\n")
    } else {
        record
    }
}

fn damon_snapshots(output: &VmOutput, name: &str) -> Result<Vec<Snapshot>, VmError> {
    let wrong = |e| VmError::Wrong(format!("{name}.jsonl: {e}"));
    let text = output.text(&format!("{name}.jsonl"))?;
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(wrong))
        .collect()
}

pub(super) fn run(kernel: Kernel) -> Result<Report, VmError> {
    let isotherm = [("regions", "Isotherm, regions", SLOW)];
    let mut script = SCATTERED.start_anywhere();
    script += &damon("alone", false);
    script += &damon("flushed", true);
    for (name, _, options) in &isotherm {
        script += &workload::record(name, &format!("{options} --pid $target"), SECONDS);
    }
    let output = SCATTERED.vm(kernel, &script)?.run_ok()?;

    let truth = workload::truth(&output)?;
    let mut report = Report::default();
    workload::heading(&mut report, "scattered, 16 of 128 MiB");
    let mut scores = Vec::new();
    // With the TLB left alone DAMON may see anything or nothing: that row is only shown.
    for (name, label, least) in [
        ("alone", "kernel DAMON, TLB left alone", None),
        ("flushed", "kernel DAMON, TLB flushed", Some(LEAST_REGIONS)),
    ] {
        let accuracy = workload::accuracy(label, &damon_snapshots(&output, name)?, &truth)?;
        workload::row(&mut report, label, &accuracy);
        scores.push((label, accuracy.quarter, least));
    }
    for (name, label, _) in &isotherm {
        let accuracy = workload::accuracy(label, &workload::snapshots(&output, name)?, &truth)?;
        workload::row(&mut report, label, &accuracy);
        scores.push((label, accuracy.quarter, Some(LEAST_REGIONS)));
    }
    for (label, score, least) in scores {
        if let Some(least) = least {
            workload::require(&report, label, score, least)?;
        }
    }
    Ok(report)
}
