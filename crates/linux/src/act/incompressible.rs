//! Memory that does not shrink in compressed swap.
//!
//! The problem: zram stores a page that does not compress uncompressed. Paging out such memory frees a page and takes
//! another, and costs CPU time each way.
//!
//! The approach: zram counts the pages that it stores uncompressed. The count is read around every call that pages out.
//! Where nine tenths of a call's anonymous pages were stored so, their blocks are recorded until the target ends. They
//! are not paged out again after a refault.
//!
//! Limits: a call that mixes both kinds marks nothing. Pages that other programs page out at the same moment count as
//! well. Memory that becomes compressible later stays marked. Only zram is covered: zswap passes such pages on.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::{AddressRange, BLOCK_SIZE, TargetId};
use isotherm_policy::Refusal;

use super::batch::{self, Block};
use super::{ProcessActuator, bits};
use crate::probe::Result;
use crate::process::call_length;
use crate::swap::WholePages;

/// Minimum number of pages of a call: fewer are not significant.
const PAGES_MIN: u64 = 16;
/// Maximum number of recorded blocks, over all targets: they map 512 GiB.
const BLOCKS_MAX: usize = 1 << 18;

/// The blocks that shall not be paged out again.
#[derive(Debug, Default)]
pub(super) struct Incompressible {
    blocks: BTreeMap<TargetId, BTreeSet<u64>>,
    nr_blocks: usize,
    /// zram's counters, open during an action.
    counts: Option<WholePages>,
}

impl Incompressible {
    /// Opens the counters when an action begins: zram devices may have been added or removed.
    pub(super) fn begin(&mut self) {
        self.counts = WholePages::open();
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        let of_target = self.blocks.remove(&target).unwrap_or_default();
        self.nr_blocks -= of_target.len();
    }

    /// Returns the number of pages that zram stores uncompressed, where it reports that.
    fn count(&self) -> Option<u64> {
        self.counts.as_ref().map(WholePages::count)
    }

    pub(super) fn refuse(&self, target: TargetId, blocks: &mut [Block]) {
        let Some(known) = self.blocks.get(&target) else {
            return;
        };
        for block in blocks.iter_mut().filter(|b| known.contains(&b.address)) {
            let anonymous = block.anonymous;
            block.refuse(&anonymous, Refusal::Incompressible);
        }
    }

    /// Records the result of a call that paged out `ranges` of `blocks`, of which zram stored `kept` pages
    /// uncompressed.
    fn paged_out(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
        blocks: &mut [Block],
        kept: u64,
    ) {
        let mut pages = 0;
        let mut touched = BTreeSet::new();
        for range in ranges {
            for block in batch::within(blocks, *range) {
                let meant = bits::and(&block.wanted, &block.anonymous);
                let meant = bits::and(&meant, &bits::mask(block.address, *range));
                if !bits::is_empty(&meant) {
                    pages += u64::from(bits::count(&meant));
                    touched.insert(block.address);
                }
            }
        }
        if pages < PAGES_MIN || kept.saturating_mul(10) < pages.saturating_mul(9) {
            return;
        }
        let room = BLOCKS_MAX - self.nr_blocks;
        let of_target = self.blocks.entry(target).or_default();
        let before = of_target.len();
        of_target.extend(touched.into_iter().take(room));
        self.nr_blocks += of_target.len() - before;
    }
}

impl ProcessActuator {
    /// Pages out `ranges`, and records the blocks that zram did not compress.
    pub(super) fn advise_pageout(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
        blocks: &mut [Block],
    ) -> Result<()> {
        let Some(mut before) = self.incompressible.count() else {
            return self.advise(target, ranges, libc::MADV_PAGEOUT, blocks);
        };
        let mut rest = ranges;
        while !rest.is_empty() {
            let (call, later) = rest.split_at(call_length(rest, libc::MADV_PAGEOUT));
            rest = later;
            self.advise(target, call, libc::MADV_PAGEOUT, blocks)?;
            let after = self.incompressible.count().unwrap_or(before);
            let kept = after.saturating_sub(before);
            before = after;
            self.incompressible.paged_out(target, call, blocks, kept);
        }
        Ok(())
    }
}

const _: () = assert!(BLOCKS_MAX as u64 * BLOCK_SIZE == 512 << 30);

#[cfg(test)]
mod tests {
    use isotherm_engine::PAGE_SIZE;

    use super::*;

    fn block(at: u64, pages: u64) -> Block {
        let address = at * BLOCK_SIZE;
        let range = AddressRange::new(address, address + pages * PAGE_SIZE);
        let all = bits::mask(address, range);
        Block {
            address,
            present: all,
            anonymous: all,
            wanted: all,
            ..Block::default()
        }
    }

    fn refused(block: &Block, why: Refusal) -> u64 {
        let refused = block.refused.get(&why);
        refused.map_or(0, |pages| u64::from(bits::count(pages)))
    }

    #[test]
    fn what_did_not_shrink_is_not_paged_out_again() {
        let check = |kept: u64, pages: u64, wanted: u64| {
            let mut known = Incompressible::default();
            let target = TargetId(3);
            let mut blocks = [block(1, pages)];
            let range = blocks[0].range();
            known.paged_out(target, &[range], &mut blocks, kept);
            let mut again = [block(1, pages), block(2, pages)];
            known.refuse(target, &mut again);
            assert_eq!(refused(&again[0], Refusal::Incompressible), wanted);
            assert_eq!(refused(&again[1], Refusal::Incompressible), 0);
            known.forget(target);
            let mut again = [block(1, pages)];
            known.refuse(target, &mut again);
            assert_eq!(refused(&again[0], Refusal::Incompressible), 0);
        };
        check(512, 512, 512);
        check(470, 512, 512);
        check(400, 512, 0);
        check(0, 512, 0);
        // Too few pages to decide.
        check(8, 8, 0);
    }
}
