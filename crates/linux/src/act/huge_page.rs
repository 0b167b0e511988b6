//! Huge pages: collapses blocks that are in use, and frees the unused pages of idle huge pages.
//!
//! The problem: a program may have written only a part of a huge page that the kernel or a scheme made. The rest is
//! memory that holds nothing. No call frees another process's memory without a risk: a page that is zero when read may
//! be written before it is dropped.
//!
//! The approach: pages of zeros are found by their content ([`PageTableProbe::contents`]). Where enough of them exist,
//! the huge page is split by advice about one of its pages. Since Linux 6.12 splitting maps the shared zero page
//! instead of every page of zeros while the huge page cannot be written: data written in between stay. On older kernels
//! exactly these pages are paged out, which is as safe; each then takes a slot of swap, and no other memory of zram.
//! Data stay in place, as base pages until something collapses them: the hugepage action, or khugepaged.
//!
//! Limits: only private anonymous memory; shmem and files are refused ([`Refusal::Unsupported`]), as are huge pages
//! that several processes map ([`Refusal::Shared`]) and locked memory. A huge page of which less than [`UNUSED_MIN`]
//! pages are zeros stays. The kernel's policy, or the program's, decides what a later fault gets.
//!
//! [`PageTableProbe::contents`]: crate::probe::PageTableProbe::contents

use isotherm_engine::{AddressRange, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_policy::scheme::huge::UNUSED_MIN;
use isotherm_policy::{Operation, Refusal};

use super::batch::{self, Block};
use super::{ProcessActuator, bits};
use crate::areas::MappedArea;
use crate::host::split_gives_back;
use crate::probe::Result;
use crate::swap;

/// `MADV_COLLAPSE` (include/uapi/asm-generic/mman-common.h), since Linux 6.1.
pub(crate) const MADV_COLLAPSE: i32 = 25;

impl ProcessActuator {
    /// Collapses huge pages that lie in one anonymous mapping, if the operations name their blocks or enough of them is
    /// in memory. A huge page of which little is used would only waste memory. It is one block, or several where the
    /// kernel's pages are larger than 4 KiB.
    pub(super) fn collapse(
        &mut self,
        target: TargetId,
        operations: &[Operation],
        blocks: &mut [Block],
    ) -> Result<()> {
        let areas = super::areas_of(&self.areas, target);
        let bytes = self.probe.huge_page_bytes();
        let least = self.options.collapse_min_present * (bytes / PAGE_SIZE) as f64;
        let mut ranges = Vec::new();
        for blocks in blocks.chunk_by_mut(|a, b| a.address / bytes == b.address / bytes) {
            let start = blocks[0].address & !(bytes - 1);
            let range = AddressRange::new(start, start + bytes);
            let is_meant = |block: &Block| operations[0].means_block(block.address);
            let nr_pages = |block: &Block| match is_meant(block) {
                Some(is_meant) => u64::from(is_meant) * PAGES_PER_BLOCK as u64,
                None => u64::from(bits::count(&block.wanted)),
            };
            let why = if blocks[0].huge {
                // It is a huge page already.
                Refusal::NotPresent
            } else if batch::mapping_around(range, areas).is_none_or(MappedArea::is_file) {
                Refusal::Unsupported
            } else if blocks.iter().all(|block| is_meant(block) == Some(false)) {
                Refusal::Wasteful
            } else if (blocks.iter().map(nr_pages).sum::<u64>() as f64) < least {
                Refusal::Sparse
            } else {
                if blocks.iter().any(|block| !bits::is_empty(&block.wanted)) {
                    ranges.push(range);
                }
                continue;
            };
            for block in blocks {
                block.refuse(&bits::ALL, why);
            }
        }
        self.advise(target, &ranges, MADV_COLLAPSE, blocks)?;
        let huge = self.look_again(target, blocks, false, |facts| facts.huge)?;
        for (block, huge) in blocks.iter_mut().zip(huge) {
            if huge {
                block.applied = block.wanted;
            } else {
                block.refuse(&bits::ALL, Refusal::NoRoom);
            }
        }
        Ok(())
    }

    /// Frees the pages of zeros of the huge pages that lie wholly in an operation. Data stay in memory. See the
    /// module's documentation.
    pub(super) fn give_back_unused(
        &mut self,
        target: TargetId,
        blocks: &mut [Block],
    ) -> Result<()> {
        for block in &mut *blocks {
            let is_private = self.is_private(target, block.range());
            if !block.huge || block.wanted != bits::ALL {
                block.refuse(&bits::ALL, Refusal::NotPresent);
            } else if !is_private {
                block.refuse(&bits::ALL, Refusal::Unsupported);
            }
        }
        if !split_gives_back()
            && let Some(why) = self.swap.refusal()
        {
            super::refuse_all(blocks, why);
        }
        self.keep_written(target, blocks)?;
        self.split(target, blocks)?;
        if !split_gives_back() {
            batch::keep_reserve(blocks, self.swap.room());
            let ranges = self.wanted(target, blocks);
            self.advise(target, &ranges, libc::MADV_PAGEOUT, blocks)?;
            self.swap = swap::facts();
        }
        let left = self.look_again(target, blocks, bits::ALL, |facts| facts.present)?;
        self.settle(target, blocks, &left, Refusal::Kept)
    }

    /// Limits the wanted pages of huge pages to those of zeros, where there are enough of them.
    fn keep_written(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        let meant = |block: &&Block| !bits::is_empty(&block.wanted);
        let addresses: Vec<u64> = blocks.iter().filter(meant).map(|b| b.address).collect();
        let mut zeros = Vec::with_capacity(addresses.len());
        let is_there = self.probe.contents(target, &addresses, |contents| {
            let is_worth_it = contents.is_huge && bits::count(&contents.zeros) >= UNUSED_MIN;
            zeros.push(if is_worth_it {
                contents.zeros
            } else {
                bits::NONE
            });
        })?;
        if !is_there {
            super::refuse_all(blocks, Refusal::Exited);
        }
        for (block, zeros) in blocks
            .iter_mut()
            .filter(|block| !bits::is_empty(&block.wanted))
            .zip(zeros)
        {
            let written = bits::and_not(&block.wanted, &zeros);
            block.refuse(&written, Refusal::Written);
        }
        Ok(())
    }

    /// Splits the blocks that have wanted pages, and refuses those that cannot be split.
    fn split(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        let first_pages: Vec<AddressRange> = blocks
            .iter()
            .filter_map(|block| {
                let first = bits::next(&block.wanted, 0)?;
                let start = block.address + first as u64 * PAGE_SIZE;
                Some(AddressRange::new(start, start + PAGE_SIZE))
            })
            .collect();
        // Advice about a part of a huge page splits it (mm/madvise.c, madvise_cold_or_pageout).
        self.advise(target, &first_pages, libc::MADV_COLD, blocks)?;
        for first_page in &first_pages {
            for block in batch::within(blocks, *first_page) {
                let page = bits::mask(block.address, *first_page);
                let refused_it =
                    |(_, pages): &(_, &bits::Bitmap)| !bits::is_empty(&bits::and(pages, &page));
                // The advice was refused for the whole block.
                if let Some((why, _)) = block.refused.iter().find(refused_it) {
                    let why = *why;
                    block.refuse(&bits::ALL, why);
                }
            }
        }
        let unsplit = self.look_again(target, blocks, bits::NONE, |facts| {
            if facts.huge {
                facts.present
            } else {
                bits::NONE
            }
        })?;
        self.settle(target, blocks, &unsplit, Refusal::Kept)
    }
}
