//! Accessed bits, drawn when they are read.
//!
//! A bit that was found set stays set until it is cleared. One that was found clear is drawn anew from then on, because
//! its source ([`super::pattern`]) has no memory. A page of a mapping that is ever accessed takes four bytes: the time
//! since which its bit is clear, or a mark that it is set. Other pages take a bit. A huge page has the bit of its first
//! page.

use std::ops::Range;

use isotherm_engine::Nanos;
use isotherm_engine::monitor::bits;
use isotherm_engine::table::BlockFacts;
use rand_pcg::Pcg64Mcg;

use super::area::Area;
use super::{Place, SimMachine};
use crate::memory::Page;

/// Resolution of [`Area::clear_since`] in nanoseconds: 119 hours fit.
const TICK: u64 = 100_000;

/// Value of [`Area::clear_since`] for a bit that is set.
const SET: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct PageBits {
    words: Vec<u64>,
}

impl PageBits {
    pub(super) fn grow(&mut self, pages: usize) {
        self.words.resize(pages.div_ceil(64), 0);
    }

    pub(super) fn get(&self, page: Page) -> bool {
        self.words[page as usize / 64] >> (page % 64) & 1 == 1
    }

    fn clear(&mut self, page: Page) {
        self.words[page as usize / 64] &= !(1 << (page % 64));
    }

    pub(super) fn set(&mut self, page: Page, is_set: bool) {
        self.set_run(page..page + 1, is_set);
    }

    pub(super) fn set_run(&mut self, pages: Range<Page>, is_set: bool) {
        let mut page = pages.start;
        while page < pages.end {
            let end = (page / 64 * 64 + 64).min(pages.end);
            let mask = u64::MAX >> (64 - (end - page)) << (page % 64);
            let word = &mut self.words[page as usize / 64];
            *word = if is_set { *word | mask } else { *word & !mask };
            page = end;
        }
    }

    /// Returns the bits of the pages from `first` on in its word, the lowest first.
    fn rest_of_word(&self, first: Page) -> u64 {
        self.words[first as usize / 64] >> (first % 64)
    }
}

impl SimMachine {
    /// Whether a page in memory was accessed since its bit was cleared.
    pub(crate) fn is_accessed(&mut self, page: Page) -> bool {
        let unit = self.unit(page);
        let at = self.area_at(page);
        let clock = self.clock_of(at);
        let found = self.areas[at].look(&unit, clock, &mut self.random);
        found.unwrap_or_else(|| self.accessed.get(unit.start))
    }

    /// Reads the places of small pages of one mapping and block, and the accessed bits of those in memory, into
    /// `facts`. The first page is the block's page number `offset`.
    pub(super) fn look_at_run(
        &mut self,
        at: usize,
        pages: Range<Page>,
        offset: usize,
        facts: &mut BlockFacts,
    ) {
        let clock = self.clock_of(at);
        let places = &self.place[pages.start as usize..pages.end as usize];
        let area = &mut self.areas[at];
        for ((i, page), place) in (offset..).zip(pages).zip(places) {
            match place {
                Place::Nowhere | Place::File => {}
                Place::Swap => bits::set(&mut facts.swapped, i),
                Place::Memory => {
                    bits::set(&mut facts.present, i);
                    let found = area.look(&(page..page + 1), clock, &mut self.random);
                    if found.unwrap_or_else(|| self.accessed.get(page)) {
                        bits::set(&mut facts.accessed, i);
                    }
                }
            }
        }
    }

    /// Sets `accessed`, at the number that each page comes with, to whether the page was accessed.
    pub(super) fn find_accessed(&mut self, pages: &[(u32, Page)], accessed: &mut [bool]) {
        let has_huge = self.has_huge();
        let clocks: Vec<Clock> = (0..self.areas.len()).map(|at| self.clock_of(at)).collect();
        for (number, page) in pages {
            let unit = if has_huge {
                self.unit(*page)
            } else {
                *page..*page + 1
            };
            let at = self.area_at(*page);
            let found = self.areas[at].look(&unit, clocks[at], &mut self.random);
            let is_set = found.unwrap_or_else(|| self.accessed.get(unit.start));
            accessed[*number as usize] = is_set;
        }
    }

    fn has_huge(&self) -> bool {
        self.processes.iter().any(|process| process.huge_blocks > 0)
    }

    fn clock_of(&self, area: usize) -> Clock {
        let process = &self.processes[self.areas[area].process];
        Clock {
            work: process.work(),
            is_running: process.is_running(),
        }
    }

    pub(crate) fn clear(&mut self, page: Page) {
        let first = self.unit(page).start;
        let at = self.area_at(first);
        let area = &mut self.areas[at];
        let now = self.processes[area.process].work();
        match area.since(first) {
            Some(since) => *since = ticks(now),
            None => self.accessed.clear(first),
        }
    }

    /// Clears the bits of pages in memory, and keeps only the pages of mappings that are ever accessed.
    pub(super) fn clear_all(&mut self, pages: &mut Vec<(u32, Page)>) {
        let has_huge = self.has_huge();
        let work: Vec<u32> = (self.areas.iter())
            .map(|area| ticks(self.processes[area.process].work()))
            .collect();
        pages.retain(|(_, page)| {
            let first = if has_huge {
                self.unit(*page).start
            } else {
                *page
            };
            let at = self.area_at(first);
            if let Some(since) = self.areas[at].since(first) {
                *since = work[at];
                true
            } else {
                self.accessed.clear(first);
                false
            }
        });
    }

    /// Returns counters of changes. While they are equal, the bits of frames' pages in mappings that are never accessed
    /// stay clear.
    pub(super) fn bit_changes(&self) -> (u64, u64) {
        (self.memory.changes, self.touches)
    }

    pub(super) fn set_accessed(&mut self, page: Page) {
        let first = self.unit(page).start;
        self.set_run_accessed(first..first + 1);
    }

    pub(super) fn set_run_accessed(&mut self, pages: Range<Page>) {
        self.touches += 1;
        let at = self.area_at(pages.start);
        match self.areas[at].since_of(&pages) {
            Some(since) => since.fill(SET),
            None => self.accessed.set_run(pages, true),
        }
    }

    /// Gives each page of a block a bit of its own, equal to that of the first. If it is set, some page set it, and it
    /// is unknown which.
    pub(super) fn spread_bit(&mut self, block: Range<Page>) {
        let at = self.area_at(block.start);
        if let Some(since) = self.areas[at].since_of(&block) {
            since.fill(since[0]);
        } else {
            let is_set = self.accessed.get(block.start);
            self.accessed.set_run(block, is_set);
        }
    }

    /// Clears the accessed bits of up to 64 small pages, and returns those that were set, as
    /// [`SimMachine::is_accessed`] finds them. The pages are those from `first` on, of one area and one word of bits.
    /// `pages` has the bits of those that are meant, the lowest for `first`.
    pub(super) fn take_accessed(&mut self, first: Page, pages: u64) -> u64 {
        if self.areas[self.area_at(first)].clear_since.is_empty() {
            // These bits are stored, not drawn: the mapping is never accessed.
            let found = self.accessed.rest_of_word(first) & pages;
            self.accessed.words[first as usize / 64] &= !(found << (first % 64));
            return found;
        }
        let (mut found, mut rest) = (0, pages);
        while rest != 0 {
            let i = rest.trailing_zeros();
            rest &= rest - 1;
            if self.is_accessed(first + i) {
                found |= 1 << i;
                self.clear(first + i);
            }
        }
        found
    }
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    work: Nanos,
    is_running: bool,
}

impl Area {
    /// Returns whether a page or huge page in memory was accessed since its bit was cleared; `None` if this mapping is
    /// never accessed.
    fn look(&mut self, unit: &Range<Page>, clock: Clock, random: &mut Pcg64Mcg) -> Option<bool> {
        let first = self.pages.start;
        let since = self.clear_since.get_mut((unit.start - first) as usize)?;
        if *since == SET {
            return Some(true);
        }
        let (from, now) = (Nanos(u64::from(*since) * TICK), clock.work);
        if (self.span).is_none_or(|span| (span.from, span.to) != (from, now)) {
            // The span is mostly that of the bit before, which was cleared at the same time.
            self.span = self.spec.pattern.span(from, now);
        }
        let pages = unit.start - first..unit.end - first;
        let (pattern, draw) = (&self.spec.pattern, || super::draw(random));
        let is_set = clock.is_running
            && match &self.span {
                Some(span) => pattern.accessed_within(pages, span, draw),
                None => pattern.accessed(pages, from, now, draw),
            };
        *since = if is_set { SET } else { ticks(now) };
        Some(is_set)
    }

    /// Returns the note of a page in `clear_since`; `None` if this mapping is never accessed.
    fn since(&mut self, page: Page) -> Option<&mut u32> {
        self.clear_since.get_mut((page - self.pages.start) as usize)
    }

    /// Returns the notes of several pages in `clear_since`; `None` if this mapping is never accessed.
    fn since_of(&mut self, pages: &Range<Page>) -> Option<&mut [u32]> {
        let first = (pages.start - self.pages.start) as usize;
        self.clear_since.get_mut(first..first + pages.len())
    }
}

fn ticks(work: Nanos) -> u32 {
    (work.0 / TICK).min(u64::from(SET - 1)) as u32
}
