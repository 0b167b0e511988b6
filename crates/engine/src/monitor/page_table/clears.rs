//! Results of clears, of ranges and of whole address spaces.
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
use crate::monitor::bits::{self, Bitmap};
use crate::snapshot::TargetId;

/// Time until the next try for a target that cannot be cleared as a whole.
const SPARED_FOR: Nanos = Nanos::from_millis(30_000);

impl TableMonitor {
    /// Records that the address space of `target` cannot be cleared as a whole, or not now.
    pub fn spare_space(&mut self, target: TargetId, now: Nanos) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.spared_until = now + SPARED_FOR;
        }
    }

    /// Takes in blocks right after they were cleared, in order of target and address. Of pages of a block whose bits are
    /// set nevertheless, `clearable` returns those that can be cleared at all. These were touched at once.
    pub fn take_cleared<E>(
        &mut self,
        now: Nanos,
        by: ClearedBy,
        cleared: &[(TargetId, BlockFacts)],
        mut clearable: impl FnMut(TargetId, u64, &Bitmap) -> Result<Bitmap, E>,
    ) -> Result<(), E> {
        for (id, facts) in cleared {
            let Some(target) = self.targets.get_mut(id) else {
                continue;
            };
            let Some(at) = target.find(facts.address) else {
                continue;
            };
            let block = &mut target.blocks[at];
            let place = (*id, facts.address);
            let at = match by {
                ClearedBy::Range => self.watches.binary_search_by_key(&place, Watch::place).ok(),
                ClearedBy::Space => {
                    let pages = block.reach();
                    self.watches.push(Watch::new(place, by, true, pages));
                    Some(self.watches.len() - 1)
                }
            };
            let Some(at) = at else { continue };
            let watch = &mut self.watches[at];
            let uncleared;
            (watch.watched, uncleared) = block.cleared(facts, &watch.pages);
            // Huge pages of hugetlbfs are never cleared with the space; all others were touched at once.
            watch.touched_at_once = match by {
                ClearedBy::Space if !block.huge => uncleared,
                _ => clearable(*id, facts.address, &uncleared)?,
            };
            let refused = bits::and_not(&uncleared, &watch.touched_at_once);
            if !bits::is_empty(&refused) {
                // Those that can be cleared say nothing about the others: they were written to after a fork.
                let rest = bits::and_not(&block.not_sampled(), &uncleared);
                let of_rest = clearable(*id, facts.address, &rest)?;
                let refused = bits::or(&refused, &bits::and_not(&rest, &of_rest));
                block.give_up(&refused, now);
                self.nr_unclearable += 1;
            }
        }
        if by == ClearedBy::Space {
            self.watches.retain(|w| w.by != by || !w.is_empty());
            self.watches.sort_unstable_by_key(Watch::place);
        }
        Ok(())
    }
}
