//! A zone: its free blocks in buddy lists by order and migrate type, as in the kernel's
//! `mm/page_alloc.c`.
//!
//! A free block of order `n` is a bit at its number (its first frame, counted from the zone's start, by `2^n`). Blocks
//! are taken at the lowest address; the kernel takes the one freed last. When a kind's lists are empty, the largest
//! block of another kind is taken. The whole pageblock goes with it where the kernel would claim it.

use isotherm_policy::compaction::NR_ORDERS;

use crate::bits::Bits;

use super::{BLOCK_ORDER, BLOCK_PAGES, Owner, Pfn};

const MAX_ORDER: u8 = NR_ORDERS as u8 - 1;

/// Migrate type of a pageblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pages of processes and files.
    Movable,
    /// Pages of the kernel.
    Unmovable,
}

const KINDS: [Kind; 2] = [Kind::Movable, Kind::Unmovable];

/// A zone of a node.
#[derive(Clone, Debug)]
pub struct SimZone {
    /// The kernel's name of the zone.
    pub name: &'static str,
    /// First frame.
    pub start: Pfn,
    /// The number of frames.
    pub pages: u64,
    /// Free blocks by kind and order.
    free: [[Bits; NR_ORDERS]; 2],
    /// Free blocks of each order, as in /proc/buddyinfo.
    pub free_blocks: [u64; NR_ORDERS],
    /// Free frames.
    pub free_pages: u64,
    blocks: Vec<Block>,
    /// Number of pages that allocations leave free.
    watermark: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    kind: Kind,
    free: u16,
    movable: u16,
}

impl SimZone {
    /// Creates a zone of free memory from `start` on; `start` and `pages` are whole blocks of the highest order.
    pub(super) fn new(name: &'static str, start: Pfn, pages: u64) -> Self {
        let most = 1 << MAX_ORDER;
        assert!(
            start.is_multiple_of(most) && pages.is_multiple_of(most) && pages > 0,
            "zone {name} is not of whole blocks of 4 MiB"
        );
        let lists = || std::array::from_fn(|order| Bits::new(pages >> order));
        let block = Block {
            kind: Kind::Movable,
            free: BLOCK_PAGES as u16,
            movable: 0,
        };
        let mut zone = Self {
            name,
            start,
            pages,
            free: [lists(), lists()],
            free_blocks: [0; NR_ORDERS],
            free_pages: 0,
            blocks: vec![block; (pages / BLOCK_PAGES) as usize],
            watermark: 0,
        };
        for at in (0..pages).step_by(most as usize) {
            zone.put(at, MAX_ORDER);
        }
        zone
    }

    /// The frame after the last.
    pub fn end(&self) -> Pfn {
        self.start + self.pages
    }

    /// Sets the pages that allocations leave free from now on. Returns the number before.
    pub fn set_watermark(&mut self, pages: u64) -> u64 {
        std::mem::replace(&mut self.watermark, pages)
    }

    /// Free frames above the watermark.
    pub(super) fn room(&self) -> u64 {
        self.free_pages.saturating_sub(self.watermark)
    }

    /// Whether a block of `order` could be allocated now.
    pub fn has_block(&self, order: u8) -> bool {
        self.free_pages >= self.watermark + (1 << order)
            && self.free_blocks[usize::from(order)..]
                .iter()
                .any(|nr| *nr > 0)
    }

    /// The number of pageblocks.
    pub fn nr_blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(crate) fn free_in(&self, block: u64) -> u64 {
        u64::from(self.blocks[block as usize].free)
    }

    /// Pages of processes in a pageblock.
    pub(crate) fn movable_in(&self, block: u64) -> u64 {
        u64::from(self.blocks[block as usize].movable)
    }

    /// Whether compaction may fill a pageblock.
    pub(crate) fn is_movable(&self, block: u64) -> bool {
        self.blocks[block as usize].kind == Kind::Movable
    }

    /// Returns the first frames and orders of the free blocks in a pageblock that are smaller than it.
    pub(crate) fn free_blocks_in(&self, block: u64) -> Vec<(Pfn, u8)> {
        let (from, to) = (block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES);
        let lists = &self.free[self.blocks[block as usize].kind as usize];
        let mut found = Vec::new();
        for order in 0..BLOCK_ORDER {
            let list = &lists[usize::from(order)];
            let mut at = list.first_from(from >> order);
            while let Some(number) = at.filter(|number| number << order < to) {
                found.push((self.start + (number << order), order));
                at = list.first_from(number + 1);
            }
        }
        found
    }

    pub(super) fn allocate(&mut self, order: u8, kind: Kind) -> Option<Pfn> {
        if !self.has_block(order) {
            return None;
        }
        let (at, found) = self.find(order, kind).or_else(|| self.steal(order, kind))?;
        self.remove(at, found);
        self.give_back_upper(at, found, order);
        self.count_free(at, order, -(1 << order));
        Some(self.start + at)
    }

    /// Allocates up to `most` consecutive frames for movable pages, of one pageblock: those that single allocations
    /// would get. Returns the first frame and the number of frames.
    pub(super) fn allocate_run(&mut self, most: u64) -> Option<(Pfn, u64)> {
        let most = most.min(self.room());
        if most == 0 {
            return None;
        }
        let Some((at, found)) = self.find(0, Kind::Movable) else {
            return self.allocate(0, Kind::Movable).map(|frame| (frame, 1));
        };
        // All lists of lower orders are empty, so that the next allocations take frames of this block.
        let count = most.min(1 << found).min(BLOCK_PAGES);
        self.remove(at, found);
        let (mut rest, end) = (at + count, at + (1 << found));
        while rest < end {
            // The remainder ends where the block does, so that the alignment says how much fits.
            let order = rest.trailing_zeros().min((end - rest).ilog2()) as u8;
            self.put(rest, order);
            rest += 1 << order;
        }
        self.blocks[(at / BLOCK_PAGES) as usize].free -= count as u16;
        Some((self.start + at, count))
    }

    /// Takes the free block at `frame`, which is one of the lists' blocks.
    pub(super) fn take(&mut self, frame: Pfn, order: u8) {
        let at = frame - self.start;
        self.remove(at, order);
        self.count_free(at, order, -(1 << order));
    }

    /// Frees a block, and joins it with its buddies.
    pub(super) fn release(&mut self, frame: Pfn, order: u8) {
        let (mut at, mut order) = (frame - self.start, order);
        self.count_free(at, order, 1 << order);
        while order < MAX_ORDER {
            let buddy = at ^ (1 << order);
            if buddy + (1 << order) > self.pages || !self.is_free_block(buddy, order) {
                break;
            }
            self.remove(buddy, order);
            at &= buddy;
            order += 1;
        }
        self.put(at, order);
    }

    /// Counts `by` more frames of the block at `frame` as pages of processes.
    pub(super) fn note_movable(&mut self, frame: Pfn, by: i32) {
        let at = frame - self.start;
        let (mut block, mut rest) = ((at / BLOCK_PAGES) as usize, by);
        while rest != 0 {
            let step = rest.clamp(-(BLOCK_PAGES as i32), BLOCK_PAGES as i32);
            let movable = &mut self.blocks[block].movable;
            *movable = (i32::from(*movable) + step) as u16;
            rest -= step;
            block += 1;
        }
    }

    fn list_of(&self, at: u64) -> usize {
        self.blocks[(at / BLOCK_PAGES) as usize].kind as usize
    }

    fn is_free_block(&self, at: u64, order: u8) -> bool {
        self.free[self.list_of(at)][usize::from(order)].contains(at >> order)
    }

    fn put(&mut self, at: u64, order: u8) {
        self.free[self.list_of(at)][usize::from(order)].insert(at >> order);
        self.free_blocks[usize::from(order)] += 1;
        self.free_pages += 1 << order;
    }

    fn remove(&mut self, at: u64, order: u8) {
        debug_assert!(self.is_free_block(at, order), "{at} is no free block");
        self.free[self.list_of(at)][usize::from(order)].remove(at >> order);
        self.free_blocks[usize::from(order)] -= 1;
        self.free_pages -= 1 << order;
    }

    fn find(&self, order: u8, kind: Kind) -> Option<(u64, u8)> {
        let orders = (order..=MAX_ORDER).filter(|order| self.free_blocks[usize::from(*order)] > 0);
        { orders }.find_map(|found| {
            let number = self.free[kind as usize][usize::from(found)].first_from(0)?;
            Some((number << found, found))
        })
    }

    /// Returns the largest block of the other kind. Its pageblock becomes `kind` where the kernel claims it
    /// (`can_steal_fallback`): for half a pageblock or more, or for memory that cannot be moved.
    fn steal(&mut self, order: u8, kind: Kind) -> Option<(u64, u8)> {
        let other = KINDS.into_iter().find(|other| *other != kind)?;
        let (at, found) = (order..=MAX_ORDER).rev().find_map(|found| {
            let number = self.free[other as usize][usize::from(found)].first_from(0)?;
            Some((number << found, found))
        })?;
        if found >= BLOCK_ORDER / 2 || kind == Kind::Unmovable {
            let end = (at + (1 << found)).next_multiple_of(BLOCK_PAGES);
            for block in at / BLOCK_PAGES..end / BLOCK_PAGES {
                self.claim(block, kind);
            }
        }
        Some((at, found))
    }

    fn claim(&mut self, block: u64, kind: Kind) {
        let (from, to) = (block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES);
        let old = self.blocks[block as usize].kind as usize;
        for order in 0..NR_ORDERS {
            // A block of the highest order is in the list of its first pageblock.
            let mut at = self.free[old][order].first_from(from.div_ceil(1 << order));
            while let Some(number) = at.filter(|number| number << order < to) {
                self.free[old][order].remove(number);
                self.free[kind as usize][order].insert(number);
                at = self.free[old][order].first_from(number + 1);
            }
        }
        self.blocks[block as usize].kind = kind;
    }

    /// Frees all but the first `2^order` frames of the block of order `found` at `at`.
    fn give_back_upper(&mut self, at: u64, found: u8, order: u8) {
        for half in (order..found).rev() {
            self.put(at + (1 << half), half);
        }
    }

    fn count_free(&mut self, at: u64, order: u8, by: i32) {
        let blocks = (1_u64 << order).div_ceil(BLOCK_PAGES);
        let each = by / blocks as i32;
        let first = at / BLOCK_PAGES;
        for block in first..first + blocks {
            let free = &mut self.blocks[block as usize].free;
            *free = (i32::from(*free) + each) as u16;
        }
    }

    /// Checks that lists, counts and owners agree, and that no two free buddies are separate; the error says what is
    /// wrong.
    pub(super) fn check(&self, owner: impl Fn(Pfn) -> Owner) -> Result<(), String> {
        let name = self.name;
        let mut is_free = vec![false; self.pages as usize];
        for order in 0..NR_ORDERS {
            let mut nr = 0;
            for kind in KINDS {
                let list = &self.free[kind as usize][order];
                let mut at = list.first_from(0);
                while let Some(number) = at {
                    nr += 1;
                    let first = number << order;
                    if self.list_of(first) != kind as usize {
                        return Err(format!("{name}: {first} is in another kind's list"));
                    }
                    let buddy = first ^ (1 << order);
                    if order + 1 < NR_ORDERS
                        && buddy < self.pages
                        && self.is_free_block(buddy, order as u8)
                    {
                        return Err(format!(
                            "{name}: {first} and its buddy are both free at order {order}"
                        ));
                    }
                    for frame in first..first + (1 << order) {
                        if std::mem::replace(&mut is_free[frame as usize], true) {
                            return Err(format!("{name}: {frame} is in two free blocks"));
                        }
                    }
                    at = list.first_from(number + 1);
                }
            }
            if nr != self.free_blocks[order] {
                return Err(format!(
                    "{name}: {nr} blocks of order {order}, {} counted",
                    self.free_blocks[order]
                ));
            }
        }
        for (block, facts) in self.blocks.iter().enumerate() {
            let frames = block as u64 * BLOCK_PAGES..(block as u64 + 1) * BLOCK_PAGES;
            let (mut free, mut movable) = (0, 0);
            for frame in frames {
                let owner = owner(self.start + frame);
                if (owner == Owner::Free) != is_free[frame as usize] {
                    return Err(format!(
                        "{name}: {frame} is {owner:?}, which its list denies"
                    ));
                }
                free += u16::from(owner == Owner::Free);
                movable += u16::from(matches!(owner, Owner::Page(_)));
            }
            if (free, movable) != (facts.free, facts.movable) {
                return Err(format!(
                    "{name}: pageblock {block} has {free} free and {movable} movable, not {facts:?}"
                ));
            }
        }
        Ok(())
    }
}
