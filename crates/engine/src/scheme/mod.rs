//! Operation schemes: what to do with memory of which access pattern.
//!
//! The model is DAMOS's, the kernel's DAMON-based operation schemes
//! (`Documentation/mm/damon/design.rst`, `mm/damon/core.c`), with its names. These files hold what a
//! user says; `engine.rs` of this folder what follows from it.

pub mod action;
pub mod filter;
pub mod pattern;
pub mod quota;
pub mod watermark;

use serde::{Deserialize, Serialize};

use crate::address::Nanos;

pub use action::{Action, Destination};
pub use filter::{Filter, FilterKind, OpsFilter};
pub use pattern::{AccessPattern, Age, Bounds, Frequency};
pub use quota::{FailCharge, Goal, GoalMetric, Quota, Tuner, Weights};
pub use watermark::{WatermarkMetric, Watermarks};

/// What to do with memory of an access pattern, how much of it, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}
