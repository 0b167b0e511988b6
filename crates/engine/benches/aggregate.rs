//! How long one aggregation of 100,000 regions takes: merge, snapshot, split, deal, sample.
//!
//! The goal is 10 ms. The engine is put into a state of about 100,000 regions (hot and cold ones in
//! turn, so that they stay apart), then the one tick that aggregates is measured on a copy.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use isotherm_engine::{
    AddressRange, Attributes, Engine, Facts, Layout, Nanos, PAGE_SIZE, Sample, Strategy, TargetId,
    Touch,
};

const NR_REGIONS: u64 = 100_000;
const REGION: u64 = 64 * PAGE_SIZE;

fn touch(sample: &Sample) -> Touch {
    let hot = (sample.address / REGION).is_multiple_of(2);
    let accessed = if hot { sample.nr_pages } else { 0 };
    Touch::Seen {
        observed: sample.nr_pages,
        accessed,
    }
}

/// An engine one tick before its next aggregation, and the answers to its last samples.
fn prepared(strategy: Strategy) -> (Engine, Vec<Touch>, Nanos) {
    let attributes = Attributes {
        min_nr_regions: NR_REGIONS as u32,
        max_nr_regions: 2 * NR_REGIONS as u32,
        strategy,
        ..Attributes::faithful()
    };
    let mut engine = Engine::new(attributes).expect("valid attributes");
    let layout = Layout::Fixed(vec![AddressRange::new(0, NR_REGIONS * REGION)]);
    let mut layouts = vec![(TargetId(0), layout)];
    let (mut touches, mut now) = (Vec::new(), Nanos(0));
    for _ in 0..=engine.nr_samples() * 3 - 1 {
        let layouts = std::mem::take(&mut layouts);
        let plan = engine.tick(
            now,
            Facts {
                touches: &touches,
                layouts,
                ..Facts::default()
            },
        );
        touches = plan.samples.iter().map(touch).collect();
        now = plan.next_tick;
    }
    (engine, touches, now)
}

fn aggregate(criterion: &mut Criterion) {
    for (name, strategy) in [
        ("faithful", Strategy::faithful()),
        ("default", Strategy::default()),
    ] {
        let (engine, touches, now) = prepared(strategy);
        let mut probe = engine.clone();
        let plan = probe.tick(
            now,
            Facts {
                touches: &touches,
                ..Facts::default()
            },
        );
        let nr_shown = plan
            .snapshots
            .iter()
            .map(|s| s.regions.len())
            .sum::<usize>();
        assert!(
            nr_shown >= NR_REGIONS as usize / 2,
            "only {nr_shown} regions to aggregate"
        );
        let name = format!(
            "{name}, {nr_shown} regions shown, {} after",
            probe.nr_regions()
        );
        criterion.bench_function(&name, |bencher| {
            bencher.iter_batched_ref(
                || engine.clone(),
                |engine| {
                    let facts = Facts {
                        touches: &touches,
                        ..Facts::default()
                    };
                    black_box(engine.tick(now, facts).snapshots.len());
                },
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group!(benches, aggregate);
criterion_main!(benches);
