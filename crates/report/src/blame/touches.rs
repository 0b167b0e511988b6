//! The first touches of a target's addresses, as far as samples show them.
//!
//! Problem: samples are few, and the first toucher of the pages between two samples is unknown. Programs reuse
//! addresses: they unmap and map, or give memory back and touch it again.
//!
//! Approach: pages are mostly touched in the order of their addresses. A page is therefore attributed to the nearest
//! sample in its mapping. Between two neighbours of one stack this is sure; between two of different stacks it is
//! likely. A sample reaches no farther than a few times the pages that it stands for ([`Touch::reach`]). Beyond that,
//! memory was filled without visible faults, and is unknown. Memory from before sampling began is unknown until it is
//! freed ([`Touches::begin_before`]). A sample is dropped with its mapping, and with its memory (when a region holds
//! none any more). It is also dropped when a newer run of the same stack passes over it.
//!
//! Limits: memory that an allocator reuses without freeing it stays attributed to its first toucher. Of a mapping that
//! vanishes and returns between two scans, only the newer run is visible.

use std::collections::BTreeMap;
use std::ops::Bound;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, Snapshot};
use isotherm_record::{FaultSample, MappingChange, MovedMemory, StackId};

use crate::ranges::{RangeMap, unmapped};

/// The largest number of samples kept per target; above it, samples between two of the same stack are dropped.
const KEPT_MAX: usize = 1 << 20;
/// Minimum reach of a sample in bytes; the next constant multiplies the pages that it stands for.
const REACH_MIN: u64 = 2 << 20;
const REACH_TIMES: u64 = 8;
/// The largest number of ranges from before sampling began.
const BEFORE_MAX: usize = 1 << 20;

/// The first touch of a page that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub(super) stack: StackId,
    pub(super) thread: u32,
    time: Nanos,
    pages: u64,
}

impl Touch {
    /// Returns the greatest distance, in bytes, of pages that are attributed to this sample.
    fn reach(&self) -> u64 {
        let stands_for = self.pages.saturating_mul(PAGE_SIZE * REACH_TIMES);
        stands_for.max(REACH_MIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A sample; `is_sure` if the sample on the other side has the same stack.
    Touch { touch: Touch, is_sure: bool },
    /// Memory from before sampling began.
    Before,
    /// Memory without a sample nearby.
    NotSampled,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Touches {
    space: u32,
    by_page: BTreeMap<u64, Touch>,
    /// The address of each stack's newest sample.
    newest: BTreeMap<StackId, (u64, Nanos)>,
    /// Resident share of ranges from before sampling began.
    before: RangeMap<f32>,
    /// Whether the target ran before sampling began, and no snapshot of it has arrived yet.
    awaits_before: bool,
}

impl Touches {
    /// Marks memory from before sampling: the first touches of the next snapshot's memory are unknown.
    pub(super) fn begin_before(&mut self) {
        self.awaits_before = true;
    }

    /// Takes a sample of a page that was not present before.
    pub(super) fn push(&mut self, sample: &FaultSample) {
        if sample.space != self.space {
            // The sample belongs to another program.
            *self = Self {
                space: sample.space,
                ..Self::default()
            };
        }
        let touch = Touch {
            stack: sample.stack,
            thread: sample.thread,
            time: sample.time,
            pages: sample.pages,
        };
        self.drop_older(sample.address, &touch);
        self.before.cut(page(sample.address));
        // A fault on a huge page may be sampled as one on a small page, too.
        let known = self.by_page.insert(sample.address, touch);
        if let Some(known) = known.filter(|known| known.stack == touch.stack) {
            let pages = known.pages.max(touch.pages);
            self.by_page
                .insert(sample.address, Touch { pages, ..touch });
        }
        if self.by_page.len() > KEPT_MAX {
            self.thin_out();
        }
    }

    pub(super) fn apply(&mut self, change: &MappingChange) {
        for gone in unmapped(change) {
            self.forget(gone, change.time);
        }
    }

    pub(super) fn look(&mut self, snapshot: &Snapshot) {
        if std::mem::take(&mut self.awaits_before) {
            for region in &snapshot.regions {
                let share = region.resident() as f32 / region.range.len() as f32;
                if share > 0.0 && self.before.len() < BEFORE_MAX {
                    self.before.insert(region.range, share.min(1.0));
                }
            }
            let sampled: Vec<u64> = self.by_page.keys().copied().collect();
            for address in sampled {
                self.before.cut(page(address));
            }
            return;
        }
        for region in &snapshot.regions {
            let holds_nothing =
                |memory: isotherm_engine::RegionMemory| memory.resident == 0 && memory.swapped == 0;
            if region.memory.is_some_and(holds_nothing) {
                self.forget(region.range, snapshot.start);
            }
        }
    }

    /// Moves touches with memory that has moved to other addresses.
    pub(super) fn relocate(&mut self, moved: &MovedMemory) {
        let (from, until) = (moved.from, moved.until);
        let to = AddressRange::new(moved.to, moved.to.saturating_add(from.len()));
        let there = |address: u64| address - from.start + to.start;
        let touched = self.by_page.range(from.start..from.end);
        let touched = touched.filter(|(_, touch)| touch.time <= until);
        let touched: Vec<(u64, Touch)> = touched.map(|(at, touch)| (*at, *touch)).collect();
        let before = self.before.parts(from);
        let before: Vec<(AddressRange, f32)> = before.map(|(part, share)| (part, *share)).collect();
        self.forget(from, Nanos(until.0.saturating_add(1)));
        self.forget(to, Nanos(until.0.saturating_add(1)));
        for (part, share) in before {
            let part = AddressRange::checked(there(part.start), there(part.end));
            if let Some(part) = part {
                self.before.insert(part, share);
            }
        }
        for (at, touch) in touched {
            if let Some(newest) = self.newest.get_mut(&touch.stack)
                && newest.0 == at
            {
                newest.0 = there(at);
            }
            self.by_page.entry(there(at)).or_insert(touch);
        }
    }

    pub(super) fn renumber(&mut self, number: &mut impl FnMut(StackId) -> StackId) {
        for touch in self.by_page.values_mut() {
            touch.stack = number(touch.stack);
        }
    }

    /// Finds the owners of the parts of `range`, which lies in one mapping, with the share of each part that they own.
    pub(super) fn owners(
        &self,
        range: AddressRange,
        mapping: AddressRange,
        take: &mut impl FnMut(AddressRange, f64, Owner),
    ) {
        let mut at = range.start;
        for (part, share) in self.before.parts(range) {
            if let Some(free) = AddressRange::checked(at, part.start) {
                self.nearest(free, mapping, 1.0, take);
            }
            take(part, f64::from(*share), Owner::Before);
            if *share < 1.0 {
                self.nearest(part, mapping, 1.0 - f64::from(*share), take);
            }
            at = part.end;
        }
        if let Some(free) = AddressRange::checked(at, range.end) {
            self.nearest(free, mapping, 1.0, take);
        }
    }

    /// Finds the owners of a huge page at `block`: the first touch within it owns all of it.
    pub(super) fn owners_of_block(
        &self,
        block: AddressRange,
        mapping: AddressRange,
        take: &mut impl FnMut(AddressRange, f64, Owner),
    ) {
        let within = || self.by_page.range(block.start..block.end);
        let first = within().map(|(_, touch)| *touch);
        let Some(touch) = first.min_by_key(|touch| touch.time) else {
            return self.owners(block, mapping, take);
        };
        let is_sure = within().all(|(_, other)| other.stack == touch.stack);
        take(block, 1.0, Owner::Touch { touch, is_sure });
    }

    /// Finds the samples on both sides of each part of `range`.
    fn nearest(
        &self,
        range: AddressRange,
        mapping: AddressRange,
        share: f64,
        take: &mut impl FnMut(AddressRange, f64, Owner),
    ) {
        let before = self.by_page.range(mapping.start..=range.start).next_back();
        let mut low = before.map(|(address, touch)| (*address, *touch));
        let mut at = range.start;
        let above = (
            Bound::Excluded(range.start),
            Bound::Excluded(mapping.end.max(range.start + 1)),
        );
        for (address, touch) in self.by_page.range(above) {
            let high = (*address, *touch);
            between(
                AddressRange::checked(at, range.end.min(*address)),
                low,
                Some(high),
                share,
                take,
            );
            at = at.max(range.end.min(*address));
            low = Some(high);
            if *address >= range.end {
                return;
            }
        }
        between(AddressRange::checked(at, range.end), low, None, share, take);
    }

    /// Drops the touches in `range` that are older than `before`.
    fn forget(&mut self, range: AddressRange, before: Nanos) {
        self.before.cut(range);
        let old = self.by_page.range(range.start..range.end);
        let old = old.filter(|(_, touch)| touch.time < before);
        let old: Vec<u64> = old.map(|(address, _)| *address).collect();
        for address in old {
            self.by_page.remove(&address);
        }
    }

    /// Drops older touches between a stack's newest sample and this one, because its run has replaced them.
    fn drop_older(&mut self, address: u64, touch: &Touch) {
        let Some((from, since)) = self.newest.insert(touch.stack, (address, touch.time)) else {
            return;
        };
        if from.abs_diff(address) > touch.reach() {
            return;
        }
        let (low, high) = (from.min(address) + 1, from.max(address));
        if low < high {
            self.forget(AddressRange::new(low, high), since);
        }
    }

    fn thin_out(&mut self) {
        let mut last: Option<StackId> = None;
        let mut is_odd = false;
        self.by_page.retain(|_, touch| {
            let is_same = last.replace(touch.stack) == Some(touch.stack);
            is_odd = !is_odd;
            !is_same || is_odd
        });
        while self.by_page.len() > KEPT_MAX {
            self.by_page.pop_first();
        }
    }
}

/// Attributes the range between two samples to the nearer one, as far as it reaches.
fn between(
    range: Option<AddressRange>,
    low: Option<(u64, Touch)>,
    high: Option<(u64, Touch)>,
    share: f64,
    take: &mut impl FnMut(AddressRange, f64, Owner),
) {
    let Some(range) = range else { return };
    let is_sure = low
        .zip(high)
        .is_some_and(|((_, low), (_, high))| low.stack == high.stack);
    let middle = match (low, high) {
        (Some((low, _)), Some((high, _))) => (low + (high - low) / 2).next_multiple_of(PAGE_SIZE),
        (Some(_), None) => u64::MAX,
        _ => 0,
    };
    let low_end = low.map_or(0, |(at, touch)| {
        middle.min(at.saturating_add(touch.reach()))
    });
    let high_start = high.map_or(u64::MAX, |(at, touch)| {
        middle.max(at.saturating_sub(touch.reach()))
    });
    let mut part = |start: u64, end: u64, owner: Owner| {
        let part = AddressRange::checked(start.max(range.start), end.min(range.end));
        if let Some(part) = part {
            take(part, share, owner);
        }
    };
    if let Some((_, touch)) = low {
        part(range.start, low_end, Owner::Touch { touch, is_sure });
    }
    part(low_end, high_start, Owner::NotSampled);
    if let Some((_, touch)) = high {
        part(high_start, range.end, Owner::Touch { touch, is_sure });
    }
}

fn page(address: u64) -> AddressRange {
    AddressRange::new(address, address.saturating_add(PAGE_SIZE))
}

#[cfg(test)]
mod tests {
    use isotherm_engine::TargetId;

    use super::*;
    use crate::test_records::{idle_region, mapping};

    const MIB: u64 = 1 << 20;

    fn mib(from: u64, to: u64) -> AddressRange {
        AddressRange::new(from * MIB, to * MIB)
    }

    fn sample(mib: u64, stack: u32, second: u64) -> FaultSample {
        FaultSample {
            time: Nanos::from_millis(second * 1000),
            address: mib * MIB,
            stack: StackId(stack),
            pages: 17,
            ..FaultSample::default()
        }
    }

    fn touches(samples: &[(u64, u32, u64)]) -> Touches {
        let mut touches = Touches::default();
        for (at, stack, second) in samples {
            touches.push(&sample(*at, *stack, *second));
        }
        touches
    }

    /// Shows the owners of `0..20` MiB by MiB: a digit for a stack, in brackets if only likely; `b` before, `.` none.
    fn picture(touches: &Touches) -> String {
        let mut text = String::new();
        let range = mib(0, 20);
        touches.owners(range, range, &mut |part, share, owner| {
            let mark = match owner {
                Owner::Touch {
                    touch,
                    is_sure: true,
                } => touch.stack.0.to_string(),
                Owner::Touch { touch, .. } => format!("({})", touch.stack.0),
                Owner::Before => "b".to_owned(),
                Owner::NotSampled => ".".to_owned(),
            };
            let nr = part.len() / MIB;
            let times = (nr as f64 * share).round() as usize;
            text += &mark.repeat(times);
        });
        text
    }

    fn look(parts: &[(u64, u64, u64)], second: u64) -> Snapshot {
        let region =
            |(from, to, resident): &(u64, u64, u64)| idle_region(mib(*from, *to), resident * MIB);
        let times = [0, 500].map(|ms| Nanos::from_millis(second * 1000 + ms));
        let regions = parts.iter().map(region).collect();
        Snapshot::new(TargetId(0), times.into(), 0, regions)
    }

    #[test]
    fn a_page_belongs_to_the_nearest_sample_as_far_as_it_reaches() {
        let two = touches(&[(2, 1, 1), (4, 1, 2), (8, 2, 3)]);
        assert_eq!(picture(&two), "(1)(1)11(1)(1)(2)(2)(2)(2)..........");
        assert_eq!(picture(&touches(&[])), ".".repeat(20));
    }

    #[test]
    fn a_newer_run_replaces_what_is_older_below_it() {
        let older = [(2, 1, 1), (3, 1, 1), (4, 1, 1)];
        let newer = [(2, 2, 5), (6, 2, 6)];
        let mut both = touches(&older);
        for (mib, stack, second) in newer {
            let mut sample = sample(mib, stack, second);
            sample.pages = 200;
            both.push(&sample);
        }
        assert_eq!(picture(&both), "(2)(2)2222(2)(2)(2)(2)(2)(2).......");
    }

    #[test]
    fn what_was_there_before_is_nobodys_until_it_goes() {
        let mut touches = touches(&[(6, 1, 1)]);
        touches.begin_before();
        touches.look(&look(&[(0, 4, 4), (4, 8, 2), (8, 20, 0)], 2));
        let text = picture(&touches);
        assert!(text.starts_with("bbbb"), "{text}");
        assert_eq!(text.matches('b').count(), 6, "{text}");
        touches.look(&look(&[(0, 4, 0)], 3));
        assert!(!picture(&touches).starts_with('b'));
    }

    #[test]
    fn samples_go_with_their_memory_and_their_mapping() {
        let all = [(2, 1, 1), (10, 2, 1)];
        let mut by_look = touches(&all);
        by_look.look(&look(&[(0, 8, 0)], 4));
        assert_eq!(picture(&by_look), "........(2)(2)(2)(2)........");
        let mut newer = touches(&[(2, 1, 5)]);
        newer.look(&look(&[(0, 8, 0)], 4));
        // It was touched after that look.
        assert!(picture(&newer).starts_with("(1)"));
        let mut unmapped = touches(&all);
        let change = |until: u64| MappingChange {
            time: Nanos::from_millis(9000),
            removed: vec![mib(0, 20)],
            added: vec![mapping(mib(0, until), "")],
            ..MappingChange::default()
        };
        unmapped.apply(&change(30));
        assert!(picture(&unmapped).contains('1'), "it only grew");
        unmapped.apply(&change(8));
        assert!(!picture(&unmapped).contains('2'));
    }

    #[test]
    fn memory_that_is_moved_keeps_its_samples_and_those_of_what_was_there() {
        let mut touches = touches(&[(2, 1, 1), (4, 1, 1), (12, 3, 1)]);
        touches.begin_before();
        touches.look(&look(&[(0, 1, 1)], 2));
        // Another stack touches the old addresses before the move is known.
        touches.push(&sample(3, 2, 5));
        touches.relocate(&MovedMemory {
            target: TargetId(0),
            from: mib(0, 6),
            to: 10 * MIB,
            until: Nanos::from_millis(1000),
            before_sample: 0,
        });
        assert_eq!(picture(&touches), ".(2)(2)(2)(2).....b(1)11(1)(1)....");
    }

    #[test]
    fn another_program_begins_anew() {
        let mut touches = touches(&[(2, 1, 1)]);
        let mut next = sample(10, 2, 2);
        next.space = 1;
        touches.push(&next);
        assert!(!picture(&touches).contains('1'));
    }
}
