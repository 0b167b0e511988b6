//! Does a recording find what is hot?

use isotherm_engine::Nanos;
use isotherm_exercise::accuracy::{Accuracy, Score, Settle, judge};

use crate::common::{Record, Workload, alone, record_pid, scratch, static_workload};

const SECONDS: u64 = 8;

/// Hot is what is accessed at all: for ways of watching that know borders to the page.
const EXACT: fn(&Accuracy) -> Score = |accuracy| accuracy.any;
/// Hot is what is accessed a quarter as often as the hottest: a region that is sampled here and
/// there straddles borders, and is then a little accessed as a whole.
const SAMPLED: fn(&Accuracy) -> Score = |accuracy| accuracy.quarter;

/// Records 256 MiB with 32 MiB hot, and judges the later half of the snapshots.
fn check(test: &str, flags: &[&str], hot: fn(&Accuracy) -> Score, least: f64) {
    let Some(_turn) = alone(test) else { return };
    let directory = scratch();
    let path = directory.path().join("record");
    let workload = Workload::start(&static_workload(256, 16), &[]);
    let duration = format!("{SECONDS}s");
    let flags: Vec<&str> = flags
        .iter()
        .copied()
        .chain(["--duration", &duration])
        .collect();
    let done = record_pid(workload.pid(), &path, &flags).finish().success();
    let record = Record::whole(&path);
    let settle = Settle {
        record: Nanos::from_millis(SECONDS * 500),
        ..Settle::default()
    };
    let accuracy = judge(record.snapshots(), &workload.truth(), settle);
    let (precision, recall) = (hot(&accuracy).precision(), hot(&accuracy).recall());
    eprintln!(
        "{test}: {} snapshots of {:.0} regions: precision {precision:.3?}, recall {recall:.3?}, {}",
        accuracy.snapshots, accuracy.regions_mean, done.stdout
    );
    assert!(accuracy.snapshots >= 2, "too few to judge");
    assert!(
        precision >= Some(least) && recall >= Some(least),
        "{accuracy:?}"
    );
}

#[test]
fn the_default_finds_what_is_hot() {
    check("the_default_finds_what_is_hot", &[], EXACT, 0.9);
}

#[test]
fn faithful_finds_what_is_hot() {
    check("faithful_finds_what_is_hot", &["--faithful"], SAMPLED, 0.8);
}

#[test]
fn page_scans_find_what_is_hot() {
    check("page_scans_find_what_is_hot", &["--pages"], EXACT, 0.9);
}

#[test]
fn the_improved_sampler_finds_what_is_hot() {
    // At 1 % of a CPU a busy machine has too few snapshots to judge.
    check(
        "the_improved_sampler_finds_what_is_hot",
        &["--strategy", "all", "--cpu-budget", "5%"],
        SAMPLED,
        0.8,
    );
}
