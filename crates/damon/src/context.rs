//! Configuration of a kdamond, in DAMON's terms.

use isotherm_engine::{Intervals, IntervalsGoal, KernelSettings};
use isotherm_policy::scheme::{Action, Bounds, Scheme};

pub use isotherm_engine::{DamonTarget, Operations};

/// Returns whether `operations` do anything for `action`. The tree accepts any action for any operations; actions that
/// an operations set does not know are ignored silently (`damon_va_apply_scheme`, `damon_pa_apply_scheme`).
/// `moves_virtual` is whether `vaddr` can move memory, which came with several destinations.
pub(crate) const fn knows(operations: Operations, action: Action, moves_virtual: bool) -> bool {
    let is_physical = matches!(operations, Operations::Paddr);
    match action {
        Action::Pageout | Action::Stat => true,
        Action::MigrateHot | Action::MigrateCold => moves_virtual || is_physical,
        Action::LruPrio | Action::LruDeprio => is_physical,
        Action::Willneed
        | Action::Cold
        | Action::Hugepage
        | Action::Nohugepage
        | Action::Collapse => !is_physical,
    }
}

/// A context: the targets of one kdamond, its monitoring attributes and its schemes.
#[derive(Clone, Debug, PartialEq)]
pub struct DamonContext {
    pub operations: Operations,
    pub targets: Vec<DamonTarget>,
    pub intervals: Intervals,
    pub intervals_goal: Option<IntervalsGoal>,
    /// Bounds on the number of regions, all targets together.
    pub nr_regions: Bounds<u32>,
    /// Probes, and control of sampling.
    pub settings: KernelSettings,
    /// Whether it neither monitors nor acts.
    pub is_paused: bool,
    pub schemes: Vec<Scheme>,
}

/// Returns the number of checks of each region in an aggregation interval, the upper bound of `nr_accesses`
/// (`damon_max_nr_accesses`).
pub fn nr_samples(intervals: Intervals) -> u32 {
    let count = intervals.aggregation.0 / intervals.sample.0.max(1);
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}
