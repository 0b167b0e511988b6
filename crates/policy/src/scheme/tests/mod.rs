//! Tests of schemes, in pictures: `[0,4)=9@3` is pages 0 to 3 with nine accesses of twenty, for three intervals of a
//! second; `?` is unknown. Several targets are separated by `|`. A plan's operations are ranges of pages. Those of
//! later schemes have `#1` and so on before them; those of later targets follow a `|` each.

mod commit;
mod filters;
mod pages;
mod pattern;
mod quota;
mod timing;

use std::fmt::Write;

use super::*;
use crate::port::{Operation, Outcome};
use crate::test_pictures::{of_ranges, parts_of};
use isotherm_engine::address::{AddressRange, PAGE_SIZE};
use isotherm_engine::snapshot::{RegionSnapshot, Snapshot, TargetId};

const SECOND: Nanos = Nanos::from_millis(1000);

/// Returns the snapshots of a picture, over the second that ends at `now` seconds.
fn snapshots_of(picture: &str, now: u64) -> Vec<Snapshot> {
    let targets = picture.split('|').zip(0..);
    let times = (Nanos((now - 1) * SECOND.0), Nanos(now * SECOND.0));
    let snapshot_of = |(regions, target)| {
        let regions = parts_of(regions).map(snapshot).collect();
        Snapshot::new(TargetId(target), times, 20, regions)
    };
    targets.map(snapshot_of).collect()
}

fn snapshot((range, nr_accesses, age): (AddressRange, Option<u32>, u32)) -> RegionSnapshot {
    let region = RegionSnapshot::new(range, nr_accesses.map(|nr| nr as f32));
    region.aged(age, Nanos(u64::from(age) * SECOND.0))
}

fn of_operations(operations: &[Operation]) -> String {
    let mut text = String::new();
    let mut target = TargetId(0);
    for operation in operations {
        while target < operation.target {
            target.0 += 1;
            text.push_str(" |");
        }
        let range = of_ranges(&[operation.range]);
        match operation.scheme {
            0 => write!(text, " {range}"),
            index => write!(text, " #{index}{range}"),
        }
        .expect("text");
    }
    text.trim_start().to_owned()
}

/// An engine, and the seconds that have passed for it.
struct Bench {
    engine: SchemeEngine,
    now: u64,
    system: SystemFacts,
    /// Outcome of an operation.
    outcome: fn(&Operation) -> Outcome,
}

impl Bench {
    fn new(schemes: &[Scheme]) -> Self {
        Self {
            engine: SchemeEngine::new(schemes.to_vec()).expect("good schemes"),
            now: 0,
            system: SystemFacts::default(),
            outcome: Outcome::assumed,
        }
    }

    /// Advances by a second, with memory as in `picture`, and checks that `wanted` is done.
    #[track_caller]
    fn check(&mut self, picture: &str, wanted: &str) -> &mut Self {
        let operations = self.plan(picture);
        let done = of_operations(&operations);
        assert_eq!(done, wanted, "from {picture} after {} s", self.now);
        let outcomes: Vec<_> = operations.iter().map(self.outcome).collect();
        self.engine.done(&operations, &outcomes);
        self
    }

    fn plan(&mut self, picture: &str) -> Vec<Operation> {
        self.now += 1;
        let snapshots = snapshots_of(picture, self.now);
        let now = Nanos(self.now * SECOND.0);
        self.engine.plan(now, &snapshots, &self.system)
    }

    /// Feeds a value to the first goal.
    fn set_goal_value(&mut self, current: u64) {
        self.engine.states[0].scheme.quota.goals[0].current_value = current;
    }

    fn stats(&self) -> &Stats {
        self.engine.stats(0).expect("a scheme")
    }

    fn quota(&self) -> QuotaState {
        self.engine.status().next().expect("a scheme").quota.clone()
    }
}

/// Checks that `schemes` do `wanted` once, with memory as in `picture`.
#[track_caller]
fn check(schemes: &[Scheme], picture: &str, wanted: &str) {
    Bench::new(schemes).check(picture, wanted);
}

fn everything(action: Action) -> Scheme {
    Scheme::new(AccessPattern::ANY, action)
}

/// Returns a scheme with `action` for idle memory.
fn idle(action: Action) -> Scheme {
    let mut scheme = everything(action);
    scheme.pattern.nr_accesses.max = Frequency::Samples(0);
    scheme
}

fn pages(nr: u64) -> u64 {
    nr * PAGE_SIZE
}

fn range(start: u64, end: u64) -> AddressRange {
    AddressRange::new(pages(start), pages(end))
}

/// Returns [`everything`] with a quota of `nr_pages` pages in each `reset_interval`.
fn limited(action: Action, nr_pages: u64, reset_interval: Nanos) -> Scheme {
    let mut scheme = everything(action);
    scheme.quota.bytes = pages(nr_pages);
    scheme.quota.reset_interval = reset_interval;
    scheme
}

fn goal(metric: GoalMetric, target_value: u64) -> Goal {
    Goal {
        metric,
        target_value,
        current_value: 0,
        complement: false,
    }
}

/// Returns watermarks that are checked every second.
fn watermarks(high_permil: u32, mid_permil: u32, low_permil: u32) -> Watermarks {
    Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: SECOND,
        high_permil,
        mid_permil,
        low_permil,
    }
}
