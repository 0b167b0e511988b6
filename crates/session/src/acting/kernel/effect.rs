//! Effect of the kernel's paging out, by the machine's counters.
//!
//! Problem: DAMOS counts addresses as acted on if its call did not refuse them, whether or not they hold memory. For a
//! sparse heap that is many times the heap, again and again. Approach: the growth of a target's swap or the fall of its
//! resident memory counts. If more than that was written to swap, the machine's writes count: a part may have been read
//! back within the second.
//!
//! Limits: memory that targets freed while the kernel acted counts as well, as does memory that others had swapped out.
//! Both count up to the bytes that the kernel claims to have acted on.

use std::collections::BTreeMap;

use isotherm_engine::{PAGE_SIZE, TargetId};
use isotherm_linux::pressure;

use crate::session::Session;

/// Number of targets whose usage is read, which takes some 30 us each; the others are covered by the machine's writes
/// to swap.
const TARGETS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Paged {
    pub(super) out: u64,
    /// The targets' parts, as far as they are known.
    pub(super) by_target: BTreeMap<TargetId, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Effect {
    /// Resident and swapped bytes.
    usage: BTreeMap<TargetId, (u64, u64)>,
    swapped_out: Option<u64>,
    /// Bytes that the last reading saw go and that the kernel had not claimed yet; `unseen` is the opposite. Both
    /// sources report once a second, but not at the same moment.
    unclaimed: u64,
    unseen: u64,
}

impl Effect {
    /// Reads the usage of a context's targets. Returns the memory that has gone since the last reading, at most what
    /// the kernel has `claimed` to have acted on.
    pub(super) fn look(&mut self, session: &Session, context: usize, claimed: u64) -> Paged {
        let live = session.live().into_iter();
        let ours = live.filter(|(id, _)| session.monitor.context_of(*id) == context);
        let ours = ours.take(TARGETS_MAX);
        let usage = ours.filter_map(|(id, process)| {
            let usage = process.usage().ok()?;
            Some((id, (usage.rss, usage.swap)))
        });
        self.compare(usage.collect(), pressure::swapped_out(), claimed)
    }

    fn compare(
        &mut self,
        usage: BTreeMap<TargetId, (u64, u64)>,
        swapped_out: Option<u64>,
        claimed: u64,
    ) -> Paged {
        let before = std::mem::replace(&mut self.usage, usage);
        let written = swapped_out
            .zip(self.swapped_out)
            .map_or(0, |(now, before)| now.saturating_sub(before) * PAGE_SIZE);
        self.swapped_out = swapped_out;
        let known = self.usage.iter();
        let known = known.filter_map(|(id, (rss, swap))| {
            let (rss_before, swap_before) = before.get(id)?;
            let gone = swap
                .saturating_sub(*swap_before)
                .max(rss_before.saturating_sub(*rss));
            (gone > 0).then_some((*id, gone))
        });
        let by_target: BTreeMap<TargetId, u64> = known.collect();
        let gone: u64 = by_target.values().sum();
        let gone = gone.max(written);
        let out = (gone + self.unclaimed).min(claimed + self.unseen);
        self.unclaimed = gone.min(gone + self.unclaimed - out);
        self.unseen = claimed.min(claimed + self.unseen - out);
        Paged { out, by_target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_is_by_swap_resident_memory_and_what_was_written() {
        let mut effect = Effect::default();
        let mib = |n: u64| n << 20;
        let mut check =
            |rss: u64, swap: u64, written_mib: u64, most: u64, wanted: u64, why: &str| {
                let usage = [(TargetId(0), (mib(rss), mib(swap)))].into();
                let written = Some(mib(written_mib) / PAGE_SIZE);
                let out = effect.compare(usage, written, mib(most)).out;
                assert_eq!(out, mib(wanted), "{why}: {rss} {swap} {written_mib} {most}");
            };
        check(100, 0, 0, 1000, 0, "nothing is known before the first look");
        check(90, 10, 10, 1000, 10, "all of it was swapped");
        check(85, 10, 10, 1000, 5, "pages of files are not swapped");
        check(85, 10, 17, 1000, 7, "it came back");
        check(85, 10, 17, 0, 0, "nothing happened");
        check(85, 10, 17, 0, 0, "what was claimed is forgotten");
        check(45, 50, 57, 30, 30, "others page out, too");
        check(45, 50, 57, 4, 4, "it is claimed a second later");
        check(45, 50, 57, 0, 0, "nothing is claimed");
        check(95, 0, 57, 30, 0, "it came back");
    }
}
