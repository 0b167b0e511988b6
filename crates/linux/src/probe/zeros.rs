//! Finds pages that hold only zeros: in a huge page they are waste.
//!
//! The problem: only their content shows which pages of a huge page a program has written. Reading that as a debugger
//! does (`process_vm_readv`) sets the huge page's accessed bit, and so disturbs the monitor. The approach: the BPF
//! program reads pages through the direct map, 512 bytes at a time up to the first non-zero part. It only returns which
//! pages are zeros.
//!
//! Limits: pages that a program has filled with zeros count as not written; the program does not notice their loss. A
//! result is outdated at once: a page may be written right after.

use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::{PAGE_SIZE, PAGES_PER_BLOCK, TargetId};

use super::entry::Leaf;
use super::page_table::{PageTableProbe, Result};
use super::walker::{AddressSpace, Walker, WalkerError};

/// Blocks that are read in one BPF run: 0.5 ms.
const BLOCKS_PER_RUN: usize = 4;

/// Content of a block's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockContents {
    pub block: u64,
    /// Whether one 2 MiB leaf maps the block.
    pub is_huge: bool,
    /// Pages in memory, without the shared zero page.
    pub present: Bitmap,
    /// Present pages that are all zeros.
    pub zeros: Bitmap,
    /// Present pages that could not be read.
    pub unreadable: Bitmap,
}

impl Walker {
    pub(crate) fn contents(
        &mut self,
        space: &AddressSpace,
        blocks: &[u64],
        mut see: impl FnMut(BlockContents),
    ) -> Result<(), WalkerError> {
        for chunk in blocks.chunks(BLOCKS_PER_RUN) {
            let slots = self.slots.get_mut().chunks_mut(PAGES_PER_BLOCK);
            for (block, slots) in chunk.iter().zip(slots) {
                for (page, slot) in slots.iter_mut().enumerate() {
                    *slot = block + page as u64 * PAGE_SIZE;
                }
            }
            self.select(space, chunk.len() * PAGES_PER_BLOCK);
            self.run(|walker| &walker.find_zeros)?;
            let slots = self.slots.get().chunks(PAGES_PER_BLOCK);
            for (block, slots) in chunk.iter().zip(slots) {
                see(contents(*block, slots));
            }
        }
        Ok(())
    }
}

impl PageTableProbe {
    /// Reads the pages of `blocks`. Returns `false` if the target is gone.
    pub fn contents(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        see: impl FnMut(BlockContents),
    ) -> Result<bool> {
        let read = self.read_space(target, |walker, space| walker.contents(space, blocks, see));
        Ok(read?.is_some())
    }
}

fn contents(block: u64, slots: &[u64]) -> BlockContents {
    let mut contents = BlockContents {
        block,
        is_huge: Leaf(slots[0]).is_huge_2m(),
        ..BlockContents::default()
    };
    for (page, slot) in slots.iter().enumerate() {
        let leaf = Leaf(*slot);
        if !leaf.is_present() || leaf.is_special() {
            continue;
        }
        bits::set(&mut contents.present, page);
        if leaf.is_zeros() {
            bits::set(&mut contents.zeros, page);
        } else if leaf.is_unreadable() {
            bits::set(&mut contents.unreadable, page);
        }
    }
    contents
}
