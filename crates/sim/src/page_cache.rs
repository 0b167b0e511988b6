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

use crate::bits::Bits;
use crate::memory::{Memory, Page};

/// The page cache of a machine each node of which is one zone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageCache {
    /// In the order in which they were read.
    pages: Range<Page>,
    nodes: Vec<NodeCache>,
}

/// What of it is on a node.
#[derive(Clone, Debug)]
struct NodeCache {
    /// Numbers of its pages, counted from the first of the cache.
    pages: Bits,
    dropped: u64,
}

impl PageCache {
    /// `pages`, none of which was read yet.
    pub(crate) fn new(pages: Range<Page>, nodes: usize) -> Self {
        let node = NodeCache {
            pages: Bits::new(u64::from(pages.end - pages.start)),
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
            let first = self.number(page);
            let cached = &mut self.nodes[node as usize].pages;
            (first..first + count).for_each(|number| cached.insert(number));
        }
    }

    /// `count` pages from `page` on have moved.
    pub(crate) fn note_moved(&mut self, page: Page, count: u64, from: u32, to: u32) {
        if self.pages.contains(&page) {
            let first = self.number(page);
            for number in first..first + count {
                self.nodes[from as usize].pages.remove(number);
                self.nodes[to as usize].pages.insert(number);
            }
        }
    }

    /// Pages that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.nodes.iter().map(|node| node.dropped).sum()
    }

    /// Somebody wants pages of a node: if it is below its low watermark, kswapd works up to the high one.
    /// Yields how many may be taken before it is to be asked again; 0 if there is no room.
    pub(crate) fn make_room(&mut self, node: u32, memory: &mut Memory) -> u64 {
        let zone = node as usize;
        let Some(cache) = self.nodes.get_mut(zone) else {
            return memory.room(zone);
        };
        let gap = memory.zones()[zone].pages() / 1000;
        if memory.room(zone) < gap {
            while memory.room(zone) < 2 * gap {
                let Some(number) = cache.pages.first_from(0) else {
                    break;
                };
                memory.free_page(self.pages.start + number as Page);
                cache.pages.remove(number);
                cache.dropped += 1;
            }
        }
        let room = memory.room(zone);
        if room == 0 || cache.pages.is_empty() {
            return room;
        }
        // Who finds just the gap is still given a page without waking it.
        (room + 1).saturating_sub(gap).max(1)
    }

    fn number(&self, page: Page) -> u64 {
        u64::from(page - self.pages.start)
    }

    /// Whether it knows where its pages are; what is wrong, if not. Slow: for tests.
    pub(crate) fn check(&self, memory: &Memory) -> Result<(), String> {
        for page in self.pages.clone() {
            let on = memory.frame_of(page).map(|frame| memory.zone_at(frame));
            for (node, cache) in self.nodes.iter().enumerate() {
                if cache.pages.contains(self.number(page)) != (on == Some(node)) {
                    return Err(format!("page {page} of the cache is on {on:?}, not {node}"));
                }
            }
        }
        Ok(())
    }
}
