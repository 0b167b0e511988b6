//! Memory that several targets map, under the first of them alone.
//!
//! Approach: after each round of scans, the page tables show the frame of every page. A frame's first page stays. Its
//! other pages leave their scans, and what their accessed bits say goes to the first.
//!
//! Limits: the tables are read some milliseconds after the scans. A page that moves meanwhile counts where it is then.

use isotherm_engine::monitor::bits;
use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE};
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::probe::scan::ScanError;
use isotherm_record::{Item, PageBlock};

/// Frames of a table: a gibibyte.
const FRAMES: u64 = 1 << 18;

/// A page of a scan: the scan's place among the items, the block's in the scan, the page's in the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// One more than the scan's place; 0: no page.
    scan: u32,
    block: u32,
    page: u16,
}

/// The first page of each frame.
#[derive(Debug, Default)]
pub(super) struct FirstPages {
    tables: Vec<Option<Box<[Place]>>>,
}

impl FirstPages {
    fn clear(&mut self) {
        for table in self.tables.iter_mut().flatten() {
            table.fill(Place::default());
        }
    }

    /// Returns the first page of `frame`, if it has one; else makes it `place`.
    fn first_or(&mut self, frame: u64, place: Place) -> Option<Place> {
        let at = (frame / FRAMES) as usize;
        if self.tables.len() <= at {
            self.tables.resize(at + 1, None);
        }
        let empty = || vec![Place::default(); FRAMES as usize].into();
        let first = &mut self.tables[at].get_or_insert_with(empty)[(frame % FRAMES) as usize];
        if first.scan > 0 {
            return Some(*first);
        }
        *first = place;
        None
    }

    /// Leaves each frame in one of the scans among `items`.
    pub(super) fn count_once(
        &mut self,
        probe: &mut PageTableProbe,
        items: &mut [Item],
    ) -> Result<(), ScanError> {
        self.clear();
        for scan in 0..items.len() {
            let Item::Pages(pages) = &items[scan] else {
                continue;
            };
            let blocks: Vec<u64> = pages.blocks.iter().map(|block| block.block).collect();
            let mut others = Vec::new();
            let mut at = 0;
            probe.each_frame(pages.target, &blocks, |address, frame, nr| {
                for i in 0..u64::from(nr) {
                    let address = address + i * PAGE_SIZE;
                    while blocks
                        .get(at)
                        .is_some_and(|block| block + BLOCK_SIZE <= address)
                    {
                        at += 1;
                    }
                    if blocks.get(at).is_none_or(|block| address < *block) {
                        continue;
                    }
                    let place = Place {
                        scan: scan as u32 + 1,
                        block: at as u32,
                        page: (address % BLOCK_SIZE / PAGE_SIZE) as u16,
                    };
                    let first = self.first_or(frame + i, place);
                    others.extend(first.map(|first| (place, first)));
                }
            })?;
            for (place, first) in others {
                merge(items, place, first);
            }
        }
        Ok(())
    }
}

/// Moves a page's state to the first page of its frame.
fn merge(items: &mut [Item], place: Place, first: Place) {
    let Some(block) = block_of(items, place) else {
        return;
    };
    let page = usize::from(place.page);
    let state = [block.accessed, block.unknown].map(|pages| bits::has(&pages, page));
    for pages in [&mut block.present, &mut block.accessed, &mut block.unknown] {
        bits::put(pages, page, false);
    }
    let Some(block) = block_of(items, first) else {
        return;
    };
    let page = usize::from(first.page);
    bits::set(&mut block.present, page);
    for (pages, is_set) in [&mut block.accessed, &mut block.unknown]
        .into_iter()
        .zip(state)
    {
        if is_set {
            bits::set(pages, page);
        }
    }
    // An access that was seen is known.
    if bits::has(&block.accessed, page) {
        bits::put(&mut block.unknown, page, false);
    }
}

fn block_of(items: &mut [Item], place: Place) -> Option<&mut PageBlock> {
    match &mut items[place.scan as usize - 1] {
        Item::Pages(pages) => pages.blocks.get_mut(place.block as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::TargetId;
    use isotherm_record::PageSnapshot;

    use super::*;

    fn place(scan: u32, page: u16) -> Place {
        Place {
            scan,
            block: 0,
            page,
        }
    }

    #[test]
    fn the_first_page_of_a_frame_takes_the_accesses_of_the_others() {
        let mut first = FirstPages::default();
        let frame = FRAMES * 3 + 5;
        assert_eq!(first.first_or(frame, place(1, 4)), None);
        assert_eq!(first.first_or(frame, place(2, 6)), Some(place(1, 4)));
        assert_eq!(first.first_or(5, place(2, 6)), None, "another frame");
        first.clear();
        assert_eq!(first.first_or(frame, place(2, 6)), None);

        let scan = |target: u32, accessed: usize| {
            let mut block = PageBlock {
                present: bits::mask_of(0..8),
                unknown: bits::mask_of(4..5),
                ..PageBlock::default()
            };
            bits::set(&mut block.accessed, accessed);
            Item::Pages(PageSnapshot {
                target: TargetId(target),
                blocks: vec![block],
                ..PageSnapshot::default()
            })
        };
        let mut items = [scan(0, 1), scan(1, 6)];
        merge(&mut items, place(2, 6), place(1, 4));
        let blocks = [1, 2].map(|scan| *block_of(&mut items, place(scan, 0)).expect("a scan"));
        assert!(bits::has(&blocks[0].accessed, 4) && bits::is_empty(&blocks[0].unknown));
        assert!(!bits::has(&blocks[1].present, 6) && bits::is_empty(&blocks[1].accessed));
    }
}
