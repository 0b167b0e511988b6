//! The page-table monitor's loop: updates the targets, reads their tables, and clears accessed bits.

use crate::address::{AddressRange, Nanos};
use crate::cpu_ledger::CpuLedger;
use crate::monitor::Intervals;
use crate::monitor::bits::Bitmap;
use crate::monitor::budget::BudgetShares;
use crate::monitor::page_table::{
    BlockFacts, ClearedBy, Due, HOLD_MAX, TableAttributes, TableMonitor,
};
use crate::port::{AccessProbe, Cost};
use crate::snapshot::{Snapshot, TargetId};

/// Shortest time between two updates of targets and their mappings.
const UPDATE_MIN: Nanos = Nanos::from_millis(1_000);
const UPDATE_MAX: Nanos = Nanos::from_millis(60_000);
/// Shortest time between two searches for new targets.
const FOLLOW_MIN: Nanos = Nanos::from_millis(1_000);
/// Number of targets up to which new page tables are searched at the end of each interval.
const TARGETS_WITH_FRESH_BLOCKS: usize = 64;

/// A probe that can also read whole page tables.
pub trait TableProbe: AccessProbe {
    /// Returns the 2 MiB blocks of `ranges` that have a page table, in address order; `None` if the target has exited
    /// or executed another program.
    fn occupied_blocks(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<u64>>, Self::Error>;

    /// Passes the tables of `blocks` to `look`, one after the other. Returns `false` if the target has exited or
    /// executed another program.
    fn read_blocks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        look: impl FnMut(BlockFacts),
    ) -> Result<bool, Self::Error>;

    /// Clears the accessed bits of `ranges`, in address order.
    fn clear(&mut self, target: TargetId, ranges: &[AddressRange]) -> Result<(), Self::Error>;

    /// Returns the pages of the block at `block` whose accessed bits can be cleared by `by` at all, out of `pages`.
    fn clearable(
        &mut self,
        target: TargetId,
        block: u64,
        pages: &Bitmap,
        by: ClearedBy,
    ) -> Result<Bitmap, Self::Error>;

    /// Clears the accessed bits of all memory of a target, including shared memory. Returns `false` if that is
    /// impossible, or would delay the target, with this number of resident pages, for longer than the given time.
    fn clear_space(
        &mut self,
        _target: TargetId,
        _nr_pages: u64,
        _hold_max: Nanos,
    ) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Number of pages in the largest folios below 2 MiB of anonymous memory. To clear a part of one would split it.
    fn folio_pages(&self) -> usize {
        1
    }

    /// Charges the time that targets lost by setting this number of accessed bits again.
    fn charge_set_again(&mut self, _nr_bits: u64) {}

    /// Returns whether the target's page tables do not show all accesses to its memory, as others map it beside them:
    /// KVM guests, devices.
    fn hides_accesses(&self, _target: TargetId) -> bool {
        false
    }
}

/// The monitored targets.
pub trait TargetSource<P: AccessProbe> {
    /// Updates the targets and their mappings. Returns the targets that have exited or executed another program since
    /// the last call: their memory is gone.
    fn update(&mut self, probe: &mut P, now: Nanos) -> Result<Vec<TargetId>, P::Error>;

    /// Takes in only the targets that are new since the last call, with their mappings. It is called more often than
    /// `update` where an update takes long. Returns `false` if updates find new targets soon enough.
    fn follow(&mut self, _probe: &mut P, _now: Nanos) -> Result<bool, P::Error> {
        Ok(false)
    }

    /// Receives the monitor between two intervals: the last one has ended, and the next one has not begun.
    fn interval_ended(
        &mut self,
        _probe: &mut P,
        _now: Nanos,
        _monitor: &TableMonitor,
    ) -> Result<(), P::Error> {
        Ok(())
    }

    /// Returns whether no target is left, and none will come.
    fn is_over(&self) -> bool;

    /// Returns the live targets.
    fn ids(&self) -> Vec<TargetId>;

    /// Returns the monitored mappings of a target, in address order.
    fn mappings(&self, target: TargetId) -> Vec<AddressRange>;

    /// Returns the only addresses to watch of each target, mapped or not (DAMON's initial regions), if there is such a
    /// limit.
    fn limits(&self) -> Option<&[AddressRange]> {
        None
    }
}

/// Loop of the page-table monitor.
#[derive(Debug)]
pub struct TableLoop {
    pub(super) monitor: TableMonitor,
    attributes: TableAttributes,
    pub(super) next_update: Nanos,
    update_interval: Nanos,
    next_follow: Nanos,
    /// Whether the first update is done: its cost does not predict that of later ones.
    has_started: bool,
}

impl TableLoop {
    /// Returns a loop that has not read any tables yet.
    pub fn new(attributes: TableAttributes, shares: BudgetShares, now: Nanos) -> Self {
        Self {
            monitor: TableMonitor::new(attributes, shares, now),
            attributes,
            next_update: now,
            update_interval: UPDATE_MIN,
            next_follow: now,
            has_started: false,
        }
    }

    /// Does the work that is due at `now` and appends the finished snapshots. Returns when to call again; `None` if no
    /// target is left.
    pub fn step<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        cpu: CpuLedger,
        probe: &mut P,
        targets: &mut T,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Option<Nanos>, P::Error> {
        if now >= self.next_update {
            self.update(now, probe, targets)?;
            if targets.is_over() {
                return Ok(None);
            }
        } else if now >= self.next_follow {
            self.follow(now, probe, targets)?;
        }
        match self.monitor.due(now) {
            Due::Nothing => {}
            Due::Window => self.look_after_window(probe)?,
            Due::End => {
                snapshots.extend(self.end_interval(now, probe, targets)?);
                let before = probe.cost();
                targets.interval_ended(probe, now, &self.monitor)?;
                self.monitor.note_other_work(&before, &probe.cost());
                let cost = cpu.of_steps(probe.cost());
                self.monitor.begin_interval(now, &cost);
                self.clear(now, cpu, probe)?;
            }
        }
        let looks = self.next_update.min(self.next_follow);
        let next = self.monitor.next_due().min(looks);
        Ok(Some(next.max(now + Nanos(1))))
    }

    /// Ends the interval, if need be early, and returns its snapshots as of `now`.
    pub fn end_interval<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &T,
    ) -> Result<Vec<Snapshot>, P::Error> {
        self.read_tables(now, probe, targets)?;
        Ok(self.monitor.end_interval(now))
    }

    /// Returns the current intervals.
    pub fn intervals(&self) -> Intervals {
        Intervals {
            sample: self.attributes.window,
            aggregation: self.monitor.aggregation_interval(),
            update: self.update_interval,
        }
    }

    fn update<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &mut T,
    ) -> Result<(), P::Error> {
        let before = probe.cost();
        for ended in targets.update(probe, now)? {
            self.monitor.remove(ended);
        }
        for id in targets.ids() {
            self.update_target(id, now, probe, targets)?;
        }
        let spent = self.note_spent(&before, probe);
        if std::mem::replace(&mut self.has_started, true) {
            self.update_interval = self.wait(spent, |shares| shares.update).max(UPDATE_MIN);
        }
        self.next_update = now + self.update_interval;
        self.next_follow = now + FOLLOW_MIN;
        Ok(())
    }

    fn follow<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &mut T,
    ) -> Result<(), P::Error> {
        let before = probe.cost();
        if !targets.follow(probe, now)? {
            self.next_follow = Nanos(u64::MAX);
            return Ok(());
        }
        for id in targets.ids() {
            if !self.monitor.is_watched(id) {
                self.update_target(id, now, probe, targets)?;
            }
        }
        let spent = self.note_spent(&before, probe);
        self.next_follow = now + self.wait(spent, |shares| shares.follow).max(FOLLOW_MIN);
        Ok(())
    }

    /// Returns the time after which work that took `spent` seconds of CPU time may be repeated.
    fn wait(&self, spent: f64, share: impl Fn(&BudgetShares) -> f64) -> Nanos {
        Nanos((spent / self.monitor.rate(share) * 1e9) as u64).min(UPDATE_MAX)
    }

    fn update_target<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        id: TargetId,
        now: Nanos,
        probe: &mut P,
        targets: &T,
    ) -> Result<(), P::Error> {
        let is_new = !self.monitor.is_watched(id);
        self.monitor.update_layout(id, &targets.mappings(id), now);
        self.monitor
            .set_hides_accesses(id, probe.hides_accesses(id));
        self.update_blocks(id, now, probe)?;
        if is_new {
            // Pages that appear from now on are recognised as new.
            self.read_target(id, now, probe)?;
        }
        Ok(())
    }

    /// Notes the cost since `before`, which is no part of each interval's cost. Returns its CPU time in seconds.
    fn note_spent<P: TableProbe>(&mut self, before: &Cost, probe: &P) -> f64 {
        let after = probe.cost();
        self.monitor.note_other_work(before, &after);
        after.monitor_cpu.since(before.monitor_cpu).as_secs_f64()
    }

    fn update_blocks<P: TableProbe>(
        &mut self,
        id: TargetId,
        now: Nanos,
        probe: &mut P,
    ) -> Result<(), P::Error> {
        if let Some(blocks) = probe.occupied_blocks(id, &self.monitor.ranges(id))? {
            self.monitor.set_blocks(id, &blocks, now);
        }
        Ok(())
    }

    fn read_tables<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &T,
    ) -> Result<(), P::Error> {
        let ids = targets.ids();
        for &id in &ids {
            if ids.len() <= TARGETS_WITH_FRESH_BLOCKS {
                self.update_blocks(id, now, probe)?;
            }
            self.read_target(id, now, probe)?;
        }
        // Clears cause this cost, so it is no part of the cost of each interval.
        let before = probe.cost();
        probe.charge_set_again(self.monitor.take_set_again());
        self.monitor.note_other_work(&before, &probe.cost());
        Ok(())
    }

    fn read_target<P: TableProbe>(
        &mut self,
        id: TargetId,
        now: Nanos,
        probe: &mut P,
    ) -> Result<(), P::Error> {
        let monitor = &mut self.monitor;
        let blocks = monitor.blocks(id);
        if !blocks.is_empty()
            && !probe.read_blocks(id, &blocks, |facts| monitor.take_answers(id, &facts))?
        {
            // The target has exited or executed another program: the next step detects that at once.
            self.next_update = now;
        }
        Ok(())
    }

    /// Clears the accessed bits that are worth it at the start of an interval, and reads the result.
    fn clear<P: TableProbe>(
        &mut self,
        now: Nanos,
        cpu: CpuLedger,
        probe: &mut P,
    ) -> Result<(), P::Error> {
        let before = probe.cost();
        let plan = self
            .monitor
            .plan_samples(now, &cpu.of_watching(before), probe.folio_pages());
        let watched = self.monitor.watched_blocks();
        let mut cleared = Vec::new();
        for (target, nr_pages) in plan.spaces {
            if !probe.clear_space(target, nr_pages, HOLD_MAX)? {
                self.monitor.spare_space(target, now);
                continue;
            }
            let blocks = self.monitor.blocks(target);
            probe.read_blocks(target, &blocks, |facts| cleared.push((target, facts)))?;
        }
        self.take_cleared(now, probe, ClearedBy::Space, &cleared)?;
        self.monitor.note_other_work(&before, &probe.cost());
        let before = probe.cost();
        for group in plan.ranges.chunk_by(|a, b| a.0 == b.0) {
            // Adjacent ranges are joined: each range costs a flush.
            let of_target = AddressRange::union(group.iter().map(|(_, range)| *range));
            probe.clear(group[0].0, &of_target)?;
        }
        cleared.clear();
        for (target, blocks) in watched {
            probe.read_blocks(target, &blocks, |facts| cleared.push((target, facts)))?;
        }
        self.take_cleared(now, probe, ClearedBy::Range, &cleared)?;
        self.monitor.clears_done(&before, &probe.cost());
        Ok(())
    }

    fn take_cleared<P: TableProbe>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        by: ClearedBy,
        cleared: &[(TargetId, BlockFacts)],
    ) -> Result<(), P::Error> {
        let clearable = |target, block, pages: &Bitmap| probe.clearable(target, block, pages, by);
        self.monitor.take_cleared(now, by, cleared, clearable)
    }

    fn look_after_window<P: TableProbe>(&mut self, probe: &mut P) -> Result<(), P::Error> {
        let before = probe.cost();
        for (target, blocks) in self.monitor.watched_blocks() {
            let monitor = &mut self.monitor;
            let look = |facts: BlockFacts| monitor.look_after_window(target, &facts);
            probe.read_blocks(target, &blocks, look)?;
        }
        self.monitor.end_window();
        self.monitor.note_other_work(&before, &probe.cost());
        Ok(())
    }
}
