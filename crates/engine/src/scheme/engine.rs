//! The schemes engine: what is accessed in, what to do out.
//!
//! Problem: users say what is to be done with memory of which access pattern, how much of it at most
//! and when ([`Scheme`]). With every snapshot it must follow from that which ranges are acted on now.
//!
//! Approach: DAMOS's, step by step (`kdamond_apply_schemes` in the kernel's `mm/damon/core.c`, as
//! of 6.18 and the development tree after it). With each call of [`SchemeEngine::plan`]: schemes that rest by their
//! watermarks, and those whose apply interval has not passed, are left out; the others' quotas are
//! brought up to date ([`super::charge`], [`super::goal`]) and, where not all memory fits, the least
//! priority that does is found ([`super::priority`]); then every region is walked once, in address
//! order, with all schemes in their order (`walk.rs`). The driver carries the plan out and reports
//! with [`SchemeEngine::done`], which charges quotas, counts, and says whose age begins anew.
//!
//! A dry run is the same plan: its driver reports [`crate::Outcome::assumed`] instead of acting.
//!
//! Limits: a plan is for one aggregation interval of all targets together. Schemes are applied when
//! snapshots come: an apply interval is rounded up to the next of them. What is planned must be
//! reported before the next plan, or it counts as not done.
//!
//! What the kernel does otherwise, beside what [`super::charge`], [`super::goal`],
//! [`super::filter`], [`super::watermark`] and `walk.rs` say of themselves:
//! - after a window whose quota was used up it also skips one more page, and all that is left of the
//!   target's last region: here nothing is skipped that has not had its turn;
//! - where an address filter divides a region, it charges and counts the whole region: here only the
//!   part that is acted on;
//! - it has whole numbers of accesses: here 0.5 is neither idle nor at least one access.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Serialize;

use super::charge::{Charge, QuotaState};
use super::check::{SchemeError, check};
use super::facts::{Metric, SystemFacts, metrics_of};
use super::filter::FilterSet;
use super::goal::GoalState;
use super::priority::{self, Histogram};
use super::stats::{Stats, TriedRegion};
use super::watermark::WatermarkState;
use super::{AccessPattern, Action, Destination, GoalMetric, Order, Scheme, pages, walk};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::port::{Operation, Outcome};
use crate::snapshot::{RegionSnapshot, Snapshot, TargetId};

/// Decides what is done with which memory.
///
/// ```text
/// let mut engine = SchemeEngine::new(schemes)?;
/// let plan = engine.plan(now, &snapshots, &facts);
/// // Execute its operations; there is an outcome for each.
/// engine.done(&plan, &outcomes);
/// ```
///
/// `tests/it/examples.rs` runs this.
#[derive(Clone, Debug)]
pub struct SchemeEngine {
    states: Vec<State>,
    is_paused: bool,
}

/// A scheme and all that has become of it.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) scheme: Scheme,
    pub(super) filters: FilterSet,
    /// Where to, if it moves memory.
    pub(super) destinations: Arc<[Destination]>,
    pub(super) stats: Stats,
    pub(super) charge: Charge,
    watermark: WatermarkState,
    /// When it is to be applied next; `None` before its first snapshot, or without an interval.
    next_apply: Option<Nanos>,
    pub(super) tried: Vec<TriedRegion>,
    /// Outcomes of `tried` before this one are known, as they come in its order.
    nr_accounted: usize,
}

/// How a scheme stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeStatus<'a> {
    /// What it does, as configured.
    pub action: Action,
    /// Which memory it is about, as configured.
    pub pattern: &'a AccessPattern,
    /// Whether its watermarks let it work.
    pub is_active: bool,
    /// Whether it was applied to as many snapshots as it was made for.
    pub is_finished: bool,
    /// When it is to be applied next; `None`: with the next snapshot.
    pub next_apply: Option<Nanos>,
    /// When its watermarks are looked at next; `None` without watermarks, or before the first look.
    pub next_check: Option<Nanos>,
    /// What its quota allows, and what is used of it.
    pub quota: &'a QuotaState,
    /// What it has done.
    pub stats: &'a Stats,
}

impl SchemeEngine {
    /// An engine for `schemes`; their order is that in which they see each region.
    pub fn new(schemes: Vec<Scheme>) -> Result<Self, SchemeError> {
        check(&schemes)?;
        Ok(Self {
            states: schemes.into_iter().map(State::new).collect(),
            is_paused: false,
        })
    }

    /// What is to be done, after `snapshots`: those of all targets over one aggregation interval, in
    /// an order that stays the same. Each operation lies within one region, or names pages of one block,
    /// and is in whole pages.
    ///
    /// A region that one scheme acts on (other than by `stat`) has age 0 for the schemes after it.
    pub fn plan(
        &mut self,
        now: Nanos,
        snapshots: &[Snapshot],
        system: &SystemFacts,
    ) -> Vec<Operation> {
        self.check_watermarks(now, system);
        let Some(began) = snapshots.iter().map(|snapshot| snapshot.start).min() else {
            return Vec::new();
        };
        if self.is_paused {
            return Vec::new();
        }
        let mut live = Vec::new();
        for (index, state) in self.states.iter_mut().enumerate() {
            let is_due = state.take_turn(now, began);
            if is_due && state.watermark.is_open && !state.is_finished() {
                if state.scheme.action.is_reclaim() {
                    state.filters.leave_alone(&system.left_alone);
                }
                state.begin(index, now, snapshots, system);
                live.push((index, state));
            }
        }
        if live.is_empty() {
            return Vec::new();
        }
        let mut planned = Vec::new();
        for snapshot in snapshots {
            let asked = system.asked(snapshot.target);
            walk::walk(snapshot, asked, &mut live, &mut planned);
        }
        coldest_first(&mut planned, system);
        let planned = planned.into_iter();
        let take = |(operation, tried): (Operation, TriedRegion)| {
            self.states[operation.scheme].tried.push(tried);
            operation
        };
        planned.map(take).collect()
    }

    /// Takes in what became of planned `operations`: all of the last plan, or those that were carried
    /// out, in the plan's order, with one outcome for each. Returns the memory whose age begins anew.
    ///
    /// # Panics
    /// If there are not as many outcomes as operations.
    pub fn done(
        &mut self,
        operations: &[Operation],
        outcomes: &[Outcome],
    ) -> Vec<(TargetId, AddressRange)> {
        assert_eq!(operations.len(), outcomes.len(), "an outcome for each");
        let mut renewed: Vec<(TargetId, AddressRange)> = Vec::new();
        for (operation, outcome) in operations.iter().zip(outcomes) {
            // The schemes may have been exchanged in the meantime.
            if let Some(state) = self.states.get_mut(operation.scheme) {
                state.account(operation, outcome);
            }
            if operation.action == Action::Stat {
                continue;
            }
            for AddressRange { start, end } in operation.stretches() {
                match renewed.last_mut() {
                    Some((target, last))
                        if *target == operation.target
                            && last.start <= start
                            && start <= last.end =>
                    {
                        last.end = last.end.max(end);
                    }
                    _ => renewed.push((operation.target, AddressRange::new(start, end))),
                }
            }
        }
        renewed
    }

    /// Looks at the watermarks that it is time for. [`SchemeEngine::plan`] does it as well; while the
    /// engine [is idle](SchemeEngine::is_idle), and nothing is monitored, only this does.
    pub fn check_watermarks(&mut self, now: Nanos, system: &SystemFacts) {
        for state in &mut self.states {
            if let Some(marks) = &state.scheme.watermarks {
                state.watermark.update(marks, now, system);
            }
        }
    }

    /// Whether every scheme rests by its watermarks: nothing needs to be monitored until
    /// [`SchemeEngine::next_check`].
    pub fn is_idle(&self) -> bool {
        !self.states.is_empty() && self.states.iter().all(|state| !state.watermark.is_open)
    }

    /// When watermarks are to be looked at next; `None` where no scheme has been looked at yet.
    pub fn next_check(&self) -> Option<Nanos> {
        let next = |state: &State| state.watermark.next_check;
        self.states.iter().filter_map(next).min()
    }

    /// What a plan at `now` needs to know of the system: sorted, each once.
    pub fn wanted_metrics(&self, now: Nanos) -> Vec<Metric> {
        let is_checked = |state: &State| state.watermark.is_due(now);
        let is_tuned = |state: &State| state.charge.is_window_over(&state.scheme.quota, now);
        self.metrics_where(is_checked, is_tuned)
    }

    /// What plans will need to know of the system at one time or another: sorted, each once.
    pub fn metrics(&self) -> Vec<Metric> {
        self.metrics_where(|_| true, |_| true)
    }

    fn metrics_where(
        &self,
        is_checked: impl Fn(&State) -> bool,
        is_tuned: impl Fn(&State) -> bool,
    ) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for (index, state) in self.states.iter().enumerate() {
            if state.scheme.watermarks.is_some() && is_checked(state) {
                metrics.push(Metric::FreeMem);
            }
            if is_tuned(state) {
                let goals = &state.scheme.quota.goals;
                metrics.extend(goals.iter().flat_map(|goal| metrics_of(goal, index)));
            }
        }
        metrics.sort_unstable();
        metrics.dedup();
        metrics
    }

    /// Memory that has the access pattern of a scheme, whatever its filters and quota say: what
    /// `node_eligible_mem_bp` is a share of, as in the kernel.
    pub fn matching<'a>(
        &'a self,
        scheme: usize,
        snapshots: &'a [Snapshot],
    ) -> impl Iterator<Item = (TargetId, AddressRange)> + 'a {
        let state = self.states.get(scheme);
        snapshots.iter().flat_map(move |snapshot| {
            let pattern = state.map(|s| s.scheme.pattern.for_samples(snapshot.nr_samples));
            let matches = move |region: &&_| pattern.is_some_and(|p| p.matches(region));
            let regions = snapshot.regions.iter().filter(matches);
            regions.map(|region| (snapshot.target, region.range))
        })
    }

    /// The schemes, with the goals' current values that were set since.
    pub fn schemes(&self) -> impl ExactSizeIterator<Item = &Scheme> {
        self.states.iter().map(|state| &state.scheme)
    }

    /// What a scheme has done; `None` if there is no such scheme.
    pub fn stats(&self, scheme: usize) -> Option<&Stats> {
        self.states.get(scheme).map(|state| &state.stats)
    }

    /// What a scheme's last application tried, in the order of addresses.
    pub fn tried_regions(&self, scheme: usize) -> &[TriedRegion] {
        self.states.get(scheme).map_or(&[], |state| &state.tried)
    }

    /// How each scheme stands.
    pub fn status(&self) -> impl ExactSizeIterator<Item = SchemeStatus<'_>> {
        self.states.iter().map(|state| SchemeStatus {
            action: state.scheme.action,
            pattern: &state.scheme.pattern,
            is_active: state.watermark.is_open,
            is_finished: state.is_finished(),
            next_apply: state.next_apply,
            next_check: state.watermark.next_check,
            quota: &state.charge.state,
            stats: &state.stats,
        })
    }

    /// Exchanges the schemes while running. As in the kernel's commit, each new one takes the place
    /// of the old one with the same index, with its statistics, what it has used of its quota and
    /// whether it rests; what is left over begins anew or ends. A new quota applies at once, where
    /// the kernel waits for its next window. On an error everything stays as it is.
    pub fn set_schemes(&mut self, schemes: Vec<Scheme>) -> Result<(), SchemeError> {
        check(&schemes)?;
        self.states.truncate(schemes.len());
        for (index, scheme) in schemes.into_iter().enumerate() {
            match self.states.get_mut(index) {
                Some(state) => state.adopt(scheme),
                None => self.states.push(State::new(scheme)),
            }
        }
        Ok(())
    }

    /// Feeds in what a `user_input` goal came to. Says whether there is such a goal.
    #[must_use = "there may be no such goal"]
    pub fn set_goal_value(&mut self, scheme: usize, goal: usize, current_value: u64) -> bool {
        let goals = self
            .states
            .get_mut(scheme)
            .map(|s| &mut s.scheme.quota.goals);
        match goals.and_then(|goals| goals.get_mut(goal)) {
            Some(goal) if goal.metric == GoalMetric::UserInput => {
                goal.current_value = current_value;
                true
            }
            _ => false,
        }
    }

    /// Stops planning, or goes on. Windows and intervals go on in the meantime.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether planning is stopped.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }
}

/// Puts last what is about idle memory that is worth waiting for: single pages, and all that is to be paged out; of it,
/// what has been idle for longest comes first, whosever it is. If the guard stops before all is done, it was spent on
/// what is least likely to come back. Times are told apart as up to twice each other; of one time what can be paged out in whole
/// blocks of 2 MiB comes before what is scattered, which takes several times as long a page, and that from its target
/// (`isotherm_linux::act`): what may be lost buys more memory so.
///
/// Of a target of which much came back lately an age says less than of others ([`SystemFacts::age_counts`]).
fn coldest_first(planned: &mut [(Operation, TriedRegion)], system: &SystemFacts) {
    let age = |operation: &Operation| {
        let counts = operation.age.as_secs_f64() * system.age_counts(operation.target);
        let counts = counts as u64;
        Reverse(counts.checked_ilog2())
    };
    planned.sort_by_cached_key(|(operation, _)| {
        let is_paged_out = operation.action == Action::Pageout && operation.idle_only;
        let is_sorted = is_paged_out || operation.pages.is_some();
        let is_scattered = operation.pages.is_some() || operation.range.len() < BLOCK_SIZE;
        (
            is_paged_out,
            is_sorted.then(|| (age(operation), is_scattered)),
        )
    });
}

/// Where a scheme moves memory, if it does.
fn destinations_of(scheme: &Scheme) -> Arc<[Destination]> {
    if scheme.action.migrates() {
        scheme.destinations.as_slice().into()
    } else {
        Arc::default()
    }
}

impl State {
    fn new(scheme: Scheme) -> Self {
        Self {
            filters: FilterSet::new(&scheme.filters),
            destinations: destinations_of(&scheme),
            scheme,
            stats: Stats::default(),
            charge: Charge::default(),
            watermark: WatermarkState::OPEN,
            next_apply: None,
            tried: Vec::new(),
            nr_accounted: 0,
        }
    }

    fn adopt(&mut self, scheme: Scheme) {
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

    /// Whether it is to be applied now; if so, sets the next time. Times lie on a grid that begins
    /// with the first snapshot, so that late snapshots do not add up to fewer applications.
    fn take_turn(&mut self, now: Nanos, began: Nanos) -> bool {
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

    /// Prepares for a walk of `snapshots`.
    fn begin(&mut self, index: usize, now: Nanos, snapshots: &[Snapshot], system: &SystemFacts) {
        self.tried.clear();
        self.nr_accounted = 0;
        let is_exceeded = self.charge.roll(&self.scheme.quota, index, now, system);
        self.stats.qt_exceeds += u64::from(is_exceeded);
        if let Some((target, _)) = self.charge.resume() {
            let is_there = |s: &Snapshot| s.target == target && walk::last_region(s).is_some();
            if !snapshots.iter().any(is_there) {
                self.charge.forget_resume();
            }
        }
        self.charge.state.min_score = match self.charge.state.effective {
            Some(quota) if quota > 0 && self.scheme.action.order() != Order::Equal => {
                self.scores(snapshots).least_that_fits(quota)
            }
            _ => 0,
        };
    }

    fn scores(&self, snapshots: &[Snapshot]) -> Histogram {
        let Scheme {
            pattern,
            action,
            quota,
            ..
        } = &self.scheme;
        let mut histogram = Histogram::new();
        for snapshot in snapshots {
            let nr_samples = snapshot.nr_samples;
            let pattern = pattern.for_samples(nr_samples);
            for region in &snapshot.regions {
                let mut add = |region: &RegionSnapshot| {
                    let score = priority::score(*action, region, nr_samples, quota.weights);
                    let passed = self.filters.passed(snapshot.target, region.range);
                    histogram.add(score, walk::memory_in(*action, region, passed));
                };
                if pattern.matches(region) {
                    add(region);
                } else {
                    let interval = pages::interval_of(snapshot);
                    let of = (&self.scheme, &pattern);
                    pages::idle_parts(&snapshot.idle_pages, interval, region.range, of)
                        .for_each(|part| add(&part.region));
                }
            }
        }
        histogram
    }

    fn account(&mut self, operation: &Operation, outcome: &Outcome) {
        let bytes = operation.bytes;
        self.stats.count(operation, outcome);
        let fail_charge = self.scheme.quota.fail_charge;
        self.charge
            .charge_reserved(fail_charge, bytes, outcome.applied, outcome.took);
        let is_it = |tried: &TriedRegion| {
            (tried.target, tried.range) == (operation.target, operation.range)
        };
        if let Some(at) = self.tried[self.nr_accounted..].iter().position(is_it) {
            let at = self.nr_accounted + at;
            self.tried[at].sz_filter_passed = Some(outcome.filter_passed);
            self.nr_accounted = at + 1;
        }
    }
}
