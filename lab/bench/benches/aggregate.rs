//! Duration of the tick that aggregates 100,000 regions: merge, snapshot, split and choose the next samples. The goal
//! is 10 ms.
//!
//! Every other region is hot, so that tens of thousands remain separate after merging, and splitting them makes 100,000
//! again. The engine keeps running, as it would in a monitor; only its aggregating ticks are timed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use isotherm_engine::{
    AddressRange, Attributes, Engine, Facts, Nanos, PAGE_SIZE, Sample, TargetId, Touch,
};

const REGION: u64 = 1024 * PAGE_SIZE;

struct Run {
    engine: Engine,
    touches: Vec<Touch>,
    now: Nanos,
}

impl Run {
    fn new(nr_unlike: u64) -> Self {
        let attributes = Attributes {
            min_nr_regions: nr_unlike as u32,
            max_nr_regions: 2 * nr_unlike as u32,
            ..Attributes::default()
        };
        let engine = Engine::new(attributes).expect("valid attributes");
        let mut run = Self {
            engine,
            touches: Vec::new(),
            now: Nanos(0),
        };
        let ranges = vec![AddressRange::new(0, nr_unlike * REGION)];
        run.tick(vec![(TargetId(0), ranges)]);
        for _ in 0..3 {
            run.aggregate();
        }
        run
    }

    fn tick(&mut self, ranges: Vec<(TargetId, Vec<AddressRange>)>) -> (Duration, usize) {
        let facts = Facts {
            touches: &self.touches,
            ranges,
            ..Facts::default()
        };
        let start = Instant::now();
        let plan = black_box(self.engine.tick(self.now, facts));
        let elapsed = start.elapsed();
        self.touches.clear();
        self.touches.extend(plan.samples.iter().map(touch));
        self.now = plan.next_tick;
        (
            elapsed,
            plan.snapshots.iter().map(|s| s.regions.len()).sum(),
        )
    }

    /// Runs to the next aggregation; returns the duration of that tick and its number of regions.
    fn aggregate(&mut self) -> (Duration, usize) {
        loop {
            let (elapsed, nr_shown) = self.tick(Vec::new());
            if nr_shown > 0 {
                return (elapsed, nr_shown);
            }
        }
    }
}

fn touch(sample: &Sample) -> Touch {
    Touch::of((sample.address / REGION).is_multiple_of(2))
}

fn aggregate(criterion: &mut Criterion) {
    let mut run = Run::new(50_000);
    let before = run.engine.nr_regions();
    let (_, shown) = run.aggregate();
    let name = format!("{before} regions, merged to {shown}");
    criterion.bench_function(&name, |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| run.aggregate().0).sum());
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = aggregate
}
criterion_main!(benches);
