//! Reclaim by advice: MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED.

use std::time::Instant;

use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_policy::{Operation, Refusal};

use super::batch::{self, Block};
use super::{ProcessActuator, bits, every_cpu};
use crate::frames::FrameFacts;
use crate::probe::Result;
use crate::process::{PAGEOUT_CALL_BYTES, call_length};
use crate::swap;

impl ProcessActuator {
    pub(super) fn page_out(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        self.swap = swap::facts();
        self.find_swap_backed(target, blocks)?;
        // Without swap the kernel reports success, frees nothing and splits huge pages.
        if let Some(why) = self.swap.refusal() {
            for block in &mut *blocks {
                let anonymous = block.anonymous;
                block.refuse(&anonymous, why);
            }
        }
        self.incompressible.refuse(target, blocks);
        batch::keep_reserve(blocks, self.swap.room());
        let done = self.page_out_as_huge_pages(target, blocks)?;
        let mut ranges = self.wanted(target, blocks);
        if !done.is_empty() {
            ranges = batch::cut(&ranges, BLOCK_SIZE);
            ranges.retain(|range| !done.contains(&(range.start & !(BLOCK_SIZE - 1))));
        }
        // Small pages are divided among processors; a cut would split a huge page.
        let ranges: Vec<AddressRange> = { ranges.into_iter() }
            .flat_map(|range| {
                let is_small = batch::within(blocks, range).iter().all(|block| !block.huge);
                let most = if is_small {
                    PAGEOUT_CALL_BYTES / 8
                } else {
                    PAGEOUT_CALL_BYTES
                };
                batch::cut(&[range], most)
            })
            .collect();
        self.page_out_singly(target, &ranges, blocks)?;
        let left = self.look_again(target, blocks, bits::NONE, |facts| facts.present)?;
        // This very batch may have filled the swap.
        self.swap = swap::facts();
        let bytes_left: u64 = blocks
            .iter()
            .zip(&left)
            .map(|(block, left)| bits::bytes(&bits::and(&block.wanted, left)))
            .sum();
        let unswapped = self.swap.left_since(bytes_left);
        let settled = self.settle(target, blocks, &left, unswapped);
        let paged_out = blocks.iter().filter(|b| !bits::is_empty(&b.applied));
        let paged_out = paged_out.map(|block| (target, block.address, block.applied));
        self.paged_out.extend(paged_out);
        settled
    }

    /// Pages out page by page, except huge pages, and records the time that it takes.
    fn page_out_singly(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
        blocks: &mut [Block],
    ) -> Result<()> {
        let started = Instant::now();
        let is_single = |block: &Block| {
            let meant = bits::and(&block.wanted, &block.anonymous);
            !block.huge && !bits::is_empty(&meant)
        };
        let mut has_single = false;
        let mut rest = ranges;
        while !rest.is_empty() {
            let (call, later) = rest.split_at(call_length(rest, libc::MADV_PAGEOUT));
            rest = later;
            let is_of_single =
                { call.iter() }.any(|range| batch::within(blocks, *range).iter().any(is_single));
            has_single |= is_of_single;
            if is_of_single && let Some(process) = self.probe.process(target) {
                self.cpus = every_cpu::cpus_of(process.pid());
            }
            let advised = self.advise_pageout(target, call, blocks);
            self.cpus.clear();
            advised?;
        }
        if has_single {
            let took = self.interrupted.entry(target).or_default();
            *took = *took + Nanos::from(started.elapsed());
        }
        Ok(())
    }

    /// Marks the wanted pages cold, so that reclaim finds them first.
    pub(super) fn cool(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        let ranges = self.wanted(target, blocks);
        self.advise(target, &ranges, libc::MADV_COLD, blocks)?;
        let still = self.look_again(target, blocks, bits::NONE, |facts| {
            bits::and(&facts.present, &facts.accessed)
        })?;
        self.settle(target, blocks, &still, Refusal::Kept)
    }

    /// Reads ahead. Pages from swap go to the swap cache, which page tables do not show. So they count as applied where
    /// the kernel accepted the advice.
    pub(super) fn bring_in(
        &mut self,
        target: TargetId,
        operations: &[Operation],
        blocks: &mut [Block],
    ) -> Result<()> {
        let areas = super::areas_of(&self.areas, target);
        let ranges: Vec<AddressRange> = operations
            .iter()
            .flat_map(|operation| batch::clip(operation.range, areas))
            .collect();
        self.advise(target, &ranges, libc::MADV_WILLNEED, blocks)?;
        for block in blocks {
            block.applied = block.wanted;
        }
        Ok(())
    }

    /// Counts the wanted pages as applied, and refuses those in `left`, each for the reason that its frame shows.
    /// Without such a reason, anonymous pages are refused as `unswapped`.
    pub(super) fn settle(
        &mut self,
        target: TargetId,
        blocks: &mut [Block],
        left: &[bits::Bitmap],
        unswapped: Refusal,
    ) -> Result<()> {
        for (block, left) in blocks.iter_mut().zip(left) {
            block.applied = bits::and_not(&block.wanted, left);
        }
        let stayed = |(block, left): (&Block, &bits::Bitmap)| bits::and(&block.wanted, left);
        let stayed: Vec<bits::Bitmap> = blocks.iter().zip(left).map(stayed).collect();
        let Some(frames) = self.frames_of(target, blocks, &stayed)? else {
            super::refuse_all(blocks, Refusal::Exited);
            return Ok(());
        };
        for page in frames {
            let frame = page.frame;
            let why = frame.map_or(Refusal::Kept, |facts| why_it_stayed(facts, unswapped));
            let mut only = bits::NONE;
            bits::set(&mut only, page.page);
            blocks[page.block].refuse(&only, why);
        }
        Ok(())
    }

    /// Counts as anonymous those pages of file mappings that go to swap: the process's own copies of private pages, and
    /// files on tmpfs.
    fn find_swap_backed(&mut self, target: TargetId, blocks: &mut [Block]) -> Result<()> {
        let in_files = |block: &Block| bits::and_not(&block.wanted, &block.anonymous);
        let in_files: Vec<bits::Bitmap> = blocks.iter().map(in_files).collect();
        if in_files.iter().all(bits::is_empty) {
            return Ok(());
        }
        let pages = self.frames_of(target, blocks, &in_files)?;
        for page in pages.unwrap_or_default() {
            if page.frame.is_some_and(FrameFacts::is_swap_backed) {
                bits::set(&mut blocks[page.block].anonymous, page.page);
            }
        }
        Ok(())
    }

    /// Reads the frames of `pages`, a set for each block. Returns `None` if the process has ended.
    fn frames_of(
        &mut self,
        target: TargetId,
        blocks: &[Block],
        pages: &[bits::Bitmap],
    ) -> Result<Option<Vec<FramedPage>>> {
        let mut places = Vec::new();
        for (block, pages) in pages.iter().enumerate() {
            places.extend(bits::each(pages).map(|page| (block, page)));
        }
        let span = |(block, page): &(usize, usize)| {
            let address = blocks[*block].address + *page as u64 * PAGE_SIZE;
            (address, 1)
        };
        let spans: Vec<(u64, u32)> = places.iter().map(span).collect();
        let mut leaves = Vec::new();
        if !self.probe.leaves(target, &spans, &mut leaves)? {
            return Ok(None);
        }
        let frames = self.probe.frames();
        let known = places.into_iter().zip(leaves).map(|((block, page), leaf)| {
            let frames = frames.filter(|_| leaf.is_present());
            FramedPage {
                block,
                page,
                frame: frames.and_then(|frames| frames.facts(leaf.frame()).ok()),
            }
        });
        Ok(Some(known.collect()))
    }
}

/// A page of a list of blocks, by block and page index.
struct FramedPage {
    block: usize,
    page: usize,
    /// Facts of the frame; `None` if the page is no longer present, or the frame cannot be read.
    frame: Option<FrameFacts>,
}

/// Returns the reason why a page that the kernel was advised to reclaim is unchanged.
fn why_it_stayed(facts: FrameFacts, unswapped: Refusal) -> Refusal {
    if facts.is_special() {
        Refusal::Locked
    } else if facts.mappings > 1 {
        Refusal::Shared
    } else if facts.is_swap_backed() {
        unswapped
    } else {
        Refusal::Kept
    }
}
