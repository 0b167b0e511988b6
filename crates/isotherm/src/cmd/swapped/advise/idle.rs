//! The memory that a policy would page out: what was idle for its time, and what grew meanwhile.
//!
//! Problem: too little swap stops the policy; too much costs a disk, or promises memory that zram cannot have.
//!
//! Approach: the peak of swap-backed memory that was idle for the time at a scan would have been in swap. Memory that
//! came within that time was too young to count; all of it may become idle, which makes the upper bound.
//!
//! Limits: it holds for what was watched. A watch that is shorter than the idle time knows nothing.

use std::collections::BTreeMap;

use isotherm_engine::address::is_name_of_file;
use isotherm_engine::{AddressRange, Nanos, TargetId};
use isotherm_record::pages::{PageAges, PageSnapshot};
use isotherm_record::{Item, RecordError};
use isotherm_report::MappingTable;
use serde::Serialize;

/// Swap that a policy needs, before compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SwapNeed {
    pub(super) watched_ns: Nanos,
    /// Most swap-backed memory that was idle for the policy's time at any scan.
    pub(super) idle_bytes: u64,
    /// Memory of the targets that is in swap already.
    pub(super) swapped_bytes: u64,
    /// Growth of swap-backed memory within the last idle time.
    pub(super) grew_bytes: u64,
    /// Least swap that the policy fills.
    pub(super) low_bytes: u64,
    /// Most swap that the policy fills.
    pub(super) high_bytes: u64,
}

/// Sums up page scans.
#[derive(Default)]
pub(super) struct Watched {
    idle: Nanos,
    /// Idle ranges of each process at its last scan.
    pub(super) ranges: BTreeMap<u32, Vec<AddressRange>>,
    pids: BTreeMap<TargetId, u32>,
    ages: PageAges,
    mappings: MappingTable,
    resident: BTreeMap<TargetId, u64>,
    swapped: u64,
    peak: u64,
    /// Swap-backed bytes of all targets at each scan.
    series: Vec<(Nanos, u64)>,
}

impl Watched {
    pub(super) fn new(idle: Nanos) -> Self {
        Self {
            idle,
            ..Self::default()
        }
    }

    fn scan(&mut self, scan: &PageSnapshot) -> Result<(), RecordError> {
        let snapshot = self.ages.snapshot(scan)?;
        let (mut resident, mut idle) = (0, Vec::new());
        for region in &snapshot.regions {
            let parts = self.mappings.parts(scan.target, region.range);
            for (part, _) in parts.filter(|(_, name)| !is_name_of_file(name)) {
                resident += part.len();
                if region.nr_accesses == Some(0.0) && region.age_ns >= self.idle {
                    idle.push(part);
                }
            }
        }
        self.resident.insert(scan.target, resident);
        self.series.push((scan.end, self.resident.values().sum()));
        let pid = self.pids.get(&scan.target).copied().unwrap_or(0);
        self.ranges.insert(pid, idle);
        let idle = self.ranges.values().flatten().map(|range| range.len());
        self.peak = self.peak.max(idle.sum());
        Ok(())
    }

    /// Returns the need; `None` if nothing was watched for as long as the idle time.
    pub(super) fn need(&self) -> Option<SwapNeed> {
        let ((from, _), (to, now)) = (*self.series.first()?, *self.series.last()?);
        let mut earlier = self.series.iter().rev();
        let (_, before) = earlier.find(|(end, _)| to.since(*end) >= self.idle)?;
        let grew = now.saturating_sub(*before);
        let low = self.peak + self.swapped;
        Some(SwapNeed {
            watched_ns: to.since(from),
            idle_bytes: self.peak,
            swapped_bytes: self.swapped,
            grew_bytes: grew,
            low_bytes: low,
            high_bytes: low + grew,
        })
    }

    /// Takes the next item of a record.
    pub(super) fn take(&mut self, item: &Item) {
        match item {
            // Too many pages for exact ages: the need stays unknown.
            Item::Pages(scan) => self.scan(scan).unwrap_or_else(|_| self.series.clear()),
            Item::Mappings(change) => self.mappings.apply(change),
            Item::TargetStart(start) => drop(self.pids.insert(start.target, start.pid)),
            Item::TargetExit(exit) => {
                self.resident.remove(&exit.target);
                let pid = self.pids.remove(&exit.target);
                pid.map(|pid| self.ranges.remove(&pid));
            }
            Item::Usage(usage) => self.swapped = usage.swap.values().sum(),
            _ => {}
        }
    }
}
