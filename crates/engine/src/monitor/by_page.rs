//! Single pages of blocks, for memory that would need too many regions.
//!
//! Problem: if touched pages are scattered one by one, a region only gives the number of its touched pages. Reporting
//! the pages themselves takes one region for each stretch, more than the budget pays for.
//!
//! Approach: a snapshot may hold bitmaps of such blocks in addition to its regions. [`Snapshot::by_page`] turns both
//! into regions that are touched as a whole or not at all. Code that only needs sums ignores the bitmaps.
//!
//! Limits: all untouched pages of a block have one age, their mean; all touched ones have the rate of their region.

use super::block_pages::{BlockPages, Page};
use crate::address::{AddressRange, Nanos};
use crate::snapshot::{RegionMemory, RegionSnapshot, Snapshot};

impl Snapshot {
    /// Returns the snapshot with its blocks' pages as regions: each is touched as a whole or not at all, as far as is
    /// known. The regions' other memory stays with their other addresses.
    #[must_use]
    pub fn by_page(mut self) -> Self {
        if self.blocks.is_empty() {
            return self;
        }
        let mut regions = Vec::with_capacity(self.regions.len() + 64 * self.blocks.len());
        let mut rest = &self.blocks[..];
        let interval = self.end.since(self.start);
        for region in &self.regions {
            while let [first, others @ ..] = rest
                && first.range().end <= region.range.start
            {
                rest = others;
            }
            let its = rest.partition_point(|block| block.block < region.range.end);
            if its == 0 || !is_mixed(region) {
                regions.push(*region);
            } else {
                let pieces = Pieces::of(region, self.nr_samples, interval);
                pieces.push(&rest[..its], &mut regions);
            }
        }
        self.regions = regions;
        self.blocks.clear();
        self
    }
}

/// Returns whether some of its memory was touched and some was not: otherwise its pages add no information.
pub(crate) fn is_mixed(region: &RegionSnapshot) -> bool {
    region.memory.is_some() && region.touched() > 0 && region.touched() < region.resident()
}

/// The values shared by the pieces of one region.
struct Pieces<'a> {
    region: &'a RegionSnapshot,
    /// Accesses of each touched page.
    nr_accesses: f32,
    touched_for: Nanos,
    interval: Nanos,
}

impl<'a> Pieces<'a> {
    fn of(region: &'a RegionSnapshot, nr_samples: u32, interval: Nanos) -> Self {
        let known = region.resident().saturating_sub(region.unknown());
        let factor = known as f32 / region.touched().max(1) as f32;
        let nr_accesses = region.nr_accesses.unwrap_or(0.0) * factor;
        let is_busy = nr_accesses > 0.0;
        Self {
            region,
            nr_accesses: nr_accesses.clamp(1.0, nr_samples.max(1) as f32),
            // The age of an idle region belongs to its untouched pages.
            touched_for: if is_busy { region.age_ns } else { Nanos(0) },
            interval,
        }
    }

    /// Adds the pieces of the region to `regions`; the pages of its `blocks` are known.
    fn push(&self, blocks: &[BlockPages], regions: &mut Vec<RegionSnapshot>) {
        let first = regions.len();
        let whole = self.region.range;
        let mut left = self.region.memory.unwrap_or_default();
        let mut from = whole.start;
        for block in blocks {
            self.push_rest(from, block.block, regions);
            from = block.range().end.min(whole.end);
            for (range, page) in block.stretches(whole) {
                let piece = self.piece(block, range, page);
                left = left.less(piece.memory.unwrap_or_default());
                if page != Page::Absent {
                    regions.push(piece);
                }
            }
        }
        self.push_rest(from, whole.end, regions);
        spread(left, &mut regions[first..]);
    }

    /// Adds the addresses between blocks; [`spread`] sets their memory.
    fn push_rest(&self, from: u64, to: u64, regions: &mut Vec<RegionSnapshot>) {
        regions.extend(AddressRange::checked(from, to).map(|range| RegionSnapshot {
            range,
            memory: None,
            ..*self.region
        }));
    }

    fn piece(&self, block: &BlockPages, range: AddressRange, page: Page) -> RegionSnapshot {
        let of = |states: &[Page]| u64::from(states.contains(&page)) * range.len();
        let (nr_accesses, age_ns) = match page {
            Page::Touched => (Some(self.nr_accesses), self.touched_for),
            Page::Unknown => (None, self.region.age_ns),
            _ => (Some(0.0), block.untouched_for),
        };
        let age = age_ns.0.checked_div(self.interval.0).unwrap_or(0);
        RegionSnapshot {
            range,
            nr_accesses,
            age: u32::try_from(age).unwrap_or(u32::MAX),
            age_ns,
            memory: Some(RegionMemory {
                resident: of(&[Page::Touched, Page::Unknown, Page::Untouched]),
                touched: of(&[Page::Touched]),
                unknown: of(&[Page::Unknown]),
                swapped: of(&[Page::Swapped]),
            }),
        }
    }
}

/// Divides the memory `left` among the regions without memory, by their lengths.
fn spread(mut left: RegionMemory, regions: &mut [RegionSnapshot]) {
    let rest = regions.iter_mut().filter(|region| region.memory.is_none());
    let rest: Vec<_> = rest.collect();
    let whole: u64 = rest.iter().map(|region| region.range.len()).sum();
    let held = left.resident.saturating_add(left.swapped);
    // A record may hold blocks that contradict its regions.
    if held > whole {
        left = left.share(whole, held);
    }
    left.touched = left.touched.min(left.resident);
    left.unknown = left.unknown.min(left.resident - left.touched);
    for region in rest {
        region.memory = Some(left.share(region.range.len(), whole));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{BLOCK_SIZE, PAGE_SIZE};

    const PAGES: u64 = PAGE_SIZE;

    fn region(blocks: std::ops::Range<u64>, memory: RegionMemory) -> RegionSnapshot {
        let range = AddressRange::new(blocks.start * BLOCK_SIZE, blocks.end * BLOCK_SIZE);
        let region = RegionSnapshot::new(range, Some(0.5)).aged(3, Nanos(3000));
        region.holding(memory)
    }

    fn snapshot(regions: Vec<RegionSnapshot>, blocks: Vec<BlockPages>) -> Snapshot {
        Snapshot {
            end: Nanos(1000),
            nr_samples: 20,
            regions,
            blocks,
            ..Snapshot::default()
        }
    }

    /// Pages 1 and 4 were touched, 2 is absent, 3 is swapped out, 5 is unknown, and the others up to 7 are idle.
    fn block(number: u64) -> BlockPages {
        let first = |word| [word, 0, 0, 0, 0, 0, 0, 0];
        BlockPages {
            block: number * BLOCK_SIZE,
            resident: first(0b1111_0011),
            touched: first(0b0001_0010),
            unknown: first(0b0010_0000),
            swapped: first(0b0000_1000),
            untouched_for: Nanos(7000),
        }
    }

    const OF_BLOCK: RegionMemory = RegionMemory {
        resident: 6 * PAGES,
        touched: 2 * PAGES,
        unknown: PAGES,
        swapped: PAGES,
    };

    #[test]
    fn each_stretch_of_pages_becomes_a_region() {
        let expanded = snapshot(vec![region(1..2, OF_BLOCK)], vec![block(1)]).by_page();
        let reported = expanded.regions.iter().map(|region| {
            let page = (region.range.start - BLOCK_SIZE) / PAGE_SIZE;
            let pages = region.range.len() / PAGE_SIZE;
            (page, pages, region.nr_accesses.map(|n| n > 0.0), region.age)
        });
        let wanted = [
            (0, 1, Some(false), 7),
            (1, 1, Some(true), 3),
            (3, 1, Some(false), 7),
            (4, 1, Some(true), 3),
            (5, 1, None, 3),
            (6, 2, Some(false), 7),
        ];
        assert_eq!(reported.collect::<Vec<_>>(), wanted);
        assert_eq!(expanded.totals().known_swapped(), Some(PAGES));
        assert!(expanded.blocks.is_empty());
        assert_eq!(expanded.clone().by_page(), expanded);
    }

    #[test]
    fn the_age_of_an_idle_region_is_not_its_touched_pages() {
        let mut idle = region(1..2, OF_BLOCK);
        idle.nr_accesses = Some(0.0);
        let expanded = snapshot(vec![idle], vec![block(1)]).by_page();
        let touched = expanded.regions[1];
        assert_eq!((touched.nr_accesses, touched.age), (Some(1.0), 0));
    }

    #[test]
    fn what_regions_hold_besides_stays_with_the_rest() {
        let memory = OF_BLOCK.plus(RegionMemory {
            touched: 40 * PAGES,
            ..RegionMemory::resident(400 * PAGES)
        });
        let before = snapshot(vec![region(0..3, memory)], vec![block(1)]);
        let after = before.clone().by_page();
        let sums = |snapshot: &Snapshot| {
            let of = snapshot.totals();
            [of.resident, of.touched, of.unknown, of.swapped]
        };
        assert_eq!(sums(&after), sums(&before));
        assert_eq!(after.regions[0].resident(), 200 * PAGES);
    }

    #[test]
    fn what_is_wholly_idle_or_touched_stays_whole() {
        let idle = RegionMemory::resident(6 * PAGES);
        let regions = vec![region(1..2, idle)];
        let expanded = snapshot(regions.clone(), vec![block(1)]).by_page();
        assert_eq!(expanded.regions, regions);
    }

    #[test]
    fn blocks_that_contradict_regions_make_no_memory() {
        for resident in [2 * PAGES, 1024 * PAGES] {
            let mut memory = RegionMemory::resident(resident);
            memory.touched = PAGES;
            let expanded = snapshot(vec![region(1..3, memory)], vec![block(1), block(2)]).by_page();
            for region in &expanded.regions {
                let held = region.resident() + region.memory.map_or(0, |m| m.swapped);
                assert!(held <= region.range.len(), "{region:?}");
            }
        }
    }

    #[test]
    fn contradictions_are_told() {
        let check = |change: fn(&mut BlockPages), why: &str| {
            let mut changed = block(1);
            change(&mut changed);
            let said = changed.check();
            assert!(said.is_err_and(|said| said.contains(why)), "{why}");
        };
        assert_eq!(block(3).check(), Ok(()));
        check(|of| of.block = 4096, "is not where");
        check(|of| of.resident = [0; 8], "but not there");
        check(|of| of.unknown = of.touched, "touched and unknown");
        check(|of| of.swapped = [1; 8], "there and swapped out");
    }
}
