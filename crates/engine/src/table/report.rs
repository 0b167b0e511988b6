//! Regions from blocks: neighbours that are alike become one.

use super::block::{Block, Counts, GRANULE_BYTES, GRANULES, State, nanos_of};
use super::layout::{Target, block_of};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};
use crate::snapshot::{RegionMemory, RegionSnapshot};

/// Regions that are shorter than this are joined with their neighbours first, where there are too
/// many; then twice that, and so on.
const COARSE_MIN: u64 = GRANULE_BYTES;
const COARSE_MAX: u64 = 1 << 40;
/// From this length on, regions of two mappings may be joined.
const COARSE_ACROSS_MAPPINGS: u64 = 1 << 20;
/// Touched shares that differ by more are not alike.
const SHARE_DIFFERENCE: f64 = 0.3;

/// A region while it grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    range: AddressRange,
    mapping: u64,
    state: State,
    /// Ticks since when it is in its state; a mean by size.
    since: f64,
    /// Of its touched pages, the sum of the shares of windows in which they were touched.
    rates: f64,
    counts: Counts,
}

impl Draft {
    /// Share of windows with a touch, as the mean of its known pages.
    fn rate(&self) -> f64 {
        self.rates / self.known().max(1.0)
    }

    fn share(&self) -> f64 {
        self.counts.touched / self.known().max(1.0)
    }

    fn known(&self) -> f64 {
        self.counts.resident - self.counts.unknown
    }

    /// Adds a neighbour; the age becomes a mean weighted by size, as in DAMON.
    fn absorb(&mut self, next: &Self) {
        let (mine, other) = (self.range.len() as f64, next.range.len() as f64);
        if self.state == next.state {
            self.since = (self.since * mine + next.since * other) / (mine + other);
        } else if next.state == State::Busy {
            (self.state, self.since) = (State::Busy, next.since);
        }
        self.range = AddressRange::new(self.range.start, next.range.end);
        self.rates += next.rates;
        self.counts.resident += next.counts.resident;
        self.counts.touched += next.counts.touched;
        self.counts.unknown += next.counts.unknown;
        self.counts.swapped += next.counts.swapped;
    }

    /// The region as it is told. `nr_samples`: windows in the interval.
    pub(super) fn finish(&self, now: Nanos, interval: Nanos, nr_samples: u32) -> RegionSnapshot {
        let bytes = |pages: f64| pages.round() as u64 * PAGE_SIZE;
        let resident = bytes(self.counts.resident);
        let touched = bytes(self.counts.touched).min(resident);
        // A page that was touched was so at least once.
        let accesses = (self.rate() * f64::from(nr_samples)).max(self.share());
        let nr_accesses = match self.state {
            State::Unknown => None,
            State::Idle | State::Absent => Some(0.0),
            State::Busy => {
                Some(accesses.clamp(f64::from(f32::MIN_POSITIVE), f64::from(nr_samples)) as f32)
            }
        };
        let age_ns = now.since(nanos_of(self.since as u32));
        RegionSnapshot {
            range: self.range,
            nr_accesses,
            age: u32::try_from(age_ns.0 / interval.0.max(1)).unwrap_or(u32::MAX),
            age_ns,
            memory: Some(RegionMemory {
                resident,
                touched,
                unknown: bytes(self.counts.unknown).min(resident - touched),
                swapped: bytes(self.counts.swapped),
            }),
        }
    }
}

/// The regions of all `targets`, each with its own; at most about `most` in all.
pub(super) fn regions<'a>(
    targets: impl Iterator<Item = &'a Target>,
    now: u32,
    most: usize,
) -> Vec<Vec<Draft>> {
    let mut all: Vec<Vec<Draft>> = targets.map(drafts).collect();
    let rates = all.iter().flatten().map(Draft::rate);
    let threshold = rates.fold(0.0, f64::max) / 10.0;
    // Even a process of a thousand is told in more than one region.
    let most = most.max(16 * all.len());
    let mut shortest = 0;
    loop {
        for drafts in &mut all {
            coarsen(drafts, now, threshold, shortest);
        }
        if all.iter().map(Vec::len).sum::<usize>() <= most || shortest > COARSE_MAX {
            return all;
        }
        shortest = (shortest * 2).max(COARSE_MIN);
    }
}

/// A draft for each stretch of granules in one state and of one age.
fn drafts(target: &Target) -> Vec<Draft> {
    let mut drafts = Vec::new();
    let mut mappings = target.mappings.iter().peekable();
    for block in &target.blocks {
        let whole = block.range();
        while mappings.next_if(|m| m.range.end <= whole.start).is_some() {}
        let mut rest = mappings.clone();
        while let Some(mapping) = rest.next_if(|m| m.range.start < whole.end) {
            if let Some(piece) = whole.intersection(mapping.range) {
                add_piece(target, block, piece, mapping.range.start, &mut drafts);
            }
        }
    }
    drafts
}

fn add_piece(
    target: &Target,
    block: &Block,
    piece: AddressRange,
    mapping: u64,
    drafts: &mut Vec<Draft>,
) {
    if block.is_uniform() {
        add_draft(target, block, piece, mapping, 0, drafts);
        return;
    }
    for granule in 0..GRANULES {
        let start = block_of(piece.start) + granule as u64 * GRANULE_BYTES;
        if let Some(part) = AddressRange::new(start, start + GRANULE_BYTES).intersection(piece) {
            add_draft(target, block, part, mapping, granule, drafts);
        }
    }
}

fn add_draft(
    target: &Target,
    block: &Block,
    range: AddressRange,
    mapping: u64,
    granule: usize,
    drafts: &mut Vec<Draft>,
) {
    let state = block.state(granule);
    if state == State::Absent {
        return;
    }
    let mask = if range.len() == BLOCK_SIZE {
        super::bits::ALL
    } else {
        block.pages_in(range)
    };
    let counts = block.counts(&mask, target.hides_accesses);
    if counts.resident <= 0.0 && counts.swapped <= 0.0 {
        return;
    }
    let rate = f64::from(block.belief.rate.unwrap_or(0.0));
    let next = Draft {
        range,
        mapping,
        state,
        since: f64::from(block.since(granule)),
        rates: rate * counts.touched,
        counts,
    };
    match drafts.last_mut() {
        Some(last)
            if last.range.end == range.start
                && last.mapping == mapping
                && last.state == state
                && block_of(last.range.start) == block.address
                && (last.since - next.since).abs() < 1.0 =>
        {
            last.absorb(&next);
        }
        _ => drafts.push(next),
    }
}

/// Joins neighbours that are alike, or of which one is at most `shortest` long.
fn coarsen(drafts: &mut Vec<Draft>, now: u32, threshold: f64, shortest: u64) {
    let mut kept = 0;
    for at in 1..drafts.len() {
        let next = drafts[at];
        let last = &mut drafts[kept];
        if are_joined(last, &next, now, threshold, shortest) {
            last.absorb(&next);
        } else {
            kept += 1;
            drafts[kept] = next;
        }
    }
    drafts.truncate(kept + 1);
}

fn are_joined(a: &Draft, b: &Draft, now: u32, threshold: f64, shortest: u64) -> bool {
    // Unknown is not cold: it never joins what is known.
    if (a.state == State::Unknown) != (b.state == State::Unknown) {
        return false;
    }
    if a.mapping != b.mapping && shortest < COARSE_ACROSS_MAPPINGS {
        return false;
    }
    // What lies between them is no memory; the region says how much of it is.
    let gap = b.range.start - a.range.end;
    if gap > 0 && (gap > shortest || a.mapping != b.mapping) {
        return false;
    }
    let length = a.range.len().min(b.range.len());
    (length <= shortest && shortest > 0) || are_alike(a, b, now, threshold)
}

fn are_alike(a: &Draft, b: &Draft, now: u32, threshold: f64) -> bool {
    if a.state != b.state {
        return false;
    }
    match a.state {
        State::Unknown | State::Absent => true,
        State::Busy => {
            (a.rate() - b.rate()).abs() <= threshold.max(0.05)
                && (a.share() - b.share()).abs() <= SHARE_DIFFERENCE
        }
        State::Idle => {
            // Idle for 3 s and idle for an hour are not alike.
            let age = |draft: &Draft| (f64::from(now) - draft.since) / 64.0;
            let (young, old) = (age(a).min(age(b)), age(a).max(age(b)));
            old < young * 1.3 + 1.0
        }
    }
}
