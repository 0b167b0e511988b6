//! Idle pages of blocks in which other pages are in use, for snapshots.

use super::TableMonitor;
use super::target::Target;
use crate::monitor::idle_pages::{IdlePages, PageAgeRule};

impl TableMonitor {
    /// Makes all later snapshots report [idle pages](crate::Snapshot::idle_pages), for callers that act on them. `ages`
    /// selects the kind of their ages.
    pub fn tell_idle_pages(&mut self, ages: PageAgeRule) {
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
