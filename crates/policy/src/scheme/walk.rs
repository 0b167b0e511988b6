//! A walk over one target's regions, once, with every scheme that has its turn. It corresponds to
//! `damon_do_apply_schemes` and `damos_apply_scheme` in the kernel's `mm/damon/core.c`.
//!
//! A scheme may divide the region that it visits: where the quota ends, where the last window stopped, at the border of
//! an address filter. As in the kernel the schemes after it then see the first part, and the second part comes next.
//! The parts exist for the walk only: the monitor's regions stay unchanged, except for the ages.
//!
//! Difference from the kernel: it shows the second part to the schemes before as well, which have seen the whole and
//! may act on that part a second time. Here every scheme sees memory once.

use super::eligible::{last_region, memory_in, whole_pages};
use super::facts::Asked;
use super::filter::Verdict;
use super::pages::{IdlePart, WalkedPages, idle_parts, span};
use super::pattern::PatternForSamples;
use super::priority;
use super::state::State;
use super::{Action, Scheme};
use crate::port::Operation;
use isotherm_engine::address::{AddressRange, Nanos, PAGE_SIZE};
use isotherm_engine::monitor::bits;
use isotherm_engine::snapshot::{RegionSnapshot, Snapshot, TargetId};

pub(super) struct Walk<'a> {
    target: TargetId,
    nr_samples: u32,
    operations: &'a mut Vec<Operation>,
    pages: WalkedPages<'a>,
    /// Second parts of divided regions, the next one last, each with the turn that divided it.
    rest: Vec<(usize, RegionSnapshot)>,
    is_last_region: bool,
    /// Index of the live scheme that has its turn.
    turn: usize,
}

/// Plans for the regions of `snapshot`, by the schemes `live`. `asked` tightens the schemes' bounds on ages.
pub(super) fn walk<'a>(
    snapshot: &'a Snapshot,
    asked: Asked,
    live: &mut [&mut State],
    operations: &'a mut Vec<Operation>,
) {
    let Some(last) = last_region(snapshot) else {
        return;
    };
    let pattern = |state: &mut State| {
        let pattern = state.scheme.pattern.for_samples(snapshot.nr_samples);
        if !state.scheme.is_idle_only() {
            return pattern;
        }
        let pattern = pattern.at_least(asked.at_least);
        if state.scheme.action != Action::Pageout {
            return pattern;
        }
        let narrow = pattern.older_by(asked.older).at_least(asked.out_age);
        if asked.older > 1 || asked.out_age > Nanos(0) {
            state.withhold(snapshot, [&pattern, &narrow]);
        }
        narrow
    };
    let patterns: Vec<PatternForSamples> = live.iter_mut().map(|state| pattern(state)).collect();
    let mut walk = Walk {
        target: snapshot.target,
        nr_samples: snapshot.nr_samples,
        operations,
        pages: WalkedPages::of(snapshot),
        rest: Vec::new(),
        is_last_region: false,
        turn: 0,
    };
    for (index, region) in snapshot.regions[..=last].iter().enumerate() {
        let Some(range) = whole_pages(region.range) else {
            continue;
        };
        walk.is_last_region = index == last;
        walk.rest.push((0, region.part(range)));
        while let Some((first_turn, mut region)) = walk.rest.pop() {
            let turns = live.iter_mut().zip(&patterns).enumerate();
            for (turn, (state, pattern)) in turns.skip(first_turn) {
                walk.turn = turn;
                walk.visit(state, pattern, &mut region);
            }
        }
    }
}

impl Walk<'_> {
    fn visit(
        &mut self,
        state: &mut State,
        pattern: &PatternForSamples,
        region: &mut RegionSnapshot,
    ) {
        if state.charge.is_exhausted() || self.skips(state, region) || state.is_finished() {
            return;
        }
        if !pattern.matches(region) {
            self.apply_pages(state, pattern, region);
        } else if self.has_priority(state, region) {
            self.apply(state, region);
        }
        if self.is_last() {
            state.stats.nr_snapshots += 1;
        }
    }

    fn is_last(&self) -> bool {
        self.is_last_region && self.rest.is_empty()
    }

    /// Returns whether `region` had its turn in the last window.
    fn skips(&mut self, state: &mut State, region: &mut RegionSnapshot) -> bool {
        let Some((target, address)) = state.charge.resume else {
            return false;
        };
        if target != self.target {
            return true;
        }
        if region.range.end <= address {
            if self.is_last() {
                state.charge.resume = None;
            }
            return true;
        }
        if region.range.start < address {
            self.split(region, address);
            return true;
        }
        state.charge.resume = None;
        false
    }

    fn has_priority(&self, state: &State, region: &RegionSnapshot) -> bool {
        // Without a limit, or if all memory fits, this avoids computing the score.
        let min_score = state.charge.state.min_score;
        min_score == 0 || {
            let Scheme { action, quota, .. } = &state.scheme;
            priority::score(*action, region, self.nr_samples, quota.weights) >= min_score
        }
    }

    fn apply(&mut self, state: &mut State, region: &mut RegionSnapshot) {
        let start = region.range.start;
        let action = state.scheme.action;
        let all = memory_in(action, region, region.range.len());
        if all == 0 {
            return;
        }
        if let Some(left) = state.charge.available()
            && left < all
        {
            // Number of addresses that hold the rest of the quota, if memory is spread evenly.
            let addresses = u128::from(left) * u128::from(region.range.len()) / u128::from(all);
            let whole = addresses as u64 / PAGE_SIZE * PAGE_SIZE;
            if whole == 0 {
                state.stats.nr_tried += 1;
                state.charge.stop_at((self.target, start));
                return;
            }
            self.split(region, start + whole);
        }
        let (verdict, end) = state.filters.evaluate(self.target, region.range);
        if end < region.range.end {
            self.split(region, end);
        }
        if verdict == Verdict::Reject {
            return;
        }
        let operation = Operation {
            bytes: memory_in(action, region, region.range.len()),
            age: region.age_ns,
            ..state.operation(self.target, region.range, verdict)
        };
        self.push(state, operation);
        if state.scheme.action != Action::Stat {
            region.age = 0;
            region.age_ns = Nanos(0);
            self.pages.take_range(region.range);
        }
    }

    /// Adds an operation, and reserves its bytes.
    fn push(&mut self, state: &mut State, operation: Operation) {
        let end = (self.target, operation.range.end);
        state.charge.reserve(operation.bytes, end);
        self.operations.push(operation);
    }

    /// Divides `region`: the part from `address` on has its turn next.
    fn split(&mut self, region: &mut RegionSnapshot, address: u64) {
        let AddressRange { start, end } = region.range;
        let second = region.part(AddressRange::new(address, end));
        self.rest.push((self.turn, second));
        *region = region.part(AddressRange::new(start, address));
    }

    /// Takes the pages of `region` that match the scheme's pattern on their own; the region itself does not match.
    fn apply_pages(
        &mut self,
        state: &mut State,
        pattern: &PatternForSamples,
        region: &RegionSnapshot,
    ) {
        let (idle, interval) = (self.pages.idle, self.pages.interval);
        let parts: Vec<IdlePart> =
            idle_parts(idle, interval, region.range, (&state.scheme, pattern)).collect();
        for part in parts {
            if self.has_priority(state, &part.region) {
                self.apply_part(state, &part);
            }
        }
    }

    fn apply_part(&mut self, state: &mut State, part: &IdlePart) {
        let left = self.pages.left(part);
        let mut rest = Some(part.region.range);
        while let Some(range) = rest {
            if state.charge.is_exhausted() {
                return;
            }
            let (verdict, end) = state.filters.evaluate(self.target, range);
            rest = AddressRange::checked(end, range.end);
            if verdict == Verdict::Reject {
                continue;
            }
            let here = bits::mask(part.block, AddressRange::new(range.start, end));
            let mut pages = bits::and(&left, &here);
            if bits::is_empty(&pages) {
                continue;
            }
            if let Some(quota) = state.charge.available() {
                pages = bits::first(&pages, quota / PAGE_SIZE);
            }
            let Some(span) = span(part.block, &pages) else {
                state.stats.nr_tried += 1;
                state.charge.stop_at((self.target, range.start));
                return;
            };
            let operation = Operation {
                bytes: bits::bytes(&pages),
                age: part.region.age_ns,
                pages: Some(Box::new(pages)),
                ..state.operation(self.target, span, verdict)
            };
            self.push(state, operation);
            if state.scheme.action != Action::Stat {
                self.pages.take(part.block, &pages);
            }
        }
    }
}
