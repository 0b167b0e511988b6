//! Shared parts of the recording scenarios: workloads of known truth, ways to record them, one metric.
//!
//! Everything is shell lines, since it runs in the guest. Most machines have one processor; where there are two, the
//! workload is pinned to one and the recorder to the other. Intervals are 100 ms and 1 s, since a guest executes some
//! 60 million instructions in a second.

use isotherm_engine::{Nanos, Snapshot};
use isotherm_record::{Item, Reader};
use isotherm_workload::accuracy::{Accuracy, AccuracyScore, WarmUp, score};
use isotherm_workload::truth::{self, Episode};

use super::Report;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::{Vm, VmOutput};

/// A workload in the guest, which writes its truth to /out/truth.jsonl and runs until it is killed.
pub(super) enum Workload {
    /// `isotherm workload` with this configuration.
    Exercise(&'static str),
    /// A hot quarter of memory that lies above 47 bits (`vm-guest hot`).
    High,
}

/// A hot eighth of 128 MiB, in pieces of 4 MiB here and there.
pub(super) const SCATTERED: Workload = Workload::Exercise(
    "heap, 128MiB\n\nserve\n600000\nheap, 1, 64, 1, rw, hot=16MiB piece=4MiB seed=1\n",
);

/// Four regions of 16 MiB, one hot after the other for 20 s each.
pub(super) const STAIRS: Workload = Workload::Exercise(
    "a, 16MiB\nb, 16MiB\nc, 16MiB\nd, 16MiB\n\none\n20000\na, 0, 1024, 1\n\ntwo\n20000\nb, 0, 1024, 1\n\n\
     three\n20000\nc, 0, 1024, 1\n\nfour\n20000\nd, 0, 1024, 1\n",
);

/// Regions take a few aggregations to find their shape, and so does each new phase.
const WARM_UP: WarmUp = WarmUp {
    record: Nanos::from_millis(8_000),
    phase: Nanos::from_millis(8_000),
};

impl Workload {
    /// Returns shell that starts the workload on the processor of `mask` with huge pages off. The shell waits until the
    /// workload's memory is there, and names its process `$target`.
    pub(super) fn start(&self, mask: u32) -> String {
        self.start_with(mask, "never")
    }

    /// Returns such shell with huge pages `always`, `never`, or by `default` as the system does it.
    pub(super) fn start_with(&self, mask: u32, huge_pages: &str) -> String {
        let command = match self {
            Self::Exercise(_) => &format!(
                "isotherm workload --quiet --repeat 0 --hugepages {huge_pages} --truth /out/truth.jsonl /workload.cfg"
            ),
            Self::High => "vm-guest hot --high --truth /out/truth.jsonl",
        };
        format!(
            "taskset {mask:x} {command} &\n\
             target=$!\n\
             wait_for 0.1 600 grep -qs start /out/truth.jsonl || die the workload does not start\n"
        )
    }

    /// Returns a machine that has everything the workload needs, and that runs `script`.
    pub(super) fn vm(&self, kernel: Kernel, script: &str) -> Result<Vm> {
        let config = match self {
            Self::Exercise(config) => config,
            Self::High => "",
        };
        Ok(Vm::new(kernel)
            .product()?
            .guest_tool()?
            .text("/workload.cfg", config)
            .script(script))
    }
}

/// Returns shell that records with `options` for `seconds` into /out/NAME.isotherm.
pub(super) fn record(name: &str, options: &str, seconds: u32) -> String {
    format!(
        "taskset $other_cpu isotherm record --json -o /out/{name}.isotherm --duration {seconds}s {options} >/out/{name}.json || \
         die recording {name} failed\n\
         is_well {name}\n"
    )
}

pub(super) const SLOW: &str =
    "--sample-interval 100ms --aggregation-interval 1s --update-interval 10s";

pub(super) fn truth(output: &VmOutput, file: &str) -> Result<Vec<Episode>> {
    truth::read(output.bytes(file)?).map_err(|e| VmError::Wrong(format!("{file}: {e}")))
}

/// Reads the items of the record `NAME.isotherm` that came back.
pub(super) fn items(output: &VmOutput, name: &str) -> Result<Vec<Item>> {
    let file = format!("{name}.isotherm");
    let wrong = |e: &dyn std::fmt::Display| VmError::Wrong(format!("{file}: {e}"));
    let reader = Reader::open(output.bytes(&file)?).map_err(|e| wrong(&e))?;
    let mut reader = reader.replay_pages();
    let items = reader.by_ref().collect::<Result<_, _>>();
    let items = items.map_err(|e| wrong(&e))?;
    match reader.truncated() {
        None => Ok(items),
        Some(cut) => Err(wrong(&cut)),
    }
}

pub(super) fn snapshots(output: &VmOutput, name: &str) -> Result<Vec<Snapshot>> {
    let of = |item: Item| match item {
        Item::Snapshot(snapshot) => Some(snapshot),
        _ => None,
    };
    Ok(items(output, name)?.into_iter().filter_map(of).collect())
}

pub(super) fn heading(report: &mut Report, title: &str) {
    report.say(format!(
        "{title:<34} precision  recall  (any access: prec.  recall)  regions  snapshots  unknown"
    ));
}

/// Scores snapshots, and adds a line of the table to the report. "Hot" is an access rate of at least a quarter. Fails if
/// fewer than three snapshots can be scored.
pub(super) fn row(
    report: &mut Report,
    name: &str,
    snapshots: &[Snapshot],
    truth: &[Episode],
) -> Result<Accuracy> {
    let a = score(snapshots, truth, WARM_UP);
    let (nr, all) = (a.snapshots, snapshots.len());
    ensure!(nr >= 3, "{name}: only {nr} of {all} snapshots are scored");
    let share = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
    report.say(format!(
        "{name:<34} {:>9} {:>7} {:>19} {:>7}  {:>7.0} {:>10} {:>7.1}%",
        share(a.quarter.precision()),
        share(a.quarter.recall()),
        share(a.any.precision()),
        share(a.any.recall()),
        a.regions_mean,
        a.snapshots,
        100.0 * a.unknown_share,
    ));
    Ok(a)
}

/// Fails unless both precision and recall reach `least`.
pub(super) fn require(name: &str, score: AccuracyScore, least: f64) -> Result<()> {
    let good = |value: Option<f64>| value.is_some_and(|v| v >= least);
    ensure!(
        good(score.precision()) && good(score.recall()),
        "{name}: precision and recall are to be at least {least}"
    );
    Ok(())
}
