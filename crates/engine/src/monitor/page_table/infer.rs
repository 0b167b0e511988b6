//! Inference from watched pages to pages that were not watched.

use super::block;
use super::target::Target;
use super::watch::Watch;
use crate::monitor::bits::{and, count, is_empty, or};

/// Largest distance of two known blocks that represent the blocks between them. It is also the reach of
/// [`infer_from_around`].
const INFERRED_BLOCKS: usize = 64;
/// Least number of watched pages around a block from which its share is inferred.
const LEAST_WATCHED_AROUND: u64 = 32;
/// Touched share of a block cleared whole from which on (or below its complement) its pages count as alike.
const UNIFORM: f32 = 0.95;
/// Two shares that differ by at most this agree.
pub(super) const AGREEMENT: f32 = 0.3;

/// Updates a block's estimates from its watched pages. Returns the earlier share of touched pages if the block changed.
pub(super) fn observe(watch: &Watch, block: &mut block::Block) -> Option<f32> {
    if !block.is_fresh() {
        return None;
    }
    let at_once = and(&watch.touched_at_once, &block.present);
    block.touched_at_once(&at_once);
    let watched = or(&and(&watch.watched, &block.present), &at_once);
    let nr_watched = count(&watched);
    if nr_watched == 0 {
        return None;
    }
    let nr_touched = count(&and(&watched, &block.touched()));
    (block.nr_watched, block.nr_watched_touched) = (nr_watched as u16, nr_touched as u16);
    let before = block.access_estimate.touched;
    let (share, is_change) = block.access_estimate.observe(nr_watched, nr_touched);
    block.estimate = Some(share);
    let nr_unsampled = count(&block.unsampled());
    let nr_left = nr_unsampled + nr_touched;
    let estimate = &mut block.access_estimate;
    estimate.select(nr_unsampled + nr_watched, nr_left);
    if watch.is_whole {
        let share = nr_touched as f32 / nr_watched as f32;
        estimate.is_uniform = !(1.0 - UNIFORM..=UNIFORM).contains(&share);
        estimate.since_whole = 0;
    }
    if let Some(in_window) = watch.touched_in_window
        && nr_touched > 0
    {
        let rate = in_window.min(nr_touched) as f32 / nr_touched as f32;
        estimate.observe_rate(rate);
    }
    is_change.then_some(before)
}

/// Estimates unknown blocks between two known ones from these, if the two agree. As in DAMON, a sample represents the
/// memory around it until there are better ones.
pub(super) fn infer(target: &mut Target) {
    let mut before: Option<(usize, f32)> = None;
    for at in 0..target.blocks.len() {
        let block = &target.blocks[at];
        let Some(share) = block.known_share() else {
            continue;
        };
        let Some((first, other)) = before.replace((at, share)) else {
            continue;
        };
        let is_near = at - first > 1 && at - first <= INFERRED_BLOCKS;
        if !is_near || (share - other).abs() > AGREEMENT {
            continue;
        }
        let of = |i: usize| target.mapping_at(target.blocks[i].address);
        if of(first).is_none() || of(first) != of(at) {
            continue;
        }
        for block in &mut target.blocks[first + 1..at] {
            if block.is_fresh() && block.is_all_unsampled() {
                block.estimate = Some(f32::midpoint(share, other));
            }
        }
    }
}

/// Estimates unsampled pages of unknown blocks from the watched pages of the blocks around them. Only watched pages
/// that had been touched before are counted.
pub(super) fn infer_from_around(target: &mut Target) {
    let unknown = |block: &block::Block| {
        block.is_fresh() && block.estimate.is_none() && !is_empty(&block.unsampled())
    };
    if !target.blocks.iter().any(|block| unknown(block)) {
        return;
    }
    // Sums over the blocks before each: pages watched, and those of them that were touched.
    let mut sums = Vec::with_capacity(target.blocks.len() + 1);
    sums.push((0u64, 0u64));
    for block in &target.blocks {
        let (mut watched, mut touched) = sums[sums.len() - 1];
        if !block.is_all_unsampled() {
            watched += u64::from(block.nr_watched);
            touched += u64::from(block.nr_watched_touched);
        }
        sums.push((watched, touched));
    }
    let last = target.blocks.len();
    for (at, block) in target.blocks.iter_mut().enumerate() {
        if !unknown(block) || block.is_all_unsampled() {
            continue;
        }
        let from = sums[at.saturating_sub(INFERRED_BLOCKS)];
        let to = sums[(at + INFERRED_BLOCKS).min(last)];
        let (watched, touched) = (to.0 - from.0, to.1 - from.1);
        if watched >= LEAST_WATCHED_AROUND {
            block.estimate = Some(touched as f32 / watched as f32);
        }
    }
}
