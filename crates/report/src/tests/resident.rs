//! Tests of the rule that only resident memory is hot, cold or idle, in every report and for any regions.

use crate::Accumulate;
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, RegionMemory, RegionSnapshot, Snapshot};
use proptest::prelude::*;

use crate::test_records::{header, snapshot_at};
use crate::{
    Access, AccessOptions, Footprint, Heatmap, HeatmapOptions, Idle, IdleOptions, Scope, Wss,
    WssOptions,
};
use isotherm_record::item::Item;

/// Generates regions one after the other with holes between them, each with possible memory.
fn regions() -> impl Strategy<Value = Vec<RegionSnapshot>> {
    let region = (
        1..100_u64,
        0..10_u64,
        proptest::array::uniform4(0.0..=1.0_f64),
        proptest::option::of(0..=10_u8),
        0..30_u64,
    );
    proptest::collection::vec(region, 1..20).prop_map(|parts| {
        let mut at = 0;
        let mut regions = Vec::new();
        for (pages, gap, shares, accesses, seconds) in parts {
            let range = AddressRange::new(at * PAGE_SIZE, (at + pages) * PAGE_SIZE);
            at += pages + gap;
            let share = |whole: u64, share: f64| (whole as f64 * share) as u64;
            let resident = share(range.len(), shares[0]);
            let is_accessed = accesses.is_some_and(|n| n > 0);
            let touched = share(resident, shares[1]) * u64::from(is_accessed);
            regions.push(RegionSnapshot {
                range,
                nr_accesses: accesses.map(f32::from),
                age: seconds as u32 * 10,
                age_ns: Nanos::from_millis(seconds * 1000),
                memory: Some(RegionMemory {
                    resident,
                    touched,
                    unknown: share(resident - touched, shares[2]),
                    swapped: share(range.len() - resident, shares[3]),
                }),
            });
        }
        regions
    })
}

fn snapshots() -> impl Strategy<Value = Vec<Snapshot>> {
    proptest::collection::vec((0..2_u32, regions()), 1..12).prop_map(|all| {
        let mut second = 0;
        let of = |(target, regions)| {
            second += 1;
            Snapshot {
                regions,
                ..snapshot_at(target, second * 1000, second * 1000 + 1000, "")
            }
        };
        all.into_iter().map(of).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn what_is_hot_or_idle_is_resident(snapshots in snapshots(), rate in proptest::option::of(0.0..1.0_f32)) {
        let header = header();
        let scope = Scope::default();
        let wss_options = WssOptions { min_rate: rate, ..WssOptions::default() };
        let mut wss = Wss::new(&header, scope, wss_options);
        let mut idle = Idle::new(&header, scope, IdleOptions::default());
        let mut access = Access::new(&header, scope, AccessOptions::default());
        let mut footprint = Footprint::new(&header, scope, rate);
        for snapshot in &snapshots {
            let item = Item::Snapshot(snapshot.clone());
            wss.push(&item);
            idle.push(&item);
            access.push(&item);
            footprint.push(&item);
        }
        for set in wss.finish().targets {
            let resident = set.resident_mean_bytes.expect("known");
            // Means are rounded.
            prop_assert!(set.mean_bytes + set.unknown_mean_bytes <= resident + 2);
            prop_assert!(resident + set.swapped_mean_bytes.expect("known") <= set.monitored_mean_bytes + 2);
        }
        let idle = idle.finish();
        for memory in idle.targets.iter().chain(&idle.total) {
            let resident = memory.resident_bytes.expect("known");
            prop_assert!(memory.accessed_bytes + memory.unknown_bytes <= resident);
            for bytes in memory.idle.iter().filter_map(|idle| idle.bytes) {
                prop_assert!(bytes + memory.accessed_bytes + memory.unknown_bytes <= resident);
            }
        }
        for table in access.finish().0 {
            let totals = table.totals;
            let sum = totals.hot_bytes + totals.cold_bytes + totals.idle_bytes + totals.unknown_bytes;
            prop_assert_eq!(Some(sum), totals.resident_bytes);
        }
        let footprint = footprint.finish();
        let metrics = || footprint.iter().flat_map(|of| &of.metrics);
        let most = |name| metrics().find(|m| m.name == name).map(|m| m.max_bytes);
        prop_assert!(most("working_set") <= most("resident"));
    }
}

fn region(pages: (u64, u64), accesses: f32, memory: [u64; 4]) -> RegionSnapshot {
    let [resident, touched, unknown, swapped] = memory.map(|pages| pages * PAGE_SIZE);
    RegionSnapshot {
        range: AddressRange::new(pages.0 * PAGE_SIZE, pages.1 * PAGE_SIZE),
        nr_accesses: Some(accesses),
        age: 600,
        age_ns: Nanos::from_millis(60_000),
        memory: Some(RegionMemory {
            resident,
            touched,
            unknown,
            swapped,
        }),
    }
}

fn sparse() -> Item {
    Item::Snapshot(Snapshot {
        regions: vec![
            region((0, 100), 5.0, [50, 10, 0, 0]),
            region((100, 200), 0.0, [20, 0, 5, 40]),
            region((300, 900), 0.0, [0, 0, 0, 600]),
        ],
        ..snapshot_at(0, 0, 1000, "")
    })
}

#[test]
fn the_rest_of_a_touched_region_is_not_idle_for_long() {
    let options = IdleOptions {
        at_least: [0, 900, 1000, 5000].map(Nanos::from_millis).to_vec(),
        ..IdleOptions::default()
    };
    let mut idle = Idle::new(&header(), Scope::default(), options);
    idle.push(&sparse());
    let memory = &idle.finish().targets[0];
    let pages = memory.idle.iter().map(|i| i.bytes.map(|b| b / PAGE_SIZE));
    let pages: Vec<Option<u64>> = pages.collect();
    assert_eq!(pages, [55, 55, 15, 15].map(Some));
    assert_eq!(memory.accessed_bytes / PAGE_SIZE, 10);
    assert_eq!(memory.swapped_bytes, Some(640 * PAGE_SIZE));
    assert_eq!(memory.monitored_bytes, 800 * PAGE_SIZE);
}

#[test]
fn swapped_out_memory_is_blank_in_the_heatmap() {
    let mut heatmap = Heatmap::new(&header(), Scope::default(), HeatmapOptions::default());
    heatmap.push(&sparse());
    let target = &heatmap.finish().targets[0];
    let bytes: u64 = target.rows.iter().map(|row| row.bytes).sum();
    assert_eq!(bytes, 200 * PAGE_SIZE);
}

#[test]
fn the_summary_and_a_comparison_are_of_memory() {
    let overview = |item: &Item| {
        let mut overviews = crate::Overviews::new(&header(), Scope::default());
        overviews.push(item);
        overviews.finish()
    };
    let summary = crate::SummaryReport::new(overview(&sparse()));
    assert_eq!(summary.reclaim.bytes, Some(15 * PAGE_SIZE));
    assert_eq!(
        summary.verdict,
        "target 0 uses 40 KiB of 280 KiB resident (14 %); 60 KiB (21 %) has been idle for 5 s or more"
    );
    let diff = crate::DiffReport::new(overview(&sparse()), overview(&sparse()));
    assert_eq!(diff.targets[0].a, diff.targets[0].b);
    assert!(diff.mappings.is_empty(), "nothing changed");
}

#[test]
fn a_guard_that_is_still_closed_counts_to_the_end_of_the_record() {
    use isotherm_policy::guard::{Guard, GuardLimits};
    use isotherm_record::item::{ActionSample, GuardSample};
    let limits = GuardLimits::of_slowdown(0.01);
    let mut actions = crate::Actions::new(&header(), Scope::default());
    for (second, is_open) in [true, false, true, false, false].into_iter().enumerate() {
        let time = crate::test_records::at(second as u64 * 1000);
        actions.push(&Item::Action(ActionSample {
            time,
            action: "pageout".into(),
            ..ActionSample::default()
        }));
        let mut status = Guard::new(limits).status();
        status.is_open = is_open;
        actions.push(&Item::Guard(GuardSample {
            time,
            context: None,
            status,
        }));
    }
    let report = actions.finish().expect("there were actions");
    let guard = &report.guards[0];
    assert_eq!(guard.closed_ns, Nanos::from_millis(2000));
    let stopped = guard.stopped.iter();
    let stopped = stopped.map(|of| of.to_ns.since(of.from_ns).0 / 1_000_000);
    assert!(stopped.eq([1000, 1000]));
}
