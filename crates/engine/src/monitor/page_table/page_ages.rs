//! Idle time of each page of a block.

use super::block::{Block, SURE_SHARE, State};
use super::granule::GRANULE_PAGES;
use super::{TableMonitor, target::Target};
use crate::address::{Nanos, PAGES_PER_BLOCK};
use crate::monitor::bits::has;
use crate::monitor::frames::PageAge;
use crate::monitor::page_since::UNIT;
use crate::monitor::ticks::nanos_of;
use crate::snapshot::TargetId;

impl TableMonitor {
    /// Returns the age of each page of the block at `address`, after an interval has ended. A page that was not present
    /// then counts as touched, and so does a page that was touched after `since`. Returns `None` if the block is not
    /// watched.
    pub fn page_ages(
        &self,
        target: TargetId,
        address: u64,
        since: Nanos,
        now: Nanos,
    ) -> Option<[PageAge; PAGES_PER_BLOCK]> {
        let target: &Target = self.targets.get(&target)?;
        let blocks = &target.blocks;
        let at = blocks.binary_search_by_key(&address, |block| block.address);
        let (since, now) = (self.ticks(since), self.ticks(now));
        Some(blocks[at.ok()?].page_ages(since, now, target.hides_accesses))
    }
}

impl Block {
    fn page_ages(
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
            let granule = page / GRANULE_PAGES;
            let mut since = self.idle_since(page, now);
            if self.state(granule) == State::Idle {
                since = since.min(self.since(granule));
            }
            // A page without a known idle time was not seen touched: it does not count as touched.
            if since < now && since > touched_since.saturating_add(UNIT) {
                return PageAge::Touched;
            }
            if idle.0 != since {
                idle = (
                    since,
                    PageAge::idle_for(nanos_of(now.saturating_sub(since))),
                );
            }
            idle.1
        })
    }
}
