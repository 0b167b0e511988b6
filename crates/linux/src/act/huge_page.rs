//! Huge pages: collapse where a block is in use, split where it is not.

use isotherm_engine::{AddressRange, PAGE_SIZE, PAGES_PER_BLOCK, Refusal, TargetId};

use super::batch::{self, Block};
use super::{ProcessActuator, bits};
use crate::areas::MappedArea;
use crate::probe::ProbeError;
use crate::swap;

/// `MADV_COLLAPSE` (include/uapi/asm-generic/mman-common.h), since Linux 6.1.
pub(super) const MADV_COLLAPSE: i32 = 25;

impl ProcessActuator {
    /// Makes huge pages of the blocks that lie in an operation and one anonymous mapping, and of
    /// which enough is there: a block of which little is used would only waste memory.
    pub(super) fn collapse(
        &mut self,
        target: TargetId,
        blocks: &mut [Block],
    ) -> Result<(), ProbeError> {
        let areas = super::areas_of(&self.areas, target);
        let least = self.options.collapse_min_present * PAGES_PER_BLOCK as f64;
        for block in &mut *blocks {
            let whole = block.wanted;
            if block.huge {
                // As wanted already.
                block.refuse(&whole, Refusal::NotPresent);
            } else if batch::mapping_around(block.range(), areas).is_none_or(MappedArea::is_file) {
                block.refuse(&whole, Refusal::Unsupported);
            } else if (u64::from(bits::count(&block.wanted)) as f64) < least {
                block.refuse(&whole, Refusal::Sparse);
            }
        }
        let ranges: Vec<AddressRange> = blocks
            .iter()
            .filter(|block| !bits::is_empty(&block.wanted))
            .map(Block::range)
            .collect();
        self.advise(target, &ranges, MADV_COLLAPSE, blocks)?;
        let mut huge = vec![false; blocks.len()];
        self.look_again(target, blocks, |i, facts| huge[i] = facts.huge)?;
        for (block, huge) in blocks.iter_mut().zip(huge) {
            let whole = block.wanted;
            if huge {
                block.applied = whole;
            } else {
                block.refuse(&whole, Refusal::NoRoom);
            }
        }
        Ok(())
    }

    /// Splits the huge pages that lie wholly in an operation, and reclaims what they were made of:
    /// all of it has been idle, as a huge page has one accessed bit. Zero-filled pages then cost
    /// nothing. Memory that was not huge is left alone.
    pub(super) fn split(
        &mut self,
        target: TargetId,
        blocks: &mut [Block],
    ) -> Result<(), ProbeError> {
        for block in &mut *blocks {
            let whole = block.wanted;
            if !block.huge || u64::from(bits::count(&whole)) < PAGES_PER_BLOCK as u64 {
                block.refuse(&whole, Refusal::NotPresent);
            }
        }
        let first_pages: Vec<AddressRange> = blocks
            .iter()
            .filter(|block| !bits::is_empty(&block.wanted))
            .map(|block| AddressRange::new(block.address, block.address + PAGE_SIZE))
            .collect();
        // Advice about a part of a huge page splits it (mm/madvise.c, madvise_cold_or_pageout).
        self.advise(target, &first_pages, libc::MADV_COLD, blocks)?;
        let mut huge = vec![true; blocks.len()];
        self.look_again(target, blocks, |i, facts| huge[i] = facts.huge)?;
        for (block, huge) in blocks.iter_mut().zip(huge) {
            let whole = block.wanted;
            if huge {
                block.refuse(&whole, Refusal::Shared);
            } else {
                block.applied = whole;
            }
        }
        if self.swap.refusal().is_none() {
            let mut applied = blocks.to_vec();
            self.incompressible.refuse(target, &mut applied);
            batch::keep_reserve(&mut applied, self.swap.room());
            let ranges = self.wanted(target, &applied);
            self.advise_pageout(target, &ranges, &mut applied)?;
            self.swap = swap::facts();
        }
        Ok(())
    }
}
