//! Clearing whole address spaces.
//!
//! The problem: `MADV_COLD` costs a call and a TLB flush for each range. It skips pages that other processes map too:
//! after fork, in shared memory, of files. Accesses to these would stay unknown for good, and many scattered pages cost
//! more than the budget.
//!
//! The approach: `/proc/PID/clear_refs` clears all accessed bits of a process, shared memory's too, for some 30 ns a
//! page. It is one more kind of clear that the planner ([`super::plan`]) weighs. Its value is the sum over all blocks.
//! It replaces ranges if it has more value for its cost: for a new target, for scattered pages, for shared memory.
//!
//! Limits: the clear holds the target's memory lock, and is not used if that would last longer than
//! [`HOLD_MAX`](super::HOLD_MAX). It does not flush the TLB, so accesses to a page in the TLB are not seen. This
//! concerns some MiB of 4 KiB pages at most, and hardly any in practice, as other work displaces them. Therefore it is
//! not used for targets with many huge pages, and a probe refuses it on an emulated processor. Shared memory of larger
//! processes stays unknown.
//!
//! Source: Documentation/filesystems/proc.rst, "clear_refs".

use super::TableMonitor;
use super::block::BlockFacts;
use super::watch::{ClearedBy, Watch};
use crate::address::Nanos;
use crate::monitor::bits;
use crate::snapshot::TargetId;

/// Time until the next try for a target that cannot be cleared as a whole.
const SPARED_FOR: Nanos = Nanos::from_millis(30_000);

impl TableMonitor {
    /// Returns the targets whose address spaces should be cleared as a whole now, with the numbers of their resident
    /// pages. [`TableMonitor::plan_samples`] selects them.
    pub fn spaces(&self) -> Vec<(TargetId, u64)> {
        let spaces = self.spaces.iter();
        let spaces = spaces.filter_map(|id| Some((*id, self.targets.get(id)?)));
        spaces
            .map(|(id, target)| (id, target.nr_resident()))
            .collect()
    }

    /// Records that the address space of `target` cannot be cleared as a whole, or not now.
    pub fn spare_space(&mut self, target: TargetId, now: Nanos) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.spared_until = now + SPARED_FOR;
        }
    }

    /// Takes in the contents of a block's tables right after its whole address space was cleared. The caller must go in
    /// address order.
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
            // Huge pages of hugetlbfs are never cleared; all others were touched at once.
            is_uncleared_touched: !block.huge,
            touched_in_window: None,
        });
    }

    /// Ends the clearing of address spaces: all planned ones are cleared.
    pub fn spaces_done(&mut self) {
        self.watches.sort_unstable_by_key(|w| (w.target, w.address));
    }
}
