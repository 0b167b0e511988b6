//! Ways of watching, each a [`Monitor`] on this machine.

mod areas;
mod by_frame;
mod contexts;
mod huge;
mod machine;
mod page_cache;
mod pages;
mod physical;
mod simulated;
mod target_tables;
mod virtual_memory;

pub(crate) use by_frame::{ByFrame, FIRST_PROCESS};
pub(crate) use contexts::Contexts;
pub(crate) use huge::scramble;
pub(crate) use machine::MachineView;
pub(crate) use page_cache::CacheView;
pub(crate) use pages::Pages;
pub(crate) use physical::Physical;
pub(crate) use simulated::Simulated;
pub(crate) use target_tables::TargetTables;
pub(crate) use virtual_memory::VirtualMemory;

use isotherm_engine::{Cost, Intervals, Nanos};
use isotherm_record::Item;

use crate::kernel::KernelMonitor;

/// One way of watching targets.
pub(crate) trait Monitor {
    /// Does what is due at `now`, appends what there is to tell to `items`, and says when to come
    /// back; `None` if all targets are gone.
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Option<Nanos>>;

    /// It ends: appends what is known and was not told yet.
    fn last_look(&mut self, _now: Nanos, _items: &mut Vec<Item>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Snapshots of the last step that are not told as such, but in others: to act by.
    fn take_unrecorded(&mut self) -> Vec<Item> {
        Vec::new()
    }

    /// A process has ended at `now`, perhaps a target: the next step is to find out.
    fn look_for_ends(&mut self, _now: Nanos) {}

    /// Memory was acted on at `now`: its age counts anew.
    fn reset_age(
        &mut self,
        _target: isotherm_engine::TargetId,
        _range: isotherm_engine::AddressRange,
        _now: Nanos,
    ) {
    }

    /// `cpu` was spent on something else than watching, and does not count as its cost.
    fn leave_out(&mut self, _cpu: Nanos) {}

    /// `cpu` was spent on something that has a rhythm of its own, and counts as watching.
    fn note_other_cpu(&mut self, _cpu: Nanos) {}

    /// What watching has cost so far.
    fn cost(&self) -> Cost;

    /// Samples so far about which nothing could be known.
    fn nr_unknown(&self) -> u64;

    /// The intervals in force.
    fn intervals(&self) -> Intervals;

    /// Process ids of the live targets, with their numbers, for metering.
    fn live(&self) -> Vec<(isotherm_engine::TargetId, &isotherm_linux::process::Process)>;

    /// The place, among the session's contexts, of the one that a target belongs to.
    fn context_of(&self, _target: isotherm_engine::TargetId) -> usize {
        0
    }

    /// Memory use of targets that are not real processes.
    fn made_up_usage(&self, _now: Nanos) -> Option<isotherm_record::UsageSample> {
        None
    }

    /// How page tables of a target are read, where they can be.
    fn target_tables(&mut self, _target: isotherm_engine::TargetId) -> Option<TargetTables<'_>> {
        None
    }

    /// The page cache, where the context at this place of the session watches it.
    fn page_cache(&mut self, _context: usize) -> Option<&mut CacheView> {
        None
    }

    /// The kdamond behind the context at this place of the session, where the kernel's DAMON watches it.
    fn kdamond(&mut self, _context: usize) -> Option<&mut KernelMonitor> {
        None
    }

    /// What the user should know about the method itself, said once at the end.
    fn summary(&self) -> Option<String> {
        None
    }
}
