//! A scheme and its state: what it charged and counted.

use std::sync::Arc;

use super::charge::Charge;
use super::eligible::{last_region, memory_in};
use super::facts::SystemFacts;
use super::filter::{FilterSet, Verdict};
use super::goal::GoalState;
use super::pages::{idle_parts, interval_of};
use super::pattern::PatternForSamples;
use super::priority::{self, Histogram, SCORE_MAX};
use super::stats::Stats;
use super::watermark::WatermarkState;
use super::{Destination, Order, Scheme};
use crate::port::{Operation, Outcome};
use isotherm_engine::address::{AddressRange, Nanos};
use isotherm_engine::snapshot::{RegionSnapshot, Snapshot, TargetId};

#[derive(Clone, Debug)]
pub(super) struct State {
    /// Index of the scheme in the configuration.
    pub(super) index: usize,
    pub(super) scheme: Scheme,
    pub(super) filters: FilterSet,
    /// Destination nodes, if it moves memory.
    pub(super) destinations: Arc<[Destination]>,
    pub(super) stats: Stats,
    pub(super) charge: Charge,
    pub(super) watermark: WatermarkState,
    /// Time of its next application; `None` before its first snapshot, or without an interval.
    pub(super) next_apply: Option<Nanos>,
    /// Memory that matched at the last application, and that was left because it would be read back too soon.
    pub(super) withheld_bytes: u64,
}

fn destinations_of(scheme: &Scheme) -> Arc<[Destination]> {
    if scheme.action.migrates() {
        scheme.destinations.as_slice().into()
    } else {
        Arc::default()
    }
}

impl State {
    pub(super) fn new(index: usize, scheme: Scheme) -> Self {
        Self {
            index,
            filters: FilterSet::new(&scheme.filters),
            destinations: destinations_of(&scheme),
            scheme,
            stats: Stats::default(),
            charge: Charge::default(),
            watermark: WatermarkState::OPEN,
            next_apply: None,
            withheld_bytes: 0,
        }
    }

    pub(super) fn adopt(&mut self, scheme: Scheme) {
        self.filters = FilterSet::new(&scheme.filters);
        self.destinations = destinations_of(&scheme);
        if scheme.apply_interval != self.scheme.apply_interval {
            self.next_apply = None;
        }
        self.watermark.next_check = None;
        self.watermark.is_open |= scheme.watermarks.is_none();
        let goals = self.scheme.quota.goals.iter().zip(&scheme.quota.goals);
        for ((old, new), state) in goals.zip(&mut self.charge.state.goals) {
            if old.metric != new.metric {
                *state = GoalState::default();
            }
        }
        self.charge.retune(&scheme.quota);
        self.scheme = scheme;
    }

    /// Returns whether it should be applied now; if so, sets the next time. Times lie on a grid that begins with the
    /// first snapshot, so that late snapshots do not reduce the number of applications.
    pub(super) fn take_turn(&mut self, now: Nanos, began: Nanos) -> bool {
        let interval = self.scheme.apply_interval;
        if interval == Nanos(0) {
            return true;
        }
        let next = self.next_apply.get_or_insert(began + interval);
        if now < *next {
            return false;
        }
        let behind = now.since(*next).0 / interval.0 + 1;
        *next = *next + Nanos(behind.saturating_mul(interval.0));
        true
    }

    pub(super) fn is_finished(&self) -> bool {
        let limit = self.scheme.max_nr_snapshots;
        limit > 0 && self.stats.nr_snapshots >= limit
    }

    pub(super) fn begin(&mut self, now: Nanos, snapshots: &[Snapshot], system: &SystemFacts) {
        self.withheld_bytes = 0;
        let quota = &self.scheme.quota;
        let is_exceeded = self.charge.roll(quota, self.index, now, system);
        self.stats.qt_exceeds += u64::from(is_exceeded);
        if let Some((target, _)) = self.charge.resume {
            let is_there = |s: &Snapshot| s.target == target && last_region(s).is_some();
            if !snapshots.iter().any(is_there) {
                self.charge.resume = None;
            }
        }
        self.charge.state.min_score = match self.charge.state.effective {
            Some(quota) if quota > 0 && self.scheme.action.order() != Order::Equal => {
                priority::least_that_fits(&self.scores(snapshots), quota)
            }
            _ => 0,
        };
    }

    fn scores(&self, snapshots: &[Snapshot]) -> Histogram {
        let (action, weights) = (self.scheme.action, self.scheme.quota.weights);
        let mut histogram: Histogram = [0; SCORE_MAX as usize + 1];
        for snapshot in snapshots {
            let nr_samples = snapshot.nr_samples;
            let pattern = self.scheme.pattern.for_samples(nr_samples);
            self.each_match(snapshot, &pattern, |region, bytes| {
                let score = priority::score(action, region, nr_samples, weights);
                let sum = &mut histogram[score as usize];
                *sum = sum.saturating_add(bytes);
            });
        }
        histogram
    }

    /// Counts the memory of a target that matches the pattern `wide`, and not `narrow`, which asks for more age.
    pub(super) fn withhold(
        &mut self,
        snapshot: &Snapshot,
        [wide, narrow]: [&PatternForSamples; 2],
    ) {
        let [all, old_enough] = [wide, narrow].map(|pattern| {
            let mut sum = 0_u64;
            self.each_match(snapshot, pattern, |_, bytes| {
                sum = sum.saturating_add(bytes);
            });
            sum
        });
        self.withheld_bytes += all.saturating_sub(old_enough);
    }

    /// Passes to `take` the regions, and the idle pages of other regions, that match `pattern`, each with its memory.
    fn each_match(
        &self,
        snapshot: &Snapshot,
        pattern: &PatternForSamples,
        mut take: impl FnMut(&RegionSnapshot, u64),
    ) {
        let interval = interval_of(snapshot);
        let mut pass = |region: &RegionSnapshot| {
            let passed = self.filters.passed(snapshot.target, region.range);
            take(region, memory_in(self.scheme.action, region, passed));
        };
        for region in &snapshot.regions {
            if pattern.matches(region) {
                pass(region);
                continue;
            }
            let of = (&self.scheme, pattern);
            let parts = idle_parts(&snapshot.idle_pages, interval, region.range, of);
            parts.for_each(|part| pass(&part.region));
        }
    }

    pub(super) fn account(&mut self, operation: &Operation, outcome: &Outcome) {
        let bytes = operation.bytes;
        self.stats.count(operation, outcome);
        let fail_charge = self.scheme.quota.fail_charge;
        self.charge
            .charge_reserved(fail_charge, bytes, outcome.applied, outcome.took);
    }

    /// Returns the operation on a range of a target; `verdict` is of the scheme's filters.
    pub(super) fn operation(
        &self,
        target: TargetId,
        range: AddressRange,
        verdict: Verdict,
    ) -> Operation {
        let mut operation = Operation {
            scheme: self.index,
            destinations: Arc::clone(&self.destinations),
            idle_only: self.scheme.is_idle_only(),
            ..Operation::on(self.scheme.action, target, range)
        };
        if verdict == Verdict::Ask {
            operation.filters = Arc::clone(&self.filters.ops);
            operation.pass_unmatched = self.filters.ops_pass_unmatched;
        }
        operation
    }
}
