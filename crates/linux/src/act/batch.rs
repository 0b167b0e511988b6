//! Batches of operations: groups them, selects their pages, and records each page's outcome.
//!
//! If several schemes act on each region in turn, a plan's operations interleave, and each would make a batch in plan
//! order. A batch has fixed costs (page tables read before and after, a call to the kernel). The order of operations on
//! different memory does not matter, so operations of one kind are gathered ([`gather`]). Memory that several
//! operations cover sees them in the plan's order.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_policy::{Operation, Outcome, Refusal};

use crate::areas::{MappedArea, overlapping};
use isotherm_engine::monitor::bits::{self, Bitmap};

/// One 2 MiB block in progress, with sets of its pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) address: u64,
    /// Whether one 2 MiB leaf maps the block.
    pub(super) huge: bool,
    /// Pages in memory before any action, covered by an operation or not.
    pub(super) there: Bitmap,
    /// Pages in some operation's range that were mapped and in memory before any action.
    pub(super) present: Bitmap,
    /// Pages whose accessed bit was set before any action.
    pub(super) accessed: Bitmap,
    /// Pages not backed by a file.
    pub(super) anonymous: Bitmap,
    /// Pages that passed the filters.
    pub(super) passed: Bitmap,
    /// Pages to act on; refused pages are removed.
    pub(super) wanted: Bitmap,
    /// Pages acted on, as seen afterwards.
    pub(super) applied: Bitmap,
    pub(super) refused: BTreeMap<Refusal, Bitmap>,
    /// Pages that moved, by source and destination node.
    pub(super) moved: BTreeMap<(u32, u32), Bitmap>,
}

impl Block {
    /// Removes `pages` from the wanted ones.
    pub(super) fn refuse(&mut self, pages: &Bitmap, why: Refusal) {
        let pages = bits::and(pages, &self.wanted);
        if bits::is_empty(&pages) {
            return;
        }
        self.wanted = bits::and_not(&self.wanted, &pages);
        let set = self.refused.entry(why).or_insert(bits::NONE);
        *set = bits::or(set, &pages);
    }

    /// Records that `pages` have moved from one node to another. Either node may be unknown.
    pub(super) fn moved(&mut self, pages: &Bitmap, from: i32, to: i32) {
        self.applied = bits::or(&self.applied, pages);
        if let (Ok(from), Ok(to)) = (u32::try_from(from), u32::try_from(to)) {
            let set = self.moved.entry((from, to)).or_insert(bits::NONE);
            *set = bits::or(set, pages);
        }
    }

    pub(super) fn range(&self) -> AddressRange {
        AddressRange::new(self.address, self.address + BLOCK_SIZE)
    }
}

/// Divides operations, by their indices, into batches that are executed one after the other. Each batch has one `kind`,
/// disjoint ranges, and at most `operations_max` operations and `bytes_max` bytes (one operation may be larger).
/// Overlapping operations keep their order.
pub(super) fn gather<K: Ord>(
    operations: &[Operation],
    kind: impl Fn(&Operation) -> K,
    operations_max: usize,
    bytes_max: u64,
) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    // Batches that are not yet full, by kind and in order, with their bytes.
    let mut open: BTreeMap<K, Vec<(usize, u64)>> = BTreeMap::new();
    let mut turns = OverlapOrder::default();
    for (place, operation) in operations.iter().enumerate() {
        let bytes = operation.range.len();
        let earliest = turns.next(operation);
        let of_kind = open.entry(kind(operation)).or_default();
        let first = of_kind.partition_point(|(batch, _)| *batch < earliest);
        let fits = |(_, used): &(usize, u64)| used.saturating_add(bytes) <= bytes_max;
        let batch = if let Some(at) = of_kind[first..].iter().position(fits) {
            let (batch, used) = &mut of_kind[first + at];
            *used += bytes;
            let (batch, used) = (*batch, *used);
            batches[batch].push(place);
            if batches[batch].len() >= operations_max || used >= bytes_max {
                of_kind.remove(first + at);
            }
            batch
        } else {
            batches.push(vec![place]);
            if bytes < bytes_max && operations_max > 1 {
                of_kind.push((batches.len() - 1, bytes));
            }
            batches.len() - 1
        };
        turns.take(operation, batch);
    }
    batches
}

/// The last batch that covers each piece of memory: disjoint ranges, by target and start, with their ends.
#[derive(Default)]
struct OverlapOrder(BTreeMap<(TargetId, u64), (u64, usize)>);

impl OverlapOrder {
    /// Iterates over the ranges that overlap the operation's, the last one first.
    fn overlapping(
        &self,
        operation: &Operation,
    ) -> impl Iterator<Item = (AddressRange, usize)> + '_ {
        let Operation { target, range, .. } = *operation;
        let before_its_end = self.0.range((target, 0)..(target, range.end)).rev();
        before_its_end
            .map(|((_, start), (end, batch))| (AddressRange::new(*start, *end), *batch))
            .take_while(move |(taken, _)| taken.end > range.start)
    }

    /// Returns the first batch that may hold the operation.
    fn next(&self, operation: &Operation) -> usize {
        let last = self.overlapping(operation).map(|(_, batch)| batch).max();
        last.map_or(0, |batch| batch + 1)
    }

    /// Records that the operation is in `batch`, which is later than those of all operations that it overlaps.
    fn take(&mut self, operation: &Operation, batch: usize) {
        let Operation { target, range, .. } = *operation;
        let taken: Vec<_> = self.overlapping(operation).collect();
        for (old, of) in taken {
            self.0.remove(&(target, old.start));
            if old.start < range.start {
                self.0.insert((target, old.start), (range.start, of));
            }
            if range.end < old.end {
                self.0.insert((target, range.end), (old.end, of));
            }
        }
        self.0.insert((target, range.start), (range.end, batch));
    }
}

pub(super) fn pick(operations: &[Operation], places: &[usize]) -> Vec<Operation> {
    let picked = places.iter().map(|place| operations[*place].clone());
    picked.collect()
}

/// Returns the runs of wanted pages of all blocks, each within one of `areas`. The kernel refuses a whole range because
/// of a single mapping in it.
pub(super) fn wanted(blocks: &[Block], areas: &[MappedArea]) -> Vec<AddressRange> {
    let mut ranges = Vec::new();
    for block in blocks {
        bits::runs(block.address, &block.wanted, &mut ranges);
    }
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let inside = overlapping(areas, range);
        parts.extend(inside.filter_map(|area| area.range.intersection(range)));
    }
    parts
}

/// Refuses anonymous memory beyond the `room` bytes available in swap: the remaining free swap is the system's reserve.
pub(super) fn keep_reserve(blocks: &mut [Block], room: u64) {
    let mut pages_left = room / PAGE_SIZE;
    for block in blocks {
        let meant = bits::and(&block.wanted, &block.anonymous);
        let fits = usize::try_from(pages_left).unwrap_or(usize::MAX);
        pages_left = pages_left.saturating_sub(u64::from(bits::count(&meant)));
        let mut beyond = bits::NONE;
        for page in bits::each(&meant).skip(fits) {
            bits::set(&mut beyond, page);
        }
        block.refuse(&beyond, Refusal::SwapFull);
    }
}

/// Returns `ranges`, with the larger ones cut at multiples of `bytes`.
pub(super) fn cut(ranges: &[AddressRange], bytes: u64) -> Vec<AddressRange> {
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = ((start / bytes + 1) * bytes).min(range.end);
            parts.push(AddressRange::new(start, end));
            start = end;
        }
    }
    parts
}

/// Limits a block to the pages that operations name, if they name single pages.
pub(super) fn keep_pages(block: &mut Block, operations: &[Operation]) {
    if operations.iter().all(|operation| operation.pages.is_none()) {
        return;
    }
    let range = block.range();
    let overlap = |o: &&Operation| o.range.start < range.end && range.start < o.range.end;
    let meant = operations
        .iter()
        .filter(overlap)
        .fold(bits::NONE, |all, o| {
            bits::or(&all, &o.pages_of(block.address))
        });
    for pages in [
        &mut block.present,
        &mut block.accessed,
        &mut block.passed,
        &mut block.wanted,
    ] {
        *pages = bits::and(pages, &meant);
    }
}

/// Returns the blocks that overlap `range`, from blocks in address order.
pub(super) fn within(blocks: &mut [Block], range: AddressRange) -> &mut [Block] {
    let first = blocks.partition_point(|block| block.address + BLOCK_SIZE <= range.start);
    let end = blocks.partition_point(|block| block.address < range.end);
    &mut blocks[first..end.max(first)]
}

pub(super) fn outcome(operation: &Operation, blocks: &mut [Block]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut accounted = 0;
    for block in within(blocks, operation.range) {
        let mine = operation.pages_of(block.address);
        let of = |set: &Bitmap| bits::bytes(&bits::and(set, &mine));
        outcome.applied += of(&block.applied);
        outcome.filter_passed += of(&block.passed);
        accounted += of(&block.present);
        for ((from, to), set) in &block.moved {
            outcome.moved.add(*from, *to, of(set));
        }
        for (why, set) in &block.refused {
            let bytes = of(set);
            if bytes > 0 {
                *outcome.refused.entry(*why).or_default() += bytes;
            }
        }
    }
    let absent = operation.extent().saturating_sub(accounted);
    if absent > 0 {
        *outcome.refused.entry(Refusal::NotPresent).or_default() += absent;
    }
    outcome
}

/// Returns the parts of `range` that are mapped.
pub(super) fn clip(range: AddressRange, areas: &[MappedArea]) -> Vec<AddressRange> {
    let mut parts: Vec<AddressRange> = Vec::new();
    let inside = overlapping(areas, range);
    for part in inside.filter_map(|area| area.range.intersection(range)) {
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}

/// Returns the mapping that holds all of `range`, if one does.
pub(super) fn mapping_around(range: AddressRange, areas: &[MappedArea]) -> Option<&MappedArea> {
    let first = overlapping(areas, range).next();
    first.filter(|area| area.range.start <= range.start && range.end <= area.range.end)
}

#[cfg(test)]
mod tests {
    use isotherm_policy::scheme::Action;
    use proptest::prelude::*;

    use super::*;

    fn operation(scheme: usize, target: u32, first: u64, nr: u64) -> Operation {
        let range = AddressRange::new(first * PAGE_SIZE, (first + nr) * PAGE_SIZE);
        Operation {
            scheme,
            ..Operation::on(Action::Pageout, TargetId(target), range)
        }
    }

    fn kind(operation: &Operation) -> (TargetId, usize) {
        (operation.target, operation.scheme)
    }

    #[test]
    fn operations_that_interleave_make_a_batch_for_each_scheme() {
        let check = |operations: &[(usize, u64, u64)], wanted: &[&[usize]]| {
            let operations: Vec<Operation> = operations
                .iter()
                .map(|(scheme, first, nr)| operation(*scheme, 0, *first, *nr))
                .collect();
            assert_eq!(gather(&operations, kind, 9, 8 * PAGE_SIZE), wanted);
        };
        // Two schemes that act on each region in turn.
        let both: Vec<(usize, u64, u64)> = [0, 2, 4].map(|at| [(0, at, 2), (1, at, 2)]).concat();
        check(&both, &[&[0, 2, 4], &[1, 3, 5]]);
        // Different regions for different schemes.
        let in_turn = [(0, 0, 1), (1, 1, 1), (0, 2, 1), (1, 3, 1)];
        check(&in_turn, &[&[0, 2], &[1, 3]]);
        // The second scheme acts on memory of the first, and the first then acts on it again.
        check(&[(0, 0, 4), (1, 1, 1), (0, 1, 1)], &[&[0], &[1], &[2]]);
        // Eight pages at most; a larger operation is alone.
        check(&[(0, 0, 5), (0, 5, 5), (0, 10, 3)], &[&[0, 2], &[1]]);
        check(&[(0, 0, 9), (0, 9, 1)], &[&[0], &[1]]);
    }

    proptest! {
        /// A page sees its operations in the plan's order, however they are gathered.
        #[test]
        fn every_page_sees_its_operations_in_the_plans_order(
            plan in prop::collection::vec((0..3usize, 0..2u32, 0..40u64, 1..12u64), 0..60),
            operations_max in 1..8usize,
            pages_max in 1..30u64,
        ) {
            let plan: Vec<Operation> = plan
                .into_iter()
                .map(|(scheme, target, first, nr)| operation(scheme, target, first, nr))
                .collect();
            let batches = gather(&plan, kind, operations_max, pages_max * PAGE_SIZE);
            let histories = |order: &mut dyn Iterator<Item = usize>| {
                let mut histories: BTreeMap<(TargetId, u64), Vec<usize>> = BTreeMap::new();
                for place in order {
                    let Operation { target, range, .. } = plan[place];
                    for page in range.start / PAGE_SIZE..range.end / PAGE_SIZE {
                        histories.entry((target, page)).or_default().push(place);
                    }
                }
                histories
            };
            let planned = histories(&mut (0..plan.len()));
            let gathered = histories(&mut batches.iter().flatten().copied());
            prop_assert_eq!(planned, gathered);
            for batch in &batches {
                let first = &plan[batch[0]];
                prop_assert!(batch.iter().all(|place| kind(&plan[*place]) == kind(first)));
                prop_assert!(batch.len() <= operations_max);
                let bytes: u64 = batch.iter().map(|place| plan[*place].range.len()).sum();
                prop_assert!(batch.len() == 1 || bytes <= pages_max * PAGE_SIZE);
                let apart = |(i, a): (usize, &usize)| batch[..i].iter().all(|b| {
                    plan[*a].range.intersection(plan[*b].range).is_none()
                });
                prop_assert!(batch.iter().enumerate().all(apart));
            }
        }
    }

    fn area(start: u64, end: u64) -> MappedArea {
        MappedArea::parse(&format!("{start:x}-{end:x} rw-p 0 00:00 0 ")).expect("a mapping")
    }

    #[test]
    fn large_ranges_are_cut_at_borders() {
        let range = |(start, end)| AddressRange::new(start, end);
        let parts = cut(&[(1, 3), (5, 17), (20, 24)].map(range), 4);
        let wanted = [(1, 3), (5, 8), (8, 12), (12, 16), (16, 17), (20, 24)].map(range);
        assert_eq!(parts, wanted);
    }

    #[test]
    fn ranges_are_cut_to_what_is_mapped() {
        let areas = [area(0, 10), area(10, 20), area(30, 40)];
        let parts = clip(AddressRange::new(5, 35), &areas);
        assert_eq!(parts, [AddressRange::new(5, 20), AddressRange::new(30, 35)]);
        assert!(mapping_around(AddressRange::new(5, 12), &areas).is_none());
        assert!(mapping_around(AddressRange::new(31, 40), &areas).is_some());
    }

    #[test]
    fn every_byte_of_an_operation_is_accounted_for_once() {
        let page = |n: u64| AddressRange::new(n * PAGE_SIZE, (n + 1) * PAGE_SIZE);
        let mut block = Block {
            present: bits::mask(0, AddressRange::new(0, 8 * PAGE_SIZE)),
            ..Block::default()
        };
        block.passed = block.present;
        block.wanted = block.present;
        block.refuse(&bits::mask(0, page(1)), Refusal::Shared);
        block.refuse(&bits::mask(0, page(1)), Refusal::Locked);
        block.applied = block.wanted;
        let operation = operation(0, 0, 0, 16);
        let outcome = outcome(&operation, &mut [block]);
        assert_eq!(outcome.applied, 7 * PAGE_SIZE);
        assert_eq!(outcome.filter_passed, 8 * PAGE_SIZE);
        let shared = (Refusal::Shared, PAGE_SIZE);
        let absent = (Refusal::NotPresent, 8 * PAGE_SIZE);
        assert_eq!(outcome.refused, [shared, absent].into());
    }

    #[test]
    fn the_systems_reserve_is_not_used_within_a_call() {
        let block = |at: u64| Block {
            address: at * BLOCK_SIZE,
            anonymous: [u64::MAX; 8],
            wanted: [u64::MAX; 8],
            ..Block::default()
        };
        let mut blocks = [0, 1, 5].map(block);
        keep_reserve(&mut blocks, 600 * PAGE_SIZE + 1);
        let of = |block: &Block| {
            let full = block.refused.get(&Refusal::SwapFull);
            full.map_or(0, |pages| u64::from(bits::count(pages)))
        };
        assert_eq!(blocks.each_ref().map(of), [0, 424, 512]);
        assert_eq!(u64::from(bits::count(&blocks[1].wanted)), 88);
    }
}
