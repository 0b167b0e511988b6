//! Operation schemes: actions for memory with given access patterns.
//!
//! The model is DAMOS's, the kernel's DAMON-based operation schemes (`Documentation/mm/damon/design.rst`,
//! `mm/damon/core.c`), with its names. `pattern`, `action`, `quota`, `filter` and `watermark` hold the user's
//! configuration. `engine` executes it: read it first.

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

mod eligible;
mod pages;
mod state;
mod walk;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

pub use action::{Action, Destination, Effect, Order};
pub use charge::QuotaState;
pub use check::{SchemeError, SchemeFault};
pub use engine::{SchemeEngine, SchemeStatus};
pub use facts::{LruMemory, Metric, NodeUsage, SystemFacts};
pub use filter::{Filter, FilterKind, OpsFilter};
pub use goal::GoalState;
pub use pattern::{AccessPattern, Age, Bounds, Frequency};
pub use quota::{FailCharge, Goal, GoalMetric, Quota, Tuner, Weights};
pub use stats::Stats;
pub use watermark::{WatermarkMetric, Watermarks};

/// An action for memory with an access pattern, with its limits and conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Scheme {
    /// Access pattern of the memory.
    pub pattern: AccessPattern,
    /// Action on the memory.
    pub action: Action,
    /// Destination nodes of `migrate_hot` and `migrate_cold`; several with weights share the memory.
    pub destinations: Vec<Destination>,
    /// Shortest time between two applications; zero is every aggregation interval.
    pub apply_interval: Nanos,
    /// Limit on the memory that it acts on.
    pub quota: Quota,
    /// Watermarks that switch it on and off; `None`: always on.
    pub watermarks: Option<Watermarks>,
    /// Filters that exclude or select memory of the pattern; the first match decides.
    pub filters: Vec<Filter>,
    /// Number of snapshots after which it stops; 0 is no limit.
    pub max_nr_snapshots: u64,
}

impl Scheme {
    /// Returns a scheme with `action` for memory of `pattern`, without limit or filter.
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

    /// Returns whether it is about memory that is not accessed.
    pub fn is_idle_only(&self) -> bool {
        self.pattern.nr_accesses.max.samples(1) <= 0.0
    }

    /// Returns the time that memory must be idle before the scheme acts; `None` for schemes about hot memory, or
    /// without such a time.
    pub fn idle_for(&self) -> Option<Nanos> {
        let is_hot = matches!(self.action, Action::Hugepage | Action::MigrateHot);
        match self.pattern.age.min {
            Age::Time(age) if !is_hot && age > Nanos(0) => Some(age),
            _ => None,
        }
    }
}
