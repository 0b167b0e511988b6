//! Common interface of both monitors' loops.

use super::{RegionLoop, TableLoop, TableProbe, TargetSource};
use crate::address::{AddressRange, Nanos};
use crate::attributes::{Attributes, AttributesError};
use crate::cpu_ledger::CpuLedger;
use crate::monitor::Intervals;
use crate::monitor::budget::BudgetShares;
use crate::monitor::idle_pages::PageAgeRule;
use crate::monitor::page_table::{TableAttributes, TableMonitor};
use crate::snapshot::{Snapshot, TargetId};

/// The loop of a monitor.
#[derive(Debug)]
pub enum MonitorLoop {
    /// Page-table monitor.
    Tables(Box<TableLoop>),
    /// Region monitor.
    Regions(Box<RegionLoop>),
}

impl MonitorLoop {
    /// Returns a loop that reads page tables, and divides its budget by `shares`.
    pub fn tables(attributes: TableAttributes, shares: BudgetShares, now: Nanos) -> Self {
        Self::Tables(Box::new(TableLoop::new(attributes, shares, now)))
    }

    /// Returns a loop that samples regions.
    ///
    /// # Errors
    /// Fails if `attributes` are invalid.
    pub fn regions(attributes: Attributes) -> Result<Self, AttributesError> {
        Ok(Self::Regions(Box::new(RegionLoop::new(attributes)?)))
    }

    /// Does the work that is due at `now` and appends the finished snapshots. Returns when to call again; `None` if no
    /// target is left.
    pub fn step<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        cpu: CpuLedger,
        probe: &mut P,
        targets: &mut T,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Option<Nanos>, P::Error> {
        match self {
            Self::Tables(tables) => tables.step(now, cpu, probe, targets, snapshots),
            Self::Regions(regions) => regions.step(now, probe, targets, snapshots),
        }
    }

    /// Ends the interval early, as none follows. Returns the page-table monitor, or `None` for the region monitor.
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
        Ok(Some(&tables.monitor))
    }

    /// Makes snapshots contain [idle pages](Snapshot::idle_pages) from now on, if the monitor knows them.
    pub fn tell_idle_pages(&mut self, ages: PageAgeRule) {
        if let Self::Tables(tables) = self {
            tables.monitor.tell_idle_pages(ages);
        }
    }

    /// Makes the next step check which targets are alive.
    pub fn look_for_ends(&mut self, now: Nanos) {
        match self {
            Self::Tables(tables) => tables.next_update = now,
            Self::Regions(regions) => regions.ranges_wanted = true,
        }
    }

    /// Restarts the age of memory that was acted on at `now`.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        match self {
            Self::Tables(tables) => tables.monitor.reset_age(target, range, now),
            Self::Regions(regions) => regions.reset_age(target, range),
        }
    }

    /// Returns the number of pages or samples with an unknown access state.
    pub fn nr_unknown(&self) -> u64 {
        match self {
            Self::Tables(tables) => tables.monitor.nr_unclearable(),
            Self::Regions(regions) => regions.nr_unknown(),
        }
    }

    /// Returns the current intervals.
    pub fn intervals(&self) -> Intervals {
        match self {
            Self::Tables(tables) => tables.intervals(),
            Self::Regions(regions) => regions.intervals(),
        }
    }
}
