//! damo 3.4.3 as the oracle, on the same kernel. For one configuration damo and Isotherm write the same files of
//! DAMON's tree. Isotherm exports the setup of damo, and damo reads it again. Both see the same hot memory. damo's
//! kdamonds are left alone. A record that damo wrote is read.
//!
//! Three things differ on purpose. damo writes an unlimited age or quota interval as 2^64 - 1 of a unit. The kernel
//! keeps 32 bits of the age; Isotherm writes the greatest age that the kernel has. Without a quota damo writes an
//! unlimited interval for it, and Isotherm writes none. Each kdamond has its own process id.
//!
//! damo has no perf here and takes snapshots through sysfs.

use std::collections::BTreeMap;

use isotherm_engine::Snapshot;

use crate::damo::with_damo;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::scenario::Report;
use crate::scenario::kernel_damon::{FUNCTIONS, IN_USE, says};
use crate::scenario::record::LEAST_REGIONS;
use crate::scenario::workload::{self, SCATTERED, SLOW};
use crate::vm::VmOutput;

const SECONDS: u32 = 16;
/// Checks of a region in an aggregation interval, a number that perf's format does not contain.
const NR_SAMPLES: u32 = 10;
/// Number of files that a tree must exceed; otherwise too little was compared.
const LEAST_FILES: usize = 100;

type Files = BTreeMap<String, String>;

pub(crate) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = [
        FUNCTIONS.to_owned(),
        SCATTERED.start(1),
        include_str!("../kernel_damon_damo.sh").to_owned(),
        workload::record(
            "ours",
            &format!("--world kernel {SLOW} --pid $target"),
            SECONDS,
        ),
        "is_empty ours\n".to_owned(),
    ]
    .concat();
    let vm = SCATTERED.vm(kernel, &script)?;
    let vm = with_damo(vm)?.text("/damo.json", include_str!("../kernel_damon_damo.json"));
    let output = vm.run_ok()?;
    compare_trees(report, &output)?;
    for name in ["in_use", "in_use_record"] {
        says(report, &output, name, IN_USE)?;
    }
    compare_sight(report, &output)
}

/// Compares the tree that damo wrote with the one that Isotherm wrote, and with the one that damo wrote from Isotherm's
/// export.
fn compare_trees(report: &mut Report, output: &VmOutput) -> Result<()> {
    let theirs = files(output, "damo.tree")?;
    for (name, label) in [
        ("ours.tree", "by `isotherm run --world kernel -c`"),
        ("again.tree", "by damo of `isotherm damon --export`"),
    ] {
        let others = files(output, name)?;
        let paths = theirs.keys().chain(others.keys());
        let differs = |path: &&String| meant(&theirs, path) != meant(&others, path);
        let wrong = paths.filter(differs).map(|path| {
            let (ours, damos) = (others.get(path), theirs.get(path));
            format!("{path}: {ours:?}, by damo {damos:?}")
        });
        let wrong: Vec<String> = wrong.collect();
        let ends = theirs.iter();
        let ends = ends.filter(|(path, text)| others.get(*path) != Some(text));
        let ends: Vec<&str> = ends.map(|(path, _)| path.as_str()).collect();
        report.say(format!(
            "{label}: {} of {} files as damo wrote them; otherwise without end: {}",
            theirs.len() - ends.len(),
            theirs.len(),
            ends.join(", ")
        ));
        let is_same = wrong.is_empty() && theirs.len() > LEAST_FILES;
        ensure!(is_same, "{label}:\n{}", wrong.join("\n"));
    }
    Ok(())
}

fn files(output: &VmOutput, name: &str) -> Result<Files> {
    let text = output.text(name)?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    // These files hold the state and the counters of a running kdamond, which the kernel writes.
    let is_set = |path: &str| {
        let told = ["/pid", "/state", "/effective_bytes"];
        let is_counter = path.contains("/stats/") && !path.ends_with("/max_nr_snapshots");
        !told.iter().any(|end| path.ends_with(end)) && !is_counter
    };
    let lines = lines.filter(|(path, _)| is_set(path));
    let files = lines.map(|(path, text)| (path.to_owned(), text.to_owned()));
    Ok(files.collect())
}

/// Returns the value of a file as the kernel understands it.
fn meant(files: &Files, path: &str) -> Option<String> {
    let text = files.get(path)?;
    if path.ends_with("access_pattern/age/max") {
        let age: u64 = text.parse().ok()?;
        return Some(age.min(u32::MAX.into()).to_string());
    }
    if let Some(quota) = path.strip_suffix("reset_interval_ms") {
        let none = Some("0".to_owned());
        let is_none = |file| files.get(&format!("{quota}{file}")) == none.as_ref();
        if is_none("ms") && is_none("bytes") {
            return None;
        }
    }
    Some(text.clone())
}

/// Compares the hot memory that damo and Isotherm saw in the same workload.
fn compare_sight(report: &mut Report, output: &VmOutput) -> Result<()> {
    let truth = workload::truth(output, "truth.jsonl")?;
    let mut theirs: Vec<Snapshot> = workload::snapshots(output, "theirs")?;
    for snapshot in &mut theirs {
        snapshot.nr_samples = NR_SAMPLES;
    }
    let ours = workload::snapshots(output, "ours")?;
    let listened = workload::snapshots(output, "listened")?;
    workload::heading(report, "scattered, 16 of 128 MiB");
    for (label, snapshots) in [
        ("damo", theirs),
        ("isotherm damon record", listened),
        ("isotherm --world kernel", ours),
    ] {
        let accuracy = workload::row(report, label, &snapshots, &truth)?;
        let mib = |bytes: f64| bytes / accuracy.snapshots as f64 / f64::from(1 << 20);
        report.say(format!(
            "    hot in a snapshot: {:.1} MiB said, of which {:.1} are; {:.1} in truth",
            mib(accuracy.quarter.claimed),
            mib(accuracy.quarter.hit),
            mib(accuracy.quarter.truth),
        ));
        if label == "isotherm --world kernel" {
            workload::require(label, accuracy.quarter, LEAST_REGIONS)?;
        }
    }
    let format = output.text("format.txt")?;
    let reports = ["access", "heatmap", "wss"].map(|name| {
        let text = output.text(&format!("{name}.report"));
        let nr = text.map_or(0, |text| text.lines().count());
        format!("{name} ({nr} lines)")
    });
    let (format, reports) = (format.trim(), reports.join(", "));
    report.say(format!("damo's record ({format}) opens in: {reports}"));
    Ok(())
}
