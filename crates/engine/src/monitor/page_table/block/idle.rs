//! Idle times of single pages of a block, and how many of them ended.

use super::super::pages::{GRANULE_PAGES, Pages};
use super::{Block, BlockFacts, SURE_SHARE, State};
use crate::address::{Nanos, PAGES_PER_BLOCK};
use crate::monitor::bits::{self, Bitmap, NONE, and, and_not, has, is_empty, or};
use crate::monitor::frames::PageAge;
use crate::monitor::idle_ends::IdleEnds;
use crate::monitor::idle_pages::{COUNTED_FROM, ENDS_MAX, IdlePages, PageAgeRule};
use crate::monitor::page_since::{PageSince, UNIT, nanos_of};

impl Block {
    /// Forgets the ended idle times of pages that are not `there` any more.
    pub(super) fn keep_ends(&mut self, there: &Bitmap) {
        if let Some(ends) = &mut self.ends {
            ends.keep(there);
        }
    }

    /// Halves the numbers of ended idle times, so many times.
    pub(in super::super) fn halve_ends(&mut self, times: u64) {
        if let Some(ends) = &mut self.ends {
            (0..times.min(ENDS_BITS as u64)).for_each(|_| ends.halve());
        }
    }

    /// Adds the idle times until `now`, the beginning of the interval, of pages that `facts` show accessed, pages that
    /// were out included. It is called before the block takes in the facts.
    pub(in super::super) fn count_idle_ends(
        &mut self,
        facts: &BlockFacts,
        watched: &Bitmap,
        (now, ages): (u32, PageAgeRule),
        [idle_ends, age_ends]: [&mut IdleEnds; 2],
    ) {
        if self.huge || facts.huge {
            // One bit tells of all pages.
            self.ends = None;
            return;
        }
        let is_idle = self.states & 0xAAAA_AAAA_AAAA_AAAA != 0xAAAA_AAAA_AAAA_AAAA;
        if self.page_since.is_none() && !is_idle {
            return;
        }
        let accessed = and(&facts.accessed, &and(&facts.present, watched));
        let mut idle = and(&self.sampled, &self.present);
        if let Some(swapped) = &self.swapped {
            idle = or(&idle, swapped);
        }
        let mut counted = NONE;
        for page in bits::each(&and(&accessed, &idle)) {
            let idle_for = |since: u32| nanos_of(now.saturating_sub(since));
            let alone = idle_for(self.idle_since(page, now));
            let granule = idle_for(self.granule_idle_since(page, now));
            // Idle granules are acted on as a whole, by their own age.
            idle_ends.add(alone.max(granule));
            age_ends.add(ages.age(alone, self.nr_ends(page, ages)).max(granule));
            if alone.max(granule) >= COUNTED_FROM {
                bits::set(&mut counted, page);
            }
        }
        if !is_empty(&counted) && ages == PageAgeRule::ByEnds {
            let none = || Box::new(EndCounts::NONE);
            self.ends.get_or_insert_with(none).add(&counted);
        }
    }

    fn nr_ends(&self, page: usize, ages: PageAgeRule) -> u32 {
        let ends = self.ends.as_ref();
        let ends = ends.filter(|_| ages == PageAgeRule::ByEnds);
        ends.map_or(0, |ends| ends.of(page))
    }

    /// Updates the ages of pages at the end of an interval, before those of granules.
    pub(super) fn update_page_since(&mut self, now: u32) {
        let touched = self.touched();
        let swapped = self.swapped.as_ref().map_or(NONE, |swapped| **swapped);
        let untouched = or(&self.untouched(), &swapped);
        // Once the whole block is idle, the ages of granules suffice, unless some pages are out and others are not.
        let is_mixed = !is_empty(&swapped) && !is_empty(&self.present);
        if is_empty(&touched) && self.states & 0xAAAA_AAAA_AAAA_AAAA == 0 && !is_mixed {
            self.page_since = None;
            return;
        }
        if let Some(page_since) = &mut self.page_since {
            page_since.update(now, &untouched, &self.watching);
        } else if !is_empty(&touched) && !is_empty(&untouched) {
            let idle_since = |page| self.granule_idle_since(page, now);
            self.page_since = Some(Box::new(PageSince::new(now, &untouched, idle_since)));
        }
    }

    /// Returns the earliest known tick since which the untouched `page` is idle; `now` if that is not known.
    pub(in super::super) fn idle_since(&self, page: usize, now: u32) -> u32 {
        let page_since = self.page_since.as_ref();
        page_since.map_or(now, |page_since| page_since.of(page, now))
    }

    /// Returns the earliest tick since which `page` is idle, by itself or with its granule; `now` if that is not known.
    fn page_or_granule_idle_since(&self, page: usize, now: u32) -> u32 {
        let since = self.idle_since(page, now);
        since.min(self.granule_idle_since(page, now))
    }

    /// Returns the tick since which the granule of `page` is idle; `now` if it is not.
    fn granule_idle_since(&self, page: usize, now: u32) -> u32 {
        match self.state(page / GRANULE_PAGES) {
            State::Idle => self.since(page / GRANULE_PAGES),
            _ => now,
        }
    }

    /// Returns the mean tick since which the untouched ones of `pages` are idle. `untouched` is [`Block::untouched`].
    pub(in super::super) fn mean_idle_since(
        &self,
        pages: Pages,
        untouched: &Bitmap,
        now: u32,
    ) -> f64 {
        let nr = f64::from(pages.count(untouched));
        let (Some(page_since), true) = (&self.page_since, nr > 0.0) else {
            return f64::from(now);
        };
        page_since.sum(&pages.of_map(untouched)) / nr
    }

    /// Returns the idle pages of a block with other pages in use.
    pub(in super::super) fn idle_pages(&self, now: u32, ages: PageAgeRule) -> Option<IdlePages> {
        let untouched = self.untouched();
        if self.page_since.is_none() || !self.is_fresh() || bits::is_empty(&untouched) {
            return None;
        }
        let mut idle = IdlePages::new(self.address);
        for page in bits::each(&untouched) {
            let idle_for = nanos_of(now.saturating_sub(self.idle_since(page, now)));
            idle.add(page, ages.age(idle_for, self.nr_ends(page, ages)));
        }
        Some(idle)
    }

    /// Returns the age of each page; a page that was touched after `touched_since` counts as touched.
    pub(in super::super) fn page_ages(
        &self,
        touched_since: u32,
        now: u32,
        hides_accesses: bool,
    ) -> [PageAge; PAGES_PER_BLOCK] {
        let (seen, unreached) = (self.seen(), self.unreached());
        let is_hidden = hides_accesses || !self.is_fresh();
        let unsampled = match self.estimate {
            None => Some(PageAge::Unknown),
            Some(share) if share >= SURE_SHARE => Some(PageAge::Touched),
            // Some of them were touched, and it is not known which.
            Some(_) if self.is_guess() => Some(PageAge::Unknown),
            Some(_) => None,
        };
        // Neighbours mostly have the same age.
        let mut idle = (now, PageAge::idle_for(Nanos(0)));
        std::array::from_fn(|page| {
            if !has(&self.present, page) || has(&seen.touched, page) {
                return PageAge::Touched;
            }
            if is_hidden || has(&unreached, page) {
                return PageAge::Unknown;
            }
            if let Some(age) = unsampled
                && has(&seen.unsampled, page)
            {
                return age;
            }
            let since = self.page_or_granule_idle_since(page, now);
            // A page without a known idle time was not seen touched: it does not count as touched.
            if since < now && since > touched_since.saturating_add(UNIT) {
                return PageAge::Touched;
            }
            if idle.0 != since {
                let idle_for = nanos_of(now.saturating_sub(since));
                idle = (since, PageAge::idle_for(idle_for));
            }
            idle.1
        })
    }
}

/// Number of idle times that ended, for each page, up to 15: the bits of each number, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndCounts {
    bits: [Bitmap; ENDS_BITS],
}

const ENDS_BITS: usize = ENDS_MAX.count_ones() as usize;

impl EndCounts {
    const NONE: Self = Self {
        bits: [NONE; ENDS_BITS],
    };

    /// Adds one for each of `pages`.
    fn add(&mut self, pages: &Bitmap) {
        let full = { self.bits.iter() }.fold(bits::ALL, |full, bit| and(&full, bit));
        let mut carry = and_not(pages, &full);
        for bit in &mut self.bits {
            let next = and(bit, &carry);
            *bit = or(&and_not(bit, &carry), &and_not(&carry, bit));
            carry = next;
        }
    }

    fn halve(&mut self) {
        self.bits.rotate_left(1);
        self.bits[ENDS_BITS - 1] = NONE;
    }

    /// Forgets all pages but `pages`.
    fn keep(&mut self, pages: &Bitmap) {
        for bit in &mut self.bits {
            *bit = and(bit, pages);
        }
    }

    fn of(&self, page: usize) -> u32 {
        let bits = self.bits.iter().enumerate();
        bits.map(|(at, bit)| u32::from(has(bit, page)) << at).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::bits::mask_of;

    #[test]
    fn ends_are_counted_up_to_fifteen_and_halved() {
        let mut ends = EndCounts::NONE;
        for first in 0..20 {
            ends.add(&mask_of(first..18));
        }
        let counts = |ends: &EndCounts| [0, 1, 2, 7, 14, 17, 18].map(|page| ends.of(page));
        assert_eq!(counts(&ends), [1, 2, 3, 8, 15, 15, 0]);
        ends.halve();
        assert_eq!(counts(&ends), [0, 1, 1, 4, 7, 7, 0]);
        ends.keep(&mask_of(0..2));
        assert_eq!(counts(&ends), [0, 1, 0, 0, 0, 0, 0]);
        ends.halve();
        assert_eq!(ends, EndCounts::NONE);
    }
}
