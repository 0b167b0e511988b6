//! The limit that binds: why schemes do not act on more memory, or faster.

use serde::{Deserialize, Serialize};

use super::Context;
use crate::address::Nanos;
use crate::guard::Pool;

/// The limit that binds the schemes of a context now. Where several would, it is the first of this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BoundBy {
    /// Acting is paused.
    Paused,
    /// Watermarks deactivate every scheme.
    Watermarks,
    /// The goal is reached.
    Goal,
    /// The guard has stopped the schemes.
    Guard,
    /// The bytes that the guard allows for this second are used up.
    Rate,
    /// The CPU budget of acting is used up.
    CpuBudget,
    /// Acting goes on, in steps of at most 50 ms.
    Speed,
    /// The quota of a scheme is used up.
    Quota,
    /// No further memory matches the schemes.
    Memory,
}

impl BoundBy {
    /// All values, in their order.
    pub const ALL: [Self; 9] = [
        Self::Paused,
        Self::Watermarks,
        Self::Goal,
        Self::Guard,
        Self::Rate,
        Self::CpuBudget,
        Self::Speed,
        Self::Quota,
        Self::Memory,
    ];

    /// Returns its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Watermarks => "watermarks",
            Self::Goal => "goal",
            Self::Guard => "guard",
            Self::Rate => "rate",
            Self::CpuBudget => "cpu_budget",
            Self::Speed => "speed",
            Self::Quota => "quota",
            Self::Memory => "memory",
        }
    }
}

impl Context {
    /// Returns the limit that binds its schemes now. `room` is the time that acting may take now.
    pub fn bound_by(&self, room: Nanos) -> BoundBy {
        if self.schemes.is_paused() {
            return BoundBy::Paused;
        }
        if self.schemes.is_idle() {
            return BoundBy::Watermarks;
        }
        if self.guard.has_reached_goal() {
            return BoundBy::Goal;
        }
        let is_pending = |pool: &Pool| !self.queues[*pool as usize].pending.is_empty();
        match Pool::ALL.into_iter().find(is_pending) {
            Some(pool) if self.guard.has_stopped(pool) => BoundBy::Guard,
            Some(pool) if self.guard.allowance(pool) == Some(0) => BoundBy::Rate,
            Some(_) if room == Nanos(0) => BoundBy::CpuBudget,
            Some(_) => BoundBy::Speed,
            None if self.schemes.has_used_up_quota() => BoundBy::Quota,
            None => BoundBy::Memory,
        }
    }
}
