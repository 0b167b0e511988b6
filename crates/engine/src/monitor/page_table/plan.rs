//! Selects the accessed bits to clear at the start of an interval: the clears of the most value per cost, within the
//! budget. [`super::estimate`] defines the value of a clear.

use std::collections::{BTreeMap, BTreeSet};

use super::block::Block;
use super::pages::GRANULE_PAGES;
use super::target::Target;
use super::watch::{ClearedBy, HOLD_MAX, Watch};
use crate::address::{AddressRange, Nanos};
use crate::monitor::bits::{self, Bitmap, NONE, and, count, is_empty, mask_of, or};
use crate::snapshot::TargetId;

/// Pages that a sample watches: they share one range to clear, and therefore one TLB flush.
const SAMPLE_PAGES: u32 = 16;
/// Longest span of a sample, in pages, if its pages lie apart.
const SAMPLE_REACH: usize = 64;
/// Up to this number of unsampled pages, a block is cleared whole or not at all.
const WHOLE_UP_TO: u32 = 24;
/// Least value of clearing a whole block instead of a sample, in pages for each microsecond.
const LEAST_RATIO: f32 = 0.02;
/// Least value of clearing an address space beyond the value of its ranges, in pages for each microsecond beyond their
/// cost.
const LEAST_SPACE_RATIO: f32 = 0.05;
/// Largest cost of clearing an address space, as a multiple of the present allowance.
const SPACE_OVERDRAFT: f32 = 2.0;
/// Most blocks of an address space that is cleared as a whole: all of them would be watched.
const SPACE_BLOCKS_MAX: usize = 16_384;
/// Address spaces with more than one huge page in this number of blocks are not cleared as a whole.
const SPACE_HUGE_SHARE: usize = 8;

/// The predicted costs of clears, in microseconds. They were measured on a busy virtual machine
/// (docs/results/overhead.md), and are scaled to the costs measured while running ([`Prices::learn`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    scale: f32,
    /// Pages that a sample clears.
    sample_pages: u32,
}

/// Cost of one range: a call, and a TLB flush of the running target.
const RANGE_US: f32 = 7.0;
/// Cost of one accessed bit in it.
const PAGE_US: f32 = 0.09;
/// Cost for the target, in its own time, of setting a touched page's bit again.
const RETOUCH_US: f32 = 0.2;
/// Cost of reading the block right after the clear, and once more after a window.
const LOOK_US: f32 = 2.4;
/// Cost of clearing an address space: the call, and each page of it, whether its bit is set or not.
const SPACE_US: f32 = 20.0;
const SPACE_PAGE_US: f32 = 0.035;

impl Default for Prices {
    fn default() -> Self {
        Self {
            scale: 1.0,
            sample_pages: SAMPLE_PAGES,
        }
    }
}

impl Prices {
    fn range(self, nr_ranges: usize, nr_pages: u32, nr_touched: f32) -> f32 {
        let clearing = RANGE_US * nr_ranges as f32 + PAGE_US * nr_pages as f32;
        (clearing + LOOK_US) * self.scale + RETOUCH_US * nr_touched
    }

    fn space(nr_blocks: usize, nr_pages: u32) -> f32 {
        SPACE_US + SPACE_PAGE_US * nr_pages as f32 + LOOK_US * nr_blocks as f32
    }

    /// Adapts the scale after clears predicted to cost `predicted_us` took `took_us`.
    pub(super) fn learn(&mut self, predicted_us: f32, took_us: f32) {
        if predicted_us > 50.0 {
            let seen = (self.scale * took_us / predicted_us).clamp(0.2, 20.0);
            self.scale += (seen - self.scale) * 0.2;
        }
    }
}

/// One clear that the budget may be spent on.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Value for each microsecond.
    ratio: f32,
    cost_us: f32,
    /// Place in the list of blocks with unsampled pages, or in that of targets.
    at: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Some pages of a block.
    Sample,
    /// All unsampled pages of a block.
    Block,
    /// The whole address space of a target.
    Space,
}

struct Candidate {
    /// Place in the list of targets.
    target: u32,
    block: u32,
}

/// The clears of an interval: the pages to watch, the ranges and spaces to clear, and the predicted cost.
#[derive(Debug, Default)]
pub struct ClearPlan {
    pub(super) watches: Vec<Watch>,
    /// Ranges to clear, in order of target and address.
    pub ranges: Vec<(TargetId, AddressRange)>,
    /// Targets whose whole address space is cleared, with their numbers of resident pages.
    pub spaces: Vec<(TargetId, u64)>,
    /// Predicted cost of the ranges, in microseconds.
    pub(super) cost_us: f32,
    /// Expected number of pages that may be reported wrongly nevertheless.
    pub(super) doubt: f32,
}

/// The clears chosen for a budget: for each chosen candidate whether all of it is cleared, and the targets whose
/// address space is cleared.
#[derive(Default)]
struct Choice {
    blocks: BTreeMap<u32, bool>,
    spaces: BTreeSet<u32>,
}

pub(super) fn plan<'a>(
    targets: impl Iterator<Item = (TargetId, &'a mut Target)>,
    now: Nanos,
    allowance_us: f32,
    prices: Prices,
    folio_pages: usize,
) -> ClearPlan {
    let mut plan = ClearPlan::default();
    let prices = Prices {
        sample_pages: SAMPLE_PAGES.max(folio_pages as u32),
        ..prices
    };
    if allowance_us < prices.range(1, 1, 0.0) {
        plan.doubt = f32::INFINITY;
        return plan;
    }
    let mut targets: Vec<(TargetId, &mut Target)> = targets.collect();
    let (candidates, mut steps) = candidates(&targets, now, allowance_us, prices);
    keep_best(&mut steps, allowance_us, prices);
    let choice = choose(&steps, &candidates, allowance_us, &mut plan.cost_us);
    plan.doubt = doubt(&targets, &candidates, &choice);
    let spaces = choice.spaces.iter().map(|at| &targets[*at as usize]);
    plan.spaces = spaces.map(|(id, of)| (*id, of.nr_resident())).collect();
    for (at, is_whole) in choice.blocks {
        let candidate = &candidates[at as usize];
        let (id, target) = &mut targets[candidate.target as usize];
        let block = &mut target.blocks[candidate.block as usize];
        let unsampled = block.candidates(now);
        let pages = if block.huge {
            bits::ALL
        } else if is_whole {
            unsampled
        } else {
            let sample = sample_of(block, &unsampled);
            and(&bits::in_parts_of(&sample, folio_pages), &unsampled)
        };
        block.access_estimate.nr_samples = block.access_estimate.nr_samples.wrapping_add(1);
        let block = &target.blocks[candidate.block as usize];
        add_ranges(target, block, &pages, folio_pages, &mut |range| {
            plan.ranges.push((*id, range));
        });
        let place = (*id, block.address);
        let is_whole = is_whole || block.huge;
        let watch = Watch::new(place, ClearedBy::Range, is_whole, pages);
        plan.watches.push(watch);
    }
    plan.ranges.sort_unstable();
    plan
}

/// Returns the expected number of pages that may be reported wrongly, in blocks that are not watched.
fn doubt(targets: &[(TargetId, &mut Target)], candidates: &[Candidate], choice: &Choice) -> f32 {
    let is_watched = |(at, candidate): &(usize, &Candidate)| {
        choice.blocks.contains_key(&(*at as u32)) || choice.spaces.contains(&candidate.target)
    };
    let unwatched = candidates.iter().enumerate().filter(|c| !is_watched(c));
    let doubt = |(_, candidate): (usize, &Candidate)| {
        let blocks = &targets[candidate.target as usize].1.blocks;
        blocks[candidate.block as usize].doubt()
    };
    unwatched.map(doubt).sum()
}

/// Takes the best steps within the budget. Clearing an address space replaces the steps chosen for its blocks. It may
/// overdraw the budget, and later intervals pay that back.
fn choose(
    steps: &[Step],
    candidates: &[Candidate],
    allowance_us: f32,
    ranges_cost_us: &mut f32,
) -> Choice {
    let mut choice = Choice::default();
    // For each target: cost and value of the ranges chosen for it.
    let mut chosen: BTreeMap<u32, (f32, f32)> = BTreeMap::new();
    let mut total_us = 0.0;
    for step in steps {
        if step.what == What::Space {
            let (spared_us, value) = chosen.get(&step.at).copied().unwrap_or_default();
            let (more_us, more) = (step.cost_us - spared_us, step.ratio * step.cost_us - value);
            let is_affordable = total_us + more_us <= SPACE_OVERDRAFT * allowance_us;
            if is_affordable && more >= LEAST_SPACE_RATIO * more_us.max(0.0) {
                total_us += more_us;
                chosen.remove(&step.at);
                choice.spaces.insert(step.at);
                let is_other = |at: &u32| candidates[*at as usize].target != step.at;
                choice.blocks.retain(|at, _| is_other(at));
            }
            continue;
        }
        let target = candidates[step.at as usize].target;
        if choice.spaces.contains(&target) {
            continue;
        }
        if total_us + step.cost_us > allowance_us {
            break;
        }
        total_us += step.cost_us;
        let (cost_us, value) = chosen.entry(target).or_default();
        *cost_us += step.cost_us;
        *value += step.ratio * step.cost_us;
        *choice.blocks.entry(step.at).or_default() |= step.what == What::Block;
    }
    *ranges_cost_us = chosen.values().map(|(cost_us, _)| cost_us).sum();
    choice
}

fn candidates(
    targets: &[(TargetId, &mut Target)],
    now: Nanos,
    allowance_us: f32,
    prices: Prices,
) -> (Vec<Candidate>, Vec<Step>) {
    let (mut candidates, mut steps) = (Vec::new(), Vec::new());
    let most = most_steps(allowance_us, prices);
    for (number, (_, target)) in targets.iter().enumerate() {
        let number = number as u32;
        for (at, block) in target.blocks.iter().enumerate() {
            let pages = block.candidates(now);
            if is_empty(&pages) {
                continue;
            }
            add_steps(block, &pages, candidates.len() as u32, prices, &mut steps);
            candidates.push(Candidate {
                target: number,
                block: at as u32,
            });
            if steps.len() > 4 * most + 4096 {
                keep_best(&mut steps, allowance_us, prices);
            }
        }
        if let Some(space) = space_step(target, now) {
            steps.push(Step {
                at: number,
                ..space
            });
        }
    }
    (candidates, steps)
}

/// Returns the step that clears the whole address space of `target`, if that is possible.
fn space_step(target: &Target, now: Nanos) -> Option<Step> {
    if now < target.spared_until || target.blocks.len() > SPACE_BLOCKS_MAX {
        return None;
    }
    let (mut value, mut nr_pages, mut nr_huge) = (0.0, 0, 0);
    for block in &target.blocks {
        value += block.value_of_space();
        nr_pages += count(&block.present);
        nr_huge += usize::from(block.huge);
    }
    // The TLB is not flushed, and holds a thousand huge pages.
    let is_huge = nr_huge * SPACE_HUGE_SHARE > target.blocks.len();
    let hold_us = Prices::space(0, nr_pages);
    if value <= 0.0 || is_huge || hold_us > HOLD_MAX.0 as f32 / 1000.0 {
        return None;
    }
    let cost_us = Prices::space(target.blocks.len(), nr_pages);
    Some(Step {
        ratio: value / cost_us,
        cost_us,
        at: 0,
        what: What::Space,
    })
}

fn add_steps(block: &Block, pages: &Bitmap, at: u32, prices: Prices, steps: &mut Vec<Step>) {
    let nr_unsampled = count(pages);
    let mut access_estimate = block.access_estimate;
    if let Some(share) = block.estimate
        && access_estimate.weight < 1.0
    {
        // The blocks around it gave the estimate.
        (access_estimate.touched, access_estimate.weight) = (share, 1.0);
    }
    let mut add = |value: f32, cost_us: f32, what: What| {
        steps.push(Step {
            ratio: value / cost_us,
            cost_us,
            at,
            what,
        });
    };
    let sample = access_estimate.value_of_sample(nr_unsampled);
    let whole = access_estimate.value_of_whole(nr_unsampled);
    if block.huge {
        add(sample + whole, prices.range(1, 1, 0.0), What::Block);
        return;
    }
    let touched = access_estimate.touched * nr_unsampled as f32;
    // One range spans the first to the last page: the kernel visits all present pages between.
    let span = (bits::end(pages) - bits::next(pages, 0).unwrap_or(0)) as u32;
    let nr_in_span = span.min(count(&block.present)).max(nr_unsampled);
    let whole_cost = prices.range(1, nr_in_span, touched);
    if nr_unsampled <= WHOLE_UP_TO {
        add(sample + whole, whole_cost, What::Block);
        return;
    }
    let touched = access_estimate.touched * prices.sample_pages as f32;
    let sample_cost = prices.range(1, prices.sample_pages, touched);
    let ratio = whole / (whole_cost - sample_cost).max(1.0);
    if ratio > sample / sample_cost {
        add(sample + whole, whole_cost, What::Block);
        return;
    }
    add(sample, sample_cost, What::Sample);
    if ratio >= LEAST_RATIO {
        add(whole, whole_cost - sample_cost, What::Block);
    }
}

/// Keeps the steps that the budget can reach, the best ones first. Equal steps are ordered such that their places halve
/// the gaps between them. After any number of them the largest gap is about twice the smallest.
fn keep_best(steps: &mut Vec<Step>, allowance_us: f32, prices: Prices) {
    let order = |a: &Step, b: &Step| {
        b.ratio
            .total_cmp(&a.ratio)
            .then(a.at.reverse_bits().cmp(&b.at.reverse_bits()))
            .then(a.what.cmp(&b.what))
    };
    let most = most_steps(allowance_us, prices);
    if steps.len() > most {
        steps.select_nth_unstable_by(most, order);
        steps.truncate(most);
    }
    steps.sort_unstable_by(order);
}

/// Returns the number of steps beyond which no budget reaches.
fn most_steps(allowance_us: f32, prices: Prices) -> usize {
    (allowance_us / prices.range(1, 1, 0.0)) as usize + 1
}

/// Returns about 16 neighbouring pages of `pages`, at another place each time. The place advances by the golden ratio,
/// which fills the block evenly.
fn sample_of(block: &Block, pages: &Bitmap) -> Bitmap {
    // Different blocks start at different places: otherwise a stride in the target's accesses would meet the same phase
    // everywhere.
    let salt = (block.address >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let turn = u64::from(block.access_estimate.nr_samples)
        .wrapping_add(salt)
        .wrapping_mul(0x9E37_79B9)
        & 0xFFFF_FFFF;
    let place = (turn * 512) >> 32;
    // The start is aligned, so folios of up to 64 KiB are taken whole.
    let place = place as usize / GRANULE_PAGES * GRANULE_PAGES;
    let first = bits::next(pages, place).or_else(|| bits::next(pages, 0));
    let start = first.unwrap_or(0) / GRANULE_PAGES * GRANULE_PAGES;
    let mut sample = NONE;
    for from in (start..(start + SAMPLE_REACH).min(512)).step_by(GRANULE_PAGES) {
        sample = or(&sample, &and(pages, &mask_of(from..from + GRANULE_PAGES)));
        if count(&sample) >= SAMPLE_PAGES {
            break;
        }
    }
    sample
}

/// Adds the ranges that hold the folios of `pages`: one for each mapping in the block.
fn add_ranges(
    target: &Target,
    block: &Block,
    pages: &Bitmap,
    folio_pages: usize,
    add: &mut dyn FnMut(AddressRange),
) {
    let whole = block.range();
    if block.huge {
        add(whole);
        return;
    }
    let first = target.mappings.partition_point(|m| m.end <= whole.start);
    let mappings = target.mappings[first..].iter();
    for mapping in mappings.take_while(|m| m.start < whole.end) {
        let inside = bits::mask(block.address, *mapping);
        let mine = and(pages, &inside);
        if is_empty(&mine) {
            continue;
        }
        // The bits of watched pages in the same folios are cleared again, too.
        let mine = and(
            &bits::in_parts_of(&mine, folio_pages),
            &and(&block.present, &inside),
        );
        let from = bits::next(&mine, 0).unwrap_or(0);
        add(block.addresses(from..bits::end(&mine)));
    }
}
