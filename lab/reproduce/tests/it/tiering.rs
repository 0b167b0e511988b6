//! The published tiering experiments in small.

use isotherm_engine::Nanos;
use isotherm_reproduce::experiment::redis::reads;
use isotherm_reproduce::experiment::tiering::{KeyDistribution, TieringSetting, run};

/// A hundredth of the published setting: 5 GiB and 2 GiB; redis has 0.5 GiB and a snapshot of 0.3.
fn small(cold_gib: u64) -> TieringSetting {
    TieringSetting {
        fast_mib: 6 << 10,
        slow_mib: 2 << 10,
        system_mib: 1 << 10,
        cold_mib: cold_gib << 10,
        anon_mib: 538,
        file_mib: 330,
        records: 300_000,
        reads_per_s: 83_333.0,
        fill: Nanos::from_millis(60_000),
        load: Nanos::from_millis(60_000),
        run: Nanos::from_millis(600_000),
        all_slow: 0.2,
        seed: 1,
    }
}

#[test]
fn with_room_everything_is_fast() {
    let setting = small(2);
    let reads = reads(&setting, KeyDistribution::Zipfian);
    let outcome = run(&setting, Vec::new(), &reads);
    assert!(
        outcome.slow_share.abs() < 1e-9 && outcome.slow_gib.abs() < 1e-9,
        "{outcome:?}"
    );
}

#[test]
fn without_room_what_comes_last_is_slow_and_stays() {
    let setting = small(5);
    for distribution in [KeyDistribution::Zipfian, KeyDistribution::Latest] {
        let reads = reads(&setting, distribution);
        let outcome = run(&setting, Vec::new(), &reads);
        assert!((outcome.slow_gib - 0.525).abs() < 0.02, "{outcome:?}");
        assert!((outcome.slow_share - 1.0).abs() < 1e-6, "{outcome:?}");
    }
}
