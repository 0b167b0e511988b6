//! Huge pages of every process, and the pages in them that were never written.
//!
//! Problem: `/proc` shows the huge pages of a process, but their waste shows only in their content. Reading all of it
//! takes a quarter of a second a gigabyte.
//!
//! Approach: each scan reads some of them: in random order those that were never read, then those that were read
//! longest ago. The others are estimated, process by process, by the mean of those; the number of bytes read is
//! reported.
//!
//! Limits: a page of zeros counts as not written. Only private anonymous memory in pages of 2 MiB is read.

use std::collections::BTreeMap;

use isotherm_engine::monitor::bits;
use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_linux::probe::{PageTableProbe, ProbeError};
use isotherm_record::HugeMemory;
use isotherm_sim::statistics::scramble;

/// Huge pages that a scan reads, which takes 10 ms.
const READ_PER_LOOK: usize = 32;

#[derive(Debug, Default)]
pub(super) struct HugePages {
    /// Huge pages of this scan, by target.
    seen: BTreeMap<TargetId, Vec<u64>>,
    known: BTreeMap<(TargetId, u64), Known>,
    nr_looks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    unused_pages: u32,
    look: u64,
}

impl HugePages {
    pub(super) fn begin(&mut self) {
        self.seen.clear();
        self.nr_looks += 1;
    }

    pub(super) fn add(&mut self, target: TargetId, block: u64) {
        self.seen.entry(target).or_default().push(block);
    }

    /// Reads some huge pages, and returns the results for each target.
    pub(super) fn look(
        &mut self,
        probe: &mut PageTableProbe,
    ) -> Result<Vec<HugeMemory>, ProbeError> {
        for blocks in self.seen.values_mut() {
            blocks.sort_unstable();
        }
        let seen = &self.seen;
        self.known.retain(|(target, block), _| {
            let of_target = seen.get(target);
            of_target.is_some_and(|blocks| blocks.binary_search(block).is_ok())
        });
        let turn = self.turn();
        for of_target in turn.chunk_by(|a, b| a.0 == b.0) {
            let target = of_target[0].0;
            let blocks: Vec<u64> = of_target.iter().map(|(_, block)| *block).collect();
            let (known, look) = (&mut self.known, self.nr_looks);
            probe.contents(target, &blocks, |contents| {
                if contents.is_huge && bits::is_empty(&contents.unreadable) {
                    let unused_pages = bits::count(&contents.zeros);
                    known.insert((target, contents.block), Known { unused_pages, look });
                }
            })?;
        }
        Ok(self.seen.keys().map(|target| self.of(*target)).collect())
    }

    /// Returns the huge pages that are read in this scan, in order.
    fn turn(&self) -> Vec<(TargetId, u64)> {
        let all = self.seen.iter();
        let all = all.flat_map(|(target, blocks)| blocks.iter().map(|block| (*target, *block)));
        let all = all.map(|of| (self.known.get(&of).map_or(0, |known| known.look), of));
        let mut turn = due_first(all, READ_PER_LOOK);
        turn.sort_unstable();
        turn
    }

    fn of(&self, target: TargetId) -> HugeMemory {
        let known = self.known.range((target, 0)..=(target, u64::MAX));
        let (nr, unused) = known.fold((0, 0), |(nr, unused), (_, known)| {
            (nr + 1, unused + u64::from(known.unused_pages))
        });
        let nr_blocks = self.seen.get(&target).map_or(0, Vec::len) as u64;
        HugeMemory {
            target,
            bytes: nr_blocks * BLOCK_SIZE,
            read: nr * BLOCK_SIZE,
            unused: unused * PAGE_SIZE,
        }
    }
}

/// Returns at most `nr_max` huge pages: those that are due first. Pages that are due at once are in random order.
pub(crate) fn due_first<D: Ord>(
    all: impl Iterator<Item = (D, (TargetId, u64))>,
    nr_max: usize,
) -> Vec<(TargetId, u64)> {
    let all = all.map(|(due, page)| (due, scramble(page.1), page));
    let mut all: Vec<(D, u64, (TargetId, u64))> = all.collect();
    if all.len() > nr_max {
        all.select_nth_unstable(nr_max);
        all.truncate(nr_max);
    }
    all.sort_unstable();
    all.into_iter().map(|(_, _, page)| page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_read_before_one_is_read_again() {
        let target = TargetId(3);
        let mut pages = HugePages::default();
        let nr = 3 * READ_PER_LOOK as u64;
        for look in 1..=3 {
            pages.begin();
            (0..nr).for_each(|i| pages.add(target, i * BLOCK_SIZE));
            let turn = pages.turn();
            assert_eq!(turn.len(), READ_PER_LOOK);
            for of in turn {
                let known = Known {
                    unused_pages: 256,
                    look,
                };
                assert!(pages.known.insert(of, known).is_none(), "read twice");
            }
            let reported = pages.of(target);
            let read = look * READ_PER_LOOK as u64 * BLOCK_SIZE;
            assert_eq!((reported.bytes, reported.read), (nr * BLOCK_SIZE, read));
            assert_eq!(reported.unused, reported.read / 2);
            assert_eq!(reported.estimate(), Some(reported.bytes / 2));
        }
        pages.begin();
        assert_eq!(pages.turn(), []);
    }
}
