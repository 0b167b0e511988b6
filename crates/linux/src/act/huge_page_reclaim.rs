//! Pages out 2 MiB at a time.
//!
//! The problem: for every dirty page that it pages out, the kernel interrupts each processor that runs the target.
//! These flush their TLBs before the page is written (`try_to_unmap_flush_dirty` in mm/vmscan.c). Measured here (2
//! virtual CPUs, Linux 6.18, zram, a busy thread of the target beside 512 MiB of idle memory): 20 us a page, and the
//! thread does 28 to 53 % of its work meanwhile.
//!
//! The approach: a huge page is unmapped once and written as one. A block that shall be paged out whole is first made a
//! huge page (`MADV_COLLAPSE`). It is paged out at once, which frees the huge page for the next block. Measured with
//! the same load: 2.4 us a page, and the thread does 96 to 99 % of its work. In swap, and after a refault, such memory
//! consists of base pages again.
//!
//! Only blocks that are wholly in memory, private, anonymous and unshared are treated so: all others would take memory,
//! or swap, that they did not take before. Conditions are enough huge pages, a control group not near its limit, and a
//! zswap that takes huge pages.
//!
//! A block of which at most [`REST_MAX`] pages are unwanted is paged out with them. These are read back at once
//! (`MADV_WILLNEED`). Their users then have a minor fault each, instead of an interrupt for each of the other pages.
//! This is meant for the headers that a garbage collector visits in an idle heap. Its saving is not measured.
//!
//! Limits: the target's mmap lock is held for writing while a block is copied, 0.5 ms here. A block that cannot be
//! paged out after all stays a huge page. Pages that are read back are in the swap cache, and not in RSS, until they
//! are touched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use isotherm_engine::{AddressRange, PAGES_PER_BLOCK, TargetId};
use isotherm_policy::scheme::Action;

use super::batch::{self, Block};
use super::huge_page::MADV_COLLAPSE;
use super::{ProcessActuator, bits};
use crate::areas::MappedArea;
use crate::probe::Result;
use crate::process::Advised;
use crate::{cgroup, compaction, host};

/// Maximum number of unwanted pages of a block that are paged out with the others and read back.
const REST_MAX: u64 = 8;
/// Number of free huge pages that are left to other users.
const FREE_MIN: u64 = 8;
/// Minimum distance of a target's control group from its limit, in bytes.
const HEADROOM_MIN: u64 = 32 << 20;
/// Time after which the control group's headroom is read again.
const ROOM_LASTS: Duration = Duration::from_secs(1);
/// Failed collapses in a row after which a target's blocks are skipped for a time.
const FAILURES_MAX: u32 = 4;
const SPARED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct HugePageReclaim {
    is_possible: bool,
    targets: BTreeMap<TargetId, Room>,
}

#[derive(Debug, Default)]
struct Room {
    looked: Option<Instant>,
    has_headroom: bool,
    failures: u32,
    spared_until: Option<Instant>,
}

impl HugePageReclaim {
    pub(super) fn new() -> Self {
        // zswap took only single pages before 6.13, and passed huge ones to the disk.
        let zswap = fs::read_to_string("/sys/module/zswap/parameters/enabled");
        let has_zswap = zswap.is_ok_and(|enabled| enabled.starts_with('Y'));
        let is_passed_by = host::kernel_version() < (6, 13) && has_zswap;
        Self {
            is_possible: super::lacks(Action::Collapse).is_none() && !is_passed_by,
            targets: BTreeMap::new(),
        }
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// Whether blocks of `target`, the process `pid`, may be made huge pages now.
    fn allows(&mut self, target: TargetId, pid: u32) -> bool {
        if !self.is_possible {
            return false;
        }
        let now = Instant::now();
        let room = self.targets.entry(target).or_default();
        if room
            .looked
            .is_none_or(|then| now.duration_since(then) >= ROOM_LASTS)
        {
            room.looked = Some(now);
            room.has_headroom = cgroup::headroom(pid).is_none_or(|bytes| bytes >= HEADROOM_MIN);
        }
        let is_spared = room.spared_until.is_some_and(|until| now < until);
        room.has_headroom && !is_spared
    }

    /// Records whether a block of `target` was made a huge page. Returns `false` if no more blocks may be tried for
    /// now.
    fn note(&mut self, target: TargetId, is_huge: bool) -> bool {
        let Some(room) = self.targets.get_mut(&target) else {
            return false;
        };
        room.failures = if is_huge { 0 } else { room.failures + 1 };
        if room.failures < FAILURES_MAX {
            return true;
        }
        room.failures = 0;
        room.spared_until = Some(Instant::now() + SPARED_FOR);
        false
    }
}

impl ProcessActuator {
    /// Pages out the blocks for which that is possible as one huge page. Returns their addresses.
    pub(super) fn page_out_as_huge_pages(
        &mut self,
        target: TargetId,
        blocks: &mut [Block],
    ) -> Result<BTreeSet<u64>> {
        let mut done = BTreeSet::new();
        let whole: Vec<(AddressRange, bits::Bitmap)> = blocks
            .iter()
            .filter_map(|block| Some((block.range(), rest_of(block)?)))
            .filter(|(range, _)| self.is_private(target, *range))
            .collect();
        let Some(process) = self.probe.process(target).filter(|_| !whole.is_empty()) else {
            return Ok(done);
        };
        if !self.huge_page_reclaim.allows(target, process.pid()) || free_huge_pages() < FREE_MIN {
            return Ok(done);
        }
        let Ok(maps) = process.page_map() else {
            return Ok(done);
        };
        for (range, rest) in whole {
            if !maps.is_exclusive(range) {
                continue;
            }
            let is_huge = self.make_huge(target, range);
            if is_huge {
                self.advise_pageout(target, &[range], batch::within(blocks, range))?;
                if !bits::is_empty(&rest) {
                    let mut back = Vec::new();
                    bits::runs(range.start, &rest, &mut back);
                    self.advise(target, &back, libc::MADV_WILLNEED, &mut [])?;
                }
                done.insert(range.start);
            }
            if !self.huge_page_reclaim.note(target, is_huge) {
                break;
            }
        }
        Ok(done)
    }

    /// Whether `range` lies in one mapping of private anonymous memory.
    pub(super) fn is_private(&self, target: TargetId, range: AddressRange) -> bool {
        let areas = super::areas_of(&self.areas, target);
        batch::mapping_around(range, areas).is_some_and(MappedArea::is_private_anonymous)
    }

    /// Collapses a block. The reason of a failure does not matter: the block is paged out page by page then, which
    /// reports obstacles.
    fn make_huge(&mut self, target: TargetId, range: AddressRange) -> bool {
        let Some(process) = self.probe.process(target) else {
            return false;
        };
        let answer = process.advise(&[range], MADV_COLLAPSE, &mut self.advised);
        answer.is_ok() && self.advised == [Advised::Taken]
    }
}

/// Returns the pages of a block that shall stay, if they are few and the block is in memory as single pages.
fn rest_of(block: &Block) -> Option<bits::Bitmap> {
    let there = bits::and(&block.there, &block.anonymous);
    let rest = bits::and_not(&there, &block.wanted);
    let is_all_there = there == bits::ALL;
    (!block.huge && is_all_there && u64::from(bits::count(&rest)) <= REST_MAX).then_some(rest)
}

/// Returns the number of free huge pages of all nodes; 0 if that cannot be read.
fn free_huge_pages() -> u64 {
    let text = fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
    let zones = compaction::parse_buddyinfo(&text).unwrap_or_default();
    let free = zones.iter().map(|(_, zone)| free_in(&zone.free_blocks));
    free.sum()
}

/// Returns the huge pages in `free_blocks`, which counts free blocks of 1, 2, 4, ... pages.
fn free_in(free_blocks: &[u64]) -> u64 {
    let large = free_blocks.iter().skip(PAGES_PER_BLOCK.ilog2() as usize);
    large.enumerate().map(|(i, count)| count << i).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_huge_pages_are_counted() {
        assert_eq!(free_in(&[30, 20, 10, 9, 8, 7, 6, 5, 4, 3, 10]), 3 + 10 * 2);
        assert_eq!(free_in(&[1; 9]), 0);
    }

    #[test]
    fn a_few_pages_in_use_go_with_the_others() {
        let all = [u64::MAX; 8];
        let block = |there, wanted| Block {
            there,
            wanted,
            anonymous: all,
            ..Block::default()
        };
        let nr_rest = |block: &Block| rest_of(block).map(|rest| u64::from(bits::count(&rest)));
        let but = |pages: u64| {
            let mut wanted = all;
            wanted[3] &= !((1 << pages) - 1);
            wanted
        };
        assert_eq!(nr_rest(&block(all, all)), Some(0));
        assert_eq!(nr_rest(&block(all, but(8))), Some(8));
        assert_eq!(nr_rest(&block(all, but(9))), None);
        // A hole would be filled with memory.
        assert_eq!(nr_rest(&block(but(1), but(1))), None);
        let mut huge = block(all, all);
        huge.huge = true;
        assert_eq!(nr_rest(&huge), None);
    }

    #[test]
    fn who_cannot_be_helped_is_left_alone_for_a_time() {
        let target = TargetId(1);
        let mut huge_page_reclaim = HugePageReclaim::new();
        huge_page_reclaim.is_possible = true;
        if !huge_page_reclaim.allows(target, std::process::id()) {
            println!("SKIP who_cannot_be_helped: our own control group is near its limit");
            return;
        }
        for _ in 1..FAILURES_MAX {
            assert!(huge_page_reclaim.note(target, false));
        }
        // They must be in a row.
        assert!(huge_page_reclaim.note(target, true));
        for _ in 1..FAILURES_MAX {
            assert!(huge_page_reclaim.note(target, false));
        }
        assert!(!huge_page_reclaim.note(target, false));
        assert!(!huge_page_reclaim.allows(target, std::process::id()));
        huge_page_reclaim.forget(target);
        assert!(huge_page_reclaim.allows(target, std::process::id()));
    }
}
