//! What a snapshot says of idle pages in blocks of which others are in use.

use super::TableMonitor;
use super::target::Target;
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
