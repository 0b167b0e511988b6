//! A batch of operations on one target: which pages are meant, what became of each.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, BLOCK_SIZE, Operation, Outcome, Refusal};

use super::bits::{self, Bitmap};
use crate::process::MappedArea;

/// One 2 MiB block on the way: sets of its pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) address: u64,
    /// One 2 MiB leaf maps it.
    pub(super) huge: bool,
    /// In some operation's range, mapped, and in memory before anything was done.
    pub(super) present: Bitmap,
    /// Their accessed bit was set then.
    pub(super) accessed: Bitmap,
    /// Not backed by a file.
    pub(super) anonymous: Bitmap,
    /// Passed the filters.
    pub(super) passed: Bitmap,
    /// To be acted on; what is refused leaves.
    pub(super) wanted: Bitmap,
    /// Acted on, as seen afterwards.
    pub(super) applied: Bitmap,
    pub(super) refused: BTreeMap<Refusal, Bitmap>,
}

impl Block {
    /// Takes `pages` out of what is wanted.
    pub(super) fn refuse(&mut self, pages: &Bitmap, why: Refusal) {
        let pages = bits::and(pages, &self.wanted);
        if bits::is_empty(&pages) {
            return;
        }
        self.wanted = bits::without(&self.wanted, &pages);
        let set = self.refused.entry(why).or_insert(bits::NONE);
        *set = bits::or(set, &pages);
    }

    /// All its pages.
    pub(super) fn range(&self) -> AddressRange {
        AddressRange::new(self.address, self.address + BLOCK_SIZE)
    }
}

/// The stretches of wanted pages of all blocks, each within one of `areas`: the kernel refuses a
/// range as a whole for the sake of one mapping in it.
pub(super) fn wanted(blocks: &[Block], areas: &[MappedArea]) -> Vec<AddressRange> {
    let mut ranges = Vec::new();
    for block in blocks {
        bits::runs(block.address, &block.wanted, &mut ranges);
    }
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let first = areas.partition_point(|area| area.range.end <= range.start);
        let inside = areas[first..]
            .iter()
            .take_while(|area| area.range.start < range.end);
        parts.extend(inside.filter_map(|area| area.range.intersection(range)));
    }
    parts
}

/// Blocks that overlap `range`, of blocks in address order.
pub(super) fn within(blocks: &mut [Block], range: AddressRange) -> &mut [Block] {
    let first = blocks.partition_point(|block| block.address + BLOCK_SIZE <= range.start);
    let end = blocks.partition_point(|block| block.address < range.end);
    &mut blocks[first..end.max(first)]
}

/// The part of `operation` in `blocks`, summed up.
pub(super) fn outcome(operation: &Operation, blocks: &mut [Block]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut accounted = 0;
    for block in within(blocks, operation.range) {
        let mine = bits::mask(block.address, operation.range);
        let of = |set: &Bitmap| bits::bytes(&bits::and(set, &mine));
        outcome.applied += of(&block.applied);
        outcome.filter_passed += of(&block.passed);
        accounted += of(&block.present);
        for (why, set) in &block.refused {
            let bytes = of(set);
            if bytes > 0 {
                *outcome.refused.entry(*why).or_default() += bytes;
            }
        }
    }
    let absent = operation.range.len().saturating_sub(accounted);
    if absent > 0 {
        *outcome.refused.entry(Refusal::NotPresent).or_default() += absent;
    }
    outcome
}

/// The parts of `range` that are mapped.
pub(super) fn clip(range: AddressRange, areas: &[MappedArea]) -> Vec<AddressRange> {
    let first = areas.partition_point(|area| area.range.end <= range.start);
    let mut parts: Vec<AddressRange> = Vec::new();
    for part in areas[first..]
        .iter()
        .take_while(|area| area.range.start < range.end)
        .filter_map(|area| area.range.intersection(range))
    {
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}

/// The mapping that holds all of `range`, if one does.
pub(super) fn mapping_around(range: AddressRange, areas: &[MappedArea]) -> Option<&MappedArea> {
    let at = areas.partition_point(|area| area.range.end <= range.start);
    areas
        .get(at)
        .filter(|area| area.range.start <= range.start && range.end <= area.range.end)
}

#[cfg(test)]
mod tests {
    use isotherm_engine::scheme::Action;
    use isotherm_engine::{PAGE_SIZE, TargetId};

    use super::*;

    fn area(start: u64, end: u64) -> MappedArea {
        MappedArea {
            range: AddressRange::new(start, end),
            permissions: "rw-p".into(),
            name: String::new(),
        }
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
        let operation = Operation {
            scheme: 0,
            action: Action::Pageout,
            destinations: Vec::new(),
            target: TargetId(0),
            range: AddressRange::new(0, 16 * PAGE_SIZE),
            filters: Vec::new(),
            pass_unmatched: true,
            idle_only: true,
        };
        let outcome = outcome(&operation, &mut [block]);
        assert_eq!(outcome.applied, 7 * PAGE_SIZE);
        assert_eq!(outcome.filter_passed, 8 * PAGE_SIZE);
        let refused: Vec<_> = outcome.refused.into_iter().collect();
        assert_eq!(
            refused,
            [
                (Refusal::Shared, PAGE_SIZE),
                (Refusal::NotPresent, 8 * PAGE_SIZE)
            ]
        );
    }
}
