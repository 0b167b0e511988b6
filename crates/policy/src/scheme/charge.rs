//! Use of a scheme's quota, and the place where the next window continues.
//!
//! Problem: a quota is for a window of time. Memory that does not fit into one window must come first in the next.
//! Otherwise the memory at the lowest addresses would always be acted on, and the rest never.
//!
//! Approach: DAMON's (`damos_adjust_quota`, `damos_set_effective_quota`, `damos_charge_quota` and
//! `damos_skip_charged_region` in `mm/damon/core.c`). The time, the bytes and the goals each give a number of bytes;
//! the least of them is the *effective* quota of the window. Time is converted to bytes by the throughput so far,
//! initially 4 MiB in a millisecond. Where a window's quota is used up, the place is kept, and the next window starts
//! there.
//!
//! Bytes are *reserved* when they are planned and *charged* when their outcome is known. The kernel knows the outcome
//! before it visits the next region; a plan does not. A reduced charge for failures thus frees quota for the window's
//! next plan instead of the same one.
//!
//! Difference from the kernel: the rest of a quota may be less than a page (as in most that goals tune). The kernel
//! then neither counts the quota as exceeded nor keeps the place; here both are done.

use serde::{Deserialize, Serialize};

use super::facts::SystemFacts;
use super::goal::{self, GoalState};
use super::quota::{FailCharge, Quota};
use isotherm_engine::address::{Nanos, PAGE_SIZE};
use isotherm_engine::snapshot::TargetId;

/// Bytes per millisecond before the first measurement: 1,024 pages.
const THROUGHPUT_START: u64 = 1024 * PAGE_SIZE;

/// The state of a scheme's quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaState {
    /// Bytes that the window may use; `None` without a limit, and before the first window. In DAMOS's `effective_bytes`
    /// 0 is no limit; here 0 is no memory.
    pub effective: Option<u64>,
    /// Used bytes of the quota, including those with an unknown outcome.
    pub charged: u64,
    /// Score below which regions must wait; see [`super::priority`].
    pub min_score: u32,
    /// Start of the window; `None` before the first.
    pub window_start: Option<Nanos>,
    /// State of each goal.
    pub goals: Vec<GoalState>,
}

/// A place in memory where a walk resumes.
pub(super) type Place = (TargetId, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Charge {
    pub(super) state: QuotaState,
    /// Charged bytes that are planned but not done yet.
    reserved: u64,
    /// Bytes that the goals allow, in ten-thousandths of a byte.
    goal_bp: u64,
    /// Bytes charged in all earlier windows.
    total_bytes: u64,
    total_time: Nanos,
    /// Place before which memory has had its turn; the next window resumes there.
    pub(super) resume: Option<Place>,
    /// First place in this window for which less than a page was left.
    stopped: Option<Place>,
}

impl Charge {
    /// Starts a new window if that is due. Returns whether the quota of the last one was used up.
    pub(super) fn roll(
        &mut self,
        quota: &Quota,
        scheme: usize,
        now: Nanos,
        facts: &SystemFacts,
    ) -> bool {
        // Operations that were planned but never reported count as not done.
        self.state.charged -= std::mem::take(&mut self.reserved);
        if !quota.is_limited() {
            self.lift();
            return false;
        }
        if !self.is_window_over(quota, now) {
            return false;
        }
        let was_exceeded =
            self.state.window_start.is_some() && (self.is_exhausted() || self.stopped.is_some());
        if self.resume.is_none() {
            self.resume = self.stopped;
        }
        self.stopped = None;
        self.state.window_start = Some(now);
        self.total_bytes = self.total_bytes.saturating_add(self.state.charged);
        self.state.charged = 0;
        if !quota.goals.is_empty() {
            let states = &mut self.state.goals;
            self.goal_bp = goal::tune(quota, scheme, facts, states, self.goal_bp);
        }
        self.set_effective(quota);
        was_exceeded
    }

    /// Returns whether a plan at `now` would start a new window.
    pub(super) fn is_window_over(&self, quota: &Quota, now: Nanos) -> bool {
        let is_over = |start| now.since(start) >= quota.reset_interval;
        quota.is_limited() && self.state.window_start.is_none_or(is_over)
    }

    /// Follows a changed quota within the window, without tuning. The kernel waits for the next window.
    pub(super) fn retune(&mut self, quota: &Quota) {
        let goals = &mut self.state.goals;
        goals.resize(quota.goals.len(), GoalState::default());
        if !quota.is_limited() {
            self.lift();
        } else if self.state.window_start.is_some() {
            self.set_effective(quota);
        }
    }

    fn lift(&mut self) {
        self.state = QuotaState {
            goals: std::mem::take(&mut self.state.goals),
            ..QuotaState::default()
        };
        (self.reserved, self.resume, self.stopped) = (0, None, None);
    }

    fn set_effective(&mut self, quota: &Quota) {
        let mut effective = u64::MAX;
        if !quota.goals.is_empty() {
            effective = self.goal_bp / 10_000;
        }
        if quota.time > Nanos(0) {
            effective = effective.min(self.bytes_in(quota.time).max(PAGE_SIZE));
        }
        if quota.bytes > 0 {
            effective = effective.min(quota.bytes);
        }
        self.state.effective = Some(effective);
    }

    /// Returns the bytes that can be acted on in `time`, by the measured throughput.
    fn bytes_in(&self, time: Nanos) -> u64 {
        let (bytes, per) = if self.total_time > Nanos(0) {
            (self.total_bytes, self.total_time)
        } else {
            (THROUGHPUT_START, Nanos::from_millis(1))
        };
        let bytes = u128::from(bytes) * u128::from(time.0) / u128::from(per.0);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.available().is_some_and(|left| left == 0)
    }

    /// Returns the bytes that the window has left; `None` without a limit.
    pub(super) fn available(&self) -> Option<u64> {
        let effective = self.state.effective?;
        Some(effective.saturating_sub(self.state.charged))
    }

    /// Takes `bytes` up to `end` from what is left.
    pub(super) fn reserve(&mut self, bytes: u64, end: Place) {
        if self.state.effective.is_none() {
            return;
        }
        self.state.charged += bytes;
        self.reserved += bytes;
        if self.is_exhausted() {
            self.resume = Some(end);
        }
    }

    /// Notes that less than a page was left for the memory at `place`.
    pub(super) fn stop_at(&mut self, place: Place) {
        self.stopped.get_or_insert(place);
    }

    /// Charges `bytes` that were reserved, by their outcome.
    pub(super) fn charge_reserved(
        &mut self,
        fail_charge: Option<FailCharge>,
        bytes: u64,
        applied: u64,
        took: Nanos,
    ) {
        self.total_time = self.total_time + took;
        if self.state.effective.is_none() {
            return;
        }
        let reserved = bytes.min(self.reserved);
        self.reserved -= reserved;
        let charge = charge_of(fail_charge, bytes, applied);
        self.state.charged = (self.state.charged - reserved).saturating_add(charge);
    }
}

fn charge_of(fail_charge: Option<FailCharge>, bytes: u64, applied: u64) -> u64 {
    match fail_charge {
        // An action may apply to more than was asked, as to a whole huge page.
        Some(FailCharge {
            numerator,
            denominator,
        }) if applied <= bytes => {
            let failed = u128::from(bytes - applied) * u128::from(numerator);
            let failed = failed / u128::from(denominator.max(1));
            applied.saturating_add(u64::try_from(failed).unwrap_or(u64::MAX))
        }
        _ => bytes,
    }
}
