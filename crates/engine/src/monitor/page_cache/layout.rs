//! The page cache as a target of schemes: a snapshot of each file's bytes by age.
//!
//! Problem: schemes are planned from regions of addresses with an age. Approach: each file has a stretch of addresses
//! of its own while it is cached. Its idle bytes are laid out there by age, the oldest first. A region represents the
//! bytes of a file that are idle for one class of ages. The pages themselves are looked up when a scheme acts on them.
//! A million folios become a few regions for each file, and the engine of schemes is used unchanged.
//!
//! Limits: the reported age is the least of its class ([`AGE_BOUNDS`]). Beyond [`REGIONS_MAX`] regions the smallest are
//! left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::CachedBytes;
use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::frames::{AGE_BOUNDS, NR_AGES};
use crate::snapshot::{RegionMemory, RegionSnapshot, Snapshot, TargetId};

/// Target of the regions.
pub const PAGE_CACHE: TargetId = TargetId(u32::MAX);
const REGIONS_MAX: usize = 20_000;
/// Start of the first file's addresses.
const FIRST: u64 = 1 << 40;

/// The file and the least idle time that a region represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedRegion {
    /// Its addresses.
    pub range: AddressRange,
    /// The file.
    pub file: u64,
    /// Least time for which its pages have not been accessed.
    pub min_idle: Nanos,
}

/// The addresses of each file.
#[derive(Debug, Default)]
pub struct CacheLayout {
    windows: BTreeMap<u64, AddressRange>,
    end: u64,
    /// Regions of the last snapshot, in order of addresses.
    regions: Vec<CachedRegion>,
}

impl CacheLayout {
    /// Returns a snapshot of these files, over the time of their scan.
    pub fn snapshot(
        &mut self,
        start: Nanos,
        end: Nanos,
        files: impl Iterator<Item = (u64, CachedBytes)>,
    ) -> Snapshot {
        let mut found: Vec<(CachedRegion, RegionSnapshot)> = Vec::new();
        let mut windows = BTreeMap::new();
        for (file, bytes) in files {
            let window = self.window(file, bytes.total());
            windows.insert(file, window);
            found.extend(regions_of(file, window.start, bytes, end.since(start)));
        }
        self.windows = windows;
        if found.len() > REGIONS_MAX {
            let size = |(region, _): &(CachedRegion, _)| Reverse(region.range.len());
            found.select_nth_unstable_by_key(REGIONS_MAX, size);
            found.truncate(REGIONS_MAX);
        }
        found.sort_unstable_by_key(|(region, _)| region.range.start);
        self.regions = found.iter().map(|(region, _)| *region).collect();
        let regions = found.into_iter().map(|(_, reported)| reported).collect();
        Snapshot::new(PAGE_CACHE, (start, end), 1, regions)
    }

    /// Returns the regions of the last snapshot that overlap `range`, and the overlapping parts.
    pub fn find(&self, range: AddressRange) -> impl Iterator<Item = (CachedRegion, AddressRange)> {
        let first = self.regions.partition_point(|r| r.range.end <= range.start);
        let regions = self.regions[first..].iter();
        let regions = regions.take_while(move |region| region.range.start < range.end);
        regions.filter_map(move |region| Some((*region, region.range.intersection(range)?)))
    }

    /// Returns a file's addresses; it keeps them while its bytes fit.
    fn window(&mut self, file: u64, bytes: u64) -> AddressRange {
        if let Some(window) = self.windows.get(&file)
            && window.len() >= bytes
        {
            return *window;
        }
        let start = self.end.max(FIRST);
        // Space to grow, and a block between neighbours.
        let room = (bytes + bytes / 2 + 1).next_multiple_of(BLOCK_SIZE);
        let end = start + room + BLOCK_SIZE;
        self.end = end;
        AddressRange::new(start, end - BLOCK_SIZE)
    }
}

/// Returns the idle regions of a file from `start` on, the oldest first.
fn regions_of(
    file: u64,
    start: u64,
    bytes: CachedBytes,
    interval: Nanos,
) -> impl Iterator<Item = (CachedRegion, RegionSnapshot)> {
    let mut at = start;
    (0..NR_AGES).rev().filter_map(move |class| {
        let resident = bytes.ages.idle[class];
        let range = AddressRange::checked(at, at + resident)?;
        at += resident;
        let bound = class.checked_sub(1);
        let min_idle = bound.map_or(Nanos(0), |bound| AGE_BOUNDS[bound]);
        let region = CachedRegion {
            range,
            file,
            min_idle,
        };
        let age = u32::try_from(min_idle.0 / interval.0.max(1)).unwrap_or(u32::MAX);
        let reported = RegionSnapshot::new(range, Some(0.0)).aged(age, min_idle);
        let reported = reported.holding(RegionMemory::resident(resident));
        Some((region, reported))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PAGE_SIZE;
    use crate::frames::AgeBytes;

    const SECOND: u64 = 1_000_000_000;

    fn bytes(idle: [u64; NR_AGES], touched: u64) -> CachedBytes {
        let pages = |n| n * PAGE_SIZE;
        CachedBytes {
            ages: AgeBytes {
                touched: pages(touched),
                idle: idle.map(pages),
                unknown: 0,
            },
            ..CachedBytes::default()
        }
    }

    /// Returns each region as its file, its pages, and its idle time in seconds.
    fn reported(layout: &mut CacheLayout, files: &[(u64, CachedBytes)]) -> Vec<(u64, u64, u64)> {
        let (start, end) = (Nanos(0), Nanos(10 * SECOND));
        let snapshot = layout.snapshot(start, end, files.iter().copied());
        let regions = snapshot.regions.iter().map(|region| {
            let (of, part) = layout.find(region.range).next().expect("its own");
            assert_eq!(part, region.range);
            assert_eq!(of.min_idle, region.age_ns);
            let idle = of.min_idle.0 / SECOND;
            (of.file, region.resident() / PAGE_SIZE, idle)
        });
        regions.collect()
    }

    #[test]
    fn a_files_bytes_stand_by_age_the_oldest_first_and_stay_where_they_are() {
        let mut layout = CacheLayout::default();
        let files = [(7, bytes([0, 0, 0, 4, 0, 2, 0], 3)), (9, bytes([0; 7], 1))];
        assert_eq!(reported(&mut layout, &files), [(7, 2, 600), (7, 4, 30)]);
        let oldest = layout.regions[0].range.start;
        let files = [(7, bytes([0, 0, 0, 0, 4, 2, 0], 3)), (8, bytes([0; 7], 1))];
        reported(&mut layout, &files);
        assert_eq!(layout.regions[0].range.start, oldest);
        assert_eq!(layout.regions.iter().filter(|r| r.file == 9).count(), 0);
        // The file no longer fits into its addresses.
        reported(&mut layout, &[(7, bytes([0, 0, 0, 0, 4000, 2, 0], 3))]);
        assert!(layout.regions[0].range.start > oldest);
    }

    #[test]
    fn of_too_many_files_the_smallest_are_left_out() {
        let mut layout = CacheLayout::default();
        let files = (0..30_000).map(|file| (file, bytes([0, 0, file, 0, 0, 0, 0], 0)));
        let snapshot = layout.snapshot(Nanos(0), Nanos(1), files);
        assert_eq!(snapshot.regions.len(), REGIONS_MAX);
        let regions = &snapshot.regions;
        let is_large = |region: &RegionSnapshot| region.resident() >= 10_000 * PAGE_SIZE;
        assert!(regions.iter().all(is_large));
        assert!(regions.is_sorted_by(|a, b| a.range.end <= b.range.start));
    }
}
