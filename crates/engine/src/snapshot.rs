//! What monitoring yields: for every aggregation interval, how often each region was accessed.
//!
//! A [`Snapshot`] is what every source of access information ends in (the sampling engine, the
//! page-granular scanner, kernel DAMON, a record that is read back) and what every consumer starts
//! from (schemes, reports, the record's writer). Terms are DAMON's
//! (`Documentation/mm/damon/design.rst`).

use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, Nanos};

/// Which monitoring target of the context: an index, stable for the whole run, never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TargetId(pub u32);

/// One region in one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// The regions of one target over one aggregation interval, in address order, not overlapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
}

impl Snapshot {
    /// A region's accesses as a share of the checks made, 0 to 1; `None` where unknown.
    pub fn access_rate(&self, region: &RegionSnapshot) -> Option<f32> {
        region
            .nr_accesses
            .map(|n| n / self.nr_samples.max(1) as f32)
    }
}
