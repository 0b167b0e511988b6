//! Clearing whole address spaces.
//!
//! The problem: `MADV_COLD` costs a call and a TLB flush for each range, and leaves pages alone that
//! other processes map as well: after fork, in shared memory, of files. What is touched of these would
//! stay unknown for good, and many scattered pages cost more than the budget.
//!
//! The approach: `/proc/PID/clear_refs` clears all accessed bits of a process, shared memory's too, for
//! some 30 ns a page. So it is one more kind of clear that the planner ([`super::plan`]) weighs: what it
//! is worth is the sum over all blocks, and where that is more for its cost than ranges are, it takes
//! their place: when a target is new, where much is scattered, where much is shared.
//!
//! Limits: it holds the target's memory lock; it is not used where that would last longer than
//! [`HOLD_MAX`](super::HOLD_MAX). It does not flush the TLB, so that a page which stays in there is not seen: of 4 KiB pages
//! some MiB at most, and hardly any in practice, as other work displaces them; so it is not used where much
//! is in huge pages, and a probe refuses it on an emulated processor. Shared memory of larger processes stays
//! unknown.
//!
//! Source: Documentation/filesystems/proc.rst, "clear_refs".

use super::TableMonitor;
use super::block::BlockFacts;
use super::watch::{ClearedBy, Watch};
use crate::address::Nanos;
use crate::monitor::bits;
use crate::snapshot::TargetId;

/// A target that cannot be cleared as a whole is asked again after that.
const SPARED_FOR: Nanos = Nanos::from_millis(30_000);

impl TableMonitor {
    /// The targets whose address spaces are to be cleared as a whole now, with the numbers of their
    /// resident pages; by [`TableMonitor::plan_samples`].
    pub fn spaces(&self) -> Vec<(TargetId, u64)> {
        let spaces = self.spaces.iter();
        let spaces = spaces.filter_map(|id| Some((*id, self.targets.get(id)?)));
        spaces
            .map(|(id, target)| (id, target.nr_resident()))
            .collect()
    }

    /// The address space of `target` cannot be cleared as a whole, or not now.
    pub fn spare_space(&mut self, target: TargetId, now: Nanos) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.spared_until = now + SPARED_FOR;
        }
    }

    /// Takes in what the tables of a block say right after its whole address space was cleared. To be
    /// called in address order.
    pub fn cleared_space(&mut self, target: TargetId, facts: &BlockFacts) {
        let Some(of) = self.targets.get_mut(&target) else {
            return;
        };
        let Some(at) = of.find(facts.address) else {
            return;
        };
        let block = &mut of.blocks[at];
        let (watched, uncleared) = block.cleared_whole(facts);
        if bits::is_empty(&watched) && bits::is_empty(&uncleared) {
            return;
        }
        self.watches.push(Watch {
            target,
            address: block.address,
            is_whole: true,
            by: ClearedBy::Space,
            pages: bits::or(&watched, &uncleared),
            watched,
            uncleared,
            // Huge pages of hugetlbfs are left alone; all others were touched at once.
            is_uncleared_touched: !block.huge,
            touched_in_window: None,
        });
    }

    /// All address spaces that were to be cleared are.
    pub fn spaces_done(&mut self) {
        self.watches.sort_unstable_by_key(|w| (w.target, w.address));
    }
}
