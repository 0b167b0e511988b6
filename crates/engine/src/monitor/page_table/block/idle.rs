//! Idle times of single pages of a block, and the pages that were read back.

use super::super::pages::{GRANULE_PAGES, Pages};
use super::{Block, BlockFacts, SURE_SHARE, State};
use crate::address::{Nanos, PAGES_PER_BLOCK};
use crate::monitor::bits::{self, Bitmap, NONE, and, has, is_empty, or};
use crate::monitor::frames::PageAge;
use crate::monitor::idle_ends::IdleEnds;
use crate::monitor::idle_pages::{IdlePages, PageAgeRule};
use crate::monitor::page_since::{PageSince, UNIT, nanos_of};

impl Block {
    /// Counts pages that were swapped out and are `accessed` now; forgets pages that are not `there` any more.
    pub(super) fn note_returns(&mut self, accessed: &Bitmap, there: &Bitmap) {
        if let Some(returns) = &mut self.returns {
            returns.keep(there);
        }
        if let Some(swapped) = &self.swapped {
            let back = and(swapped, accessed);
            if !is_empty(&back) {
                let none = || Box::new(Returns::NONE);
                self.returns.get_or_insert_with(none).add(&back);
            }
        }
        self.returns.take_if(|returns| returns.is_empty());
    }

    /// Adds the idle times until `now`, the beginning of the interval, of pages that `facts` show accessed. It is
    /// called before the block takes in the facts.
    pub(in super::super) fn count_idle_ends(
        &self,
        facts: &BlockFacts,
        watched: &Bitmap,
        now: u32,
        ends: &mut IdleEnds,
    ) {
        let is_idle = self.states & 0xAAAA_AAAA_AAAA_AAAA != 0xAAAA_AAAA_AAAA_AAAA;
        if self.page_since.is_none() && !is_idle {
            return;
        }
        let accessed = and(&facts.accessed, &and(&facts.present, watched));
        for page in bits::each(&and(&accessed, &and(&self.sampled, &self.present))) {
            ends.add(nanos_of(
                now.saturating_sub(self.page_or_granule_idle_since(page, now)),
            ));
        }
    }

    /// Updates the ages of pages at the end of an interval, before those of granules.
    pub(super) fn update_page_since(&mut self, now: u32) {
        let touched = self.touched();
        let untouched = self.untouched();
        // Once the whole block is idle, the ages of granules suffice.
        if is_empty(&touched) && self.states & 0xAAAA_AAAA_AAAA_AAAA == 0 {
            self.page_since = None;
            return;
        }
        if let Some(page_since) = &mut self.page_since {
            page_since.update(now, &untouched, &self.watching);
        } else if !is_empty(&touched) && !is_empty(&untouched) {
            let idle_since = |page: usize| match self.state(page / GRANULE_PAGES) {
                State::Idle => self.since(page / GRANULE_PAGES),
                _ => now,
            };
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
        let granule = page / GRANULE_PAGES;
        let since = self.idle_since(page, now);
        match self.state(granule) {
            State::Idle => since.min(self.since(granule)),
            _ => since,
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
        let returns = self.returns.as_ref();
        let returns = returns.filter(|_| ages == PageAgeRule::LessByReturns);
        let nr_returns = |page| returns.map_or(0, |returns| returns.of(page));
        let mut idle = IdlePages::new(self.address);
        for page in bits::each(&untouched) {
            let idle_for = nanos_of(now.saturating_sub(self.idle_since(page, now)));
            idle.add(page, idle_for, nr_returns(page));
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

/// Number of times that each page was read back, up to three: the lower and the upper bit of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returns {
    low: Bitmap,
    high: Bitmap,
}

impl Returns {
    pub(super) const NONE: Self = Self {
        low: NONE,
        high: NONE,
    };

    /// Adds one read-back for each of `pages`.
    pub(super) fn add(&mut self, pages: &Bitmap) {
        for (at, pages) in pages.iter().enumerate() {
            let (low, high) = (self.low[at], self.high[at]);
            self.high[at] = high | pages & low;
            self.low[at] = low ^ pages | pages & low & high;
        }
    }

    /// Forgets all pages but `pages`.
    pub(super) fn keep(&mut self, pages: &Bitmap) {
        self.low = and(&self.low, pages);
        self.high = and(&self.high, pages);
    }

    pub(super) fn is_empty(&self) -> bool {
        or(&self.low, &self.high) == NONE
    }

    /// Returns how many times `page` was read back, up to three.
    pub(super) fn of(&self, page: usize) -> u32 {
        let bit = |map: &Bitmap| (map[page / 64] >> (page % 64) & 1) as u32;
        bit(&self.low) + 2 * bit(&self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::bits::mask_of;

    #[test]
    fn returns_are_counted_up_to_three() {
        let mut returns = Returns::NONE;
        for first in 1..6 {
            returns.add(&mask_of(first..8));
        }
        let counts: Vec<u32> = (0..9).map(|page| returns.of(page)).collect();
        assert_eq!(counts, [0, 1, 2, 3, 3, 3, 3, 3, 0]);
        returns.keep(&mask_of(0..2));
        assert_eq!((returns.of(1), returns.of(5)), (1, 0));
        returns.keep(&NONE);
        assert!(returns.is_empty());
    }
}
