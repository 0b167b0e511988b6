//! A walk over one target's regions, once, with every scheme that has its turn. It corresponds to
//! `damon_do_apply_schemes` and `damos_apply_scheme` in the kernel's `mm/damon/core.c`.
//!
//! A scheme may divide the region that it visits: where the quota ends, where the last window stopped, at the border of
//! an address filter. As in the kernel the schemes after it then see the first part, and the second part comes next.
//! The parts exist for the walk only: the monitor's regions stay unchanged, except for the ages.
//!
//! Difference from the kernel: it shows the second part to the schemes before as well, which have seen the whole and
//! may act on that part a second time. Here every scheme sees memory once.

use std::sync::Arc;

use super::engine::State;
use super::facts::Asked;
use super::filter::Verdict;
use super::pages::WalkedPages;
use super::pattern::PatternForSamples;
use super::priority;
use super::stats::TriedRegion;
use super::{Action, Scheme};
use crate::address::{AddressRange, Nanos, PAGE_SIZE};
use crate::port::Operation;
use crate::snapshot::{RegionSnapshot, Snapshot, TargetId};

/// State that all regions of a walk share.
pub(super) struct Walk<'a> {
    pub(super) target: TargetId,
    nr_samples: u32,
    pub(super) operations: &'a mut Vec<(Operation, TriedRegion)>,
    pub(super) pages: WalkedPages<'a>,
    /// Second parts of divided regions, the next one last, each with the turn that divided it.
    rest: Vec<(usize, RegionSnapshot)>,
    is_last_region: bool,
    /// Index of the live scheme that has its turn.
    turn: usize,
}

/// Plans for the regions of `snapshot`, by the schemes `live`, each with its index. `asked` tightens the schemes'
/// bounds on ages.
pub(super) fn walk<'a>(
    snapshot: &'a Snapshot,
    asked: Asked,
    live: &mut [(usize, &mut State)],
    operations: &'a mut Vec<(Operation, TriedRegion)>,
) {
    let Some(last) = last_region(snapshot) else {
        return;
    };
    let pattern = |(_, state): &(usize, &mut State)| {
        let Scheme {
            pattern, action, ..
        } = &state.scheme;
        let pattern = pattern.for_samples(snapshot.nr_samples);
        if !state.scheme.is_idle_only() {
            return pattern;
        }
        let pattern = pattern.at_least(asked.at_least);
        if *action == Action::Pageout {
            pattern.older_by(asked.older)
        } else {
            pattern
        }
    };
    let patterns: Vec<PatternForSamples> = live.iter().map(pattern).collect();
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
            for (turn, ((index, state), pattern)) in turns.skip(first_turn) {
                walk.turn = turn;
                walk.visit(*index, state, pattern, &mut region);
            }
        }
    }
}

/// Returns the index of the last region that holds a page.
pub(super) fn last_region(snapshot: &Snapshot) -> Option<usize> {
    let holds_page = |region: &RegionSnapshot| whole_pages(region.range).is_some();
    snapshot.regions.iter().rposition(holds_page)
}

/// Returns the bytes among `addresses`, a part of the region's, that `action` can apply to: memory, and for `willneed`
/// swapped-out memory as well. DAMON counts addresses; so does this where the monitor does not know what they hold.
pub(super) fn memory_in(action: Action, region: &RegionSnapshot, addresses: u64) -> u64 {
    let swapped = region.memory.map_or(0, |memory| memory.swapped);
    let bytes = match action {
        Action::Willneed => region.resident().saturating_add(swapped),
        _ => region.resident(),
    };
    let share = u128::from(bytes) * u128::from(addresses) / u128::from(region.range.len().max(1));
    // A region that was cut since its memory was counted may claim more than it has addresses.
    u64::try_from(share).map_or(addresses, |bytes| bytes.min(addresses))
}

/// Returns the whole pages in `range`. Records of other tools may have regions that begin or end within a page.
fn whole_pages(range: AddressRange) -> Option<AddressRange> {
    let start = range.start.checked_next_multiple_of(PAGE_SIZE)?;
    AddressRange::checked(start, range.end / PAGE_SIZE * PAGE_SIZE)
}

impl Walk<'_> {
    fn visit(
        &mut self,
        index: usize,
        state: &mut State,
        pattern: &PatternForSamples,
        region: &mut RegionSnapshot,
    ) {
        if state.charge.is_exhausted() || self.skips(state, region) || state.is_finished() {
            return;
        }
        if !pattern.matches(region) {
            self.apply_pages(index, state, pattern, region);
        } else if self.has_priority(state, region) {
            self.apply(index, state, region);
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
        let Some((target, address)) = state.charge.resume() else {
            return false;
        };
        if target != self.target {
            return true;
        }
        if region.range.end <= address {
            if self.is_last() {
                state.charge.forget_resume();
            }
            return true;
        }
        if region.range.start < address {
            self.split(region, address);
            return true;
        }
        state.charge.forget_resume();
        false
    }

    pub(super) fn has_priority(&self, state: &State, region: &RegionSnapshot) -> bool {
        // Without a limit, or if all memory fits, this avoids computing the score.
        let min_score = state.charge.state.min_score;
        min_score == 0 || {
            let Scheme { action, quota, .. } = &state.scheme;
            priority::score(*action, region, self.nr_samples, quota.weights) >= min_score
        }
    }

    fn apply(&mut self, index: usize, state: &mut State, region: &mut RegionSnapshot) {
        let start = region.range.start;
        let action = state.scheme.action;
        let all = memory_in(action, region, region.range.len());
        if all == 0 {
            return;
        }
        if let Some(left) = state.charge.left()
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
        let bytes = memory_in(action, region, region.range.len());
        let operation = Operation {
            bytes,
            age: region.age_ns,
            ..operation(index, state, self.target, region.range, verdict)
        };
        state.charge.reserve(bytes, (self.target, region.range.end));
        let tried = TriedRegion {
            target: self.target,
            range: region.range,
            // Only regions with known accesses match.
            nr_accesses: region.nr_accesses.unwrap_or(0.0),
            age: region.age,
            sz_filter_passed: None,
        };
        self.operations.push((operation, tried));
        if state.scheme.action != Action::Stat {
            region.age = 0;
            region.age_ns = Nanos(0);
            self.pages.take_range(region.range);
        }
    }

    /// Divides `region`: the part from `address` on has its turn next.
    fn split(&mut self, region: &mut RegionSnapshot, address: u64) {
        let AddressRange { start, end } = region.range;
        let second = region.part(AddressRange::new(address, end));
        self.rest.push((self.turn, second));
        *region = region.part(AddressRange::new(start, address));
    }
}

pub(super) fn operation(
    scheme: usize,
    state: &State,
    target: TargetId,
    range: AddressRange,
    verdict: Verdict,
) -> Operation {
    let is_asked = verdict == Verdict::Ask;
    Operation {
        scheme,
        action: state.scheme.action,
        destinations: Arc::clone(&state.destinations),
        target,
        range,
        bytes: range.len(),
        age: Nanos(0),
        filters: if is_asked {
            Arc::clone(&state.filters.ops)
        } else {
            Arc::default()
        },
        pass_unmatched: !is_asked || state.filters.ops_pass_unmatched,
        idle_only: state.scheme.is_idle_only(),
        pages: None,
        blocks: None,
    }
}
