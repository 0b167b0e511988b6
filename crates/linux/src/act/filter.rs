//! Filters that only the machine can apply, page by page, from the facts of the page's frame.

use std::cell::OnceCell;
use std::ops::Range;

use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_policy::Operation;
use isotherm_policy::scheme::OpsFilter;

use super::batch::{self, Block};
use super::bits;
use crate::cgroup::GroupNumbers;
use crate::frames::{FrameFacts, Frames};
use crate::probe::{PageTableProbe, Result};

/// A page as filters see it. Facts are read from the kernel only when a filter needs them.
struct Page<'a> {
    frame: u64,
    facts: OnceCell<Option<FrameFacts>>,
    group: OnceCell<Option<u64>>,
    accessed: bool,
    huge: bool,
    frames: &'a Frames,
}

impl Page<'_> {
    /// Evaluates `so` on the frame's facts; `None` if they cannot be read.
    fn is(&self, so: impl Fn(FrameFacts) -> bool) -> Option<bool> {
        let read = || self.frames.facts(self.frame).ok();
        self.facts.get_or_init(read).map(so)
    }

    fn group(&self) -> Option<u64> {
        let read = || self.frames.group(self.frame).ok();
        *self.group.get_or_init(read)
    }
}

/// Removes the pages that the operations' filters exclude from the wanted ones. Pages whose frame cannot be read (no
/// privilege, freed meanwhile) are excluded as well: a filter that cannot be applied is not passed.
///
/// Returns the pages that a filter found young, as blocks that want them. Their accessed bits must be cleared: if the
/// monitor samples, nothing else clears them, and a page that was touched once would stay young for ever. The kernel
/// does the same (`damon_folio_mkold` in mm/damon/ops-common.c).
pub(super) fn apply(
    probe: &mut PageTableProbe,
    numbers: &mut GroupNumbers,
    target: TargetId,
    (operations, blocks): (&[Operation], &mut [Block]),
) -> Result<Vec<Block>> {
    let mut all_young: Vec<Block> = Vec::new();
    for operation in operations.iter().filter(|o| !o.filters.is_empty()) {
        let groups = numbers.of_filters(&operation.filters);
        for block in batch::within(blocks, operation.range) {
            let mine = bits::and(&block.wanted, &bits::mask(block.address, operation.range));
            let pages: Vec<usize> = bits::each(&mine).collect();
            let spans: Vec<(u64, u32)> = pages
                .iter()
                .map(|page| (block.address + *page as u64 * PAGE_SIZE, 1))
                .collect();
            let mut leaves = Vec::new();
            let alive = probe.leaves(target, &spans, &mut leaves)?;
            let (mut passed, mut young) = (bits::NONE, bits::NONE);
            for (page, leaf) in pages.iter().zip(&leaves) {
                let Some(frames) = probe.frames().filter(|_| alive && leaf.is_present()) else {
                    continue;
                };
                let frame = leaf.frame() + if leaf.is_huge_2m() { *page as u64 } else { 0 };
                let page_facts = Page {
                    frame,
                    facts: OnceCell::new(),
                    group: OnceCell::new(),
                    accessed: bits::has(&block.accessed, *page),
                    huge: block.huge,
                    frames,
                };
                if passes(operation, &groups, &page_facts) {
                    bits::set(&mut passed, *page);
                }
                if page_facts.accessed && asks_for_youth(operation, &groups, &page_facts) {
                    bits::set(&mut young, *page);
                }
            }
            // Advice about a part of a huge page would split it.
            if !bits::is_empty(&young) && (!block.huge || young == bits::ALL) {
                all_young.push(Block {
                    wanted: young,
                    ..block.clone()
                });
            }
            let out = bits::and_not(&mine, &passed);
            block.wanted = bits::and_not(&block.wanted, &out);
            block.passed = bits::and_not(&block.passed, &out);
        }
    }
    // Operations come in any order, and may share blocks.
    all_young.sort_by_key(|block| block.address);
    all_young.dedup_by(|later, first| {
        let is_same = later.address == first.address;
        if is_same {
            first.wanted = bits::or(&first.wanted, &later.wanted);
        }
        is_same
    });
    Ok(all_young)
}

/// Removes the pages outside of these frames from the wanted ones. A huge page whose frames are only partly inside is
/// kept whole: it is acted on where its first frame is.
pub(super) fn keep_frames(
    probe: &mut PageTableProbe,
    target: TargetId,
    ranges: &[Range<u64>],
    blocks: &mut [Block],
) -> Result<()> {
    let addresses: Vec<u64> = blocks.iter().map(|block| block.address).collect();
    let mut within = vec![bits::NONE; blocks.len()];
    probe.each_frame(target, &addresses, |address, frame, nr| {
        let at = ranges.partition_point(|range| range.end <= frame);
        let is_in = ranges.get(at).is_some_and(|range| range.contains(&frame));
        if let Ok(block) = addresses.binary_search(&(address & !(BLOCK_SIZE - 1)))
            && is_in
        {
            let first = ((address - addresses[block]) / PAGE_SIZE) as usize;
            let pages = bits::mask_of(first..first + nr as usize);
            within[block] = bits::or(&within[block], &pages);
        }
    })?;
    for (block, within) in blocks.iter_mut().zip(&within) {
        block.wanted = bits::and(&block.wanted, within);
        block.passed = bits::and(&block.passed, within);
    }
    Ok(())
}

/// Whether the page passes: the first matching filter decides, and a filter that cannot be evaluated excludes the page.
fn passes(operation: &Operation, groups: &[Option<u64>], page: &Page<'_>) -> bool {
    for ((filter, matching, allow), group) in operation.filters.iter().zip(groups) {
        match matches(filter, *group, page) {
            Some(is) if is == *matching => return *allow,
            Some(_) => {}
            None => return false,
        }
    }
    operation.pass_unmatched
}

/// Whether one of the filters up to the deciding one asks if the page is young.
fn asks_for_youth(operation: &Operation, groups: &[Option<u64>], page: &Page<'_>) -> bool {
    operation
        .filters
        .iter()
        .zip(groups)
        .find(|((filter, matching, _), group)| {
            *filter == OpsFilter::Young || matches(filter, **group, page) == Some(*matching)
        })
        .is_some_and(|((filter, ..), _)| *filter == OpsFilter::Young)
}

/// Evaluates whether the page matches a filter; `None` if that cannot be determined.
fn matches(filter: &OpsFilter, group: Option<u64>, page: &Page<'_>) -> Option<bool> {
    Some(match filter {
        OpsFilter::Anon => page.is(FrameFacts::is_anonymous)?,
        OpsFilter::Active => page.is(FrameFacts::is_active)?,
        OpsFilter::Memcg { .. } => group.is_some() && page.group()? == group?,
        OpsFilter::Young => page.accessed,
        OpsFilter::HugepageSize { min, max } => {
            let bytes = if page.huge {
                BLOCK_SIZE
            } else {
                let folio = page.frames.folio(page.frame).ok()?;
                folio.map_or(PAGE_SIZE, |(first, end)| (end - first) * PAGE_SIZE)
            };
            bytes > PAGE_SIZE && (*min..=*max).contains(&bytes)
        }
        // All pages that this actuator acts on are mapped.
        OpsFilter::Unmapped => false,
    })
}
