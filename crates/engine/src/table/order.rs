//! In which order, and where, segments are sampled.

use std::collections::VecDeque;

use super::segment::{Segment, Watch};
use crate::address::{Nanos, PAGE_SIZE};
use crate::port::Sample;
use crate::snapshot::TargetId;

/// The fresh segments in bit-reversed order of their place: after any number of them, the largest
/// gap between sampled ones is about twice the smallest.
pub(super) fn halving_gaps(segments: &[Segment], now: Nanos) -> VecDeque<(TargetId, u64)> {
    let fresh: Vec<_> = segments
        .iter()
        .filter(|s| s.watch == Watch::Fresh && s.sample_not_before <= now)
        .collect();
    let bits = usize::BITS - fresh.len().leading_zeros();
    let mut keyed: Vec<_> = fresh
        .iter()
        .enumerate()
        .map(|(i, s)| {
            (
                i.reverse_bits() >> (usize::BITS - bits.max(1)),
                (s.target, s.range.start),
            )
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, key)| key).collect()
}

/// A cluster of neighbouring pages in `segment`, another one each time: the place goes round by the
/// golden ratio, which fills the segment evenly.
pub(super) fn cluster_in(segment: &Segment, nr_pages: u32) -> Sample {
    let pages = (segment.range.len() / PAGE_SIZE) as u32;
    let nr_pages = nr_pages.min(pages);
    let places = u64::from(pages.div_ceil(nr_pages));
    // Different segments start at different places, so that a stride in the target's accesses
    // does not meet the same phase everywhere.
    let salt = (segment.range.start >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let turn = u64::from(segment.nr_samples)
        .wrapping_add(salt)
        .wrapping_mul(0x9E37_79B9)
        & 0xFFFF_FFFF;
    let place = ((turn * places) >> 32) as u32;
    let first = (place * nr_pages).min(pages - nr_pages);
    Sample {
        target: segment.target,
        address: segment.range.start + u64::from(first) * PAGE_SIZE,
        nr_pages,
    }
}
