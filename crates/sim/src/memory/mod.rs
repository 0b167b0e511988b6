//! Physical memory: nodes of zones of frames, each of which is in exactly one place.
//!
//! Problem: fragmentation, compaction and tiers are about single pages, and the machines that they
//! matter on have a billion of them.
//!
//! Approach: the table of frames holds each frame's owner, the table of pages holds each page's frame. Both take at
//! most four bytes an entry, and next to nothing where whole blocks are alike ([`table`]). Free memory lies in the
//! zones' buddy lists, which are sets of bits. So a terabyte takes at most about 2.2 GiB. Frames are numbered through
//! all nodes, without holes.
//!
//! Limits: pages of page tables and of the memory map are not simulated; a machine's size is what is
//! left of it for use.

mod table;
mod zone;

#[cfg(test)]
mod tests;

use std::ops::Range;

use table::{Run, RunTable};
pub use zone::{Kind, SimZone};

/// Pages in a pageblock, the unit of migrate types and of compaction: 2 MiB.
pub const BLOCK_PAGES: u64 = 512;
/// The order of a huge page.
pub const BLOCK_ORDER: u8 = 9;

/// Name of the zone from which the kernel takes nothing for itself.
pub const MOVABLE_ZONE: &str = "Movable";

/// A frame's number.
pub type Pfn = u64;
/// A page of some process: its place in [`Memory`]'s table of pages.
pub type Page = u32;

/// Owner of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Free,
    /// The kernel, which cannot be moved.
    Kernel,
    /// Compaction, which holds it as the target of a page.
    Isolated,
    /// A process's page.
    Page(Page),
}

const FREE: u32 = u32::MAX;
const KERNEL: u32 = u32::MAX - 1;
const ISOLATED: u32 = u32::MAX - 2;
const NOWHERE: u32 = u32::MAX;

impl Owner {
    const fn from_word(word: u32) -> Self {
        match word {
            FREE => Self::Free,
            KERNEL => Self::Kernel,
            ISOLATED => Self::Isolated,
            page => Self::Page(page),
        }
    }

    const fn word(self) -> u32 {
        match self {
            Self::Free => FREE,
            Self::Kernel => KERNEL,
            Self::Isolated => ISOLATED,
            Self::Page(page) => page,
        }
    }
}

/// Sizes of a node's zones.
#[derive(Clone, Debug)]
pub struct NodeSize {
    /// Name and pages of each zone, in the order of addresses; whole blocks of 4 MiB.
    pub zones: Vec<(&'static str, u64)>,
}

/// All of a machine's memory.
#[derive(Clone, Debug)]
pub struct Memory {
    zones: Vec<SimZone>,
    nodes: Vec<u32>,
    owners: RunTable,
    frames: RunTable,
    /// A counter that stays the same as long as every frame keeps its owner.
    pub(crate) changes: u64,
}

impl Memory {
    /// Creates the memory of these nodes, all of it free.
    pub fn new(nodes: &[NodeSize]) -> Self {
        let (mut zones, mut of_node, mut start) = (Vec::new(), Vec::new(), 0);
        for (node, size) in nodes.iter().enumerate() {
            for &(name, pages) in &size.zones {
                zones.push(SimZone::new(name, start, pages));
                of_node.push(node as u32);
                start += pages;
            }
        }
        assert!(
            start < u64::from(ISOLATED),
            "frames are numbered by 32 bits"
        );
        let mut owners = RunTable::default();
        owners.grow(start as usize, FREE);
        Self {
            zones,
            nodes: of_node,
            owners,
            frames: RunTable::default(),
            changes: 0,
        }
    }

    /// The zones, in the order of addresses.
    pub fn zones(&self) -> &[SimZone] {
        &self.zones
    }

    /// Places of a node's zones in [`Memory::zones`].
    pub fn zones_of(&self, node: u32) -> impl Iterator<Item = usize> + '_ {
        let zones = self.nodes.iter().enumerate();
        zones.filter_map(move |(zone, of)| (*of == node).then_some(zone))
    }

    /// The number of nodes.
    pub fn nr_nodes(&self) -> u32 {
        self.nodes.last().map_or(0, |last| last + 1)
    }

    /// The node that a frame is on.
    pub fn node_at(&self, frame: Pfn) -> u32 {
        self.nodes[self.zone_at(frame)]
    }

    /// A node's frames.
    pub fn frames_of(&self, node: u32) -> Range<Pfn> {
        let mut zones = self.zones_of(node).map(|zone| &self.zones[zone]);
        let first = zones.next().map_or(0..0, |zone| zone.start..zone.end());
        first.start..zones.last().map_or(first.end, SimZone::end)
    }

    /// Free pages of a node.
    pub fn free_on(&self, node: u32) -> u64 {
        let zones = self.zones_of(node);
        zones.map(|zone| self.zones[zone].free_pages).sum()
    }

    /// The owner of a frame.
    pub fn owner(&self, frame: Pfn) -> Owner {
        Owner::from_word(self.owners.get(frame as usize))
    }

    /// Returns a frame's owner, and the length of the run of frames from it on. A run has one owner other than a
    /// process, or holds consecutive pages. It ends at `end` and at the end of the pageblock.
    pub fn owners_from(&self, frame: Pfn, end: Pfn) -> (Owner, u64) {
        let owner = self.owner(frame);
        let run = match owner {
            Owner::Page(page) => Run::Rising(page),
            other => Run::Same(other.word()),
        };
        let count = self
            .owners
            .run_len(frame as usize, (end - frame) as usize, run);
        (owner, count as u64)
    }

    /// The frame of a page; `None` if the page is not in memory.
    pub fn frame_of(&self, page: Page) -> Option<Pfn> {
        let frame = self.frames.get(page as usize);
        (frame != NOWHERE).then_some(u64::from(frame))
    }

    /// Pages of all zones.
    pub fn pages(&self) -> u64 {
        self.zones.iter().map(|zone| zone.pages).sum()
    }

    /// Free pages of all zones.
    pub fn free_pages(&self) -> u64 {
        self.zones.iter().map(|zone| zone.free_pages).sum()
    }

    /// Adds `count` pages to the table, none of which is in memory yet.
    pub fn add_pages(&mut self, count: u64) -> Range<Page> {
        let start = self.frames.len() as u64;
        assert!(
            start + count < u64::from(ISOLATED),
            "pages are numbered by 32 bits"
        );
        self.frames.grow((start + count) as usize, NOWHERE);
        start as Page..(start + count) as Page
    }

    /// Allocates a block of `2^order` frames of `zone` for the kernel; `None` if there is none.
    pub fn allocate_kernel(&mut self, zone: usize, order: u8) -> Option<Pfn> {
        if self.zones[zone].name == MOVABLE_ZONE {
            return None;
        }
        let frame = self.zones[zone].allocate(order, Kind::Unmovable)?;
        self.own(frame, order, Run::Same(KERNEL));
        Some(frame)
    }

    /// Puts the `2^order` pages from `page` on into a free block of `zone`; `None` if there is none.
    pub fn allocate_pages(&mut self, zone: usize, order: u8, page: Page) -> Option<Pfn> {
        let frame = self.zones[zone].allocate(order, Kind::Movable)?;
        self.own(frame, order, Run::Rising(page));
        let run = Run::Rising(frame as u32);
        self.frames.set_run(page as usize, 1 << order, run);
        Some(frame)
    }

    /// Puts up to `count` pages from `page` on into consecutive frames of `zone`, of one pageblock: the frames that
    /// pages would get one by one. Returns the number of pages, which is less than `count` where the free run is
    /// shorter.
    pub(crate) fn allocate_run(&mut self, zone: usize, page: Page, count: u64) -> u64 {
        let Some((to, count)) = self.zones[zone].allocate_run(count) else {
            return 0;
        };
        self.put_run(page, zone, to, count);
        count
    }

    fn put_run(&mut self, page: Page, zone: usize, to: Pfn, count: u64) {
        self.changes += 1;
        let len = count as usize;
        self.frames
            .set_run(page as usize, len, Run::Rising(to as u32));
        self.owners.set_run(to as usize, len, Run::Rising(page));
        self.zones[zone].note_movable(to, count as i32);
    }

    /// Puts a page that had a frame just now into a frame of `zone`, even below its watermark.
    pub(crate) fn take_back(&mut self, zone: usize, page: Page) -> Option<Pfn> {
        let watermark = self.zones[zone].set_watermark(0);
        let frame = self.allocate_pages(zone, 0, page);
        self.zones[zone].set_watermark(watermark);
        frame
    }

    /// Allocates a frame of `zone` for the kernel, even below its watermark: for reclaim itself.
    pub(crate) fn allocate_reserve(&mut self, zone: usize) -> Option<Pfn> {
        let watermark = self.zones[zone].set_watermark(0);
        let frame = self.allocate_kernel(zone, 0);
        self.zones[zone].set_watermark(watermark);
        frame
    }

    /// Sets the pages of a zone that allocations leave free from now on.
    pub fn set_watermark(&mut self, zone: usize, pages: u64) {
        self.zones[zone].set_watermark(pages);
    }

    /// Moves the page at `frame` to another zone. Returns false if that zone has no free page above its watermark.
    pub fn migrate(&mut self, frame: Pfn, zone: usize) -> bool {
        let Some(to) = self.zones[zone].allocate(0, Kind::Movable) else {
            return false;
        };
        self.owners.set(to as usize, ISOLATED);
        self.move_page(frame, to);
        true
    }

    /// Moves the `count` pages that follow each other from `frame` on, in one pageblock, to another zone, as
    /// [`Memory::migrate`] would one by one. Returns the number of moved pages, which is less than `count` where the
    /// free run is shorter.
    pub fn migrate_run(&mut self, frame: Pfn, count: u64, zone: usize) -> u64 {
        let Some((to, count)) = self.zones[zone].allocate_run(count) else {
            return 0;
        };
        let Owner::Page(page) = self.owner(frame) else {
            unreachable!("only pages are moved");
        };
        self.put_run(page, zone, to, count);
        self.release_run(frame, count);
        count
    }

    /// Frees the kernel's `2^order` frames from `frame` on.
    pub fn free_kernel(&mut self, frame: Pfn, order: u8) {
        self.own(frame, order, Run::Same(FREE));
        let zone = self.zone_at(frame);
        self.zones[zone].release(frame, order);
    }

    /// Takes `page` out of memory.
    pub fn free_page(&mut self, page: Page) {
        if let Some(frame) = self.frame_of(page) {
            self.changes += 1;
            self.frames.set(page as usize, NOWHERE);
            self.owners.set(frame as usize, FREE);
            let zone = self.zone_at(frame);
            self.zones[zone].note_movable(frame, -1);
            self.zones[zone].release(frame, 0);
        }
    }

    /// Frees `count` pages that lie in neighbouring frames, from `page` on: in the largest blocks that
    /// fit, as a range's release does.
    pub fn free_run(&mut self, page: Page, count: u32) {
        let Some(first) = self.frame_of(page) else {
            return;
        };
        debug_assert!((0..count).all(|i| self.frame_of(page + i) == Some(first + u64::from(i))));
        self.frames
            .set_run(page as usize, count as usize, Run::Same(NOWHERE));
        self.release_run(first, count.into());
    }

    /// Frees neighbouring frames that pages had.
    fn release_run(&mut self, first: Pfn, count: u64) {
        self.changes += 1;
        let zone = self.zone_at(first);
        let (mut frame, end) = (first, first + count);
        self.owners
            .set_run(first as usize, count as usize, Run::Same(FREE));
        while frame < end {
            let fits = (end - frame).ilog2();
            let order = frame.trailing_zeros().min(fits).min(u32::from(BLOCK_ORDER)) as u8;
            self.zones[zone].note_movable(frame, -(1 << order));
            self.zones[zone].release(frame, order);
            frame += 1 << order;
        }
    }

    /// The place of the zone that holds a frame.
    pub fn zone_at(&self, frame: Pfn) -> usize {
        self.zones.partition_point(|zone| zone.end() <= frame)
    }

    /// Takes a free block, which begins at `frame`, out of the lists for compaction.
    pub(crate) fn isolate(&mut self, zone: usize, frame: Pfn, order: u8) {
        self.zones[zone].take(frame, order);
        self.own(frame, order, Run::Same(ISOLATED));
    }

    pub(crate) fn release_isolated(&mut self, frame: Pfn) {
        debug_assert_eq!(self.owner(frame), Owner::Isolated);
        self.owners.set(frame as usize, FREE);
        let zone = self.zone_at(frame);
        self.zones[zone].release(frame, 0);
    }

    pub(crate) fn move_page(&mut self, from: Pfn, to: Pfn) {
        let Owner::Page(page) = self.owner(from) else {
            unreachable!("only pages are moved");
        };
        debug_assert_eq!(self.owner(to), Owner::Isolated);
        self.changes += 1;
        self.frames.set(page as usize, to as u32);
        self.owners.set(to as usize, page);
        self.owners.set(from as usize, FREE);
        let (source, target) = (self.zone_at(from), self.zone_at(to));
        self.zones[target].note_movable(to, 1);
        self.zones[source].note_movable(from, -1);
        self.zones[source].release(from, 0);
    }

    fn own(&mut self, frame: Pfn, order: u8, run: Run) {
        self.changes += 1;
        self.owners.set_run(frame as usize, 1 << order, run);
        if matches!(run, Run::Rising(_)) {
            let zone = self.zone_at(frame);
            self.zones[zone].note_movable(frame, 1 << order);
        }
    }

    /// Checks that everything is in exactly one place; the error says what is wrong. Slow: for tests.
    pub fn check(&self) -> Result<(), String> {
        for zone in &self.zones {
            zone.check(|frame| self.owner(frame))?;
        }
        let mut owned = 0_usize;
        for (frame, word) in self.owners.iter().enumerate() {
            if let Owner::Page(page) = Owner::from_word(word) {
                owned += 1;
                if self.frame_of(page) != Some(frame as u64) {
                    return Err(format!(
                        "frame {frame} is page {page}'s, which is elsewhere"
                    ));
                }
            }
        }
        let placed = self.frames.iter().filter(|f| *f != NOWHERE).count();
        (placed == owned)
            .then_some(())
            .ok_or_else(|| format!("{placed} pages are in memory, {owned} frames are theirs"))
    }
}
