//! Pictures: one character for each page, from page 1 on. Truth: `#` hot, `+` warm, `.` cold, blank
//! nothing known. Snapshot: `0`-`4` accesses seen of at most 4, `?` unknown, blank no region;
//! neighbouring equal characters are one region.

use isotherm_engine::{PAGE_SIZE, RegionSnapshot};

use super::*;
use crate::layout::{Heat, Temperature};

fn ranges(picture: &str, wanted: char) -> Vec<AddressRange> {
    let mut all: Vec<AddressRange> = Vec::new();
    for (page, c) in std::iter::zip(1u64.., picture.chars()) {
        let range = AddressRange::new(page * PAGE_SIZE, (page + 1) * PAGE_SIZE);
        match all.last_mut() {
            Some(last) if c == wanted && last.end == range.start => last.end = range.end,
            _ if c == wanted => all.push(range),
            _ => {}
        }
    }
    all
}

fn episode(start_ms: u64, end_ms: u64, truth: &str) -> Episode {
    let heat = |range| Heat {
        range,
        probability: 0.1,
    };
    Episode {
        phase: "p".into(),
        start: Nanos::from_millis(start_ms),
        end: Some(Nanos::from_millis(end_ms)),
        temperature: Temperature {
            hot: ranges(truth, '#').into_iter().map(heat).collect(),
            warm: ranges(truth, '+').into_iter().map(heat).collect(),
            cold: ranges(truth, '.'),
        },
        operations: 1,
    }
}

fn snapshot(start_ms: u64, end_ms: u64, seen: &str) -> Snapshot {
    let mut regions = Vec::new();
    for (character, accesses) in [
        ('0', Some(0.0)),
        ('1', Some(1.0)),
        ('2', Some(2.0)),
        ('3', Some(3.0)),
        ('4', Some(4.0)),
        ('?', None),
    ] {
        regions.extend(
            ranges(seen, character)
                .into_iter()
                .map(|range| RegionSnapshot::new(range, accesses)),
        );
    }
    regions.sort_by_key(|region| region.range.start);
    Snapshot {
        start: Nanos::from_millis(start_ms),
        end: Nanos::from_millis(end_ms),
        nr_samples: 4,
        regions,
        ..Snapshot::default()
    }
}

/// `expected`: precision and recall at any access, at a quarter, top-k, working-set error; in per
/// cent, `-` where undefined.
fn check(truth: &str, seen: &str, expected: &str) {
    let accuracy = score(
        &[snapshot(100, 200, seen)],
        &[episode(0, 1000, truth)],
        WarmUp::default(),
    );
    let percent = |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.0}", v * 100.0));
    let found = [
        accuracy.any.precision(),
        accuracy.any.recall(),
        accuracy.quarter.precision(),
        accuracy.quarter.recall(),
        accuracy.top_k,
        accuracy.wss_error,
    ]
    .map(percent)
    .join(" ");
    assert_eq!(found, expected, "truth {truth:?} seen {seen:?}");
}

#[test]
fn a_perfect_monitor_is_perfect() {
    check("..##..", "004400", "100 100 100 100 100 0");
    check("..##..", "001100", "100 100 100 100 100 0");
}

#[test]
fn a_blind_monitor_finds_nothing() {
    check("..##..", "000000", "- 0 - 0 0 -100");
    check("..##..", "??????", "- 0 - 0 0 -100");
    check("..##..", "      ", "- 0 - 0 0 -100");
}

#[test]
fn one_region_over_all_is_right_by_chance_only() {
    check(".##.....", "44444444", "25 100 25 100 25 300");
}

#[test]
fn ranks_matter_to_top_k_and_nothing_else() {
    check("##..", "4411", "50 100 50 100 100 100");
    check("##..", "1144", "50 100 50 100 0 100");
    check("##..", "3444", "50 100 50 100 33 100");
}

#[test]
fn memory_that_is_not_the_workloads_is_not_scored() {
    check("  ##.. ", "4444004", "100 100 100 100 100 0");
}

#[test]
fn warm_memory_is_judged_at_the_higher_threshold_only() {
    check("##++", "4411", "100 100 50 100 100 0");
    check("##++", "4400", "100 100 100 100 100 0");
}

#[test]
fn snapshots_that_cross_a_phase_are_left_out() {
    let episodes = [episode(0, 1000, "##.."), episode(1000, 2000, "..##")];
    let snapshots = [
        snapshot(0, 400, "4400"),
        snapshot(800, 1200, "4444"),
        snapshot(1200, 1600, "0044"),
        snapshot(1900, 2100, "4444"),
    ];
    let accuracy = score(&snapshots, &episodes, WarmUp::default());
    // The second snapshot crosses into the next phase, where it is not evenly spread either. The last one ends after
    // the truth does.
    assert_eq!(accuracy.snapshots, 2);
    assert_eq!(accuracy.any.precision(), Some(1.0));
    assert_eq!(accuracy.any.recall(), Some(1.0));
}

#[test]
fn lag_counts_from_the_phase_or_the_record_whichever_is_later() {
    let episodes = [
        episode(0, 10_000, "##.."),
        episode(10_000, 20_000, "..##"),
        episode(20_000, 30_000, "#..."),
        episode(30_000, 30_500, ".#.."),
    ];
    let snapshots = [
        snapshot(5000, 5400, "2222"),
        snapshot(5400, 5800, "4400"),
        snapshot(10_200, 10_600, "0044"),
        snapshot(20_000, 21_000, "0044"),
        snapshot(22_000, 23_000, "0044"),
        snapshot(30_000, 30_400, "0044"),
    ];
    let accuracy = score(&snapshots, &episodes, WarmUp::default());
    let millis: Vec<Option<i64>> = accuracy
        .detection_lags
        .iter()
        .map(|lag| lag.map(|seconds| (seconds * 1000.0).round() as i64))
        .collect();
    // The last phase was monitored too briefly to count.
    assert_eq!(millis, [Some(800), Some(600), None]);
    assert_eq!(accuracy.detection_lag(), Some(0.8));
}

#[test]
fn settling_leaves_early_snapshots_out() {
    let episodes = [episode(0, 10_000, "##..")];
    let snapshots = [snapshot(0, 400, "4444"), snapshot(2000, 2400, "4400")];
    let warm_up = WarmUp {
        record: Nanos::from_millis(1000),
        phase: Nanos(0),
    };
    let accuracy = score(&snapshots, &episodes, warm_up);
    assert_eq!(
        (accuracy.snapshots, accuracy.any.precision()),
        (1, Some(1.0))
    );
}

#[test]
fn unknown_memory_is_counted_as_such() {
    let accuracy = score(
        &[snapshot(0, 100, "4??0")],
        &[episode(0, 1000, "##..")],
        WarmUp::default(),
    );
    assert!((accuracy.unknown_share - 0.5).abs() < 1e-9);
    assert_eq!(accuracy.any.recall(), Some(0.5));
}

#[test]
fn what_scans_saw_is_truth_for_what_they_knew() {
    let scans = [
        snapshot(0, 100, "44400? "),
        snapshot(100, 200, "40040? "),
        snapshot(200, 300, "44000? "),
    ];
    let seen = observed(&scans);
    let picture: String = (1..8)
        .map(|page| {
            let at = |heats: &[Heat]| heats.iter().any(|h| h.range.contains(page * PAGE_SIZE));
            let cold = seen
                .temperature
                .cold
                .iter()
                .any(|r| r.contains(page * PAGE_SIZE));
            match (at(&seen.temperature.hot), at(&seen.temperature.warm), cold) {
                (true, false, false) => '#',
                (false, true, false) => '+',
                (false, false, true) => '.',
                _ => ' ',
            }
        })
        .collect();
    assert_eq!(picture, "##++.  ");
    let again = score(&scans[..1], &[seen], WarmUp::default());
    assert_eq!(again.any.recall(), Some(1.0));
    assert_eq!(again.quarter.precision(), Some(2.0 / 3.0));
}
