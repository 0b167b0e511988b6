//! Either monitor's loop, with the same verbs.

use super::{RegionLoop, TableLoop, TableProbe, TargetSource};
use crate::address::{AddressRange, Nanos};
use crate::attributes::{Attributes, AttributesError};
use crate::monitor::Intervals;
use crate::monitor::budget::BudgetShares;
use crate::monitor::idle_pages::PageAges;
use crate::monitor::page_table::{TableAttributes, TableMonitor};
use crate::snapshot::{Snapshot, TargetId};

/// The loop of a monitor.
#[derive(Debug)]
pub enum MonitorLoop {
    /// By page tables.
    Tables(Box<TableLoop>),
    /// By regions.
    Regions(Box<RegionLoop>),
}

impl MonitorLoop {
    /// One that watches page tables.
    pub fn tables(attributes: TableAttributes, now: Nanos) -> Self {
        Self::Tables(Box::new(TableLoop::new(attributes, now)))
    }

    /// One that watches regions.
    ///
    /// # Errors
    /// What is wrong with `attributes`.
    pub fn regions(attributes: Attributes) -> Result<Self, AttributesError> {
        Ok(Self::Regions(Box::new(RegionLoop::new(attributes)?)))
    }

    /// Does what is due at `now` and appends the snapshots that are finished. Yields when to come
    /// back; `None` if nobody is left.
    pub fn step<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &mut T,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Option<Nanos>, P::Error> {
        match self {
            Self::Tables(tables) => tables.step(now, probe, targets, snapshots),
            Self::Regions(regions) => regions.step(now, probe, targets, snapshots),
        }
    }

    /// Ends the interval before its time, as nothing comes after, and yields what is known by page tables, where they are
    /// watched.
    pub fn end_interval<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &T,
    ) -> Result<Option<&TableMonitor>, P::Error> {
        let Self::Tables(tables) = self else {
            return Ok(None);
        };
        tables.end_interval(now, probe, targets)?;
        Ok(Some(tables.monitor()))
    }

    /// Divides the budget otherwise than for watching processes, where there is one.
    pub fn divide_budget(&mut self, shares: BudgetShares) {
        match self {
            Self::Tables(tables) => tables.divide_budget(shares),
            Self::Regions(_) => {}
        }
    }

    /// So much CPU time was spent on something that has a rhythm of its own: it is part of the cost, but not of what
    /// each interval costs.
    pub fn note_other_cpu(&mut self, cpu: Nanos) {
        match self {
            Self::Tables(tables) => tables.note_other_cpu(cpu),
            Self::Regions(_) => {}
        }
    }

    /// From now on snapshots tell [which pages are idle](Snapshot::idle_pages), where the monitor knows.
    pub fn tell_idle_pages(&mut self, ages: PageAges) {
        match self {
            Self::Tables(tables) => tables.tell_idle_pages(ages),
            Self::Regions(_) => {}
        }
    }

    /// The next step looks who is there.
    pub fn look_for_ends(&mut self, now: Nanos) {
        match self {
            Self::Tables(tables) => tables.look_for_ends(now),
            Self::Regions(regions) => regions.look_for_ends(),
        }
    }

    /// Memory was acted on at `now`: its age counts anew.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        match self {
            Self::Tables(tables) => tables.reset_age(target, range, now),
            Self::Regions(regions) => regions.reset_age(target, range),
        }
    }

    /// How often nothing could be known of a page or sample.
    pub fn nr_unknown(&self) -> u64 {
        match self {
            Self::Tables(tables) => tables.nr_unknown(),
            Self::Regions(regions) => regions.nr_unknown(),
        }
    }

    /// The intervals in force.
    pub fn intervals(&self) -> Intervals {
        match self {
            Self::Tables(tables) => tables.intervals(),
            Self::Regions(regions) => regions.intervals(),
        }
    }
}
