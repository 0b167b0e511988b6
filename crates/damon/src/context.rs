//! What a kdamond is to do, in DAMON's terms.

use isotherm_engine::scheme::{Action, Bounds, Scheme};
use isotherm_engine::{AddressRange, Intervals, IntervalsGoal};

/// Whose memory is watched, and by which addresses: DAMON's operations set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// A process's, wherever it has mappings.
    Vaddr,
    /// A process's, at fixed addresses.
    Fvaddr,
    /// Physical memory.
    Paddr,
}

impl Operations {
    /// As the tree has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vaddr => "vaddr",
            Self::Fvaddr => "fvaddr",
            Self::Paddr => "paddr",
        }
    }

    /// Whether it does anything for `action`. The tree takes any action for any operations; those that an operations
    /// set does not know are ignored in silence (`damon_va_apply_scheme`, `damon_pa_apply_scheme`).
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

/// One of the things that a context watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamonTarget {
    /// The process; `None` for physical memory.
    pub pid: Option<u32>,
    /// Where at first (`vaddr`, empty for all), or at all (`fvaddr`, `paddr`); sorted, apart from each other.
    pub regions: Vec<AddressRange>,
    /// To be left out at the next commit.
    pub is_obsolete: bool,
}

/// A context: what one kdamond watches, how, and what it does about it.
#[derive(Clone, Debug, PartialEq)]
pub struct DamonContext {
    /// Which addresses.
    pub operations: Operations,
    pub targets: Vec<DamonTarget>,
    /// How often is looked.
    pub intervals: Intervals,
    /// Tunes the intervals.
    pub intervals_goal: Option<IntervalsGoal>,
    /// How many regions, of all targets together.
    pub nr_regions: Bounds<u32>,
    /// It neither watches nor acts.
    pub is_paused: bool,
    /// What is done.
    pub schemes: Vec<Scheme>,
}

impl DamonContext {
    /// Checks of each region in an aggregation interval: the most that `nr_accesses` can be.
    pub fn nr_samples(&self) -> u32 {
        nr_samples(self.intervals)
    }
}

/// Checks of each region in an aggregation interval (`damon_max_nr_accesses`).
pub fn nr_samples(intervals: Intervals) -> u32 {
    let count = intervals.aggregation.0 / intervals.sample.0.max(1);
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}
