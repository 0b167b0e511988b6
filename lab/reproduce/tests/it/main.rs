//! The published compaction experiments in small: properties that hold at any costs.

use isotherm_engine::Nanos;
use isotherm_policy::compaction::CompactionState;
use isotherm_reproduce::experiment::compaction::{
    CompactionOutcome, CompactionSetting, driver, java, unmovable,
};

fn small(proactiveness: u32) -> CompactionSetting {
    CompactionSetting {
        memory_mib: 12 << 10,
        frag_mib: 11 << 10,
        idle_time: Nanos::from_millis(5_000),
        ..CompactionSetting::published(proactiveness)
    }
}

fn percentile(outcome: &CompactionOutcome, percent: u32) -> f64 {
    let mut percentiles = outcome.latency_us.percentiles.iter();
    let found = percentiles.find(|(p, _)| *p == percent);
    found.expect("it is given").1
}

#[test]
fn proactive_compaction_has_huge_pages_ready() {
    let (vanilla, proactive) = (driver(&small(0)), driver(&small(20)));
    for outcome in [&vanilla, &proactive] {
        // It gets all of the free memory, except the remainders at the ends of three zones.
        let is_all = outcome.latency_us.count + 6 >= outcome.free_before;
        assert!(is_all, "{outcome:?}");
    }
    assert!(percentile(&vanilla, 25) > 300.0);
    assert!(percentile(&proactive, 25) < 10.0, "{proactive:?}");
    assert!(proactive.latency_us.mean < vanilla.latency_us.mean / 3.0);
    assert!(vanilla.threads.iter().all(|thread| thread.moved == 0));
}

#[test]
fn the_score_stays_between_the_thresholds_while_a_heap_grows() {
    let outcome = java(&small(20), 8);
    let of_node_0 = outcome.scores.iter().filter(|sample| sample.node == 0);
    // These samples are from before node 0 is full.
    let scores = of_node_0.map(|sample| sample.score);
    let scores: Vec<f64> = scores.skip(3).take(5).collect();
    let are_high = scores.iter().all(|score| (75.0..=100.0).contains(score));
    assert!(are_high, "{scores:?}");
    assert_eq!(outcome.latency_us.count, 8 * 512);
}

#[test]
fn what_cannot_be_moved_is_left_alone_for_longer_and_longer() {
    let outcome = unmovable(&small(40), Nanos::from_millis(600_000));
    for thread in outcome.threads {
        assert_eq!(thread.moved, 0);
        assert!(thread.status.nr_deferrals >= 15 && thread.status.nr_rounds <= 20);
        assert!(matches!(
            thread.status.state,
            CompactionState::Deferred { .. }
        ));
        assert!(thread.busy < Nanos::from_millis(1_000));
    }
}
