//! Clean pages of files, which make room when it is needed.
//!
//! Problem: what was read from files stays in memory. Nobody may need it again, as a snapshot that a
//! server has loaded, but until it is dropped it takes the room of what is needed.
//!
//! Approach: that of the kernel's kswapd. What finds a node at its low watermark wakes it; it drops pages
//! of files, those first that were read first, until the high watermark is reached. The watermarks lie
//! 0.1 % of the node apart (`vm.watermark_scale_factor`, its default of 10). Where a node has no such
//! pages, nothing is done.
//!
//! Limits: pages that are dropped are not read again; that one is in use does not spare it; kswapd takes
//! no time.

use std::ops::Range;

use crate::memory::{Memory, Page};

/// The page cache of a machine each node of which is one zone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageCache {
    /// In the order in which they were read.
    pages: Range<Page>,
    nodes: Vec<NodeCache>,
}

/// What of it is on a node.
#[derive(Clone, Copy, Debug)]
struct NodeCache {
    nr_pages: u64,
    /// Where kswapd goes on.
    next: Page,
    dropped: u64,
}

impl PageCache {
    /// `pages`, none of which was read yet.
    pub(crate) fn new(pages: Range<Page>, nodes: usize) -> Self {
        let node = NodeCache {
            nr_pages: 0,
            next: pages.start,
            dropped: 0,
        };
        Self {
            nodes: vec![node; nodes],
            pages,
        }
    }

    /// `count` pages from `page` on are now on a node.
    pub(crate) fn note_placed(&mut self, page: Page, count: u64, node: u32) {
        if self.pages.contains(&page) {
            self.nodes[node as usize].nr_pages += count;
        }
    }

    /// A page has moved.
    pub(crate) fn note_moved(&mut self, page: Page, from: u32, to: u32) {
        if self.pages.contains(&page) {
            self.nodes[from as usize].nr_pages -= 1;
            self.nodes[to as usize].nr_pages += 1;
        }
    }

    /// Pages that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.nodes.iter().map(|node| node.dropped).sum()
    }

    /// Somebody wants a page of a node: if it is below its low watermark, kswapd works up to the high one.
    pub(crate) fn make_room(&mut self, node: u32, memory: &mut Memory) {
        let Some(cache) = self.nodes.get_mut(node as usize) else {
            return;
        };
        let zone = node as usize;
        let gap = memory.zones()[zone].pages() / 1000;
        if memory.room(zone) >= gap {
            return;
        }
        while cache.nr_pages > 0 && memory.room(zone) < 2 * gap {
            let is_here = |page: &Page| {
                let frame = memory.frame_of(*page);
                frame.is_some_and(|frame| memory.zone_at(frame) == zone)
            };
            // Behind are pages that came from another node meanwhile.
            let found = (cache.next..self.pages.end)
                .find(is_here)
                .or_else(|| (self.pages.start..cache.next).find(is_here));
            let Some(page) = found else {
                unreachable!("{} pages of the cache are on node {node}", cache.nr_pages);
            };
            memory.free_page(page);
            cache.nr_pages -= 1;
            cache.dropped += 1;
            cache.next = page + 1;
        }
    }
}
