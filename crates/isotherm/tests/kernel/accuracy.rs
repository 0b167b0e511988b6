//! Does a recording find what is hot?

use isotherm_engine::Nanos;
use isotherm_workload::accuracy::{Accuracy, Score, WarmUp, score};
use nix::sys::signal::Signal;

use crate::common::{Record, Workload, alone, record_pid, scratch, static_workload, until};

/// What comes before is not scored; as much at least comes after.
const SETTLED: Nanos = Nanos::from_millis(4_000);
const SNAPSHOTS_MIN: u64 = 3;

/// Hot is what is accessed at all: for ways of watching that know borders to the page.
const EXACT: fn(&Accuracy) -> Score = |accuracy| accuracy.any;
/// Hot is what is accessed a quarter as often as the hottest: a region that is sampled here and
/// there straddles borders, and is then a little accessed as a whole.
const SAMPLED: fn(&Accuracy) -> Score = |accuracy| accuracy.quarter;

/// Records 256 MiB with 32 MiB hot, and scorers the later half of the snapshots.
fn check(test: &str, flags: &[&str], hot: fn(&Accuracy) -> Score, least: f64) {
    let Some(_turn) = alone(test) else { return };
    let directory = scratch();
    let path = directory.path().join("record");
    let workload = Workload::start(&static_workload(256, 16), &[]);
    let recorder = record_pid(workload.pid(), &path, flags);
    // Longer where the machine is so busy that there are too few to scorer.
    let enough = |record: &Record| {
        let first = record.snapshots().next()?.start;
        let warmed_up = record.snapshots().filter(|s| s.start >= first + SETTLED);
        let last = record.snapshots().next_back()?.end;
        (warmed_up.count() as u64 > SNAPSHOTS_MIN && last >= first + SETTLED + SETTLED)
            .then_some(())
    };
    until("enough snapshots", || enough(&Record::try_read(&path)?));
    recorder.signal(Signal::SIGINT);
    let done = recorder.finish().success();
    let record = Record::whole(&path);
    let warm_up = WarmUp {
        record: SETTLED,
        ..WarmUp::default()
    };
    let accuracy = score(record.snapshots(), &workload.truth(), warm_up);
    let (precision, recall) = (hot(&accuracy).precision(), hot(&accuracy).recall());
    eprintln!(
        "{test}: {} snapshots of {:.0} regions: precision {precision:.3?}, recall {recall:.3?}, {}",
        accuracy.snapshots, accuracy.regions_mean, done.stdout
    );
    assert!(accuracy.snapshots >= SNAPSHOTS_MIN, "too few to scorer");
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
    // At 1 % of a CPU a busy machine has too few snapshots to scorer.
    check(
        "the_improved_sampler_finds_what_is_hot",
        &["--strategy", "all", "--cpu-budget", "5%"],
        SAMPLED,
        0.8,
    );
}
