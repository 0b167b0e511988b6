//! How much of its quota a scheme has used, and where it goes on.
//!
//! Problem: a quota is for a window of time, and what does not fit into one must come first in the
//! next, or the memory at the lowest addresses would always be acted on and the rest never.
//!
//! Approach: DAMON's (`damos_adjust_quota`, `damos_set_effective_quota`, `damos_charge_quota` and
//! `damos_skip_charged_region` in `mm/damon/core.c`). The time, the bytes and the goals each give a
//! number of bytes; the least of them is the *effective* quota of the window. Time becomes bytes by
//! the throughput so far, 4 MiB in a millisecond to begin with. Where a window's quota is used up,
//! the place is kept, and the next window starts there.
//!
//! Bytes are *reserved* when they are planned and *charged* when their outcome is known: the kernel
//! knows the outcome before it goes on to the next region, a plan does not. So a failure that is
//! charged less makes room in the window's next plan instead of in the same one.
//!
//! What the kernel does otherwise: where the rest of a quota is less than a page (as in most that
//! goals tune) it neither counts the quota as exceeded nor keeps the place; here both are done.

use serde::{Deserialize, Serialize};

use super::facts::SystemFacts;
use super::goal::{self, GoalState};
use super::quota::{FailCharge, Quota};
use crate::address::{Nanos, PAGE_SIZE};
use crate::snapshot::TargetId;

/// Bytes per millisecond where nothing has been measured: 1,024 pages.
const THROUGHPUT_START: u64 = 1024 * PAGE_SIZE;

/// The state of a scheme's quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaState {
    /// Bytes that the window may use; `None` without a limit, and before the first window. DAMOS's
    /// `effective_bytes`, except that there 0 is no limit and here 0 is nothing.
    pub effective: Option<u64>,
    /// Bytes of it that are used, those included whose outcome is not known yet.
    pub charged: u64,
    /// Regions that score less than this have to wait; see [`super::priority`].
    pub min_score: u32,
    /// When the window began; `None` before the first.
    pub window_start: Option<Nanos>,
    /// What each goal came to.
    pub goals: Vec<GoalState>,
}

/// A place in memory, for going on from.
pub(super) type Place = (TargetId, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Charge {
    pub(super) state: QuotaState,
    /// Of what is charged, what was planned and is not done yet.
    reserved: u64,
    /// What the goals allow, in ten-thousandths of a byte.
    goal_bp: u64,
    /// Charged in all windows before this one.
    total_bytes: u64,
    total_time: Nanos,
    /// Memory before this place has had its turn.
    resume: Option<Place>,
    /// The first place in this window for which too little was left.
    stopped: Option<Place>,
}

impl Charge {
    /// Starts a new window if it is time to. Says whether the quota of the last one was used up.
    pub(super) fn roll(
        &mut self,
        quota: &Quota,
        scheme: usize,
        now: Nanos,
        facts: &SystemFacts,
    ) -> bool {
        // What was planned and never reported was not done.
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

    /// Whether a plan at `now` would start a new window.
    pub(super) fn is_window_over(&self, quota: &Quota, now: Nanos) -> bool {
        let is_over = |start| now.since(start) >= quota.reset_interval;
        quota.is_limited() && self.state.window_start.is_none_or(is_over)
    }

    /// Follows a changed quota within the window, without tuning. The kernel waits for the next.
    pub(super) fn retune(&mut self, quota: &Quota) {
        self.state
            .goals
            .resize(quota.goals.len(), GoalState::default());
        if !quota.is_limited() {
            self.lift();
        } else if self.state.window_start.is_some() {
            self.set_effective(quota);
        }
    }

    fn lift(&mut self) {
        self.state.effective = None;
        self.state.charged = 0;
        self.reserved = 0;
        self.state.min_score = 0;
        self.state.window_start = None;
        self.resume = None;
        self.stopped = None;
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

    /// Bytes that can be acted on in `time`, by what was measured so far.
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
        self.left().is_some_and(|left| left == 0)
    }

    /// Bytes that the window has left; `None` without a limit.
    pub(super) fn left(&self) -> Option<u64> {
        self.state
            .effective
            .map(|effective| effective.saturating_sub(self.state.charged))
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

    /// Notes that for the memory at `place` less than a page was left.
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

    /// From where on memory has its turn; `None` from the first.
    pub(super) fn resume(&self) -> Option<Place> {
        self.resume
    }

    pub(super) fn forget_resume(&mut self) {
        self.resume = None;
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
