//! Methods of watching on this machine, each a [`Monitor`].

mod areas;
mod by_frame;
mod contexts;
mod huge;
mod machine;
mod once;
mod page_cache;
mod pages;
mod physical;
mod simulated;
mod virtual_memory;

pub(crate) use by_frame::{ByFrame, FIRST_PROCESS, MEMORY, start_of_memory};
pub(crate) use contexts::Contexts;
pub(crate) use huge::due_first;
pub(crate) use machine::MachineView;
pub(crate) use page_cache::{CacheView, GroupCache};
pub(crate) use pages::Pages;
pub(crate) use physical::Physical;
pub(crate) use simulated::Simulated;
pub(crate) use virtual_memory::VirtualMemory;

use isotherm_damon::KernelStats;
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{AddressRange, Cost, CpuLedger, Intervals, Nanos, TargetId};
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;
use isotherm_policy::scheme::Scheme;
use isotherm_record::{Item, UsageSample};

use crate::targets::TargetSet;

/// A target's page tables, for readers besides its monitor: its id in this probe and this set.
pub(crate) type TargetTables<'a> = (&'a mut PageTableProbe, &'a TargetSet, TargetId);

/// Time of a monitor's next step; `None` if all targets are gone.
pub(crate) type NextStep = anyhow::Result<Option<Nanos>>;

pub(crate) struct MonitorStatus {
    pub(crate) cost: Cost,
    /// Number of samples so far with an unknown result.
    pub(crate) nr_unknown: u64,
    pub(crate) intervals: Intervals,
}

/// A method of watching targets.
pub(crate) trait Monitor {
    /// Does the work that is due at `now` and appends new items to `items`; `cpu` has all time outside the steps.
    fn step(&mut self, now: Nanos, cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep;

    /// Appends all pending results when the session ends.
    fn last_look(&mut self, _now: Nanos, _items: &mut Vec<Item>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Takes snapshots of the last step that the record does not hold, for acting on them: those of processes in
    /// contexts that record physical addresses.
    fn take_internal_snapshots(&mut self) -> Vec<Item> {
        Vec::new()
    }

    /// Makes the next step check which targets have ended: a process has ended at `now`.
    fn look_for_ends(&mut self, _now: Nanos) {}

    /// Resets the age of memory that was acted on at `now`.
    fn reset_age(&mut self, _target: TargetId, _range: AddressRange, _now: Nanos) {}

    /// Cost of watching so far and present intervals; `cpu` has all time outside the steps.
    fn status(&self, cpu: CpuLedger) -> MonitorStatus;

    /// Live targets and their processes, for metering.
    fn live(&self) -> Vec<(TargetId, &Process)> {
        Vec::new()
    }

    /// Index of the context, among the session's, that a target belongs to.
    fn context_of(&self, _target: TargetId) -> usize {
        0
    }

    /// Memory use of targets that are not real processes.
    fn simulated_usage(&self, _now: Nanos) -> Option<UsageSample> {
        None
    }

    /// Access to a target's page tables, if they can be read.
    fn target_tables(&mut self, _target: TargetId) -> Option<TargetTables<'_>> {
        None
    }

    /// Unmapped page cache of the control group that is watched, if that is known.
    fn group_cache(&self) -> Option<CachedBytes> {
        None
    }

    /// Page cache, if this context of the session watches it.
    fn page_cache(&mut self, _context: usize) -> Option<&mut CacheView> {
        None
    }

    /// Kdamond of this context of the session, if the kernel's DAMON watches it.
    fn kdamond(&mut self, _context: usize) -> Option<&mut dyn Kdamond> {
        None
    }

    /// Remark for the user about the method, added once at the end.
    fn summary(&self, _cpu: CpuLedger) -> Option<String> {
        None
    }
}

/// Effect of the schemes at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Force {
    /// Schemes act.
    Acts,
    /// Schemes count the memory that they would be tried on: a dry run.
    Pretends,
    /// Schemes do not act for now, and the kernel's counts meanwhile are ignored.
    #[default]
    Held,
}

/// A kdamond and the schemes of its context, which the kernel's DAMON watches.
pub(crate) trait Kdamond {
    /// Returns whether another commit leaves schemes the time to be applied.
    fn may_commit(&self, now: Nanos) -> bool;

    /// Has the kernel act by `in_force`, the form that the user's `schemes` have at present. If this kernel refuses
    /// them, it keeps its former schemes.
    fn set_schemes(
        &mut self,
        now: Nanos,
        schemes: &[Scheme],
        in_force: Vec<Scheme>,
        force: Force,
    ) -> anyhow::Result<()>;

    /// Returns whether the kdamond restarted, with its schemes held, since the last call.
    fn take_begun_anew(&mut self) -> bool;

    /// Checks that this kernel accepts these schemes, without applying them. The error lists all that it lacks.
    fn require(&mut self, schemes: &[Scheme]) -> anyhow::Result<()>;

    /// Turns the kdamond off, so that the next schemes start a new one.
    fn begin_anew(&mut self);

    /// Returns the kernel's counters of each scheme since the start.
    fn totals(&self) -> &[KernelStats];

    /// Returns the kdamond's process id, as last known.
    fn pid(&self) -> Option<u32>;

    /// Returns the part of the kdamond's CPU time that watching took.
    fn watching_cpu(&self) -> Nanos;

    /// Returns the part of the kdamond's CPU time that acting took.
    fn acting_cpu(&self) -> Nanos;
}
