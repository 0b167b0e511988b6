//! The mappings of a target, and its blocks with page tables.

use std::collections::BTreeMap;

use super::block::Block;
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, block_of};
use crate::monitor::bits::{ALL, Bitmap, NONE, count, mask_of, or};
use crate::monitor::idle_ends::IdleEnds;
use crate::monitor::idle_pages::{IdlePages, PageAgeRule};

/// A target: its mappings and blocks, both in address order.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) mappings: Vec<AddressRange>,
    #[expect(
        clippy::vec_box,
        reason = "a block is 400 bytes, and blocks come and go in the middle"
    )]
    pub(super) blocks: Vec<Box<Block>>,
    /// The watched pages of blocks that are not watched whole.
    partial: BTreeMap<u64, Bitmap>,
    /// Start of its current interval.
    pub(super) from: Nanos,
    /// Its page tables do not show all accesses to its memory.
    pub(super) hides_accesses: bool,
    /// Earliest time at which its address space may be cleared as a whole.
    pub(super) spared_until: Nanos,
    /// Idle times that ended in its current interval.
    pub(super) idle_ends: IdleEnds,
    /// The same by the rule of pages' ages.
    pub(super) age_ends: IdleEnds,
    /// Place in `blocks` from which the next look-up starts.
    cursor: usize,
}

impl Target {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            from: now,
            spared_until: now,
            ..Self::default()
        }
    }

    /// Takes in the mappings. [`Target::set_blocks`] sets the blocks afterwards.
    pub(super) fn set_mappings(&mut self, mappings: &[AddressRange]) {
        if self.mappings == mappings {
            return;
        }
        self.mappings.clear();
        self.mappings.extend_from_slice(mappings);
        self.partial = partial_blocks(mappings);
    }

    /// Keeps the blocks of `addresses` (in address order), drops others, and makes new ones.
    pub(super) fn set_blocks(&mut self, addresses: &[u64], now: u32) {
        let known = self.blocks.iter().map(|block| &block.address);
        if known.eq(addresses) {
            return;
        }
        let mut old = std::mem::take(&mut self.blocks).into_iter().peekable();
        self.blocks = Vec::with_capacity(addresses.len());
        for &address in addresses {
            while old.next_if(|block| block.address < address).is_some() {}
            let kept = old.next_if(|block| block.address == address);
            let block = kept.unwrap_or_else(|| Box::new(Block::new(address, now)));
            self.blocks.push(block);
        }
    }

    /// Returns the pages of a block that are watched.
    pub(super) fn watched(&self, address: u64) -> Bitmap {
        self.partial.get(&address).copied().unwrap_or(ALL)
    }

    pub(super) fn begin_interval(&mut self, now: Nanos) {
        self.from = now;
        self.cursor = 0;
        self.idle_ends = IdleEnds::default();
        self.age_ends = IdleEnds::default();
        for block in &mut self.blocks {
            block.begin_interval();
        }
    }

    pub(super) fn nr_resident(&self) -> u64 {
        let pages = self.blocks.iter().map(|block| count(&block.present));
        pages.map(u64::from).sum()
    }

    /// Returns the place of a block; fastest if the caller goes in address order.
    pub(super) fn find(&mut self, address: u64) -> Option<usize> {
        let at = match self.blocks.get(self.cursor) {
            Some(block) if block.address == address => self.cursor,
            _ => {
                let found = self.blocks.binary_search_by_key(&address, |b| b.address);
                found.ok()?
            }
        };
        self.cursor = at + 1;
        Some(at)
    }

    /// Returns the idle pages of blocks in which other pages are in use.
    pub(super) fn idle_pages(&self, now: u32, ages: PageAgeRule) -> Vec<IdlePages> {
        let blocks = self.blocks.iter();
        blocks.filter_map(|of| of.idle_pages(now, ages)).collect()
    }

    pub(super) fn mapping_at(&self, address: u64) -> Option<AddressRange> {
        let at = self.mappings.partition_point(|m| m.end <= address);
        let mapping = *self.mappings.get(at)?;
        mapping.contains(address).then_some(mapping)
    }
}

/// Returns the blocks that mappings cover in part, with the pages that they cover.
fn partial_blocks(mappings: &[AddressRange]) -> BTreeMap<u64, Bitmap> {
    let mut partial: BTreeMap<u64, Bitmap> = BTreeMap::new();
    for mapping in mappings {
        for block in [block_of(mapping.start), block_of(mapping.end - 1)] {
            let whole = AddressRange::new(block, block + BLOCK_SIZE);
            let Some(part) = whole.intersection(*mapping).filter(|part| *part != whole) else {
                continue;
            };
            let page = |address: u64| ((address - block) / PAGE_SIZE) as usize;
            let pages = mask_of(page(part.start)..page(part.end));
            let watched = partial.entry(block).or_insert(NONE);
            *watched = or(watched, &pages);
        }
    }
    partial
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::bits::count;

    #[test]
    fn blocks_at_the_edges_of_mappings_are_watched_in_part() {
        let partial = partial_blocks(&[
            AddressRange::new(0x1000, 0x3000),
            AddressRange::new(0x5000, 0x20_2000),
            AddressRange::new(0x60_0000, 0x80_0000),
        ]);
        let counts = partial.iter().map(|(b, pages)| (*b, count(pages)));
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts, [(0, 2 + 507), (0x20_0000, 2)]);
    }
}
