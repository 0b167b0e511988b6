//! A history of refaults by 2 MiB block protects blocks that were read back.
//!
//! Problem: a program may touch memory every 30 s. If 5 s of idleness suffice for a page-out, it loses that memory
//! after every burst and waits for all of it each time.
//!
//! Approach: each page-out is noted, with the number of pages that stayed. When a scheme selects such a block again and
//! pages have been read back in the meantime, that was a refault. From then on the block must have been untouched for
//! 20 s (four times a least age of 5 s), and for a quarter longer than before that refault: bursts in a steady period
//! are learned after one refault. Each further refault doubles the time, up to an hour. It halves again after sixteen
//! times itself, and at least ten minutes, without a refault.
//!
//! Limits: a block that was freed and used anew looks like a refault and is protected in vain. Fewer than 16 pages of a
//! block that are read back do not count: keeping 2 MiB for them would cost more than the refaults. At most 65,536
//! blocks (128 GiB) are tracked; blocks beyond that are not protected.

use std::collections::BTreeMap;

use crate::port::Operation;
use crate::scheme::Action;
use isotherm_engine::address::{AddressRange, BLOCK_SIZE, Nanos};
use isotherm_engine::snapshot::{Snapshot, TargetId};

const BLOCKS_MAX: usize = 65_536;
/// Protection after the first refault; each further one doubles it.
const FIRST: Nanos = Nanos::from_millis(20_000);
const MOST: Nanos = Nanos::from_millis(3_600_000);
/// Number of protection times after which it halves, but not before [`HALVE_AFTER_MIN`].
const HALVE_AFTER: u64 = 16;
const HALVE_AFTER_MIN: Nanos = Nanos::from_millis(600_000);
/// Least number of pages read back that make a refault.
const RETURNED_MIN: u32 = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Pages that stayed in memory when the block was paged out; `None`: it was not paged out since its last refault.
    left: Option<u32>,
    /// Time since which it was untouched when it was paged out.
    idle_since: Nanos,
    /// Time at which it was touched first after that.
    back: Option<Nanos>,
    /// Time for which it must be untouched.
    min_age: Nanos,
    touched: Nanos,
    changed: Nanos,
}

/// The history.
#[derive(Clone, Debug, Default)]
pub struct RefaultHistory {
    blocks: BTreeMap<(TargetId, u64), Known>,
}

impl RefaultHistory {
    /// Takes in the accesses of a snapshot: blocks of accessed regions count as touched.
    pub fn look(&mut self, snapshot: &Snapshot) {
        for region in &snapshot.regions {
            if region.nr_accesses.is_some_and(|n| n <= 0.0) {
                continue;
            }
            let (first, end) = blocks_of(region.range);
            let key = |block| (snapshot.target, block);
            for (_, known) in self.blocks.range_mut(key(first)..key(end)) {
                known.touched = snapshot.end;
                if known.left.is_some() {
                    known.back.get_or_insert(snapshot.end);
                }
            }
        }
    }

    /// Returns the blocks of `plan` that were paged out. The caller reports their pages in memory with
    /// [`found`](Self::found).
    pub fn candidates(&self, plan: &[Operation]) -> BTreeMap<TargetId, Vec<u64>> {
        let mut candidates: BTreeMap<TargetId, Vec<u64>> = BTreeMap::new();
        for operation in plan.iter().filter(|o| is_meant(o)) {
            let (first, end) = blocks_of(operation.range);
            let target = operation.target;
            for ((_, block), known) in self.blocks.range((target, first)..(target, end)) {
                if known.left.is_some() {
                    candidates.entry(target).or_default().push(*block);
                }
            }
        }
        for blocks in candidates.values_mut() {
            blocks.sort_unstable();
            blocks.dedup();
        }
        candidates
    }

    /// Takes in that `present` pages of a candidate are in memory.
    pub fn found(&mut self, now: Nanos, target: TargetId, block: u64, present: u32) {
        let Some(known) = self.blocks.get_mut(&(target, block)) else {
            return;
        };
        let Some(left) = known.left else { return };
        if present < left.saturating_add(RETURNED_MIN) {
            return;
        }
        known.left = None;
        known.min_age = if known.min_age == Nanos(0) {
            FIRST
        } else {
            Nanos(known.min_age.0 * 2).min(MOST)
        };
        if let Some(back) = known.back {
            let untouched = back.since(known.idle_since);
            known.min_age = known.min_age.max(Nanos(untouched.0 / 4 * 5)).min(MOST);
        }
        (known.touched, known.changed) = (now, now);
    }

    /// Divides `plan` into operations that may be executed and memory that is protected for now.
    pub fn sift(&mut self, now: Nanos, plan: Vec<Operation>) -> (Vec<Operation>, Vec<Operation>) {
        let (mut fine, mut kept) = (Vec::with_capacity(plan.len()), Vec::new());
        for operation in plan {
            let (first, end) = blocks_of(operation.range);
            let target = operation.target;
            if !is_meant(&operation) {
                fine.push(operation);
                continue;
            }
            let mut at = operation.range.start;
            let part =
                |start: u64, end: u64| Some(operation.part(AddressRange::checked(start, end)?));
            for ((_, block), known) in self.blocks.range_mut((target, first)..(target, end)) {
                if !known.is_kept(now) {
                    continue;
                }
                let start = (*block).max(operation.range.start);
                let end = (block + BLOCK_SIZE).min(operation.range.end);
                fine.extend(part(at, start));
                kept.extend(part(start, end));
                at = end;
            }
            fine.extend(part(at, operation.range.end));
        }
        (fine, kept)
    }

    /// Notes that a block, untouched since `idle_since`, was paged out, except for `left` pages.
    pub fn paged_out(&mut self, idle_since: Nanos, target: TargetId, block: u64, left: u32) {
        if self.blocks.len() >= BLOCKS_MAX && !self.blocks.contains_key(&(target, block)) {
            return;
        }
        let known = self.blocks.entry((target, block)).or_default();
        (known.left, known.idle_since, known.back) = (Some(left), idle_since, None);
    }

    /// Forgets a target that exited.
    pub fn forget(&mut self, target: TargetId) {
        self.blocks.retain(|(of, _), _| *of != target);
    }
}

/// Returns whether the history applies to `operation`. Schemes about memory in use are executed as configured, and
/// single pages have an age of their own ([`isotherm_engine::monitor::idle_pages`]).
fn is_meant(operation: &Operation) -> bool {
    operation.action == Action::Pageout && operation.idle_only && operation.pages.is_none()
}

impl Known {
    /// Returns whether the block is protected at `now`. Halves `min_age` if that is due.
    fn is_kept(&mut self, now: Nanos) -> bool {
        let due = Nanos(self.min_age.0 * HALVE_AFTER).max(HALVE_AFTER_MIN);
        if self.min_age > Nanos(0) && now.since(self.changed) >= due {
            self.min_age = Nanos(self.min_age.0 / 2);
            self.changed = now;
            if self.min_age < FIRST {
                self.min_age = Nanos(0);
            }
        }
        now.since(self.touched) < self.min_age
    }
}

/// Returns the address of the first block of `range`, and the end of `range`.
fn blocks_of(range: AddressRange) -> (u64, u64) {
    (range.start & !(BLOCK_SIZE - 1), range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pictures::second;
    use isotherm_engine::snapshot::RegionSnapshot;

    const TARGET: TargetId = TargetId(0);

    fn operation(first: u64, end: u64) -> Operation {
        let range = AddressRange::new(first * BLOCK_SIZE, end * BLOCK_SIZE);
        Operation::on(Action::Pageout, TARGET, range)
    }

    fn snapshot(now: u64, is_accessed: bool) -> Snapshot {
        let nr_accesses = if is_accessed { 1.0 } else { 0.0 };
        let range = AddressRange::new(0, 100 * BLOCK_SIZE);
        let region = RegionSnapshot::new(range, Some(nr_accesses));
        Snapshot::new(TARGET, (Nanos(0), second(now)), 0, vec![region])
    }

    /// Returns how often a block is paged out and read back in `seconds`. It is touched every `period` seconds, and a
    /// scheme pages out memory that is idle for 5 s.
    fn refaults(period: u64, seconds: u64) -> u64 {
        let mut history = RefaultHistory::default();
        let (mut present, mut touched, mut nr_refaults) = (512, 0, 0);
        for now in 1..seconds {
            let is_accessed = now % period == 0;
            if is_accessed {
                (present, touched) = (512, now);
            }
            history.look(&snapshot(now, is_accessed));
            if now - touched < 5 || present == 0 {
                continue;
            }
            let plan = vec![operation(0, 1)];
            if history.candidates(&plan).contains_key(&TARGET) {
                history.found(second(now), TARGET, 0, present);
                nr_refaults += u64::from(history.blocks[&(TARGET, 0)].left.is_none());
            }
            let (fine, _) = history.sift(second(now), plan);
            if !fine.is_empty() {
                present = 0;
                history.paged_out(second(touched), TARGET, 0, 0);
            }
        }
        nr_refaults
    }

    #[test]
    fn bursts_in_a_period_are_learned_after_one() {
        assert_eq!(refaults(30, 600), 1);
        assert_eq!(refaults(15, 600), 1);
        assert_eq!(refaults(120, 1800), 1);
        // Later, page-outs are tried again, but seldom.
        let in_a_day = refaults(30, 86_400);
        assert!((3..150).contains(&in_a_day), "{in_a_day}");
    }

    #[test]
    fn only_the_blocks_that_came_back_are_kept() {
        let mut history = RefaultHistory::default();
        (0..4).for_each(|n| history.paged_out(second(0), TARGET, n * BLOCK_SIZE, 5));
        let plan = vec![operation(0, 4)];
        assert_eq!(history.candidates(&plan)[&TARGET].len(), 4);
        history.found(second(40), TARGET, 0, 5);
        history.found(second(40), TARGET, BLOCK_SIZE, 512);
        history.found(second(40), TARGET, 2 * BLOCK_SIZE, 12);
        let (fine, kept) = history.sift(second(41), plan.clone());
        assert_eq!(fine, [operation(0, 1), operation(2, 4)]);
        assert_eq!(kept, [operation(1, 2)]);
        let (fine, kept) = history.sift(second(60), plan);
        assert_eq!((fine.len(), kept.len()), (1, 0));
    }

    #[test]
    fn other_actions_and_other_targets_are_left_alone() {
        let mut history = RefaultHistory::default();
        history.paged_out(second(0), TARGET, 0, 0);
        history.found(second(1), TARGET, 0, 512);
        let mut plan = vec![operation(0, 1); 4];
        plan[0].action = Action::Cold;
        plan[1].target = TargetId(1);
        plan[2].idle_only = false;
        let (fine, kept) = history.sift(second(2), plan);
        assert_eq!((fine.len(), kept.len()), (3, 1));
        history.forget(TARGET);
        assert!(history.sift(second(2), vec![operation(0, 1)]).1.is_empty());
    }

    #[test]
    fn its_memory_is_bounded() {
        let mut history = RefaultHistory::default();
        (0..70_000).for_each(|n| history.paged_out(second(0), TARGET, n * BLOCK_SIZE, 0));
        assert_eq!(history.blocks.len(), BLOCKS_MAX);
    }
}
