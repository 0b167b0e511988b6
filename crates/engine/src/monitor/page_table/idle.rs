//! What a snapshot says of idle pages in blocks of which others are in use.

use super::TableMonitor;
use super::target::Target;
use crate::monitor::idle_pages::{IdlePages, PageAges};

impl TableMonitor {
    /// From now on snapshots tell [which pages are idle](crate::Snapshot::idle_pages), for who acts on them;
    /// their ages as `ages` says.
    pub fn tell_idle_pages(&mut self, ages: PageAges) {
        self.tells_idle_pages = Some(ages);
    }

    pub(super) fn idle_pages(&self, target: &Target, now: u32) -> Vec<IdlePages> {
        let Some(ages) = self.tells_idle_pages.filter(|_| !target.hides_accesses) else {
            return Vec::new();
        };
        let blocks = target.blocks.iter();
        blocks
            .filter_map(|block| block.idle_pages(now, ages))
            .collect()
    }
}
