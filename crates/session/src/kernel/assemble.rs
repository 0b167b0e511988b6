//! Assembles snapshots from DAMON's events: at the end of an aggregation interval the kernel reports each target's
//! regions, one after the other, each with the number of the target's regions.
//!
//! An incomplete snapshot is dropped and counted: a missing region is not one that was not accessed.

use std::collections::BTreeMap;

use isotherm_damon::nr_samples;
use isotherm_engine::{AddressRange, Intervals, Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_linux::damon_trace::TracedRegion;

/// Regions of targets, as far as they have arrived.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    open: BTreeMap<u32, Vec<TracedRegion>>,
    /// Number of snapshots of which a region was missing.
    pub(super) nr_broken: u64,
}

impl Assembler {
    /// Takes the next region. The last one of a target yields a snapshot that ended at `end`, numbered by the target's
    /// place in its context.
    pub(super) fn take(
        &mut self,
        region: TracedRegion,
        end: Nanos,
        intervals: Intervals,
    ) -> Option<Snapshot> {
        let regions = self.open.entry(region.target).or_default();
        let follows = regions.last().is_none_or(|last| {
            last.nr_regions == region.nr_regions && last.range.end <= region.range.start
        });
        if !follows {
            regions.clear();
            self.nr_broken += 1;
        }
        regions.push(region);
        if regions.len() < region.nr_regions as usize {
            return None;
        }
        let regions = std::mem::take(regions);
        let regions = regions
            .iter()
            .map(|region| (region.range, region.nr_accesses, region.age.unwrap_or(0)));
        Some(snapshot(TargetId(region.target), regions, end, intervals))
    }

    /// Drops unfinished snapshots, as another configuration begins.
    pub(super) fn restart(&mut self) {
        self.open.clear();
    }
}

/// Returns a snapshot of a target's regions (range, accesses, age in intervals) over the aggregation interval that
/// ended at `end`.
pub(super) fn snapshot(
    target: TargetId,
    regions: impl Iterator<Item = (AddressRange, u32, u32)>,
    end: Nanos,
    intervals: Intervals,
) -> Snapshot {
    let interval = intervals.aggregation.0;
    let regions = regions.map(|(range, nr_accesses, age)| {
        let age_ns = Nanos(u64::from(age).saturating_mul(interval));
        RegionSnapshot::new(range, Some(nr_accesses as f32)).aged(age, age_ns)
    });
    let times = (Nanos(end.0.saturating_sub(interval)), end);
    Snapshot::new(target, times, nr_samples(intervals), regions.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_whole_becomes_a_snapshot() {
        let intervals = Intervals {
            sample: Nanos::from_millis(5),
            aggregation: Nanos::from_millis(100),
            update: Nanos::from_millis(1000),
        };
        let mut assembler = Assembler::default();
        let mut check = |target: u32, nr_regions: u32, page: u64, whole: Option<usize>| {
            let region = TracedRegion {
                target,
                nr_regions,
                range: AddressRange::new(page * 4096, (page + 1) * 4096),
                nr_accesses: 3,
                age: Some(7),
            };
            let snapshot = assembler.take(region, Nanos::from_millis(500), intervals);
            let nr = snapshot.as_ref().map(|snapshot| snapshot.regions.len());
            assert_eq!(nr, whole, "{target} {page}");
            snapshot
        };
        check(0, 2, 1, None);
        check(1, 1, 9, Some(1));
        let whole = check(0, 2, 2, Some(2)).expect("it is whole");
        assert_eq!(whole.target, TargetId(0));
        assert_eq!(whole.start, Nanos::from_millis(400));
        assert_eq!(whole.nr_samples, 20);
        assert_eq!(whole.regions[1].age_ns, Nanos::from_millis(700));
        // The second region of three is missing.
        check(0, 3, 1, None);
        check(0, 3, 3, None);
        check(0, 3, 1, None);
        check(0, 3, 2, None);
        check(0, 3, 3, Some(3));
        assert_eq!(assembler.nr_broken, 1);
    }
}
