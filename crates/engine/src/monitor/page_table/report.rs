//! Makes regions from blocks by joining similar neighbours. Selects the blocks that are reported page by page: those of
//! regions that only give the number of touched pages.

use super::block::{Block, State};
use super::pages::{Counts, GRANULE_BYTES, GRANULE_PAGES, Pages, Seen};
use super::target::Target;
use crate::address::{AddressRange, Nanos, PAGE_SIZE, block_of};
use crate::monitor::bits;
use crate::monitor::block_pages::BlockPages;
use crate::monitor::by_page::is_mixed;
use crate::monitor::page_since::nanos_of;
use crate::snapshot::{RegionMemory, RegionSnapshot};

/// Length up to which regions are joined with their neighbours first if there are too many. The length then doubles in
/// each step.
const COARSE_MIN: u64 = PAGE_SIZE;
const COARSE_MAX: u64 = 1 << 40;
/// Longest hole, in bytes, across which similar regions are joined.
const SMALL_HOLE: u64 = GRANULE_BYTES;
/// Length from which on regions of two mappings may be joined.
const COARSE_ACROSS_MAPPINGS: u64 = 1 << 20;
/// Share of touched pages from which on a region is busy.
const LEAST_BUSY_SHARE: f64 = 0.1;
/// Largest difference of the touched shares of similar regions.
const SHARE_DIFFERENCE: f64 = 0.3;

/// A region while it grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    range: AddressRange,
    mapping: u64,
    is_unknown: bool,
    /// Tick since which the touched or unknown pages are in that state, and tick since which the others are idle. Both
    /// are means weighted by size.
    since: f64,
    idle_since: f64,
    /// Sum over the touched pages of the share of windows in which each was touched.
    rates: f64,
    counts: Counts,
}

impl Draft {
    /// Returns the share of windows with a touch, as the mean of its known pages.
    fn rate(&self) -> f64 {
        self.rates / self.known().max(1.0)
    }

    fn share(&self) -> f64 {
        self.counts.touched / self.known().max(1.0)
    }

    fn known(&self) -> f64 {
        self.counts.resident - self.counts.unknown
    }

    /// Returns the state. A large region with few touched pages is idle; it reports their number.
    fn state(&self) -> State {
        if self.is_unknown {
            State::Unknown
        } else if self.share() >= LEAST_BUSY_SHARE {
            State::Busy
        } else {
            State::Idle
        }
    }

    fn untouched(&self) -> f64 {
        self.known() - self.counts.touched + self.counts.swapped
    }

    /// Adds a neighbour; ages become means weighted by size, as in DAMON.
    fn absorb(&mut self, next: &Self) {
        let mean = |a: f64, wa: f64, b: f64, wb: f64| (a * wa + b * wb) / (wa + wb).max(1e-9);
        let (own, others) = (self.untouched(), next.untouched());
        if own + others > 0.0 {
            self.idle_since = mean(self.idle_since, own, next.idle_since, others);
        }
        let weight = |draft: &Self| draft.counts.touched + draft.counts.unknown;
        if weight(self) + weight(next) > 0.0 {
            self.since = mean(self.since, weight(self), next.since, weight(next));
        }
        self.range = AddressRange::new(self.range.start, next.range.end);
        self.rates += next.rates;
        self.counts.resident += next.counts.resident;
        self.counts.touched += next.counts.touched;
        self.counts.unknown += next.counts.unknown;
        self.counts.swapped += next.counts.swapped;
    }

    /// Returns the region for the report. `nr_samples`: windows in the interval.
    pub(super) fn finish(&self, now: Nanos, interval: Nanos, nr_samples: u32) -> RegionSnapshot {
        let bytes = |pages: f64| pages.round() as u64 * PAGE_SIZE;
        let resident = bytes(self.counts.resident);
        let touched = bytes(self.counts.touched).min(resident);
        // A touched page was touched in at least one window.
        let accesses = (self.rate() * f64::from(nr_samples)).max(self.share());
        let state = self.state();
        let nr_accesses = match state {
            State::Unknown => None,
            State::Idle | State::Absent => Some(0.0),
            State::Busy => {
                Some(accesses.clamp(f64::from(f32::MIN_POSITIVE), f64::from(nr_samples)) as f32)
            }
        };
        let since = if state == State::Idle {
            self.idle_since
        } else {
            self.since
        };
        let age_ns = now.since(nanos_of(since as u32));
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

/// Returns the regions of each of `targets`, at most about `most` in all.
pub(super) fn regions<'a>(
    targets: impl Iterator<Item = &'a Target>,
    now: u32,
    most: usize,
) -> Vec<Vec<Draft>> {
    let targets: Vec<&Target> = targets.collect();
    // Each target gets several regions, even among a thousand.
    let most = most.max(16 * targets.len());
    let detail = detail(&targets, most);
    let mut all: Vec<Vec<Draft>> = targets.iter().map(|t| drafts(t, detail, now)).collect();
    let rates = all.iter().flatten().map(Draft::rate);
    let threshold = rates.fold(0.0, f64::max) / 10.0;
    let mut shortest = 0;
    loop {
        for drafts in &mut all {
            coarsen(drafts, |a, b| are_joined(a, b, now, threshold, shortest));
        }
        let is_few = |all: &[Vec<Draft>]| all.iter().map(Vec::len).sum::<usize>() <= most;
        if shortest == 0 && !is_few(&all) {
            // Ages are joined before touched memory is joined with untouched.
            for drafts in &mut all {
                coarsen(drafts, are_idle_neighbours);
            }
        }
        if is_few(&all) || shortest > COARSE_MAX {
            return all;
        }
        shortest = (shortest * 2).max(COARSE_MIN);
    }
}

/// Resolution at which blocks are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    Pages,
    Granules,
    Blocks,
}

/// Returns the finest detail that does not make many more regions than `most`.
fn detail(targets: &[&Target], most: usize) -> Detail {
    let sum = |of: fn(&Block) -> u32| {
        let blocks = targets.iter().flat_map(|target| &target.blocks);
        blocks.map(|block| of(block) as usize).sum::<usize>()
    };
    if sum(|block| bits::nr_changes(&block.busy())) <= most {
        Detail::Pages
    } else if sum(Block::nr_state_changes) <= most {
        Detail::Granules
    } else {
        Detail::Blocks
    }
}

/// Returns a draft for each stretch of granules with one state and one age.
fn drafts(target: &Target, detail: Detail, now: u32) -> Vec<Draft> {
    let mut drafts = Drafts {
        target,
        detail,
        now,
        all: Vec::new(),
    };
    let mut mappings = target.mappings.iter().peekable();
    for block in &target.blocks {
        let whole = block.range();
        while mappings.next_if(|m| m.end <= whole.start).is_some() {}
        let mut rest = mappings.clone();
        while let Some(mapping) = rest.next_if(|m| m.start < whole.end) {
            if let Some(piece) = whole.intersection(*mapping) {
                drafts.add_piece(block, piece, mapping.start);
            }
        }
    }
    drafts.all
}

struct Drafts<'a> {
    target: &'a Target,
    detail: Detail,
    now: u32,
    all: Vec<Draft>,
}

impl Drafts<'_> {
    fn add_piece(&mut self, block: &Block, piece: AddressRange, mapping: u64) {
        let (busy, seen) = (block.busy(), block.seen());
        let is_mixed = bits::nr_changes(&busy) > 0;
        let is_told_whole = self.detail == Detail::Blocks && !block.has_unknown();
        if is_told_whole || block.is_uniform() && !is_mixed {
            let since = block.mean_since();
            let idle_since = if is_mixed {
                block.mean_idle_since(Pages::All, &block.untouched(), self.now)
            } else {
                since
            };
            let is_unknown = block.state(0) == State::Unknown;
            let times = (since, idle_since);
            self.add(block, &seen, piece, mapping, is_unknown, times);
            return;
        }
        let untouched = block.untouched();
        for granule in block.granules_there() {
            let start = block.address + granule as u64 * GRANULE_BYTES;
            let whole = AddressRange::new(start, start + GRANULE_BYTES);
            let Some(part) = whole.intersection(piece) else {
                continue;
            };
            let (state, since) = (block.state(granule), f64::from(block.since(granule)));
            if state != State::Busy || !is_mixed {
                let is_unknown = state == State::Unknown;
                self.add(block, &seen, part, mapping, is_unknown, (since, since));
            } else if self.detail == Detail::Pages {
                self.add_by_page(block, &seen, part, mapping, &busy, since);
            } else {
                let first = granule * GRANULE_PAGES;
                let pages = Pages::of(first..first + GRANULE_PAGES);
                let idle_since = block.mean_idle_since(pages, &untouched, self.now);
                self.add(block, &seen, part, mapping, false, (since, idle_since));
            }
        }
    }

    /// Adds a busy granule as stretches of touched pages, and of untouched ones with one age.
    fn add_by_page(
        &mut self,
        block: &Block,
        seen: &Seen,
        part: AddressRange,
        mapping: u64,
        busy: &bits::Bitmap,
        since: f64,
    ) {
        let page = |address: u64| ((address - block.address) / PAGE_SIZE) as usize;
        let (mut from, end) = (page(part.start), page(part.end));
        let now = self.now;
        let kind = |page: usize| {
            let is_busy = bits::has(busy, page);
            (!is_busy).then(|| block.idle_since(page, now))
        };
        while from < end {
            let first = kind(from);
            let to = (from..end).find(|page| kind(*page) != first).unwrap_or(end);
            let idle_since = first.map_or(since, f64::from);
            let range = block.addresses(from..to);
            self.add(block, seen, range, mapping, false, (since, idle_since));
            from = to;
        }
    }

    fn add(
        &mut self,
        block: &Block,
        seen: &Seen,
        range: AddressRange,
        mapping: u64,
        is_unknown: bool,
        (since, idle_since): (f64, f64),
    ) {
        let page = |address: u64| ((address - block.address) / PAGE_SIZE) as usize;
        let pages = Pages::of(page(range.start)..page(range.end));
        let counts = block.counts(pages, seen, self.target.hides_accesses);
        if counts.resident <= 0.0 && counts.swapped <= 0.0 {
            return;
        }
        let rate = f64::from(block.access_estimate.rate.unwrap_or(0.0));
        let next = Draft {
            range,
            mapping,
            is_unknown,
            since,
            idle_since,
            rates: rate * counts.touched,
            counts,
        };
        let (detail, now) = (self.detail, self.now);
        match self.all.last_mut() {
            Some(last)
                if last.range.end == range.start
                    && last.mapping == mapping
                    && are_one(last, &next, block.address, detail, now) =>
            {
                last.absorb(&next);
            }
            _ => self.all.push(next),
        }
    }
}

/// Returns whether `next`, of the block at `address`, needs no draft of its own. There may be a hundred thousand whole
/// blocks: those that would be joined later are joined at once.
fn are_one(last: &Draft, next: &Draft, address: u64, detail: Detail, now: u32) -> bool {
    if block_of(last.range.start) == address {
        is_same(last, next)
    } else {
        detail == Detail::Blocks && are_joined(last, next, now, 0.0, 0)
    }
}

/// Returns whether two stretches of one block differ only in their place.
fn is_same(a: &Draft, b: &Draft) -> bool {
    let (state, other) = (a.state(), b.state());
    let share = (a.share() - b.share()).abs();
    state == other
        && share < 0.05
        && match state {
            State::Idle => (a.idle_since - b.idle_since).abs() < 1.0,
            _ => (a.since - b.since).abs() < 1.0,
        }
}

fn coarsen(drafts: &mut Vec<Draft>, are_joined: impl Fn(&Draft, &Draft) -> bool) {
    drafts.dedup_by(|next, last| {
        let is_joined = are_joined(last, next);
        if is_joined {
            last.absorb(next);
        }
        is_joined
    });
}

/// Returns whether both are idle neighbours and one of them is short; their ages do not matter.
fn are_idle_neighbours(a: &Draft, b: &Draft) -> bool {
    let is_idle = |draft: &Draft| draft.state() == State::Idle;
    let is_short = a.range.len().min(b.range.len()) <= GRANULE_BYTES;
    is_idle(a) && is_idle(b) && is_short && a.mapping == b.mapping && a.range.end == b.range.start
}

/// Returns whether two neighbours are similar, or one of them has at most `shortest` bytes.
fn are_joined(a: &Draft, b: &Draft, now: u32, threshold: f64, shortest: u64) -> bool {
    // Unknown memory is not cold: it is never joined with known memory.
    if a.is_unknown != b.is_unknown {
        return false;
    }
    if a.mapping != b.mapping && shortest < COARSE_ACROSS_MAPPINGS {
        return false;
    }
    // The gap between them is no memory; the region counts only present and swapped pages.
    let gap = b.range.start - a.range.end;
    if gap > 0 && (gap > shortest.max(SMALL_HOLE) || a.mapping != b.mapping) {
        return false;
    }
    let length = a.range.len().min(b.range.len());
    (length <= shortest && shortest > 0) || are_alike(a, b, now, threshold)
}

fn are_alike(a: &Draft, b: &Draft, now: u32, threshold: f64) -> bool {
    if a.state() != b.state() {
        return false;
    }
    match a.state() {
        State::Unknown | State::Absent => true,
        State::Busy => {
            (a.rate() - b.rate()).abs() <= threshold.max(0.05)
                && (a.share() - b.share()).abs() <= SHARE_DIFFERENCE
        }
        State::Idle => {
            // Idle for 3 s and idle for an hour are not alike.
            let age = |draft: &Draft| (f64::from(now) - draft.idle_since) / 64.0;
            let (young, old) = (age(a).min(age(b)), age(a).max(age(b)));
            old < young * 1.3 + 1.0
        }
    }
}

/// Returns the pages of the blocks of `target` that lie in mixed regions, in address order. Returns none if there are
/// more than `most` such blocks.
pub(super) fn blocks_by_page(
    target: &Target,
    regions: &[RegionSnapshot],
    now: u32,
    most: usize,
) -> Vec<BlockPages> {
    let mut all = Vec::new();
    let mut at = 0;
    for range in regions.iter().filter(|r| is_mixed(r)).map(|r| r.range) {
        let first = block_of(range.start);
        at += target.blocks[at..].partition_point(|block| block.address < first);
        let rest = &target.blocks[at..];
        let nr = rest.partition_point(|block| block.address < range.end);
        if all.len() + nr > most {
            return Vec::new();
        }
        let reported = rest[..nr].iter();
        all.extend(reported.filter_map(|block| block.by_page(now, target.hides_accesses)));
        at += nr;
    }
    all
}
