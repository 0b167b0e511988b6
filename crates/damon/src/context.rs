//! Configuration of a kdamond, in DAMON's terms.

use isotherm_engine::{AddressRange, Intervals, IntervalsGoal};
use isotherm_policy::scheme::{Action, Bounds, Scheme};

/// Kind of monitored memory and of its addresses: DAMON's operations set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Virtual memory of a process, in all of its mappings.
    Vaddr,
    /// Virtual memory of a process, at fixed addresses.
    Fvaddr,
    /// Physical memory.
    Paddr,
}

impl Operations {
    /// Returns the name in the tree.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vaddr => "vaddr",
            Self::Fvaddr => "fvaddr",
            Self::Paddr => "paddr",
        }
    }

    /// Returns whether it does anything for `action`. The tree accepts any action for any operations; actions that an
    /// operations set does not know are ignored silently (`damon_va_apply_scheme`, `damon_pa_apply_scheme`).
    /// `moves_virtual` is whether `vaddr` can move memory, which came with several destinations.
    pub(crate) const fn knows(self, action: Action, moves_virtual: bool) -> bool {
        match action {
            Action::Pageout | Action::Stat => true,
            Action::MigrateHot | Action::MigrateCold => {
                moves_virtual || matches!(self, Self::Paddr)
            }
            Action::LruPrio | Action::LruDeprio => matches!(self, Self::Paddr),
            Action::Willneed
            | Action::Cold
            | Action::Hugepage
            | Action::Nohugepage
            | Action::Collapse => !matches!(self, Self::Paddr),
        }
    }
}

/// A monitored target of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamonTarget {
    /// Process id; `None` for physical memory.
    pub pid: Option<u32>,
    /// Initial regions (`vaddr`, empty for all), or all regions (`fvaddr`, `paddr`); sorted and disjoint.
    pub regions: Vec<AddressRange>,
    /// Whether the next commit removes it.
    pub is_obsolete: bool,
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
