//! Results of monitoring: for every aggregation interval, the access frequency of each region.
//!
//! Every source of access information produces a [`Snapshot`]: the sampling engine, the page-granular scanner, kernel
//! DAMON, or a record that is read back. Every consumer starts from it: schemes, reports, the record's writer. Terms
//! are DAMON's (`Documentation/mm/damon/design.rst`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, Nanos};
use crate::monitor::block_pages::BlockPages;
use crate::monitor::idle_ends::IdleEnds;
use crate::monitor::idle_pages::IdlePages;

/// Index of a monitoring target in its context; stable for the whole run, never reused.
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
    /// Address range of the region.
    pub range: AddressRange,
    /// Accesses seen in the aggregation interval, from 0 to the snapshot's `nr_samples`; a fraction where several
    /// neighbouring pages were sampled at once. `None`: unobservable in this interval, which is *not* the same as cold.
    pub nr_accesses: Option<f32>,
    /// Number of aggregation intervals for which the region has had about this access frequency.
    pub age: u32,
    /// The age as a duration: intervals may be retuned while `age` counts.
    pub age_ns: Nanos,
    /// Memory at the region's addresses; `None` where the source does not know (DAMON's regions are of addresses
    /// alone).
    pub memory: Option<RegionMemory>,
}

/// Memory at a region's addresses, in bytes. Only resident memory is hot, cold or idle: holes and swapped-out pages are
/// neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionMemory {
    /// Resident at the end of the interval, as `VmRSS` counts it.
    pub resident: u64,
    /// Resident bytes that were touched at least once in the interval.
    pub touched: u64,
    /// Resident bytes with an unknown access state.
    pub unknown: u64,
    /// Swapped out; not resident.
    pub swapped: u64,
}

impl RegionMemory {
    /// Returns resident memory that was not touched.
    pub fn resident(bytes: u64) -> Self {
        Self {
            resident: bytes,
            ..Self::default()
        }
    }

    /// Returns the sum of two neighbours.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, |bytes, more| bytes + more)
    }

    /// Returns the remainder without `part`.
    #[must_use]
    pub fn less(self, part: Self) -> Self {
        self.with(part, u64::saturating_sub)
    }

    /// Returns the share that `part` of `whole` bytes of addresses holds, if memory is spread evenly.
    #[must_use]
    pub fn share(self, part: u64, whole: u64) -> Self {
        let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
        self.with(self, |bytes, _| (u128::from(bytes) * part / whole) as u64)
    }

    fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            resident: combine(self.resident, other.resident),
            touched: combine(self.touched, other.touched),
            unknown: combine(self.unknown, other.unknown),
            swapped: combine(self.swapped, other.swapped),
        }
    }
}

impl RegionSnapshot {
    /// Returns a region of age zero whose memory is not known.
    pub const fn new(range: AddressRange, nr_accesses: Option<f32>) -> Self {
        Self {
            range,
            nr_accesses,
            age: 0,
            age_ns: Nanos(0),
            memory: None,
        }
    }

    /// Returns it with this age, in intervals and as a duration.
    #[must_use]
    pub fn aged(mut self, age: u32, age_ns: Nanos) -> Self {
        (self.age, self.age_ns) = (age, age_ns);
        self
    }

    /// Returns it with this memory.
    #[must_use]
    pub fn holding(mut self, memory: RegionMemory) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Returns the resident bytes; all of its addresses where the source does not know.
    pub fn resident(&self) -> u64 {
        self.memory.map_or(self.range.len(), |m| m.resident)
    }

    /// Returns the bytes touched in the interval; all of an accessed region where the source does not know.
    pub fn touched(&self) -> u64 {
        let accessed = self.nr_accesses.is_some_and(|n| n > 0.0);
        let all = if accessed { self.range.len() } else { 0 };
        self.memory.map_or(all, |m| m.touched)
    }

    /// Returns the bytes with an unknown access state.
    pub fn unknown(&self) -> u64 {
        let all = self.nr_accesses.map_or(self.range.len(), |_| 0);
        self.memory.map_or(all, |m| m.unknown)
    }

    /// Returns the resident bytes that were not touched.
    pub fn untouched(&self) -> u64 {
        let known = self.resident().saturating_sub(self.unknown());
        known.saturating_sub(self.touched())
    }

    /// Returns the bytes that have been idle for the region's age; none while any of the region is accessed.
    pub fn idle(&self) -> u64 {
        let is_idle = self.nr_accesses.is_some_and(|n| n <= 0.0);
        if is_idle { self.untouched() } else { 0 }
    }

    /// Returns the part of it that lies in `range`, one of its own parts; memory counts as spread evenly.
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

/// Totals of the regions of a snapshot, or of several, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTotals {
    /// Monitored addresses, regardless of what they hold.
    pub addresses: u64,
    /// In memory; all addresses where the source does not know.
    pub resident: u64,
    /// Resident bytes that were touched in the interval.
    pub touched: u64,
    /// Resident bytes with an unknown access state.
    pub unknown: u64,
    /// Resident bytes that were not touched.
    pub untouched: u64,
    /// Swapped out.
    pub swapped: u64,
    /// Whether every source knew the memory of its regions.
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

    /// Returns the sum of both. It saturates: a record of another tool may claim more memory than there are addresses.
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

    /// Returns the resident bytes, if every source knew the memory of its regions.
    pub fn known_resident(&self) -> Option<u64> {
        self.is_exact.then_some(self.resident)
    }

    /// Returns the swapped-out bytes, if every source knew the memory of its regions.
    pub fn known_swapped(&self) -> Option<u64> {
        self.is_exact.then_some(self.swapped)
    }
}

/// The regions of one target over one aggregation interval, in address order, not overlapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// Target that the regions belong to.
    pub target: TargetId,
    /// Start of the aggregation interval.
    pub start: Nanos,
    /// End of the aggregation interval.
    pub end: Nanos,
    /// Number of checks of each region in the interval: the upper bound of `nr_accesses`.
    pub nr_samples: u32,
    /// The regions.
    pub regions: Vec<RegionSnapshot>,
    /// Blocks with known single pages, in address order; regions only count the touched pages of such blocks.
    /// [`Snapshot::by_page`] turns them into regions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockPages>,
    /// Blocks with some pages in use and others idle, in address order, for acting on the idle ones. The monitor fills
    /// them on request. They are not recorded.
    #[serde(skip)]
    pub idle_pages: Arc<Vec<IdlePages>>,
    /// Ages at which pages were accessed in the interval, by the rule of [`Snapshot::idle_pages`]; `None` where the monitor
    /// does not know. The monitor counts them on request. They are not recorded.
    #[serde(skip)]
    pub age_ends: Option<Box<IdleEnds>>,
    /// Idle times that ended in the interval; `None` where the monitor does not know. They are not recorded.
    #[serde(skip)]
    pub idle_ends: Option<Box<IdleEnds>>,
}

impl Snapshot {
    /// Returns a snapshot of these regions from one time to another.
    pub fn new(
        target: TargetId,
        (start, end): (Nanos, Nanos),
        nr_samples: u32,
        regions: Vec<RegionSnapshot>,
    ) -> Self {
        Self {
            target,
            start,
            end,
            nr_samples,
            regions,
            ..Self::default()
        }
    }

    /// Returns a region's accesses as a share of the checks made, 0 to 1; `None` if unknown.
    pub fn access_rate(&self, region: &RegionSnapshot) -> Option<f32> {
        let nr_samples = self.nr_samples.max(1) as f32;
        region.nr_accesses.map(|n| n / nr_samples)
    }

    /// Returns the totals of all regions.
    pub fn totals(&self) -> MemoryTotals {
        let mut totals = MemoryTotals::default();
        self.regions.iter().for_each(|region| totals.add(region));
        totals
    }
}

/// Bytes that a control group and its descendants are charged for (`memory.stat`); `None` where the kernel does not
/// report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupCharge {
    /// All memory, without swap.
    pub total: Option<u64>,
    /// Anonymous memory.
    pub anonymous: Option<u64>,
    /// Shared memory: tmpfs, memfd, System V.
    pub shared: Option<u64>,
    /// Page cache, mapped or not; without shared memory.
    pub page_cache: Option<u64>,
    /// Memory of the kernel: slab, page tables, stacks, sockets, and others.
    pub kernel: Option<u64>,
    /// Part of it that the kernel frees when memory is short: slab of files and directories (version 2).
    pub kernel_reclaimable: Option<u64>,
    /// Swapped-out memory.
    pub swap: Option<u64>,
    /// Part of the page cache and of shared memory that processes map, of whichever group.
    pub mapped: Option<u64>,
    /// Greatest `total` since the group began, or since this was reset (`memory.peak`).
    pub peak: Option<u64>,
    /// Pages of 4 KiB of anonymous and shared memory that were read back so far, after they had been reclaimed.
    pub swap_refaults: Option<u64>,
    /// The same of files.
    pub file_refaults: Option<u64>,
}
