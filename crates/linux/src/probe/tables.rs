//! Reads a target's whole page tables, block by block.
//!
//! Bulk reading costs half a nanosecond a page, a hundredth of the cost of a list of addresses, and disturbs no
//! process. So *reading* everything is cheap, and only *clearing* needs economy. The tables are followed from the top,
//! so unmapped terabytes cost nothing.

use std::collections::BTreeMap;

use isotherm_engine::drive::TableProbe;
use isotherm_engine::monitor::bits::Bitmap;
use isotherm_engine::table::{BlockFacts, ClearedBy};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};

use super::clear_refs::ClearMethod;
use super::page_table::{PageTableProbe, Result};
use super::walker::{AddressSpace, TableLookup, Walker, WalkerError};

const BLOCK_SHIFT: u32 = BLOCK_SIZE.trailing_zeros();

impl PageTableProbe {
    fn occupied_tables(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<u64>>> {
        self.read_space(target, |walker, space| {
            let mut found = Vec::new();
            let gigabytes = walker.gigabytes(space, ranges)?;
            walker.blocks(space, &gigabytes, |block, _| found.push(block))?;
            retain_overlapping(&mut found, BLOCK_SHIFT, ranges);
            Ok(found)
        })
    }

    fn read_tables(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut see: impl FnMut(BlockFacts),
    ) -> Result<bool> {
        let mut look = |i: usize, table: TableLookup<'_>| {
            let mut facts = BlockFacts {
                address: blocks[i],
                ..BlockFacts::default()
            };
            match table {
                TableLookup::Copy(copy) => copy.read_into(&mut facts),
                TableLookup::Leaf(leaf) if !leaf.is_special() => {
                    facts.huge = true;
                    facts.present = [u64::MAX; 8];
                    if leaf.is_accessed() {
                        facts.accessed = [u64::MAX; 8];
                    }
                }
                TableLookup::Leaf(_) | TableLookup::Absent => {}
                // The block is unknown this time; the next read may succeed.
                TableLookup::Changed => return,
            }
            see(facts);
        };
        let read = self.read_space(target, |walker, space| {
            walker.tables(space, blocks, &mut look)
        });
        let is_there = read?.is_some();
        self.cost.checks += u64::from(is_there) * blocks.len() as u64 * 512;
        Ok(is_there)
    }
}

impl PageTableProbe {
    /// Passes the present pages of `blocks` to `see`: address, frame, and the number of pages for which both are
    /// consecutive. A page that is mapped only at another address has the first. Returns `false` if the target is gone.
    pub fn each_frame(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut see: impl FnMut(u64, u64, u32),
    ) -> Result<bool> {
        let others = self.aliases.get(&target).map(|all| all.blocks_of(blocks));
        let Some(others) = others.filter(|others| !others.is_empty()) else {
            return self.each_frame_of(target, blocks, see);
        };
        let mut frames: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let mut of_aliases = frames.clone();
        let mut note = |address, frame, nr| {
            frames.insert(address, (frame, nr));
        };
        let is_alive = self.each_frame_of(target, blocks, &mut note)?;
        let mut note = |address, frame, nr| {
            of_aliases.insert(address, (frame, nr));
        };
        let is_alive = is_alive && self.each_frame_of(target, &others, &mut note)?;
        if let Some(aliases) = self.aliases.get(&target) {
            for block in blocks {
                if is_huge(&frames, *block) {
                    continue;
                }
                aliases.pages_of(*block, |page, own| {
                    let frame = frame_at(&of_aliases, own);
                    let address = block + page as u64 * PAGE_SIZE;
                    if let Some(frame) = frame {
                        frames.entry(address).or_insert((frame, 1));
                    }
                });
            }
        }
        for (address, (frame, nr)) in frames {
            see(address, frame, nr);
        }
        Ok(is_alive)
    }

    fn each_frame_of(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut see: impl FnMut(u64, u64, u32),
    ) -> Result<bool> {
        let mut look = |i: usize, table: TableLookup<'_>| match table {
            TableLookup::Copy(copy) => {
                for page in 0..512 {
                    if let Some(frame) = copy.frame(page) {
                        see(blocks[i] + page as u64 * PAGE_SIZE, frame, 1);
                    }
                }
            }
            TableLookup::Leaf(leaf) if leaf.is_huge_2m() => {
                see(blocks[i], leaf.frame() & !511, 512);
            }
            _ => {}
        };
        let read = self.read_space(target, |walker, space| {
            walker.tables(space, blocks, &mut look)
        });
        Ok(read?.is_some())
    }
}

fn is_huge(frames: &BTreeMap<u64, (u64, u32)>, block: u64) -> bool {
    frames.get(&block).is_some_and(|(_, nr)| *nr > 1)
}

/// Returns the frame of the page at `address`, which may belong to a huge page.
fn frame_at(frames: &BTreeMap<u64, (u64, u32)>, address: u64) -> Option<u64> {
    let (start, (frame, nr)) = frames.range(..=address).next_back()?;
    let page = (address - start) / PAGE_SIZE;
    (page < u64::from(*nr)).then_some(frame + page)
}

impl Walker {
    /// Returns the addresses of the parts of `ranges` that have a table of blocks or a leaf. A part is what 512 entries of
    /// such a table map: a gigabyte, with pages of 4 KiB.
    pub(super) fn gigabytes(
        &mut self,
        space: &AddressSpace,
        ranges: &[AddressRange],
    ) -> Result<Vec<u64>, WalkerError> {
        let format = self.format;
        let part = format.block_shift() + 9;
        let upper = format.block_shift() + format.level_bits();
        if format.top_shift < upper {
            return Ok(aligned_parts(ranges, part));
        }
        let tops = aligned_parts(ranges, upper + 9);
        let mut parts = Vec::new();
        self.entries(space, upper, &tops, |start, _| {
            parts.extend((start..start + (1 << upper)).step_by(1 << part));
        })?;
        retain_overlapping(&mut parts, part, ranges);
        Ok(parts)
    }
}

/// Returns the starts of the aligned parts of 1 << `shift` bytes that `ranges` (in address order) touch.
fn aligned_parts(ranges: &[AddressRange], shift: u32) -> Vec<u64> {
    let mut parts = Vec::new();
    for range in ranges {
        let first = range.start >> shift;
        let last = (range.end - 1) >> shift;
        let next = parts
            .last()
            .map_or(first, |last: &u64| (last >> shift) + 1)
            .max(first);
        parts.extend((next..=last).map(|part| part << shift));
    }
    parts
}

/// Keeps those `parts` that overlap one of `ranges`; both in address order.
fn retain_overlapping(parts: &mut Vec<u64>, shift: u32, ranges: &[AddressRange]) {
    let mut ranges = ranges.iter().peekable();
    parts.retain(|&part| {
        while ranges.next_if(|range| range.end <= part).is_some() {}
        ranges
            .peek()
            .is_some_and(|range| range.start < part + (1 << shift))
    });
}

impl TableProbe for PageTableProbe {
    /// Includes blocks mapped only at another address of the same memory.
    fn occupied_blocks(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<u64>>> {
        let Some(mut found) = self.occupied_tables(target, ranges)? else {
            return Ok(None);
        };
        let aliases = self.aliases.get(&target).map(|all| all.ranges_of(ranges));
        let aliases = aliases.filter(|aliases| !aliases.is_empty());
        if let Some(aliases) = aliases
            && let Some(others) = self.occupied_tables(target, &aliases)?
            && let Some(all) = self.aliases.get(&target)
        {
            found.extend(all.firsts_of(&others));
            found.sort_unstable();
            found.dedup();
            retain_overlapping(&mut found, BLOCK_SHIFT, ranges);
        }
        Ok(Some(found))
    }

    /// Merges the tables of other addresses of the same memory.
    fn read_blocks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut see: impl FnMut(BlockFacts),
    ) -> Result<bool> {
        let others = self.aliases.get(&target).map(|all| all.blocks_of(blocks));
        let Some(others) = others.filter(|others| !others.is_empty()) else {
            return self.read_tables(target, blocks, see);
        };
        let mut all = Vec::with_capacity(blocks.len());
        let mut of_aliases = BTreeMap::new();
        let is_alive = self.read_tables(target, blocks, |facts| all.push(facts))?
            && self.read_tables(target, &others, |facts| {
                of_aliases.insert(facts.address, facts);
            })?;
        for mut facts in all {
            if let Some(aliases) = self.aliases.get_mut(&target) {
                aliases.merge(&mut facts, &of_aliases);
            }
            see(facts);
        }
        Ok(is_alive)
    }

    fn clear(&mut self, target: TargetId, ranges: &[AddressRange]) -> Result<()> {
        Self::clear(self, target, ranges)
    }

    fn folio_pages(&self) -> usize {
        self.folio_pages
    }

    fn clearable(
        &mut self,
        target: TargetId,
        block: u64,
        pages: &Bitmap,
        by: ClearedBy,
    ) -> Result<Bitmap> {
        let method = match by {
            ClearedBy::Range => ClearMethod::Madvise,
            ClearedBy::Space => ClearMethod::ClearRefs,
        };
        self.clearable(target, block, pages, method)
    }

    /// Clears by `/proc/PID/clear_refs`.
    fn clear_space(&mut self, target: TargetId, nr_pages: u64, hold_max: Nanos) -> Result<bool> {
        let Some(watched) = self.targets.get(&target) else {
            return Ok(false);
        };
        let is_cleared = self.clear_refs.clear(&watched.process, nr_pages, hold_max);
        self.cost.clears += u64::from(is_cleared);
        Ok(is_cleared)
    }

    fn charge_set_again(&mut self, nr_bits: u64) {
        self.induced.add_set_again(nr_bits);
    }

    fn hides_accesses(&self, target: TargetId) -> bool {
        Self::hides_accesses(self, target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_ranges_once() {
        let ranges = [
            AddressRange::new(0x1000, 0x2000),
            AddressRange::new(0x3000, 0x40_1000),
        ];
        assert_eq!(aligned_parts(&ranges, 21), [0, 0x20_0000, 0x40_0000]);
        let mut parts = vec![0, 0x20_0000, 0x60_0000];
        retain_overlapping(&mut parts, 21, &ranges);
        assert_eq!(parts, [0, 0x20_0000]);
    }
}
