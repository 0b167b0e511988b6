//! For how long each page of a block has been idle.

use super::block::{Block, GRANULE_PAGES, SURE_SHARE, State};
use super::{TableMonitor, target::Target};
use crate::address::{Nanos, PAGES_PER_BLOCK};
use crate::monitor::bits::has;
use crate::monitor::frames::PageAge;
use crate::monitor::ticks::nanos_of;
use crate::snapshot::TargetId;

impl TableMonitor {
    /// What is known of each page of the block at `address` when an interval has ended; of pages that were not
    /// there then, that they were accessed since. `None` where the block is not watched.
    pub fn page_ages(
        &self,
        target: TargetId,
        address: u64,
        now: Nanos,
    ) -> Option<[PageAge; PAGES_PER_BLOCK]> {
        let target: &Target = self.targets.get(&target)?;
        let blocks = &target.blocks;
        let at = blocks.binary_search_by_key(&address, |block| block.address);
        let now = self.ticks(now);
        Some(blocks[at.ok()?].page_ages(now, target.hides_accesses))
    }
}

impl Block {
    fn page_ages(&self, now: u32, hides_accesses: bool) -> [PageAge; PAGES_PER_BLOCK] {
        let seen = self.seen();
        let is_hidden = hides_accesses || !self.is_fresh();
        let blind = match self.estimate {
            None => Some(PageAge::Unknown),
            Some(share) if share >= SURE_SHARE => Some(PageAge::Touched),
            // Some of them were, and it is not known which.
            Some(_) if self.is_guess() => Some(PageAge::Unknown),
            Some(_) => None,
        };
        std::array::from_fn(|page| {
            if !has(&self.present, page) || has(&seen.touched, page) {
                return PageAge::Touched;
            }
            if is_hidden {
                return PageAge::Unknown;
            }
            if let Some(age) = blind
                && has(&seen.blind, page)
            {
                return age;
            }
            let granule = page / GRANULE_PAGES;
            let mut since = self.idle_since(page, now);
            if self.state(granule) == State::Idle {
                since = since.min(self.since(granule));
            }
            PageAge::idle_for(nanos_of(now.saturating_sub(since)))
        })
    }
}
