//! What a snapshot says of idle pages in blocks of which others are in use.

use super::TableMonitor;
use super::block::{Block, nanos_of};
use super::target::Target;
use crate::monitor::bits;
use crate::monitor::idle_pages::IdlePages;

impl TableMonitor {
    /// From now on snapshots tell [which pages are idle](crate::Snapshot::idle_pages), for who acts on them.
    pub fn tell_idle_pages(&mut self) {
        self.tells_idle_pages = true;
    }

    pub(super) fn idle_pages(&self, target: &Target, now: u32) -> Vec<IdlePages> {
        if !self.tells_idle_pages || target.hides_accesses {
            return Vec::new();
        }
        let blocks = target.blocks.iter();
        blocks.filter_map(|block| block.idle_pages(now)).collect()
    }
}

impl Block {
    fn idle_pages(&self, now: u32) -> Option<IdlePages> {
        let untouched = self.untouched();
        if !self.has_page_ages() || !self.is_fresh() || bits::is_empty(&untouched) {
            return None;
        }
        let mut idle = IdlePages::new(self.address);
        for page in bits::each(&untouched) {
            let idle_for = nanos_of(now.saturating_sub(self.idle_since(page, now)));
            idle.add(page, idle_for, self.nr_returns(page));
        }
        Some(idle)
    }
}
