//! Finds refaults in page tables: pages that schemes paged out and that are present again.
//!
//! Problem: a process's counters do not show the reason of its faults, and the machine's counters do not show the
//! owners of swapped pages. Schemes must not stop because a neighbour swaps, or because the target reads a file for the
//! first time.
//!
//! Approach: every page that was paged out is noted. Once a second the tables of these pages' blocks are read: a page
//! that is present again was read back; one whose swap entry is gone was freed. Reading is left out while the target has
//! no page fault, and takes a tenth of what its faults may have cost it: blocks are read in turns, and pages in the
//! others are found later.
//!
//! Limits: an unmapped page of a file is kept until the target ends. A page that was freed and used anew counts as read
//! back if there were faults enough since its block was read: major faults of the target, or pages that the machine
//! swapped in.

use std::collections::BTreeMap;

use isotherm_engine::TargetId;
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::table::BlockFacts;

/// The pages of one block that are out.
#[derive(Clone, Copy, Debug, Default)]
struct Out {
    pages: Bitmap,
    /// Pages that had a swap entry at the last scan.
    swapped: Bitmap,
}

/// The pages of all targets that are out.
#[derive(Debug, Default)]
pub(super) struct Taken {
    targets: BTreeMap<TargetId, OfTarget>,
}

#[derive(Debug, Default)]
struct OfTarget {
    blocks: BTreeMap<u64, Out>,
    bytes: u64,
    next: u64,
    /// Faults of this round and of the last one that may have read back pages that were not found yet.
    faults: [u64; 2],
}

impl Taken {
    pub(super) fn add(&mut self, target: TargetId, block: u64, pages: &Bitmap) {
        let of = self.targets.entry(target).or_default();
        let out = of.blocks.entry(block).or_default();
        of.bytes += bits::bytes(&bits::and_not(pages, &out.pages));
        out.pages = bits::or(&out.pages, pages);
        // The page has another swap entry now.
        out.swapped = bits::and_not(&out.swapped, pages);
    }

    /// Returns `None` if no pages of the target were noted.
    pub(super) fn bytes(&self, target: TargetId) -> Option<u64> {
        self.targets.get(&target).map(|of| of.bytes)
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// Reads tables of at most `max` blocks by `read`, which returns whether the target is alive. Returns the pages that
    /// are in memory again, at most the `faults` since the last call and those before that did not explain any.
    pub(super) fn look(
        &mut self,
        target: TargetId,
        faults: u64,
        max: usize,
        read: impl FnOnce(&[u64], &mut dyn FnMut(&BlockFacts)) -> bool,
    ) -> Option<u64> {
        let of = self.targets.get_mut(&target)?;
        let after = of.blocks.range(of.next..);
        let all = after.chain(of.blocks.range(..of.next));
        let mut addresses: Vec<u64> = all.take(max).map(|(block, _)| *block).collect();
        let last = addresses.last().map_or(0, |last| last + 1);
        let is_all = addresses.len() == of.blocks.len();
        let is_round = last <= of.next;
        of.next = last;
        addresses.sort_unstable();
        let mut returned = 0;
        let is_alive = read(&addresses, &mut |facts| returned += of.see(facts));
        of.faults[0] += faults;
        returned = returned.min(of.faults[0] + of.faults[1]);
        let of_last = returned.min(of.faults[1]);
        of.faults = [of.faults[0] - (returned - of_last), of.faults[1] - of_last];
        // Faults that a whole round does not explain had another reason.
        if is_all {
            of.faults = [0; 2];
        } else if is_round {
            of.faults = [0, of.faults[0]];
        }
        is_alive.then_some(returned)
    }
}

impl OfTarget {
    /// Updates the pages of a block from its tables. Returns the number of pages that are back.
    fn see(&mut self, facts: &BlockFacts) -> u64 {
        let Some(out) = self.blocks.get_mut(&facts.address) else {
            return 0;
        };
        let back = bits::and(&out.pages, &facts.present);
        let has_no_entry = bits::and_not(&out.swapped, &facts.swapped);
        let gone = bits::or(&back, &bits::and(&out.pages, &has_no_entry));
        out.pages = bits::and_not(&out.pages, &gone);
        out.swapped = bits::and(&out.pages, &facts.swapped);
        self.bytes -= bits::bytes(&gone);
        if bits::is_empty(&out.pages) {
            self.blocks.remove(&facts.address);
        }
        u64::from(bits::count(&back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE};

    const TARGET: TargetId = TargetId(0);

    fn facts(address: u64, present: u64, swapped: u64) -> BlockFacts {
        let bitmap = |pages| [pages, 0, 0, 0, 0, 0, 0, 0];
        BlockFacts {
            address,
            huge: false,
            present: bitmap(present),
            accessed: bits::NONE,
            swapped: bitmap(swapped),
        }
    }

    fn taken(blocks: &[(u64, u64)]) -> Taken {
        let mut taken = Taken::default();
        for (block, pages) in blocks {
            taken.add(TARGET, *block, &[*pages, 0, 0, 0, 0, 0, 0, 0]);
        }
        taken
    }

    /// Scans one block. Returns the pages that were read back, and those that are still out.
    fn look(taken: &mut Taken, present: u64, swapped: u64) -> (u64, u64) {
        let found = taken.look(TARGET, 100, 1, |blocks, see| {
            for block in blocks {
                see(&facts(*block, present, swapped));
            }
            true
        });
        let left = taken.bytes(TARGET).expect("it was noted") / PAGE_SIZE;
        (found.expect("it lives"), left)
    }

    #[test]
    fn pages_that_are_there_again_were_read_back_and_freed_ones_were_not() {
        let mut anonymous = taken(&[(0, 0b1111)]);
        assert_eq!(look(&mut anonymous, 0b1_0000, 0b1111), (0, 4));
        assert_eq!(look(&mut anonymous, 0b0001, 0b1110), (1, 3));
        // One was freed.
        assert_eq!(look(&mut anonymous, 0b0001, 0b1100), (0, 2));
        assert_eq!(look(&mut anonymous, 0b1101, 0), (2, 0));
        // Pages of files leave no entry.
        let mut file = taken(&[(0, 0b11)]);
        assert_eq!(look(&mut file, 0, 0), (0, 2));
        assert_eq!(look(&mut file, 0b01, 0), (1, 1));
    }

    #[test]
    fn pages_that_are_paged_out_again_count_again() {
        let mut taken = taken(&[(0, 0b11), (0, 0b11)]);
        assert_eq!(look(&mut taken, 0b01, 0b10), (1, 1));
        taken.add(TARGET, 0, &[0b11, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(look(&mut taken, 0, 0b11), (0, 2));
        assert_eq!(look(&mut taken, 0b11, 0), (2, 0));
    }

    #[test]
    fn of_many_blocks_all_are_read_in_turns() {
        let blocks: Vec<(u64, u64)> = (0..10).map(|n| (n * BLOCK_SIZE, 1)).collect();
        let mut taken = taken(&blocks);
        let mut seen = Vec::new();
        // The ten pages come back at once, and the target has three other faults.
        let mut look = |faults| {
            taken.look(TARGET, faults, 4, |blocks, see| {
                assert!(blocks.is_sorted());
                seen.extend_from_slice(blocks);
                for block in blocks {
                    see(&facts(*block, 1, 0));
                }
                true
            })
        };
        let found: Vec<Option<u64>> = [13, 0, 0, 0].map(&mut look).into();
        assert_eq!(found, [Some(4), Some(4), Some(2), Some(0)]);
        seen.sort_unstable();
        assert!(seen.iter().eq(blocks.iter().map(|(block, _)| block)));
        taken.add(TARGET, 0, &[1, 0, 0, 0, 0, 0, 0, 0]);
        let later = taken.look(TARGET, 0, 4, |_, see| {
            see(&facts(0, 1, 0));
            true
        });
        assert_eq!(later, Some(0), "without a fault it was made anew");
        taken.forget(TARGET);
        assert_eq!(taken.look(TARGET, 1, 1, |_, _| true), None);
    }
}
