//! The third world, in which Isotherm drives the kernel's DAMON. Isotherm reports what DAMON sees and does, and leaves
//! a DAMON that is in use alone. It leaves DAMON's tree as it found it, also after a SIGKILL.
//!
//! Something wakes on the workload's processor every millisecond, which switches address spaces: DAMON flushes no TLB,
//! and an emulated one, which keeps its entries until then, hides accesses otherwise.

use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::scenario::Report;
use crate::scenario::acting::{self, about, mib, pages};
use crate::scenario::record::LEAST_REGIONS;
use crate::scenario::workload::{self, SCATTERED, SLOW};
use crate::vm::VmOutput;

const SECONDS: u32 = 36;
/// Divisor of the number of snapshots: the first third is not judged, since DAMON has to find the borders of hot memory
/// first.
const SETTLING: usize = 3;
/// Bytes of cold memory that may still be in memory: a region's border lies anywhere.
const LEFT: u64 = 2 << 20;

pub(crate) const FUNCTIONS: &str = include_str!("../kernel_damon.sh");
/// Messages for a sysfs tree that another user drives, and for an action without effect on a process.
pub(crate) const IN_USE: &str = "kernel DAMON is in use: kdamond 0";
pub(crate) const DOES_NOTHING: &str = "`vaddr` takes it and does nothing";

pub(crate) fn records(kernel: Kernel, report: &mut Report) -> Result<()> {
    match kernel {
        Kernel::Debian61 => without(kernel, report),
        _ => record(kernel, report),
    }
}

fn without(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "{FUNCTIONS}{}refused absent record --world kernel --pid $target --duration 1s -o /tmp/no\n",
        SCATTERED.start(1)
    );
    let output = SCATTERED.vm(kernel, &script)?.run_ok()?;
    let words = "this kernel has no DAMON that can be driven";
    says(report, &output, "absent", words)
}

/// Returns a script that records in every way, and then disturbs Isotherm: another user of DAMON, a missing feature, a
/// SIGKILL.
fn recording() -> String {
    let options = format!("--world kernel {SLOW} --pid $target");
    [
        FUNCTIONS.to_owned(),
        SCATTERED.start(1),
        "taskset 1 vm-guest wake &\n".to_owned(),
        workload::record("kernel", &options, SECONDS),
        "is_empty kernel\n".to_owned(),
        // Without tracefs the snapshots come from a scheme.
        "umount -l /sys/kernel/debug\n".to_owned(),
        workload::record("by_scheme", &options, SECONDS),
        "is_empty by_scheme\nmount -t debugfs debug /sys/kernel/debug\n".to_owned(),
        workload::record("physical", &format!("--world kernel {SLOW} --physical"), 6),
        "is_empty physical\n\
         their=$tree/0/contexts/0\n\
         echo 1 >$tree/nr_kdamonds; echo 1 >$tree/0/contexts/nr_contexts; echo vaddr >$their/operations\n\
         echo 1000000 >$their/monitoring_attrs/intervals/aggr_us\n\
         echo 100000 >$their/monitoring_attrs/intervals/sample_us\n\
         echo 1 >$their/targets/nr_targets; echo $target >$their/targets/0/pid_target\n\
         echo on >$tree/0/state || exit 1\n\
         grep -r . $their $tree/nr_kdamonds $tree/0/pid >/tmp/theirs\n\
         refused in_use record --world kernel --pid $target --duration 1s -o /tmp/no\n\
         grep -r . $their $tree/nr_kdamonds $tree/0/pid >/tmp/left\n\
         is_on && cmp /tmp/theirs /tmp/left || die the other user of DAMON was disturbed\n\
         echo off >$tree/0/state; echo 0 >$tree/nr_kdamonds\n\
         refused lacks run --world kernel --scheme '4K max 0 0 5s max lru_prio' --pid $target --duration 1s\n\
         is_empty lacks\n\
         isotherm record --world kernel --pid $target -o /tmp/killed & killed=$!\n\
         wait_for 0.1 100 is_on\n\
         kill -9 $killed\n\
         is_on || die no kdamond was left\n"
            .to_owned(),
        format!(
            "isotherm record {options} --duration 4s -o /tmp/after 2>/out/recovered.txt || die \"$(cat /out/recovered.txt)\"\n"
        ),
        "is_empty recovered\n".to_owned(),
    ]
    .concat()
}

fn record(kernel: Kernel, report: &mut Report) -> Result<()> {
    // In a slower guest too little happens between samples for DAMON to distinguish hot from cold.
    let vm = SCATTERED.vm(kernel, &recording())?.instruction_ns_log2(3);
    let output = vm.run_ok()?;
    let truth = workload::truth(&output, "truth.jsonl")?;
    workload::heading(report, "scattered, 16 of 128 MiB");
    let mut scores = Vec::new();
    for (name, label) in [
        ("kernel", "--world kernel, by tracepoint"),
        ("by_scheme", "--world kernel, by a scheme"),
    ] {
        let snapshots = workload::snapshots(&output, name)?;
        let settled = &snapshots[snapshots.len() / SETTLING..];
        let accuracy = workload::row(report, label, settled, &truth)?;
        scores.push((label, accuracy.quarter));
    }
    for (label, score) in scores {
        workload::require(label, score, LEAST_REGIONS)?;
    }
    let physical = workload::snapshots(&output, "physical")?;
    let (nr, mut all) = (physical.len(), physical.iter());
    let is_seen = all.any(|snapshot| snapshot.regions.len() > 3);
    ensure!(is_seen, "physical memory is not seen in {nr} snapshots");
    says(report, &output, "in_use", IN_USE)?;
    says(report, &output, "lacks", DOES_NOTHING)?;
    if output.bytes("module.txt").is_ok() {
        says(report, &output, "module", "DAMON_STAT")?;
    }
    let words = "an isotherm that was killed had left kernel DAMON on";
    says(report, &output, "recovered", words)
}

/// Fails unless a line of the message `NAME.txt` contains `words`, and adds that line to the report.
pub(crate) fn says(report: &mut Report, output: &VmOutput, name: &str, words: &str) -> Result<()> {
    let text = output.text(&format!("{name}.txt"))?;
    let line = text.lines().find(|line| line.contains(words));
    let line =
        line.ok_or_else(|| VmError::Wrong(format!("{name} does not say '{words}': {text}")))?;
    report.say(line.to_owned());
    Ok(())
}

pub(crate) fn act(kernel: Kernel, report: &mut Report) -> Result<()> {
    let options = format!(
        "--world kernel --no-guard {SLOW} --scheme '4K max 0 0 5s max pageout' --pid $target"
    );
    let script = [
        FUNCTIONS.to_owned(),
        acting::STILL.start(1),
        "isotherm swap zram --size 128M || exit 1\ntaskset 1 vm-guest wake &\n".to_owned(),
        "look before --sum\n".to_owned(),
        format!("act dry --dry-run {options} --duration 15s\nlook dry\nis_empty dry\n"),
        format!(
            "act_until out cold_is_out {options} -o /out/out.isotherm\nis_empty out\nlook after\n"
        ),
        "isotherm report actions /out/out.isotherm >/out/actions.txt || exit 1\n".to_owned(),
        "look summed --sum\n".to_owned(),
    ]
    .concat();
    let output = acting::vm(&acting::STILL, kernel, &script)?.run_ok()?;
    let (before, dry) = (pages(&output, "before")?, pages(&output, "dry")?);
    let (after, summed) = (pages(&output, "after")?, pages(&output, "summed")?);
    report.say(format!(
        "cold memory present: {} before, {} after a dry run, {} after pageout; hot: {}",
        mib(before.cold.present),
        mib(dry.cold.present),
        mib(after.cold.present),
        mib(after.hot.present),
    ));
    let actions = output.text("actions.txt")?;
    report.say(actions.lines().nth(1).unwrap_or_default());
    about(&[
        ("cold, dry", dry.cold.present, acting::COLD, LEFT),
        ("cold, paged out", after.cold.present, 0, LEFT),
    ])?;
    acting::intact(&before, &summed, "when the kernel paged out")
}
