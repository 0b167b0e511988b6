//! Properties of arbitrary schemes on arbitrary memory.

use std::collections::BTreeMap;

use isotherm_engine::{
    AddressRange, Nanos, PAGE_SIZE, RegionMemory, RegionSnapshot, Snapshot, TargetId,
};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, Destination, FailCharge, Filter, FilterKind, Frequency,
    Goal, GoalMetric, OpsFilter, Quota, SchemeEngine, SystemFacts, Tuner, Weights,
};
use isotherm_policy::{Operation, Outcome, Scheme};
use proptest::prelude::*;

const SECOND: Nanos = Nanos::from_millis(1000);
const NR_SAMPLES: u32 = 20;

fn range_of_pages(start: u64, nr: u64) -> AddressRange {
    AddressRange::new(start * PAGE_SIZE, (start + nr) * PAGE_SIZE)
}

fn any_range() -> impl Strategy<Value = AddressRange> {
    (0..120_u64, 1..60_u64).prop_map(|(start, nr)| range_of_pages(start, nr))
}

fn bounds_of<T>(numbers: Bounds<u32>, of: impl Fn(u32) -> T) -> Bounds<T> {
    Bounds::new(of(numbers.min), of(numbers.max))
}

fn any_pattern() -> impl Strategy<Value = AccessPattern> {
    let bounds =
        |most: u32| (0..=most, 0..=most).prop_map(|(a, b)| Bounds::new(a.min(b), a.max(b)));
    (bounds(40), bounds(20), bounds(9)).prop_map(|(size, nr_accesses, age)| AccessPattern {
        size: bounds_of(size, |nr| u64::from(nr) * PAGE_SIZE),
        nr_accesses: bounds_of(nr_accesses, Frequency::Samples),
        age: bounds_of(age, Age::Intervals),
    })
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let kind = prop_oneof![
        4 => any_range().prop_map(FilterKind::Addr),
        2 => (0..3_u32).prop_map(|id| FilterKind::Target(TargetId(id))),
        1 => Just(FilterKind::Ops(OpsFilter::Anon)),
    ];
    (kind, any::<bool>(), any::<bool>()).prop_map(|(kind, matching, allow)| Filter {
        kind,
        matching,
        allow,
    })
}

fn any_quota() -> impl Strategy<Value = Quota> {
    let bytes = prop_oneof![
        Just(0),
        (1..80_u64).prop_map(|nr| nr * PAGE_SIZE),
        1..300_000_u64
    ];
    let goal = (1..100_u64, 0..150_u64).prop_map(|(target_value, current_value)| Goal {
        metric: GoalMetric::UserInput,
        target_value,
        current_value,
        complement: false,
    });
    let fail_charge = (0..3_u32, 1..3_u32).prop_map(|(numerator, denominator)| FailCharge {
        numerator,
        denominator,
    });
    (
        bytes,
        prop_oneof![3 => Just(0), 1 => 1..50_000_u64],
        0..4_u64,
        (0..3_u32, 0..3_u32),
        prop::option::weighted(0.2, goal),
        prop::sample::select(vec![Tuner::Consist, Tuner::Temporal]),
        prop::option::weighted(0.3, fail_charge),
    )
        .prop_map(
            |(bytes, time, seconds, weights, goal, tuner, fail_charge)| Quota {
                bytes,
                time: Nanos(time),
                reset_interval: Nanos(seconds * SECOND.0),
                weights: Weights {
                    size_permil: 1,
                    nr_accesses_permil: weights.0,
                    age_permil: weights.1,
                },
                goals: goal.into_iter().collect(),
                tuner,
                fail_charge,
            },
        )
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    let pattern = prop_oneof![Just(AccessPattern::ANY), any_pattern()];
    let action = prop::sample::select(Action::ALL.to_vec());
    let filters = prop::collection::vec(any_filter(), 0..4);
    (pattern, action, 0..3_u64, any_quota(), filters, 0..9_u64).prop_map(
        |(pattern, action, seconds, quota, filters, limit)| Scheme {
            apply_interval: Nanos(seconds * SECOND.0),
            destinations: vec![Destination { node: 0, weight: 1 }],
            quota,
            filters,
            max_nr_snapshots: limit.saturating_sub(4) * 5,
            ..Scheme::new(pattern, action)
        },
    )
}

/// Regions, each with the pages before it, its pages, its accesses (above 20: unknown) and its age.
type Memory = Vec<Vec<(u64, u64, u32, u32)>>;

fn any_memory() -> impl Strategy<Value = Memory> {
    let gap = prop_oneof![Just(0), 0..9_u64];
    let region = (gap, 1..30_u64, 0..23_u32, 0..10_u32);
    prop::collection::vec(prop::collection::vec(region, 0..9), 1..4)
}

fn snapshots_of(memory: &Memory, now: u64) -> Vec<Snapshot> {
    let snapshot_of = |(regions, target): (&Vec<(u64, u64, u32, u32)>, u32)| {
        let mut at = 0;
        let region_of = |&(gap, nr, nr_accesses, age): &(u64, u64, u32, u32)| {
            let range = range_of_pages(at + gap, nr);
            at += gap + nr;
            let nr_accesses = (nr_accesses <= NR_SAMPLES).then_some(nr_accesses as f32);
            let age_ns = Nanos(u64::from(age) * SECOND.0);
            RegionSnapshot::new(range, nr_accesses).aged(age, age_ns)
        };
        let times = (Nanos((now - 1) * SECOND.0), Nanos(now * SECOND.0));
        let regions = regions.iter().map(region_of).collect();
        Snapshot::new(TargetId(target), times, NR_SAMPLES, regions)
    };
    memory.iter().zip(0..).map(snapshot_of).collect()
}

/// Returns an outcome that applies to none, half or all of the bytes, by address.
fn outcome_of(operation: &Operation) -> Outcome {
    let mut outcome = Outcome::assumed(operation);
    outcome.took = Nanos(operation.range.start / PAGE_SIZE % 7 * 1000);
    match operation.range.start / PAGE_SIZE % 3 {
        0 => outcome.applied = 0,
        1 => outcome.applied /= 2,
        _ => (),
    }
    outcome
}

/// Returns a page's result of the filters, page by page: the definition that the engine is checked against.
fn is_allowed(filters: &[Filter], target: TargetId, address: u64) -> bool {
    let is_ops = |filter: &&Filter| matches!(filter.kind, FilterKind::Ops(_));
    for filter in filters {
        let is_so = match &filter.kind {
            FilterKind::Addr(range) => range.contains(address),
            FilterKind::Target(wanted) => *wanted == target,
            FilterKind::ProbeHits { .. } => false,
            FilterKind::Ops(_) => continue,
        };
        if is_so == filter.matching {
            return filter.allow;
        }
    }
    let last = filters.iter().rfind(|filter| !is_ops(filter));
    filters.iter().any(|filter| is_ops(&filter)) || last.is_none_or(|last| !last.allow)
}

fn check_place(
    operation: &Operation,
    scheme: &Scheme,
    snapshots: &[Snapshot],
) -> Result<(), TestCaseError> {
    let AddressRange { start, end } = operation.range;
    prop_assert!(start % PAGE_SIZE == 0 && end % PAGE_SIZE == 0);
    let snapshot = &snapshots[operation.target.0 as usize];
    let is_within = |region: &&RegionSnapshot| {
        region.range.intersection(operation.range) == Some(operation.range)
    };
    let region = snapshot.regions.iter().find(is_within);
    prop_assert!(region.is_some(), "{operation:?} is in no region");
    let region = region.expect("just asserted");
    // Earlier schemes may have divided the region, and restarted its age.
    let mut part = *region;
    part.range = operation.range;
    let mut pattern = scheme.pattern;
    pattern.size = AccessPattern::ANY.size;
    if operation.scheme > 0 {
        pattern.age = AccessPattern::ANY.age;
    }
    prop_assert!(pattern.matches(&part, NR_SAMPLES));
    prop_assert!(scheme.pattern.size.min <= region.range.len());
    for page in (start..end).step_by(PAGE_SIZE as usize) {
        let is_allowed = is_allowed(&scheme.filters, operation.target, page);
        prop_assert!(is_allowed, "{page:#x} of {operation:?} is filtered");
    }
    Ok(())
}

/// Checks that operations of a scheme are in the order of addresses and do not overlap.
fn check_apart(operations: &[Operation]) -> Result<(), TestCaseError> {
    let mut ends = BTreeMap::new();
    for operation in operations {
        let of = (operation.scheme, operation.target);
        let end = ends.entry(of).or_insert(0);
        prop_assert!(*end <= operation.range.start);
        *end = operation.range.end;
    }
    Ok(())
}

/// Returns the bytes that an operation is charged with: by default all of it, for any outcome.
fn charge(scheme: &Scheme, operation: &Operation, outcome: &Outcome) -> u64 {
    let bytes = operation.range.len();
    scheme.quota.fail_charge.map_or(bytes, |fail| {
        let failed = bytes - outcome.applied;
        outcome.applied + failed * u64::from(fail.numerator) / u64::from(fail.denominator)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn plans_keep_to_regions_filters_and_quotas(
        schemes in prop::collection::vec(any_scheme(), 1..5),
        memories in prop::collection::vec(any_memory(), 1..12),
    ) {
        let mut engine = SchemeEngine::new(schemes.clone()).expect("good schemes");
        // Bytes charged in each scheme's windows, by the start of the window.
        let mut charged: BTreeMap<(usize, Option<Nanos>), u64> = BTreeMap::new();
        for (memory, now) in memories.iter().zip(1..) {
            let snapshots = snapshots_of(memory, now);
            let facts = SystemFacts::default();
            let operations = engine.plan(Nanos(now * SECOND.0), &snapshots, &facts);
            check_apart(&operations)?;
            let outcomes: Vec<_> = operations.iter().map(outcome_of).collect();
            for (index, (status, scheme)) in engine.status().zip(&schemes).enumerate() {
                let of_scheme = |operation: &&Operation| operation.scheme == index;
                let planned: u64 = operations.iter().filter(of_scheme).map(|o| o.range.len()).sum();
                let limit = status.quota.effective.unwrap_or(u64::MAX);
                if planned > 0 && scheme.quota.is_limited() {
                    prop_assert!(limit < u64::MAX);
                    prop_assert!(scheme.quota.bytes == 0 || limit <= scheme.quota.bytes);
                }
                let sum = charged.entry((index, status.quota.window_start)).or_default();
                prop_assert!(planned == 0 || *sum + planned <= limit, "{sum} + {planned} of {limit}");
                for (operation, outcome) in operations.iter().zip(&outcomes) {
                    if operation.scheme == index {
                        check_place(operation, scheme, &snapshots)?;
                        *sum += charge(scheme, operation, outcome);
                    }
                }
            }
            engine.done(&operations, &outcomes);
        }
    }

    #[test]
    fn a_dry_run_plans_what_a_real_run_does(
        schemes in prop::collection::vec(any_scheme(), 1..5),
        memories in prop::collection::vec(any_memory(), 1..8),
    ) {
        // A real run in which everything succeeds, as a dry run assumes, is compared with a second one: all is
        // deterministic.
        let run = |outcome: fn(&Operation) -> Outcome| {
            let mut engine = SchemeEngine::new(schemes.clone()).expect("good schemes");
            let mut plans = Vec::new();
            for (memory, now) in memories.iter().zip(1..) {
                let snapshots = snapshots_of(memory, now);
                let facts = SystemFacts::default();
                let plan = engine.plan(Nanos(now * SECOND.0), &snapshots, &facts);
                let outcomes: Vec<_> = plan.iter().map(outcome).collect();
                engine.done(&plan, &outcomes);
                plans.push(plan);
            }
            let stats: Vec<_> = (0..schemes.len()).map(|i| engine.stats(i).cloned()).collect();
            (plans, stats)
        };
        let worked = |operation: &Operation| Outcome {
            filter_passed: operation.range.len(),
            applied: operation.range.len(),
            ..Outcome::default()
        };
        prop_assert_eq!(run(Outcome::assumed), run(worked));
        prop_assert_eq!(run(outcome_of), run(outcome_of));
    }

    #[test]
    fn counters_agree_with_what_was_reported(
        schemes in prop::collection::vec(any_scheme(), 1..4),
        memories in prop::collection::vec(any_memory(), 1..8),
    ) {
        let mut engine = SchemeEngine::new(schemes.clone()).expect("good schemes");
        let mut sums = vec![(0, 0, 0); schemes.len()];
        for (memory, now) in memories.iter().zip(1..) {
            let snapshots = snapshots_of(memory, now);
            let plan = engine.plan(Nanos(now * SECOND.0), &snapshots, &SystemFacts::default());
            let outcomes: Vec<_> = plan.iter().map(outcome_of).collect();
            let renewed = engine.done(&plan, &outcomes);
            for (operation, outcome) in plan.iter().zip(&outcomes) {
                let sum = &mut sums[operation.scheme];
                sum.0 += operation.range.len();
                sum.1 += outcome.applied;
                sum.2 += u64::from(outcome.applied > 0);
                let is_renewed = renewed.iter().any(|(target, range)| {
                    *target == operation.target
                        && range.intersection(operation.range) == Some(operation.range)
                });
                prop_assert!(is_renewed || operation.action == Action::Stat);
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            let stats = engine.stats(index).expect("a scheme");
            prop_assert_eq!((stats.sz_tried, stats.sz_applied, stats.nr_applied), *sum);
        }
    }
}

/// Sizes are sizes of memory. A region with little memory uses up little of a quota, and one without memory is not
/// acted on.
#[test]
fn quotas_and_counters_are_of_memory() {
    let region = |start: u64, end: u64, resident: u64| {
        let region = RegionSnapshot::new(range_of_pages(start, end - start), Some(0.0));
        let region = region.aged(9, Nanos::from_millis(9_000));
        region.holding(RegionMemory::resident(resident * PAGE_SIZE))
    };
    let regions = vec![
        region(0, 100, 10),
        region(200, 900, 0),
        region(1000, 1100, 50),
    ];
    let times = (Nanos(0), Nanos::from_millis(100));
    let snapshot = Snapshot::new(TargetId(0), times, 20, regions);
    let mut scheme = Scheme::new(AccessPattern::ANY, Action::Pageout);
    scheme.quota.bytes = 30 * PAGE_SIZE;
    scheme.quota.reset_interval = Nanos::from_millis(1_000);
    let mut engine = SchemeEngine::new(vec![scheme]).expect("a scheme");
    let plan = engine.plan(snapshot.end, &[snapshot], &SystemFacts::default());
    let pages = plan
        .iter()
        .map(|o| [o.range.start, o.range.end, o.bytes].map(|bytes| bytes / PAGE_SIZE));
    assert_eq!(pages.collect::<Vec<_>>(), [[0, 100, 10], [1000, 1040, 20]]);
    let outcomes: Vec<_> = plan.iter().map(Outcome::assumed).collect();
    engine.done(&plan, &outcomes);
    let stats = engine.stats(0).expect("a scheme");
    assert_eq!([stats.sz_tried, stats.sz_applied], [30 * PAGE_SIZE; 2]);
    let status = engine.status().next().expect("a scheme");
    assert_eq!(status.quota.charged, 30 * PAGE_SIZE);
}
