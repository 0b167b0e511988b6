//! Placement of pages on nodes and their zones, in the kernel's order and above its watermarks.
//!
//! A node's zones are as on x86: memory below 4 GiB is the first node's DMA32, and memory that was set aside for
//! movable pages lies at a node's end. Memory is taken from a node's highest zone first. A lower zone keeps a reserve
//! from pages that can use a higher one (`lowmem_reserve_ratio`). As in `get_page_from_freelist`, every node is tried
//! down to its low watermarks. Only if all nodes are below them, kswapd is woken, and memory above the min watermarks
//! is taken.

use isotherm_engine::PAGE_SIZE;

use crate::machine::reclaim::Urgency;
use crate::machine::{NodeSpec, SimMachine};
use crate::memory::{MOVABLE_ZONE, Memory, NodeSize, Page, Pfn};

/// Bytes of the first node that are DMA32; the fourth GiB of addresses is for devices.
const DMA32_BYTES: u64 = 3 << 30;
/// Zones consist of whole blocks of 4 MiB.
const ZONE_UNIT: u64 = 4 << 20;

pub(in crate::machine) fn zones(index: usize, node: &NodeSpec) -> NodeSize {
    let pages = |bytes: u64| bytes / ZONE_UNIT * (ZONE_UNIT / PAGE_SIZE);
    let movable = pages(node.movable.min(node.size));
    let rest = pages(node.size) - movable;
    let dma32 = if index == 0 {
        rest.min(pages(DMA32_BYTES))
    } else {
        0
    };
    let zones = [
        ("DMA32", dma32),
        ("Normal", rest - dma32),
        (MOVABLE_ZONE, movable),
    ];
    NodeSize {
        zones: zones.into_iter().filter(|(_, pages)| *pages > 0).collect(),
    }
}

/// Watermarks of a zone, in pages, including its reserve against users of higher zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct Marks {
    pub(in crate::machine) min: u64,
    pub(in crate::machine) low: u64,
    pub(in crate::machine) high: u64,
}

/// Returns the watermarks of all zones. In KiB, `min_free_kbytes` is the square root of 16 times the memory that is not
/// movable (`mm/page_alloc.c`). Each zone has its share of it. Low and high lie a thousandth of the zone above each
/// other, or a quarter of min if that is more.
pub(in crate::machine) fn marks(memory: &Memory) -> Vec<Marks> {
    let lowmem = memory.zones().iter().filter(|z| z.name != MOVABLE_ZONE);
    let lowmem: u64 = lowmem.map(|zone| zone.pages).sum();
    let min_kib = ((lowmem * PAGE_SIZE / 1024 * 16) as f64).sqrt() as u64;
    let min_pages = min_kib.clamp(128, 256 << 10) * 1024 / PAGE_SIZE;
    let of = |(place, zone): (usize, &crate::memory::SimZone)| {
        let pages = zone.pages;
        let min = if zone.name == MOVABLE_ZONE {
            (pages / 1024).clamp(32, 128)
        } else {
            (u128::from(min_pages) * u128::from(pages) / u128::from(lowmem.max(1))) as u64
        };
        let step = (min / 4).max(pages / 1000);
        let reserve = reserve(memory, place);
        Marks {
            min: min + reserve,
            low: min + step + reserve,
            high: min + 2 * step + reserve,
        }
    };
    memory.zones().iter().enumerate().map(of).collect()
}

/// Returns the pages that a zone keeps from users of higher zones of its node.
fn reserve(memory: &Memory, place: usize) -> u64 {
    let zones = memory.zones();
    let node = memory.node_at(zones[place].start);
    let above = memory.zones_of(node).filter(|zone| *zone > place);
    let above: u64 = above.map(|zone| zones[zone].pages).sum();
    let ratio = if zones[place].name == "DMA32" {
        256
    } else {
        32
    };
    above / ratio
}

impl SimMachine {
    pub(in crate::machine) fn zones_of(&self, node: usize) -> std::ops::Range<usize> {
        let mut zones = self.memory.zones_of(node as u32);
        let first = zones.next().unwrap_or(0);
        first..zones.last().unwrap_or(first) + 1
    }

    /// Allocates a frame for a page on the nearest node that has one; reclaims if none has.
    pub(in crate::machine) fn place_page(&mut self, page: Page) -> Option<Pfn> {
        self.place_block(page, 0).or_else(|| {
            for node in 0..self.spec.nodes.len() {
                self.reclaim(node, Urgency::Direct);
            }
            self.place_block(page, 0)
        })
    }

    /// Allocates frames for up to `count` pages from `page` on, as [`SimMachine::place_page`] would one by one. Returns
    /// the number of pages: 0 if memory has to be reclaimed first.
    pub(in crate::machine) fn place_run(&mut self, page: Page, count: u64) -> u64 {
        let mut placed = self.place_run_above(page, count, |marks| marks.low);
        if placed == 0 {
            self.is_kswapd_awake.fill(true);
            placed = self.place_run_above(page, count, |marks| marks.min);
        }
        placed
    }

    fn place_run_above(&mut self, page: Page, count: u64, mark: impl Fn(&Marks) -> u64) -> u64 {
        for node in 0..self.spec.nodes.len() {
            if self.is_node_full(node as u32) {
                continue;
            }
            for zone in self.zones_of(node).rev() {
                let free = self.memory.zones()[zone].free_pages;
                let count = count.min(free.saturating_sub(mark(&self.marks[zone])));
                let placed = self.memory.allocate_run(zone, page, count);
                if placed > 0 {
                    return placed;
                }
            }
        }
        0
    }

    /// Allocates frames for `2^order` pages, on the nearest node that has them.
    pub(in crate::machine) fn place_block(&mut self, page: Page, order: u8) -> Option<Pfn> {
        let nodes = 0..self.spec.nodes.len();
        let above_low = nodes
            .clone()
            .find_map(|node| self.place_on(node, page, order, |marks| marks.low));
        if above_low.is_some() {
            return above_low;
        }
        if order == 0 {
            self.is_kswapd_awake.fill(true);
        }
        nodes
            .into_iter()
            .find_map(|node| self.place_on(node, page, order, |marks| marks.min))
    }

    /// Allocates frames for `2^order` pages on one node, and leaves at least `mark` pages free in a zone.
    fn place_on(
        &mut self,
        node: usize,
        page: Page,
        order: u8,
        mark: impl Fn(&Marks) -> u64,
    ) -> Option<Pfn> {
        if self.is_node_full(node as u32) {
            return None;
        }
        for zone in self.zones_of(node).rev() {
            let free = self.memory.zones()[zone].free_pages;
            if free >= mark(&self.marks[zone]) + (1 << order)
                && let Some(frame) = self.memory.allocate_pages(zone, order, page)
            {
                return Some(frame);
            }
        }
        None
    }

    /// Moves pages of one mapping, which are consecutive like their frames from `frame` on, to a node. Returns the
    /// number of pages moved, from the first on: 0 if no frame is free. Wakes the node's kswapd if no frame is free
    /// above the low watermarks.
    pub(in crate::machine) fn move_to_node(
        &mut self,
        pages: std::ops::Range<Page>,
        frame: Pfn,
        node: usize,
    ) -> u64 {
        if self.is_node_full(node as u32) {
            return 0;
        }
        let zones = self.zones_of(node);
        if zones.clone().all(|zone| self.above_low(zone) == 0) {
            self.is_kswapd_awake[node] = true;
        }
        let count = u64::from(pages.end - pages.start);
        let from = self.node_of(frame);
        for zone in zones.rev() {
            // The move stops at the low watermark, so that the next page wakes kswapd.
            let most = match self.above_low(zone) {
                0 => count,
                above => count.min(above),
            };
            let moved = self.memory.migrate_run(frame, most, zone);
            if moved > 0 {
                self.note_moved(pages.start..pages.start + moved as Page, from);
                return moved;
            }
        }
        0
    }

    fn above_low(&self, zone: usize) -> u64 {
        let free = self.memory.zones()[zone].free_pages;
        free.saturating_sub(self.marks[zone].low)
    }

    /// Puts a page whose frame was just freed into a frame again, regardless of the watermarks.
    pub(in crate::machine) fn put_back(&mut self, page: Page) {
        let mut zones = (0..self.memory.zones().len()).rev();
        let again = zones.find_map(|zone| self.memory.take_back(zone, page));
        assert!(again.is_some(), "a frame that was just freed");
        self.note_in(page..page + 1);
    }
}
