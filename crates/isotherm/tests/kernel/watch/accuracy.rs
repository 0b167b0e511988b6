//! Does a recording find hot memory?

use std::path::Path;

use isotherm_engine::Nanos;
use isotherm_workload::accuracy::{Accuracy, AccuracyScore, WarmUp, score};

use crate::common::{Record, Workload, alone, record_pid, scratch, static_workload, stop_once};

/// Snapshots of this time at the start are not scored. At least as much time follows it.
const SETTLED: Nanos = Nanos::from_millis(4_000);
const SNAPSHOTS_MIN: u64 = 3;

/// A mode of monitoring by its flags, the score that is tested, and the least precision and recall.
type Way = (&'static [&'static str], fn(&Accuracy) -> AccuracyScore, f64);

/// Hot memory is all accessed memory: for modes that know borders to the page.
const EXACT: fn(&Accuracy) -> AccuracyScore = |accuracy| accuracy.any;
/// Hot memory is accessed at least a quarter as often as the hottest. A sampled region straddles borders, and then
/// appears a little accessed as a whole.
const SAMPLED: fn(&Accuracy) -> AccuracyScore = |accuracy| accuracy.quarter;

const WAYS: [Way; 3] = [
    (&[], EXACT, 0.9),
    (&["--faithful"], SAMPLED, 0.8),
    (&["--pages"], EXACT, 0.9),
];

/// Returns whether a record has enough snapshots after the start.
fn is_enough(record: &Record) -> bool {
    let mut snapshots = record.snapshots();
    let (Some(first), Some(last)) = (snapshots.next(), snapshots.next_back()) else {
        return false;
    };
    let settled = first.start + SETTLED;
    let nr = record.snapshots().filter(|s| s.start >= settled).count();
    nr as u64 > SNAPSHOTS_MIN && last.end >= settled + SETTLED
}

/// Scores the later half of the snapshots, and returns the shortfall, if there is one.
fn shortfall(&(flags, hot, least): &Way, record: &Path, workload: &Workload) -> Option<String> {
    let record = Record::whole(record);
    let warm_up = WarmUp {
        record: SETTLED,
        ..WarmUp::default()
    };
    let accuracy = score(record.snapshots(), &workload.truth(), warm_up);
    let hot = hot(&accuracy);
    let (precision, recall) = (hot.precision(), hot.recall());
    let nr = accuracy.snapshots;
    eprintln!("{flags:?}: {nr} snapshots: precision {precision:.3?}, recall {recall:.3?}");
    let is_good = precision >= Some(least) && recall >= Some(least);
    (!is_good || nr < SNAPSHOTS_MIN).then(|| format!("{flags:?}: {accuracy:?}"))
}

/// Records 256 MiB, of which 32 MiB are hot, in all modes at once. A recorder clears accessed bits that the others have
/// yet to read, but the workload sets them again within milliseconds.
#[test]
fn each_way_of_watching_finds_what_is_hot() {
    let Some(_turn) = alone() else { return };
    let directory = scratch();
    let path = |nr: usize| directory.path().join(format!("record {nr}"));
    let workload = Workload::start(&static_workload(256, 16), &[]);
    let start = |(nr, way): (usize, &Way)| record_pid(workload.pid(), &path(nr), way.0);
    let recorders: Vec<_> = WAYS.iter().enumerate().map(start).collect();
    for (nr, recorder) in recorders.into_iter().enumerate() {
        stop_once("enough snapshots", recorder, &path(nr), is_enough);
    }
    let of = |(nr, way): (usize, &Way)| shortfall(way, &path(nr), &workload);
    let shortfalls: Vec<_> = WAYS.iter().enumerate().filter_map(of).collect();
    assert!(shortfalls.is_empty(), "{shortfalls:#?}");
}
