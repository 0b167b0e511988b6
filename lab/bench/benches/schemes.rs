//! Duration of planning four schemes for 100,000 regions, and of applying the results. The goal is a few milliseconds:
//! a plan is made at every aggregation.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, RegionSnapshot, Snapshot};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Destination, Filter, FilterKind, Frequency, SchemeEngine,
    SystemFacts,
};
use isotherm_policy::{Outcome, Scheme};

const NR_REGIONS: u64 = 100_000;
const REGION: u64 = 64 * PAGE_SIZE;
const INTERVAL: Nanos = Nanos::from_millis(100);

/// Returns memory of which a tenth is hot, a tenth is warm, and the rest has been idle for up to 100 s.
fn memory() -> Snapshot {
    let region = |index: u64| {
        let nr_accesses = [20.0, 3.0].get((index % 10) as usize).copied();
        let age = (index * 7919 % 1000) as u32;
        let range = AddressRange::new(index * REGION, (index + 1) * REGION);
        let region = RegionSnapshot::new(range, nr_accesses.or(Some(0.0)));
        region.aged(age, Nanos(u64::from(age) * INTERVAL.0))
    };
    Snapshot {
        end: INTERVAL,
        nr_samples: 20,
        regions: (0..NR_REGIONS).map(region).collect(),
        ..Snapshot::default()
    }
}

fn scheme(action: Action, least: u32, most: u32, age: u64) -> Scheme {
    let mut scheme = Scheme::new(AccessPattern::ANY, action);
    scheme.pattern.nr_accesses.min = Frequency::Samples(least);
    scheme.pattern.nr_accesses.max = Frequency::Samples(most);
    scheme.pattern.age.min = Age::Time(Nanos::from_millis(1000 * age));
    scheme.destinations = vec![Destination { node: 1, weight: 1 }];
    scheme
}

/// Returns the schemes of a tiering system, with quotas: each window is as long as an interval.
fn schemes(bytes: u64) -> Vec<Scheme> {
    let mut schemes = vec![
        scheme(Action::Pageout, 0, 0, 60),
        scheme(Action::MigrateCold, 0, 0, 30),
        scheme(Action::MigrateHot, 10, 20, 0),
        scheme(Action::Hugepage, 1, 20, 0),
    ];
    for scheme in &mut schemes {
        scheme.quota.bytes = bytes;
        scheme.quota.reset_interval = INTERVAL;
        scheme.quota.weights.nr_accesses_permil = 300;
        scheme.quota.weights.age_permil = 700;
        scheme.filters.push(Filter {
            kind: FilterKind::Addr(AddressRange::new(0, 1 << 20)),
            matching: true,
            allow: false,
        });
    }
    schemes
}

fn plan(c: &mut Criterion) {
    let snapshots = [memory()];
    let mut bench = |name: &str, bytes| {
        let mut engine = SchemeEngine::new(schemes(bytes)).expect("good schemes");
        let (mut now, mut nr_operations) = (INTERVAL, 0);
        c.bench_function(name, |b| {
            b.iter(|| {
                now = now + INTERVAL;
                let plan = engine.plan(now, black_box(&snapshots), &SystemFacts::default());
                let outcomes: Vec<_> = plan.iter().map(Outcome::assumed).collect();
                nr_operations = plan.len();
                black_box(engine.done(&plan, &outcomes))
            });
        });
        assert!(nr_operations > 0, "something is done");
    };
    bench("schemes/100000 regions, 4 schemes, 64 MiB each", 64 << 20);
    bench("schemes/100000 regions, 4 schemes, no limit", 0);
}

criterion_group!(benches, plan);
criterion_main!(benches);
