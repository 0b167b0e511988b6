//! The schemes engine: takes accesses, and decides on operations.
//!
//! Problem: users configure actions for access patterns, their limits and their conditions ([`Scheme`]). With every
//! snapshot the engine must derive the ranges to act on now.
//!
//! Approach: DAMOS's, step by step (`kdamond_apply_schemes` in the kernel's `mm/damon/core.c`, as of 6.18 and the
//! development tree after it). Each call of [`SchemeEngine::plan`] leaves out schemes that are inactive by their
//! watermarks, and those whose apply interval has not passed. It updates the others' quotas ([`super::charge`],
//! [`super::goal`]). If not all memory fits, it finds the least priority that does ([`super::priority`]). Then every
//! region is walked once, in address order, with all schemes in their order (`walk.rs`). The driver executes the plan
//! and reports with [`SchemeEngine::done`], which charges quotas, counts, and returns the memory whose age restarts.
//!
//! A dry run uses the same plan: its driver reports [`crate::Outcome::assumed`] instead of acting.
//!
//! Limits: a plan is for one aggregation interval of all targets together. Schemes are applied when snapshots arrive:
//! an apply interval is rounded up to the next of them. An operation must be reported before the next plan, or it
//! counts as not done.
//!
//! Differences from the kernel, beside those that [`super::charge`], [`super::goal`], [`super::filter`],
//! [`super::watermark`] and `walk.rs` describe:
//! - after a window whose quota was used up the kernel also skips one more page, and the rest of the target's last
//!   region; here no memory is skipped that has not had its turn;
//! - where an address filter divides a region, the kernel charges and counts the whole region; here only the part that
//!   is acted on;
//! - the kernel has whole numbers of accesses; here 0.5 is neither idle nor at least one access;
//! - the kernel restarts the age of memory that was paged out; where refaults are predicted, it counts on.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::Serialize;

use super::charge::QuotaState;
use super::check::{SchemeError, check};
use super::facts::{Metric, SystemFacts, metrics_of};
use super::state::State;
use super::stats::Stats;
use super::{AccessPattern, Action, Scheme, walk};
use crate::port::{Operation, Outcome};
use isotherm_engine::address::{AddressRange, BLOCK_SIZE, Nanos};
use isotherm_engine::snapshot::{Snapshot, TargetId};

/// Decides on the actions for each range of memory.
///
/// ```text
/// let mut engine = SchemeEngine::new(schemes)?;
/// let plan = engine.plan(now, &snapshots, &facts);
/// // Execute its operations; there is an outcome for each.
/// engine.done(&plan, &outcomes);
/// ```
#[derive(Clone, Debug)]
pub struct SchemeEngine {
    pub(super) states: Vec<State>,
    is_paused: bool,
    /// Targets with a predicted least age of page-outs. The age of their memory counts on while it is out: when it comes
    /// back, it says how long it had been idle.
    predicted: BTreeSet<TargetId>,
}

/// State of a scheme.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeStatus<'a> {
    /// Configured action.
    pub action: Action,
    /// Configured access pattern.
    pub pattern: &'a AccessPattern,
    /// Whether its watermarks activate it.
    pub is_active: bool,
    /// Whether it has been applied to its maximum number of snapshots.
    pub is_finished: bool,
    /// Time of its next application; `None`: with the next snapshot.
    pub next_apply: Option<Nanos>,
    /// Time of its next check of watermarks; `None` without watermarks, or before the first check.
    pub next_check: Option<Nanos>,
    /// Bytes that match the pattern, and that the guard leaves for now: they would be read back too soon.
    pub withheld_bytes: u64,
    /// State of its quota.
    pub quota: &'a QuotaState,
    /// Statistics of the scheme.
    pub stats: &'a Stats,
}

impl SchemeEngine {
    /// Returns an engine for `schemes`; each region is offered to them in their order.
    pub fn new(schemes: Vec<Scheme>) -> Result<Self, SchemeError> {
        check(&schemes)?;
        let schemes = schemes.into_iter().enumerate();
        let states = schemes.map(|(index, scheme)| State::new(index, scheme));
        Ok(Self {
            states: states.collect(),
            is_paused: false,
            predicted: BTreeSet::new(),
        })
    }

    /// Returns the operations that follow from `snapshots`: those of all targets over one aggregation interval, in an
    /// order that stays the same. Each operation lies within one region, or names pages of one block, and consists of
    /// whole pages.
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
        for state in &mut self.states {
            if !state.watermark.is_open || state.is_finished() {
                state.withheld_bytes = 0;
            }
            let is_due = state.take_turn(now, began);
            if is_due && state.watermark.is_open && !state.is_finished() {
                if state.scheme.action.is_reclaim() {
                    state.filters.leave_alone(&system.left_alone);
                }
                state.begin(now, snapshots, system);
                live.push(state);
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
        self.predicted = system.out_age.keys().copied().collect();
        coldest_first(&mut planned);
        planned
    }

    /// Takes in the outcomes of planned `operations`: all of the last plan, or those that were executed. They are in
    /// the plan's order, with one outcome for each. Returns the memory whose age restarts.
    ///
    /// # Panics
    /// If the numbers of outcomes and operations differ.
    pub fn done(
        &mut self,
        operations: &[Operation],
        outcomes: &[Outcome],
    ) -> Vec<(TargetId, AddressRange)> {
        assert_eq!(operations.len(), outcomes.len(), "an outcome for each");
        let mut renewed: Vec<(TargetId, AddressRange)> = Vec::new();
        for (operation, outcome) in operations.iter().zip(outcomes) {
            // The schemes may have been replaced in the meantime.
            if let Some(state) = self.states.get_mut(operation.scheme) {
                state.account(operation, outcome);
            }
            // Restarting the age of a few pages that stayed is not worth forgetting that of all that went.
            let is_out = operation.action == Action::Pageout
                && outcome.applied >= operation.bytes / 2
                && self.predicted.contains(&operation.target);
            if operation.action == Action::Stat || is_out {
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

    /// Checks the watermarks that are due. [`SchemeEngine::plan`] does it as well. Nothing is planned while the engine
    /// [is idle](SchemeEngine::is_idle), so that its driver must call this.
    pub fn check_watermarks(&mut self, now: Nanos, system: &SystemFacts) {
        for state in &mut self.states {
            if let Some(marks) = &state.scheme.watermarks {
                state.watermark.update(marks, now, system);
            }
        }
    }

    /// Returns whether watermarks deactivate every scheme: no monitoring is needed until [`SchemeEngine::next_check`].
    pub fn is_idle(&self) -> bool {
        !self.states.is_empty() && self.states.iter().all(|state| !state.watermark.is_open)
    }

    /// Returns whether the quota of any active scheme is used up for now.
    pub fn has_used_up_quota(&self) -> bool {
        let is_used_up = |state: &State| state.watermark.is_open && state.charge.is_exhausted();
        self.states.iter().any(is_used_up)
    }

    /// Returns whether memory matches that would be read back too soon.
    pub fn withholds(&self) -> bool {
        self.states.iter().any(|state| state.withheld_bytes > 0)
    }

    /// Returns the time of the next check of watermarks; `None` if none was checked yet.
    pub fn next_check(&self) -> Option<Nanos> {
        let next = |state: &State| state.watermark.next_check;
        self.states.iter().filter_map(next).min()
    }

    /// Returns the metrics that a plan at `now` needs, sorted and without duplicates.
    pub fn wanted_metrics(&self, now: Nanos) -> Vec<Metric> {
        let is_checked = |state: &State| state.watermark.is_due(now);
        let is_tuned = |state: &State| state.charge.is_window_over(&state.scheme.quota, now);
        self.metrics_where(is_checked, is_tuned)
    }

    /// Returns the metrics that any plan will need, sorted and without duplicates.
    pub fn metrics(&self) -> Vec<Metric> {
        self.metrics_where(|_| true, |_| true)
    }

    fn metrics_where(
        &self,
        is_checked: impl Fn(&State) -> bool,
        is_tuned: impl Fn(&State) -> bool,
    ) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for state in &self.states {
            if state.scheme.watermarks.is_some() && is_checked(state) {
                metrics.push(Metric::FreeMem);
            }
            if is_tuned(state) {
                let goals = &state.scheme.quota.goals;
                metrics.extend(goals.iter().flat_map(|goal| metrics_of(goal, state.index)));
            }
        }
        metrics.sort_unstable();
        metrics.dedup();
        metrics
    }

    /// Returns the memory that matches a scheme's access pattern, regardless of its filters and quota.
    /// `node_eligible_mem_bp` is a share of it, as in the kernel.
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

    /// Returns the schemes, with the current values of their goals.
    pub fn schemes(&self) -> impl ExactSizeIterator<Item = &Scheme> {
        self.states.iter().map(|state| &state.scheme)
    }

    /// Returns a scheme's statistics; `None` if there is no such scheme.
    pub fn stats(&self, scheme: usize) -> Option<&Stats> {
        self.states.get(scheme).map(|state| &state.stats)
    }

    /// Returns the state of each scheme.
    pub fn status(&self) -> impl ExactSizeIterator<Item = SchemeStatus<'_>> {
        self.states.iter().map(|state| SchemeStatus {
            action: state.scheme.action,
            pattern: &state.scheme.pattern,
            is_active: state.watermark.is_open,
            is_finished: state.is_finished(),
            next_apply: state.next_apply,
            next_check: state.watermark.next_check,
            withheld_bytes: state.withheld_bytes,
            quota: &state.charge.state,
            stats: &state.stats,
        })
    }

    /// Replaces the schemes while running. As in the kernel's commit, each new one takes the place of the old one with
    /// the same index. It keeps that one's statistics, its charged quota and whether it is active. Additional schemes
    /// start anew, surplus ones end. A new quota applies at once, where the kernel waits for its next window. On an
    /// error everything stays as it is.
    pub fn set_schemes(&mut self, schemes: Vec<Scheme>) -> Result<(), SchemeError> {
        check(&schemes)?;
        self.states.truncate(schemes.len());
        for (index, scheme) in schemes.into_iter().enumerate() {
            match self.states.get_mut(index) {
                Some(state) => state.adopt(scheme),
                None => self.states.push(State::new(index, scheme)),
            }
        }
        Ok(())
    }

    /// Stops or resumes planning. Windows and intervals continue in the meantime.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Returns whether planning is stopped.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }
}

/// Moves the operations that benefit from order to the end: those on single idle pages, then page-outs of idle memory.
/// Among them, the memory of all targets that has been idle for longest comes first. If the guard stops before the
/// plan's end, the loss was spent on the memory that is least likely to be read back.
///
/// Ages are compared by powers of two. Within one class, page-outs of whole 2 MiB blocks come before scattered pages.
/// Those take several times as long a page, and that time from their target (`isotherm_linux::act`). Whole blocks thus
/// free more memory for the same loss.
fn coldest_first(planned: &mut [Operation]) {
    let age = |operation: &Operation| {
        let seconds = operation.age.as_secs_f64() as u64;
        Reverse(seconds.checked_ilog2())
    };
    planned.sort_by_cached_key(|operation| {
        let is_paged_out = operation.action == Action::Pageout && operation.idle_only;
        let is_sorted = is_paged_out || operation.pages.is_some();
        let is_scattered = operation.pages.is_some() || operation.range.len() < BLOCK_SIZE;
        (
            is_paged_out,
            is_sorted.then(|| (age(operation), is_scattered)),
        )
    });
}
