//! Finds the blocks of a target that are huge pages.
//!
//! The problem: finding the huge pages of a terabyte would mean copying half a million lowest-level tables. The
//! approach: an entry one level higher shows whether it is a huge page, and one table holds the entries of a gigabyte.
//!
//! Limits: the huge zero page is recognised by its entry, which is neither written nor writable. The same is true of a
//! huge page that was marked free (`MADV_FREE`) and is then shared by fork.

use isotherm_engine::{AddressRange, BLOCK_SIZE, TargetId};

use super::page_table::{PageTableProbe, Result};
use crate::arch::entry::{DIRTY, LEAF, SPECIAL, WRITABLE};

/// `_PAGE_SAVED_DIRTY` of x86-64. On arm64 a canonical entry does not have it.
const SAVED_DIRTY: u64 = 1 << 58;

impl PageTableProbe {
    /// Returns the addresses of the huge pages (2 MiB) that lie within one of `ranges`, which are in address order.
    /// Sets no accessed bits. Returns `None` if the target is gone.
    pub fn huge_pages(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<u64>>> {
        // Smaller ranges cannot hold a block.
        let mut ranges: Vec<AddressRange> = ranges.to_vec();
        ranges.retain(|range| range.start.next_multiple_of(BLOCK_SIZE) + BLOCK_SIZE <= range.end);
        self.read_space(target, |walker, space| {
            let mut found = Vec::new();
            let gigabytes = walker.gigabytes(space, &ranges)?;
            walker.blocks(space, &gigabytes, |block, entry| {
                if is_huge_page(entry) {
                    found.push(block);
                }
            })?;
            retain_within(&mut found, &ranges);
            Ok(found)
        })
    }
}

/// Whether an entry one level above pages is a huge page of the process's own.
fn is_huge_page(entry: u64) -> bool {
    let was_written = entry & (WRITABLE | DIRTY | SAVED_DIRTY) != 0;
    entry & (LEAF | SPECIAL) == LEAF && was_written
}

/// Keeps those `blocks` that lie wholly within one of `ranges`; both in address order.
fn retain_within(blocks: &mut Vec<u64>, ranges: &[AddressRange]) {
    let mut ranges = ranges.iter().peekable();
    blocks.retain(|&block| {
        let end = block + BLOCK_SIZE;
        while ranges.next_if(|range| range.end < end).is_some() {}
        ranges.peek().is_some_and(|range| range.start <= block)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_within_a_range_as_a_whole_is_kept() {
        let block = |number: u64| number * BLOCK_SIZE;
        let range = |start, end| AddressRange::new(start, end);
        let ranges = [
            range(4096, block(3)),
            range(block(3), block(5) - 4096),
            range(block(7), block(8)),
        ];
        let mut blocks: Vec<u64> = (0..10).map(block).collect();
        retain_within(&mut blocks, &ranges);
        assert_eq!(blocks, [1, 2, 3, 7].map(block));
        retain_within(&mut blocks, &[]);
        assert!(blocks.is_empty());
    }

    #[test]
    fn tables_the_zero_page_and_device_memory_are_no_huge_pages() {
        // Present, user, accessed; a table's entry has the bits of a small page that is in use.
        let check = |flags: u64, wanted| {
            assert_eq!(is_huge_page(0x8_0000_0025 | flags), wanted, "{flags:#x}");
        };
        check(LEAF | DIRTY | WRITABLE, true);
        check(LEAF | DIRTY, true);
        check(LEAF | SAVED_DIRTY, true);
        check(DIRTY | WRITABLE, false);
        check(LEAF, false);
        check(LEAF | SPECIAL | WRITABLE, false);
        assert!(!is_huge_page(0));
    }
}
