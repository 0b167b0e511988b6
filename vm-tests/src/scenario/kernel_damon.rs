//! Kernel DAMON in the emulator: blind by itself, and how it is made to see.

use std::time::Duration;

use isotherm_engine::{Nanos, Snapshot};

use super::{Report, Scenario, ensure};
use crate::accuracy::{Score, Truth};
use crate::error::VmError;
use crate::kernel::Kernel;
use crate::product;
use crate::vm::{Vm, VmOutput};

/// `kernel-damon`: DAMON on a process, with the TLB left alone and with it flushed.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "kernel-damon",
        about: "kernel DAMON (vaddr, sysfs) on a workload of known truth, TLB flushed or not",
        kernels: &[Kernel::Debian612],
        long: false,
        run,
    }
}

/// Emulation is slow: intervals of 100 ms and 2 s, 20 samples each, for this long.
const SECONDS: u64 = 30;
/// Regions need a few aggregations to find their shape: these are not judged.
pub(super) const SETTLE: Nanos = Nanos::from_millis(10_000);

/// Shell that starts the workload on the first processor, waits until it is warm, and names its
/// process `$target`.
pub(super) fn start_workload(options: &str) -> String {
    format!(
        "echo never >/sys/kernel/mm/transparent_hugepage/enabled\n\
         taskset 1 vm-guest hot --seconds {seconds} --truth /out/truth.json --ready /tmp/ready {options} &\n\
         target=$!\n\
         until [ -e /tmp/ready ]; do sleep 0.1; done\n",
        seconds = SECONDS + 15,
    )
}

/// Shell that records `$target` with kernel DAMON into /out/damon.jsonl from the other processor.
/// With `flush`, something wakes on the workload's processor every millisecond meanwhile: the
/// emulator keeps translations in its TLB until an address space is switched, and for as long as it
/// has one it does not set the accessed bit that DAMON has cleared without a flush.
pub(super) fn record_with_damon(flush: bool) -> String {
    let record = format!(
        "taskset 2 vm-guest kdamond --pid $target --seconds {SECONDS} --out /out/damon.jsonl || exit 1\n"
    );
    if flush {
        format!("taskset 1 vm-guest wake &\nwaker=$!\n{record}kill $waker\n")
    } else {
        record
    }
}

/// The truth that the workload left.
pub(super) fn truth(output: &VmOutput) -> Result<Truth, VmError> {
    serde_json::from_slice(output.bytes("truth.json")?)
        .map_err(|e| VmError::Wrong(format!("truth.json: {e}")))
}

/// The snapshots that kernel DAMON left.
pub(super) fn snapshots(output: &VmOutput) -> Result<Vec<Snapshot>, VmError> {
    let text = output.text("damon.jsonl")?;
    text.lines()
        .map(|line| {
            serde_json::from_str(line).map_err(|e| VmError::Wrong(format!("damon.jsonl: {e}")))
        })
        .collect()
}

/// Boots once and scores kernel DAMON.
pub(super) fn score(kernel: Kernel, workload: &str, flush: bool) -> Result<Score, VmError> {
    let output = Vm::new(kernel)
        .program(product::guest_tool()?, "vm-guest")
        .script(&format!(
            "{}{}wait $target",
            start_workload(workload),
            record_with_damon(flush)
        ))
        .timeout(Duration::from_mins(3))
        .alone()
        .run_ok()?;
    Ok(Score::of(&snapshots(&output)?, &truth(&output)?, SETTLE))
}

fn run(kernel: Kernel) -> Result<Report, VmError> {
    let mut report = Report::default();
    let left_alone = score(kernel, "--rest-ms 0", false)?;
    report.say(format!("TLB left alone  {left_alone}"));
    let flushed = score(kernel, "--rest-ms 0", true)?;
    report.say(format!("TLB flushed     {flushed}"));
    for score in [left_alone, flushed] {
        ensure(score.snapshots >= 5, || {
            format!("only {} snapshots to judge\n{report}", score.snapshots)
        })?;
    }
    ensure(flushed.recall() >= 0.8, || {
        format!("kernel DAMON is to see when the TLB is flushed\n{report}")
    })?;
    Ok(report)
}
