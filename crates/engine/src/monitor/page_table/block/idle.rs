//! Idle times of single pages of a block, and the pages that were read back.

use super::super::granule::GRANULE_PAGES;
use super::{Block, State};
use crate::monitor::bits::{self, Bitmap, and, is_empty};
use crate::monitor::idle_pages::{IdlePages, PageAgeRule};
use crate::monitor::page_since::PageSince;
use crate::monitor::page_table::pages::Pages;
use crate::monitor::page_table::returns::Returns;
use crate::monitor::ticks::nanos_of;

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
        if self
            .returns
            .as_ref()
            .is_some_and(|returns| returns.is_empty())
        {
            self.returns = None;
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
        self.page_since
            .as_ref()
            .map_or(now, |page_since| page_since.of(page, now))
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
}
