//! What monitoring yields: for every aggregation interval, how often each region was accessed.
//!
//! A [`Snapshot`] is what every source of access information ends in (the sampling engine, the
//! page-granular scanner, kernel DAMON, a record that is read back) and what every consumer starts
//! from (schemes, reports, the record's writer). Terms are DAMON's
//! (`Documentation/mm/damon/design.rst`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, Nanos};
use crate::monitor::block_pages::BlockPages;
use crate::monitor::idle_pages::IdlePages;

/// Which monitoring target of the context: an index, stable for the whole run, never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct TargetId(pub u32);

/// One region in one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionSnapshot {
    /// Where the region is.
    pub range: AddressRange,
    /// Accesses seen in the aggregation interval, from 0 to the snapshot's `nr_samples`; a fraction
    /// where several neighbouring pages were sampled at once. `None`: nothing could be observed
    /// here in this interval, which is *not* the same as cold.
    pub nr_accesses: Option<f32>,
    /// For how many aggregation intervals the region has had about this access frequency.
    pub age: u32,
    /// The same as a duration: intervals may be retuned while `age` counts.
    pub age_ns: Nanos,
    /// What of the region's addresses holds memory; `None` where the source cannot tell (DAMON's
    /// regions are of addresses alone).
    pub memory: Option<RegionMemory>,
}

/// What a region's addresses hold, in bytes. Only resident memory is hot, cold or idle: holes and
/// swapped-out pages are neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionMemory {
    /// In memory at the end of the interval, as `VmRSS` counts it.
    pub resident: u64,
    /// Of the resident bytes, those touched at least once in the interval.
    pub touched: u64,
    /// Of the resident bytes, those of which it cannot be known whether they were touched.
    pub unknown: u64,
    /// Swapped out; not resident.
    pub swapped: u64,
}

impl RegionMemory {
    /// The sum of two neighbours.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            touched: self.touched + other.touched,
            unknown: self.unknown + other.unknown,
            swapped: self.swapped + other.swapped,
        }
    }

    /// What is left of it without `part`.
    #[must_use]
    pub const fn less(self, part: Self) -> Self {
        Self {
            resident: self.resident.saturating_sub(part.resident),
            touched: self.touched.saturating_sub(part.touched),
            unknown: self.unknown.saturating_sub(part.unknown),
            swapped: self.swapped.saturating_sub(part.swapped),
        }
    }

    /// The share of it that `part` of `whole` bytes of addresses holds, if it is spread evenly.
    #[must_use]
    pub fn share(self, part: u64, whole: u64) -> Self {
        let of =
            |bytes: u64| (u128::from(bytes) * u128::from(part) / u128::from(whole.max(1))) as u64;
        Self {
            resident: of(self.resident),
            touched: of(self.touched),
            unknown: of(self.unknown),
            swapped: of(self.swapped),
        }
    }
}

impl RegionSnapshot {
    /// Bytes of memory in it; all of its addresses where the source cannot tell.
    pub fn resident(&self) -> u64 {
        self.memory.map_or(self.range.len(), |m| m.resident)
    }

    /// Bytes touched in the interval; all of an accessed region where the source cannot tell.
    pub fn touched(&self) -> u64 {
        let accessed = self.nr_accesses.is_some_and(|n| n > 0.0);
        let all = if accessed { self.range.len() } else { 0 };
        self.memory.map_or(all, |m| m.touched)
    }

    /// Bytes of which it is not known whether they were touched.
    pub fn unknown(&self) -> u64 {
        let all = if self.nr_accesses.is_none() {
            self.range.len()
        } else {
            0
        };
        self.memory.map_or(all, |m| m.unknown)
    }

    /// Bytes that are there and were not touched.
    pub fn untouched(&self) -> u64 {
        self.resident()
            .saturating_sub(self.touched())
            .saturating_sub(self.unknown())
    }

    /// Bytes that are neither in memory nor swapped out: addresses that nothing was ever put at.
    pub fn holes(&self) -> u64 {
        let held = |m: RegionMemory| m.resident.saturating_add(m.swapped);
        self.memory
            .map_or(0, |m| self.range.len().saturating_sub(held(m)))
    }

    /// Bytes that have been idle for the region's age; none while any of it is accessed.
    pub fn idle(&self) -> u64 {
        if self.nr_accesses.is_some_and(|n| n <= 0.0) {
            self.untouched()
        } else {
            0
        }
    }

    /// The part of it that lies in `range`, one of its own parts; memory counts as spread evenly.
    #[must_use]
    pub fn part(&self, range: AddressRange) -> Self {
        let share = |m: RegionMemory| m.share(range.len(), self.range.len());
        Self {
            range,
            memory: self.memory.map(share),
            ..*self
        }
    }
}

/// What the regions of a snapshot, or of several, come to in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTotals {
    /// Addresses that are watched, whatever they hold.
    pub addresses: u64,
    /// In memory; all addresses where the source cannot tell.
    pub resident: u64,
    /// Of the resident bytes, those touched in the interval.
    pub touched: u64,
    /// Of the resident bytes, those of which nothing is known.
    pub unknown: u64,
    /// Of the resident bytes, the others.
    pub untouched: u64,
    /// Swapped out.
    pub swapped: u64,
    /// Every source could tell what is memory and what is not.
    pub is_exact: bool,
}

impl Default for MemoryTotals {
    fn default() -> Self {
        Self {
            addresses: 0,
            resident: 0,
            touched: 0,
            unknown: 0,
            untouched: 0,
            swapped: 0,
            is_exact: true,
        }
    }
}

impl MemoryTotals {
    /// Adds a region.
    pub fn add(&mut self, region: &RegionSnapshot) {
        *self = self.plus(Self {
            addresses: region.range.len(),
            resident: region.resident(),
            touched: region.touched(),
            unknown: region.unknown(),
            untouched: region.untouched(),
            swapped: region.memory.map_or(0, |m| m.swapped),
            is_exact: region.memory.is_some(),
        });
    }

    /// The sum of both. It saturates: a record of another tool may claim more memory than there are
    /// addresses.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            addresses: self.addresses.saturating_add(other.addresses),
            resident: self.resident.saturating_add(other.resident),
            touched: self.touched.saturating_add(other.touched),
            unknown: self.unknown.saturating_add(other.unknown),
            untouched: self.untouched.saturating_add(other.untouched),
            swapped: self.swapped.saturating_add(other.swapped),
            is_exact: self.is_exact && other.is_exact,
        }
    }

    /// Resident bytes, where the source tells what is memory.
    pub fn known_resident(&self) -> Option<u64> {
        self.is_exact.then_some(self.resident)
    }

    /// Swapped-out bytes, where the source tells what is memory.
    pub fn known_swapped(&self) -> Option<u64> {
        self.is_exact.then_some(self.swapped)
    }
}

/// The regions of one target over one aggregation interval, in address order, not overlapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// Whose memory.
    pub target: TargetId,
    /// When the aggregation interval began.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// How many times each region was checked in the interval: the most that `nr_accesses` can be.
    pub nr_samples: u32,
    /// The regions.
    pub regions: Vec<RegionSnapshot>,
    /// Blocks whose pages are known one by one where regions only say how many of them were touched, in
    /// address order; [`Snapshot::by_page`] makes regions of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockPages>,
    /// Blocks of which some pages are in use and others idle, in address order, where the monitor was
    /// asked to tell: for acting on the idle ones. They are not recorded.
    #[serde(skip)]
    pub idle_pages: Arc<Vec<IdlePages>>,
}

impl Snapshot {
    /// A region's accesses as a share of the checks made, 0 to 1; `None` where unknown.
    pub fn access_rate(&self, region: &RegionSnapshot) -> Option<f32> {
        region
            .nr_accesses
            .map(|n| n / self.nr_samples.max(1) as f32)
    }

    /// What all regions come to.
    pub fn totals(&self) -> MemoryTotals {
        let mut totals = MemoryTotals::default();
        self.regions.iter().for_each(|region| totals.add(region));
        totals
    }
}
