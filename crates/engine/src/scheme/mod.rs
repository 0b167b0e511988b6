//! Operation schemes: what to do with memory of which access pattern.
//!
//! The model is DAMOS's, the kernel's DAMON-based operation schemes
//! (`Documentation/mm/damon/design.rst`, `mm/damon/core.c`), with its names. `pattern`, `action`,
//! `quota`, `filter` and `watermark` hold what a user says; `engine` what follows from it: read it
//! first.

pub mod action;
pub mod charge;
pub mod check;
pub mod engine;
pub mod facts;
pub mod filter;
pub mod goal;
pub mod huge;
pub mod pattern;
pub mod priority;
pub mod quota;
pub mod stats;
pub mod watermark;

mod pages;
mod walk;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::address::Nanos;

pub use action::{Action, Destination, Effect, Order};
pub use charge::QuotaState;
pub use check::{SchemeError, SchemeFault};
pub use engine::{SchemeEngine, SchemeStatus};
pub use facts::{LruMemory, Metric, NodeMemory, SystemFacts};
pub use filter::{Filter, FilterKind, OpsFilter};
pub use goal::GoalState;
pub use pattern::{AccessPattern, Age, Bounds, Frequency};
pub use quota::{FailCharge, Goal, GoalMetric, Quota, Tuner, Weights};
pub use stats::{Stats, TriedRegion};
pub use watermark::{WatermarkMetric, Watermarks};

/// What to do with memory of an access pattern, how much of it, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Scheme {
    /// Which memory.
    pub pattern: AccessPattern,
    /// What to do with it.
    pub action: Action,
    /// Where `migrate_hot` and `migrate_cold` move it; several with weights share it out.
    pub destinations: Vec<Destination>,
    /// Shortest time between two applications; zero is every aggregation interval.
    pub apply_interval: Nanos,
    /// How much of it at most.
    pub quota: Quota,
    /// Under which state of the system; `None` always.
    pub watermarks: Option<Watermarks>,
    /// Which memory of that pattern is left alone, or alone is meant; the first match decides.
    pub filters: Vec<Filter>,
    /// Stops after it was applied to this many snapshots; 0 is no limit.
    pub max_nr_snapshots: u64,
}

impl Scheme {
    /// `action` for memory of `pattern`, without a limit or filter.
    pub fn new(pattern: AccessPattern, action: Action) -> Self {
        Self {
            pattern,
            action,
            destinations: Vec::new(),
            apply_interval: Nanos(0),
            quota: Quota::default(),
            watermarks: None,
            filters: Vec::new(),
            max_nr_snapshots: 0,
        }
    }

    /// Whether it is about memory that is not accessed.
    pub fn is_idle_only(&self) -> bool {
        self.pattern.nr_accesses.max.samples(1) <= 0.0
    }

    /// Time that memory must be idle before the scheme acts; `None` for schemes about hot memory, or without such a time.
    pub fn idle_for(&self) -> Option<Nanos> {
        let is_hot = matches!(self.action, Action::Hugepage | Action::MigrateHot);
        match self.pattern.age.min {
            Age::Time(age) if !is_hot && age > Nanos(0) => Some(age),
            _ => None,
        }
    }
}
