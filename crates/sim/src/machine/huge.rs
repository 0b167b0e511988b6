//! Huge pages: made at the first fault, by khugepaged and on demand, and split again.

use isotherm_engine::Nanos;
use isotherm_policy::Refusal;
use serde::Deserialize;

use super::area::Use;
use super::{BLOCK, Defrag, Place, SimMachine, block_at};
use crate::memory::Page;

/// `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThpMode {
    /// Huge pages for all anonymous memory.
    Always,
    /// Huge pages where the program asked for them.
    #[default]
    Madvise,
    /// No huge pages.
    Never,
}

/// khugepaged's pages_to_scan, in blocks, and scan_sleep_millisecs: the kernel's defaults.
const SCAN_BLOCKS: usize = 8;
pub(super) const SCAN_PERIOD: Nanos = Nanos::from_millis(10_000);
/// khugepaged's max_ptes_swap.
const SWAPPED_MAX: usize = 64;

impl SimMachine {
    /// Whether all of a block is one anonymous mapping, of a process that does not refuse huge pages.
    fn can_be_huge(&self, first: Page) -> bool {
        let Some(area) = self.areas.get(self.area_at(first)) else {
            return false;
        };
        area.pages.start <= first
            && first + BLOCK <= area.pages.end
            && area.spec.purpose == Use::Anon
            && !self.processes[area.process].spec.refuses_huge
    }

    /// Returns the advice about a block's huge pages: the last of a scheme, or else the program's.
    fn advice(&self, first: Page) -> Option<bool> {
        let advised = self.advised[(first / BLOCK) as usize];
        advised.or(self.areas[self.area_at(first)].spec.huge)
    }

    pub(super) fn advise(&mut self, page: Page, huge: bool) {
        self.advised[(page / BLOCK) as usize] = Some(huge);
    }

    /// Whether first faults and khugepaged may make a block huge, by the machine's mode and advice.
    pub(super) fn wants_huge(&self, first: Page) -> bool {
        if !self.can_be_huge(first) {
            return false;
        }
        let advice = self.advice(first);
        match self.spec.thp {
            ThpMode::Never => false,
            ThpMode::Madvise => advice == Some(true),
            ThpMode::Always => advice != Some(false),
        }
    }

    /// Fills an empty block with a huge page at its first fault, if one is free or compaction makes one. Returns
    /// whether it did, and the time that compaction took.
    pub(super) fn fill_huge(&mut self, first: Page) -> (bool, Nanos) {
        let is_empty = block_at(first).all(|page| self.place[page as usize] == Place::Nowhere);
        if !is_empty {
            return (false, Nanos(0));
        }
        let is_asked_for = self.advice(first) == Some(true);
        let may_compact = match self.spec.defrag {
            Defrag::Always => true,
            Defrag::Madvise => is_asked_for,
            Defrag::Never => false,
        };
        let (frame, took) = self.place_huge(first, may_compact);
        if frame.is_none() {
            self.stats.huge_fallbacks += 1;
            return (false, took);
        }
        let block = block_at(first);
        self.set_places(block, Place::Nowhere, Place::Memory);
        self.map_huge(first);
        self.stats.huge_faults += 1;
        (true, took)
    }

    fn map_huge(&mut self, first: Page) {
        self.note_in(block_at(first));
        self.huge[(first / BLOCK) as usize] = true;
        self.set_accessed(first);
        let process = self.areas[self.area_at(first)].process;
        self.processes[process].huge_blocks += 1;
    }

    /// Makes a block one huge page. All of its pages are in memory afterwards.
    pub(super) fn collapse(&mut self, first: Page, present_min: usize) -> Result<Nanos, Refusal> {
        if !self.can_be_huge(first) {
            return Err(Refusal::Unmapped);
        }
        if self.is_huge(first) {
            return Err(Refusal::NotPresent);
        }
        let of = |wanted: Place| {
            let pages = block_at(first);
            let is = |page: &Page| self.place[*page as usize] == wanted;
            pages.filter(is).collect::<Vec<Page>>()
        };
        let (present, swapped) = (of(Place::Memory), of(Place::Swap).len());
        if present.len() < present_min.max(1) || swapped > SWAPPED_MAX {
            return Err(Refusal::Sparse);
        }
        let was_accessed = present.iter().any(|page| self.is_accessed(*page));
        for page in &present {
            self.note_out(*page..*page + 1);
            self.memory.free_page(*page);
        }
        let (frame, compacting) = self.place_huge(first, true);
        if frame.is_none() {
            // At least the pages' own frames are free.
            for page in &present {
                self.put_back(*page);
            }
            return Err(Refusal::NoRoom);
        }
        for page in block_at(first) {
            if self.place[page as usize] == Place::Swap {
                self.stats.swapped_in += 1;
                self.release_swap();
            }
            self.set_place(page, Place::Memory);
        }
        self.map_huge(first);
        if !was_accessed {
            self.clear(first);
        }
        Ok(self.spec.costs.collapse + compacting)
    }

    /// Splits a huge page; each of its pages takes over its accessed bit.
    pub(super) fn split(&mut self, first: Page) -> Nanos {
        self.spread_bit(block_at(first));
        self.huge[(first / BLOCK) as usize] = false;
        let process = self.areas[self.area_at(first)].process;
        self.processes[process].huge_blocks -= 1;
        self.spec.costs.split
    }

    pub(super) fn unused_in_memory(&self, first: Page) -> u64 {
        let pages = block_at(first);
        let is_there = |page: &Page| self.place[*page as usize] == Place::Memory;
        self.unused_of(pages.filter(is_there))
    }

    pub(super) fn unused_of(&self, pages: impl Iterator<Item = Page>) -> u64 {
        pages.filter(|page| !self.filled.get(*page)).count() as u64
    }

    /// Gives back the pages of a split block that the program has never filled. Linux 6.12 maps the shared zero page
    /// instead of them.
    pub(super) fn drop_unused(&mut self, pages: std::ops::Range<Page>) {
        for page in pages {
            if !self.filled.get(page) {
                self.drop_page(page);
            }
        }
    }

    pub(super) fn is_anonymous(&self, page: Page) -> bool {
        self.use_of(page) == Use::Anon
    }

    pub(super) fn use_of(&self, page: Page) -> Use {
        self.areas[self.area_at(page)].spec.purpose
    }

    pub(super) fn khugepaged(&mut self) {
        self.khugepaged_due = self.now + SCAN_PERIOD;
        if self.spec.thp == ThpMode::Never || self.huge.is_empty() {
            return;
        }
        let mut scanned = 0;
        // Blocks that must not be huge take no time: khugepaged passes them mapping by mapping.
        for _ in 0..self.huge.len() {
            let block = self.next_collapse % self.huge.len();
            self.next_collapse = block + 1;
            let first = block as Page * BLOCK;
            if !self.wants_huge(first) {
                continue;
            }
            if let Ok(took) = self.collapse(first, 1) {
                self.stats.khugepaged_cpu = self.stats.khugepaged_cpu + took;
            }
            scanned += 1;
            if scanned == SCAN_BLOCKS {
                break;
            }
        }
    }
}
