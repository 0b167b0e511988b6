//! Which accessed bits to clear at the start of an interval: the clears of the most value for what
//! they cost, as far as the budget goes. What a clear is worth says [`super::belief`].

use super::bits::{self, Bitmap, NONE, and, count, is_empty, mask_of, or};
use super::block::{Block, GRANULE_PAGES};
use super::layout::Target;
use crate::address::{AddressRange, Nanos};
use crate::snapshot::TargetId;

/// Pages that a sample watches: they share one range to clear, and so one TLB flush.
const SAMPLE_PAGES: u32 = 16;
/// Farthest that a sample reaches for its pages where they lie apart.
const SAMPLE_REACH: usize = 64;
/// A block with so few blind pages is cleared whole or not at all.
const WHOLE_UP_TO: u32 = 24;
/// Least value of clearing a whole block instead of a sample, in pages for each microsecond.
const LEAST_RATIO: f32 = 0.02;

/// What clears cost, in microseconds: measured on a busy virtual machine (DESIGN.md), and kept in
/// proportion to what is measured while running ([`Prices::learn`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    scale: f32,
}

/// One range: a call, and a TLB flush of the running target.
const RANGE_US: f32 = 7.0;
/// One accessed bit in it.
const PAGE_US: f32 = 0.09;
/// A touched page's bit is set again by the target, in its own time.
const RETOUCH_US: f32 = 0.2;
/// Reading the block right after, and once more after a window.
const LOOK_US: f32 = 2.4;

impl Default for Prices {
    fn default() -> Self {
        Self { scale: 1.0 }
    }
}

impl Prices {
    fn range(self, nr_ranges: usize, nr_pages: u32, nr_touched: f32) -> f32 {
        let clearing = RANGE_US * nr_ranges as f32 + PAGE_US * nr_pages as f32;
        (clearing + LOOK_US) * self.scale + RETOUCH_US * nr_touched
    }

    /// Clears foretold to cost `foretold_us` took `took_us`.
    pub(super) fn learn(&mut self, foretold_us: f32, took_us: f32) {
        if foretold_us > 50.0 {
            let seen = (self.scale * took_us / foretold_us).clamp(0.2, 20.0);
            self.scale += (seen - self.scale) * 0.2;
        }
    }
}

/// A block of which pages are cleared, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) target: TargetId,
    pub(super) address: u64,
    /// All blind pages of the block are cleared.
    pub(super) is_whole: bool,
    /// The pages to clear.
    pub(super) pages: Bitmap,
    /// Of these, the ones that came clear: they are watched.
    pub(super) watched: Bitmap,
    /// The ones that did not.
    pub(super) stuck: Bitmap,
    /// The stuck ones were touched at once; else they cannot be cleared.
    pub(super) is_stuck_touched: bool,
    /// How many were touched by the end of the window.
    pub(super) touched_in_window: Option<u32>,
}

/// One step that the budget may be spent on.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Value for each microsecond.
    ratio: f32,
    cost_us: f32,
    /// Place in the list of blocks with blind pages.
    at: u32,
    is_whole: bool,
}

/// A block with blind pages.
struct Candidate {
    target: TargetId,
    block: usize,
    pages: Bitmap,
}

/// The plan: what to watch, which ranges to clear, and what that should cost in microseconds.
#[derive(Debug, Default)]
pub(super) struct ClearPlan {
    pub(super) watches: Vec<Watch>,
    pub(super) ranges: Vec<(TargetId, AddressRange)>,
    pub(super) cost_us: f32,
}

/// Plans clears for at most `allowance_us`.
pub(super) fn plan<'a>(
    targets: impl Iterator<Item = (TargetId, &'a mut Target)>,
    now: Nanos,
    allowance_us: f32,
    prices: Prices,
) -> ClearPlan {
    let mut plan = ClearPlan::default();
    if allowance_us < prices.range(1, 1, 0.0) {
        return plan;
    }
    let mut targets: Vec<(TargetId, &mut Target)> = targets.collect();
    let (candidates, mut steps) = candidates(&targets, now, prices);
    keep_best(&mut steps, allowance_us, prices);
    let mut chosen: std::collections::BTreeMap<u32, bool> = std::collections::BTreeMap::new();
    for step in &steps {
        if plan.cost_us + step.cost_us > allowance_us {
            break;
        }
        plan.cost_us += step.cost_us;
        *chosen.entry(step.at).or_default() |= step.is_whole;
    }
    for (at, is_whole) in chosen {
        let candidate = &candidates[at as usize];
        let found = targets.binary_search_by_key(&candidate.target, |(id, _)| *id);
        let Ok(place) = found else { continue };
        let target = &mut *targets[place].1;
        let block = &mut target.blocks[candidate.block];
        let pages = if block.huge {
            bits::ALL
        } else if is_whole {
            candidate.pages
        } else {
            sample_of(block, &candidate.pages)
        };
        block.belief.nr_samples = block.belief.nr_samples.wrapping_add(1);
        let block = &target.blocks[candidate.block];
        let id = candidate.target;
        add_ranges(target, block, &pages, &mut |range| {
            plan.ranges.push((id, range));
        });
        plan.watches.push(Watch {
            target: id,
            address: block.address,
            is_whole: is_whole || block.huge,
            pages,
            watched: NONE,
            stuck: NONE,
            is_stuck_touched: false,
            touched_in_window: None,
        });
    }
    plan
}

fn candidates(
    targets: &[(TargetId, &mut Target)],
    now: Nanos,
    prices: Prices,
) -> (Vec<Candidate>, Vec<Step>) {
    let (mut candidates, mut steps) = (Vec::new(), Vec::new());
    for (id, target) in targets {
        for (at, block) in target.blocks.iter().enumerate() {
            let pages = block.candidates(now);
            if is_empty(&pages) {
                continue;
            }
            add_steps(block, &pages, candidates.len() as u32, prices, &mut steps);
            candidates.push(Candidate {
                target: *id,
                block: at,
                pages,
            });
        }
    }
    (candidates, steps)
}

fn add_steps(block: &Block, pages: &Bitmap, at: u32, prices: Prices, steps: &mut Vec<Step>) {
    let nr_blind = count(pages);
    let mut belief = block.belief;
    if let Some(share) = block.estimate
        && belief.weight < 1.0
    {
        // What lies around it speaks for it.
        (belief.touched, belief.weight) = (share, 1.0);
    }
    let mut add = |value: f32, cost_us: f32, is_whole: bool| {
        steps.push(Step {
            ratio: value / cost_us,
            cost_us,
            at,
            is_whole,
        });
    };
    let (sample, whole) = (
        belief.value_of_sample(nr_blind),
        belief.value_of_whole(nr_blind),
    );
    if block.huge {
        add(sample + whole, prices.range(1, 1, 0.0), true);
        return;
    }
    let touched = belief.touched * nr_blind as f32;
    // One range from the first to the last: the kernel looks at all that is there between.
    let span = (bits::end(pages) - bits::next(pages, 0).unwrap_or(0)) as u32;
    let nr_in_span = span.min(count(&block.present)).max(nr_blind);
    let whole_cost = prices.range(1, nr_in_span, touched);
    if nr_blind <= WHOLE_UP_TO {
        add(sample + whole, whole_cost, true);
        return;
    }
    let sample_cost = prices.range(1, SAMPLE_PAGES, belief.touched * SAMPLE_PAGES as f32);
    let ratio = whole / (whole_cost - sample_cost).max(1.0);
    if ratio > sample / sample_cost {
        add(sample + whole, whole_cost, true);
        return;
    }
    add(sample, sample_cost, false);
    if ratio >= LEAST_RATIO {
        add(whole, whole_cost - sample_cost, true);
    }
}

/// Keeps the steps that the budget can reach, the best ones first. Among equals, places that halve
/// the gaps between them: after any number the largest gap is about twice the smallest.
fn keep_best(steps: &mut Vec<Step>, allowance_us: f32, prices: Prices) {
    let order = |a: &Step, b: &Step| {
        b.ratio
            .total_cmp(&a.ratio)
            .then(a.at.reverse_bits().cmp(&b.at.reverse_bits()))
            .then(a.is_whole.cmp(&b.is_whole))
    };
    let most = (allowance_us / prices.range(1, 1, 0.0)) as usize + 1;
    if steps.len() > most {
        steps.select_nth_unstable_by(most, order);
        steps.truncate(most);
    }
    steps.sort_unstable_by(order);
}

/// About 16 of `pages`, neighbours, another place each time: the place goes round by the golden
/// ratio, which fills the block evenly.
fn sample_of(block: &Block, pages: &Bitmap) -> Bitmap {
    // Different blocks start at different places, so that a stride in the target's accesses does not
    // meet the same phase everywhere.
    let salt = (block.address >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let turn = u64::from(block.belief.nr_samples)
        .wrapping_add(salt)
        .wrapping_mul(0x9E37_79B9)
        & 0xFFFF_FFFF;
    let place = (turn * 512) >> 32;
    // Aligned, so that folios of up to 64 KiB are taken whole.
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

/// The ranges that hold `pages`: one for each mapping that the block is of.
fn add_ranges(target: &Target, block: &Block, pages: &Bitmap, add: &mut dyn FnMut(AddressRange)) {
    let whole = block.range();
    if block.huge {
        add(whole);
        return;
    }
    let first = target
        .mappings
        .partition_point(|m| m.range.end <= whole.start);
    for mapping in target.mappings[first..]
        .iter()
        .take_while(|m| m.range.start < whole.end)
    {
        let mine = and(pages, &block.pages_in(mapping.range));
        if is_empty(&mine) {
            continue;
        }
        let from = bits::next(&mine, 0).unwrap_or(0);
        add(block.addresses(from..bits::end(&mine)));
    }
}
