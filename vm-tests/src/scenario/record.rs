//! Accuracy of Isotherm's records against the truth, on each kernel, page-table depth and node.

use isotherm_engine::RegionSnapshot;
use serde_json::Value;

use super::Report;
use super::workload::{self, SCATTERED, SLOW, STAIRS, Workload};
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::{FIVE_LEVELS, VmOutput};

const SECONDS: u32 = 22;
/// Options of page scans. They clear by madvise, since clear_refs flushes no TLB, and the emulated one is large. A scan
/// takes up to half a second.
const PAGES: &str = "--pages --clear-by madvise --max-stall 1s --aggregation-interval 1s";
/// Name and options of the default monitor, with a budget for emulation.
const TABLES: (&str, &str) = ("tables", "--cpu-budget 20%");
/// The same, scored by whether a page was accessed at all.
const FLAGS: (&str, &str) = ("flags", TABLES.1);
/// Least precision and recall by DAMON's rules. These check one page of a region and split at random: in the few
/// seconds of a record they do not settle in every run. The precision of three runs in November 2026 was 0.59 to 0.89;
/// a monitor that reports everything as accessed has 0.13.
pub(super) const LEAST_REGIONS: f64 = 0.5;
/// Least precision and recall on physical memory. Frames of one buffer lie in many pieces, and the regions of physical
/// memory take longer to find their borders. The runs on which this value is based had a precision between 0.84 and
/// 1.00.
const LEAST_PHYSICAL: f64 = 0.75;
/// Least precision and recall of the other ways of recording; docs/development/vm-tests.md has measured values.
const LEAST: f64 = 0.9;

pub(super) fn one_boot(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "isotherm doctor --json >/out/doctor.json || exit 1\n{}",
        recording(&SCATTERED, &[TABLES], SECONDS)
    );
    let output = SCATTERED.vm(kernel, &script)?.run_ok()?;
    let doctor = output.text("doctor.json")?;
    let is_this = doctor.contains(&kernel.image()?.release);
    ensure!(is_this, "doctor takes the kernel for another: {doctor}");
    judge(report, &output, "scattered, 16 of 128 MiB", &[TABLES])
}

/// Every way of recording, on a scattered hot set.
pub(super) fn scattered(kernel: Kernel, report: &mut Report) -> Result<()> {
    let modes = [("pages", PAGES), ("regions", SLOW), TABLES];
    let script = recording(&SCATTERED, &modes, SECONDS);
    let output = SCATTERED.vm(kernel, &script)?.run_ok()?;
    judge(report, &output, "scattered, 16 of 128 MiB", &modes)
}

/// A Cortex-A72 faults at each access to a page whose access flag is clear, and the kernel sets it. After a clear the
/// workload is in faults for most of a sample, so that only whether a page is accessed is checked, not how often.
pub(super) fn without_access_flag(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = recording(&SCATTERED, &[FLAGS], SECONDS);
    let vm = SCATTERED.vm(kernel, &script)?;
    let output = vm.cpu("cortex-a72").run_ok()?;
    judge(report, &output, "access flags by the kernel", &[FLAGS])
}

/// Memory in folios of 128 KiB: watching splits none.
pub(super) fn large_folios(kernel: Kernel, report: &mut Report) -> Result<()> {
    let sizes = "/sys/kernel/mm/transparent_hugepage";
    let folios = format!("{sizes}/hugepages-128kB");
    let modes = [TABLES, ("pages", PAGES)];
    let mut script = format!(
        "echo never >{sizes}/enabled; echo always >{folios}/enabled || exit 1\n{}",
        SCATTERED.start_with(1, "default")
    );
    for (name, options) in modes {
        script += &workload::record(name, &format!("{options} --pid $target"), SECONDS);
        let stats = format!("cat {folios}/stats/anon_fault_alloc {folios}/stats/split");
        script += &(stats + " >/out/folios-" + name + "\n");
    }
    let output = SCATTERED.vm(kernel, &script)?.run_ok()?;
    for (name, _) in modes {
        let counts = output.text(&format!("folios-{name}"))?;
        let counts: Vec<u64> = { counts.lines() }
            .filter_map(|line| line.parse().ok())
            .collect();
        let [nr_made, nr_split] = counts[..] else {
            return Err(VmError::Wrong(format!("no counts of folios: {counts:?}")));
        };
        report.say(format!(
            "{name}: {nr_made} folios of 128 KiB, {nr_split} split"
        ));
        ensure!(nr_made >= 900, "the workload's memory is not in folios");
        // Those of other programs count, too: one is split in some runs.
        ensure!(nr_split <= nr_made / 100, "watching split folios");
    }
    judge(report, &output, "folios of 128 KiB, 16 of 128 MiB", &modes)
}

/// Hot memory changes while it is recorded.
pub(super) fn stairs(kernel: Kernel, report: &mut Report) -> Result<()> {
    let modes = [TABLES];
    // 80 s cover each of the four phases, which take 20 s each.
    let script = recording(&STAIRS, &modes, 80);
    let output = STAIRS.vm(kernel, &script)?.run_ok()?;
    judge(report, &output, "stairs, 4 x 16 MiB", &modes)
}

/// Returns shell that starts a workload and records it in each mode.
fn recording(workload: &Workload, modes: &[(&str, &str)], seconds: u32) -> String {
    let mut script = workload.start(1);
    for (name, options) in modes {
        script += &workload::record(name, &format!("{options} --pid $target"), seconds);
    }
    script
}

/// Scores each mode, and adds a line for it to the report.
fn judge(
    report: &mut Report,
    output: &VmOutput,
    title: &str,
    modes: &[(&str, &str)],
) -> Result<()> {
    let truth = workload::truth(output, "truth.jsonl")?;
    workload::heading(report, title);
    let mut scores = Vec::new();
    for (name, _) in modes {
        let snapshots = workload::snapshots(output, name)?;
        let accuracy = workload::row(report, name, &snapshots, &truth)?;
        scores.push(match *name {
            // A scan finds whether a page was touched in an interval: that is exact, not a rate.
            "pages" | "flags" => (name, accuracy.any, LEAST),
            "regions" => (name, accuracy.quarter, LEAST_REGIONS),
            _ => (name, accuracy.quarter, LEAST),
        });
    }
    for (name, score, least) in scores {
        workload::require(name, score, least)?;
    }
    Ok(())
}

/// The target's memory lies above 47 bits.
pub(super) fn five(kernel: Kernel, report: &mut Report) -> Result<()> {
    let modes = [("pages", PAGES), ("regions", SLOW)];
    let script = recording(&Workload::High, &modes, SECONDS);
    let vm = Workload::High.vm(kernel, &script)?;
    let output = vm.cpu(FIVE_LEVELS).run_ok()?;
    let high = workload::truth(&output, "truth.jsonl")?
        .iter()
        .flat_map(|episode| &episode.temperature.hot)
        .all(|heat| heat.range.start >> 47 > 0);
    ensure!(high, "the workload's memory lies below 47 bits");
    judge(report, &output, "five levels, 16 of 64 MiB", &modes)
}

pub(super) fn physical(kernel: Kernel, report: &mut Report) -> Result<()> {
    let workload = SCATTERED;
    // Memory comes from the node of the processor that touches it first, which is the second one here. The workload's
    // frames do not move, since the workload runs on their node.
    let script = format!(
        "{}{}{}{}{}\
         for name in whole all; do isotherm report machine --json /out/$name.isotherm >/out/$name-machine.json || exit 1; done\n\
         vm-guest frames --pid $target --truth /out/truth.jsonl --out /out/frames.jsonl || exit 1\n\
         cat /proc/zoneinfo >/out/zoneinfo\n",
        workload.start(2),
        workload::record("node1", &format!("--physical --node 1 {SLOW}"), SECONDS + 8),
        workload::record("node0", &format!("--physical --node 0 {SLOW}"), 10),
        workload::record("whole", "--node 1 --cpu-budget 20%", SECONDS),
        workload::record("all", "--all --cpu-budget 20%", 12),
    );
    let output = workload.vm(kernel, &script)?.numa_nodes(2).run_ok()?;
    let truth = workload::truth(&output, "frames.jsonl")?;
    let on_node_1 = workload::snapshots(&output, "node1")?;
    let on_node_0 = workload::snapshots(&output, "node0")?;

    workload::heading(report, "physical, node 1 of 2");
    let accuracy = workload::row(report, "regions", &on_node_1, &truth)?;
    let last = |snapshots: &[isotherm_engine::Snapshot]| {
        let regions = &snapshots.last()?.regions;
        Some((regions.first()?.range.start, regions.last()?.range.end))
    };
    let (Some(zero), Some(one)) = (last(&on_node_0), last(&on_node_1)) else {
        let why = "a record of a node holds no regions";
        return Err(VmError::Wrong(why.to_owned()));
    };
    report.say(format!(
        "node 0 is {:#x}-{:#x}, node 1 is {:#x}-{:#x}",
        zero.0, zero.1, one.0, one.1
    ));
    ensure!(zero.1 <= one.0, "the nodes' regions overlap");
    let inside = truth
        .iter()
        .flat_map(|episode| &episode.temperature.hot)
        .all(|heat| heat.range.start >= one.0 && heat.range.end <= one.1);
    ensure!(inside, "the workload's frames are not all on node 1");
    workload::require("node 1", accuracy.quarter, LEAST_PHYSICAL)?;
    let hot = truth.last().map(|episode| &episode.temperature.hot);
    let hot = hot.into_iter().flatten().map(|heat| heat.range.len()).sum();
    of_all_processes(report, &output, one, hot)
}

/// Checks the record of all processes' page tables on node 1, whose addresses are `one`. Of the `hot` bytes, 90 % must
/// be touched or unknown, and half must be touched. Checks the nodes in the machine reports, too.
fn of_all_processes(
    report: &mut Report,
    output: &VmOutput,
    one: (u64, u64),
    hot: u64,
) -> Result<()> {
    let whole = workload::snapshots(output, "whole")?;
    let last = whole.last();
    let last = last.ok_or_else(|| VmError::Wrong("node 1 was not told of".to_owned()))?;
    let totals = last.totals();
    report.say(format!(
        "node 1 by all page tables: {} snapshots, {} KiB resident, {} touched, {} unknown; {} are hot",
        whole.len(),
        totals.resident >> 10,
        totals.touched >> 10,
        totals.unknown >> 10,
        hot >> 10
    ));
    let regions = last.regions.iter();
    let is_inside = |r: &RegionSnapshot| r.range.start >= one.0 && r.range.end <= one.1;
    let are_inside = regions.clone().all(is_inside);
    ensure!(are_inside, "regions of node 1 lie outside of its frames");
    let in_use = totals.touched + totals.unknown;
    ensure!(in_use >= hot / 10 * 9, "hot memory is called idle");
    let is_seen = totals.touched >= hot / 2;
    ensure!(is_seen, "too little of the hot memory is seen");
    for (name, nodes) in [("whole", &[1][..]), ("all", &[0, 1])] {
        let machine: Value = output.json(&format!("{name}-machine"))?;
        let told = machine["nodes"].as_array().into_iter().flatten();
        let told: Vec<u64> = told.filter_map(|node| node["node"].as_u64()).collect();
        let nr_processes = machine["processes"].as_array().map_or(0, Vec::len);
        report.say(format!("{name}: nodes {told:?}, {nr_processes} processes"));
        let is_of_them = told == nodes && nr_processes > 0;
        ensure!(is_of_them, "report machine is not of these nodes");
    }
    Ok(())
}
