//! State of a dry run: the operations that were assumed to be done, so that each byte is counted once.
//!
//! Problem: a dry run executes nothing, so the same idle memory matches a scheme's pattern at every snapshot. Counted
//! each time, 134 MiB become gigabytes within a minute.
//!
//! Approach: the ranges that an action was assumed to be applied to are remembered for each scheme and target. A plan
//! is reduced to memory outside them ([`DryRun::fresh`]). For schemes about idle memory, a range is forgotten when a
//! snapshot no longer shows it untouched. It was read back (and may be acted on again, which counts again), or
//! unmapped. Single pages are remembered one by one if an action named them. So are the idle pages of touched regions,
//! if they are known.
//!
//! Limits: if a part of a region is touched, all of its pages without a known state count as read back. Quotas are
//! charged for the reduced plan only, once their window ends. Within a window, memory that was counted before uses up
//! quota.

use std::collections::BTreeMap;

use crate::port::Operation;
use crate::scheme::Action;
use isotherm_engine::address::{AddressRange, block_of};
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::snapshot::{Snapshot, TargetId};

/// Target, and the scheme of the action. `None` stands for all schemes that page out, since a page leaves once.
type Key = (TargetId, Option<usize>);

#[derive(Clone, Debug, Default)]
struct Applied {
    /// Ranges in address order that do not touch each other.
    ranges: Vec<AddressRange>,
    /// Single pages, by block; none lies in `ranges`.
    pages: BTreeMap<u64, Bitmap>,
    /// Whether the scheme is about idle memory: touched memory is then no longer in the state that the action left.
    idle_only: bool,
    /// Bytes of memory in `ranges`, by the last snapshot, and in `pages`.
    bytes: u64,
}

/// The state of a dry run.
#[derive(Clone, Debug, Default)]
pub struct DryRun {
    applied: BTreeMap<Key, Applied>,
}

impl DryRun {
    /// Takes in snapshots: memory that was touched since counts as read back.
    pub fn observe(&mut self, snapshots: &[Snapshot]) {
        for snapshot in snapshots {
            let of_target = (snapshot.target, None)..=(snapshot.target, Some(usize::MAX));
            for (_, applied) in self.applied.range_mut(of_target) {
                applied.observe(snapshot);
            }
        }
    }

    /// Returns the part of `plan` that has not been assumed to be done before.
    pub fn fresh(&self, plan: &[Operation]) -> Vec<Operation> {
        let mut fresh = Vec::with_capacity(plan.len());
        for operation in plan {
            match self.applied.get(&key(operation)) {
                Some(applied) if operation.action != Action::Stat => {
                    applied.add_fresh(operation, &mut fresh);
                }
                _ => fresh.push(operation.clone()),
            }
        }
        fresh
    }

    /// Assumes that `operations` were executed.
    pub fn assume(&mut self, operations: &[Operation]) {
        for operation in operations {
            if operation.action == Action::Stat {
                continue;
            }
            let applied = self.applied.entry(key(operation)).or_default();
            applied.idle_only = operation.idle_only;
            applied.bytes = applied.bytes.saturating_add(operation.bytes);
            applied.add(operation);
        }
        self.applied.values_mut().for_each(Applied::unite);
    }

    /// Returns the bytes that would be paged out now.
    pub fn paged_out(&self) -> u64 {
        let applied = self.applied.iter();
        let paged_out = applied.filter(|((_, scheme), _)| scheme.is_none());
        paged_out.map(|(_, applied)| applied.bytes).sum()
    }

    /// Forgets a target that exited.
    pub fn forget(&mut self, target: TargetId) {
        self.applied.retain(|(of, _), _| *of != target);
    }
}

fn key(operation: &Operation) -> Key {
    let scheme = (operation.action != Action::Pageout).then_some(operation.scheme);
    (operation.target, scheme)
}

impl Applied {
    /// Appends the part of `operation` that it does not contain.
    fn add_fresh(&self, operation: &Operation, fresh: &mut Vec<Operation>) {
        for range in operation.range.without(&self.ranges) {
            let mut part = operation.part(range);
            let mut known = 0;
            for (block, taken) in blocks_in(&self.pages, range) {
                if let Some(pages) = &mut part.pages {
                    **pages = bits::and_not(pages, taken);
                }
                known += bits::bytes(&bits::and(taken, &bits::mask(*block, range)));
            }
            part.bytes = match &part.pages {
                Some(pages) => bits::bytes(pages),
                None => part.bytes.saturating_sub(known),
            };
            if part.bytes > 0 || known == 0 {
                fresh.push(part);
            }
        }
    }

    fn add(&mut self, operation: &Operation) {
        let range = operation.range;
        let Some(pages) = &operation.pages else {
            self.ranges.push(range);
            for (block, taken) in self.pages.range_mut(block_of(range.start)..range.end) {
                *taken = bits::and_not(taken, &bits::mask(*block, range));
            }
            return;
        };
        let taken = self.pages.entry(block_of(range.start));
        let taken = taken.or_insert(bits::NONE);
        *taken = bits::or(taken, pages);
    }

    fn observe(&mut self, snapshot: &Snapshot) {
        let mut still = Vec::with_capacity(self.ranges.len());
        let mut pages = BTreeMap::new();
        let mut bytes = 0u64;
        let mut next = 0;
        for region in &snapshot.regions {
            let rest = &self.ranges[next..];
            next += rest.partition_point(|r| r.end <= region.range.start);
            let over = self.ranges[next..].iter();
            let over = over.take_while(|r| r.start < region.range.end);
            let over: Vec<AddressRange> =
                over.filter_map(|r| r.intersection(region.range)).collect();
            let is_touched = region.nr_accesses.is_some_and(|n| n > 0.0);
            let is_back = self.idle_only && is_touched;
            self.observe_pages(snapshot, region.range, (&over, is_back), &mut pages);
            if is_back {
                continue;
            }
            for part in over {
                bytes = bytes.saturating_add(region.part(part).resident());
                still.push(part);
            }
        }
        bytes += pages.values().map(bits::bytes).sum::<u64>();
        (self.ranges, self.pages) = (still, pages);
        // Memory that has become resident since was touched, even if its region does not show it.
        self.bytes = bytes.min(self.bytes);
        self.unite();
    }

    /// Adds the pages in `range`, a region of `snapshot`, that are still in the state that the action left to `still`.
    /// If the region is touched (`is_back`), pages of the ranges `over` are included.
    fn observe_pages(
        &self,
        snapshot: &Snapshot,
        range: AddressRange,
        (over, is_back): (&[AddressRange], bool),
        still: &mut BTreeMap<u64, Bitmap>,
    ) {
        let mut add = |block: u64, pages: &Bitmap| {
            if !bits::is_empty(pages) {
                let of_block = still.entry(block).or_insert(bits::NONE);
                *of_block = bits::or(of_block, pages);
            }
        };
        if !is_back {
            for (block, pages) in blocks_in(&self.pages, range) {
                add(*block, &bits::and(pages, &bits::mask(*block, range)));
            }
            return;
        }
        let idle = &snapshot.idle_pages;
        let first = idle.partition_point(|block| block.range().end <= range.start);
        for block in idle[first..].iter().take_while(|b| b.block < range.end) {
            let known = self.pages.get(&block.block).copied();
            let masks = over.iter().map(|part| bits::mask(block.block, *part));
            let known = masks.fold(known.unwrap_or(bits::NONE), |all, mask| {
                bits::or(&all, &mask)
            });
            let here = bits::and(&known, &bits::mask(block.block, range));
            add(block.block, &bits::and(&here, &block.pages));
        }
    }

    fn unite(&mut self) {
        self.ranges = AddressRange::union(std::mem::take(&mut self.ranges));
    }
}

/// Returns the entries of `pages` for the blocks that `range` overlaps.
fn blocks_in(
    pages: &BTreeMap<u64, Bitmap>,
    range: AddressRange,
) -> impl Iterator<Item = (&u64, &Bitmap)> {
    pages.range(block_of(range.start)..range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_engine::address::Nanos;
    use isotherm_engine::monitor::idle_pages::IdlePages;
    use isotherm_engine::snapshot::{RegionMemory, RegionSnapshot};

    const PAGE: u64 = 4096;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(start * PAGE, end * PAGE)
    }

    fn operation(scheme: usize, action: Action, pages: (u64, u64)) -> Operation {
        let range = range(pages.0, pages.1);
        Operation {
            scheme,
            bytes: range.len() / 2,
            ..Operation::on(action, TargetId(0), range)
        }
    }

    /// Returns a snapshot of regions, given in pages, half of which hold memory.
    fn snapshot(regions: &[(u64, u64, Option<f32>)]) -> Snapshot {
        let region = |&(start, end, nr_accesses): &(u64, u64, Option<f32>)| {
            let range = range(start, end);
            let region = RegionSnapshot::new(range, nr_accesses).aged(9, Nanos(9));
            region.holding(RegionMemory::resident(range.len() / 2))
        };
        Snapshot {
            nr_samples: 20,
            regions: regions.iter().map(region).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn what_stays_idle_is_counted_once() {
        let mut dry = DryRun::default();
        let plan = [operation(0, Action::Pageout, (0, 8))];
        let idle = snapshot(&[(0, 8, Some(0.0)), (8, 16, Some(3.0))]);
        let mut counted = 0;
        for _ in 0..10 {
            dry.observe(std::slice::from_ref(&idle));
            let fresh = dry.fresh(&plan);
            counted += fresh.iter().map(|o| o.bytes).sum::<u64>();
            dry.assume(&fresh);
        }
        assert_eq!((counted, dry.paged_out()), (4 * PAGE, 4 * PAGE));
    }

    #[test]
    fn what_is_touched_comes_back_and_counts_again() {
        let mut dry = DryRun::default();
        dry.assume(&[operation(0, Action::Pageout, (0, 8))]);
        dry.observe(&[snapshot(&[(0, 4, Some(0.0)), (4, 8, Some(1.0))])]);
        assert_eq!(dry.paged_out(), 2 * PAGE);
        let fresh = dry.fresh(&[operation(0, Action::Pageout, (0, 16))]);
        let ranges: Vec<_> = fresh.iter().map(|o| o.range).collect();
        assert_eq!(ranges, [range(4, 16)]);
    }

    #[test]
    fn what_is_unmapped_saves_nothing() {
        let mut dry = DryRun::default();
        dry.assume(&[operation(0, Action::Pageout, (0, 8))]);
        dry.observe(&[snapshot(&[(6, 8, None), (20, 30, Some(0.0))])]);
        assert_eq!(dry.paged_out(), PAGE);
        dry.forget(TargetId(0));
        assert_eq!(dry.paged_out(), 0);
    }

    #[test]
    fn a_page_leaves_once_whatever_schemes_say() {
        let mut dry = DryRun::default();
        dry.assume(&[operation(0, Action::Pageout, (0, 8))]);
        let same = operation(1, Action::Pageout, (2, 4));
        assert_eq!(dry.fresh(&[same]), []);
        let other = [operation(1, Action::Cold, (2, 4))];
        assert_eq!(dry.fresh(&other), other);
        // Counting is no action, and is repeated as DAMON repeats it.
        let count = [operation(2, Action::Stat, (0, 4))];
        dry.assume(&count);
        assert_eq!(dry.fresh(&count), count);
    }

    #[test]
    fn single_pages_are_counted_once_and_come_back_one_by_one() {
        let of_pages = |pages: std::ops::Range<usize>| {
            let range = range(pages.start as u64, pages.end as u64);
            Operation {
                range,
                bytes: range.len(),
                pages: Some(Box::new(bits::mask_of(pages))),
                ..operation(0, Action::Pageout, (0, 1))
            }
        };
        let bytes = |plan: &[Operation]| plan.iter().map(|o| o.bytes / PAGE).sum::<u64>();
        let mut dry = DryRun::default();
        dry.assume(&[of_pages(0..8)]);
        assert_eq!(bytes(&dry.fresh(&[of_pages(4..10)])), 2);
        assert_eq!(dry.fresh(&[of_pages(2..6)]), []);
        // Its block stays in use, and two of its pages were touched.
        let mut seen = snapshot(&[(0, 512, Some(3.0))]);
        let mut idle = IdlePages::new(0);
        (2..12).for_each(|page| idle.add(page, Nanos(0)));
        seen.idle_pages = std::sync::Arc::new(vec![idle]);
        dry.observe(std::slice::from_ref(&seen));
        assert_eq!(dry.paged_out(), 6 * PAGE);
        assert_eq!(bytes(&dry.fresh(&[of_pages(0..8)])), 2);
        // A range that is touched in part is remembered by page. A region counts only pages that are not remembered.
        dry.assume(&[operation(0, Action::Pageout, (8, 24))]);
        dry.observe(&[seen]);
        assert_eq!(bytes(&dry.fresh(&[of_pages(8..24)])), 12);
        let whole = dry.fresh(&[operation(0, Action::Pageout, (0, 512))]);
        assert_eq!(bytes(&whole), 256 - 10);
    }
}
