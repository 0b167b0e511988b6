//! The table monitor's loop: who is there, what their tables say, what is cleared next.

use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::intervals::Intervals;
use crate::port::{AccessProbe, Touch};
use crate::snapshot::{Snapshot, TargetId};
use crate::table::{ArmOrder, BlockFacts, MappedRange, TableAttributes, TableMonitor};

/// Shortest time between two looks at who is there and what they map.
const UPDATE_MIN: Nanos = Nanos::from_millis(1_000);
/// Longest.
const UPDATE_MAX: Nanos = Nanos::from_millis(60_000);
/// Such looks may take at most this part of what may be spent; with many thousand mappings they
/// come less often.
const UPDATE_SHARE_OF_BUDGET: f64 = 0.2;
/// Each reading reaches some hundred MiB further around what was touched.
const READINGS_MAX: usize = 4;

/// A probe that can read whole page tables, too.
pub trait TableProbe: AccessProbe {
    /// The 2 MiB blocks of `ranges` that have a page table, in address order; `None` if the target
    /// has ended or become another program.
    fn occupied_blocks(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<u64>>, Self::Error>;

    /// Says what the tables of `blocks` look like, one after the other. `false` if the target has
    /// ended or become another program.
    fn read_blocks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        look: impl FnMut(BlockFacts),
    ) -> Result<bool, Self::Error>;

    /// Clears the accessed bits of `ranges`, in address order.
    fn clear(&mut self, target: TargetId, ranges: &[AddressRange]) -> Result<(), Self::Error>;
}

/// Who is watched.
pub trait TargetSource<P: AccessProbe> {
    /// Looks who is there and what they map. Yields the targets that ended since the last time.
    fn update(&mut self, probe: &mut P, now: Nanos) -> Result<Vec<TargetId>, P::Error>;

    /// Whether nobody is left, and nobody will come.
    fn is_over(&self) -> bool;

    /// The live targets.
    fn ids(&self) -> Vec<TargetId>;

    /// What a target maps, as far as it is to be watched, in address order.
    fn mappings(&self, target: TargetId) -> Vec<MappedRange>;
}

/// The loop.
#[derive(Debug)]
pub struct TableLoop {
    monitor: TableMonitor,
    attributes: TableAttributes,
    touches: Vec<Touch>,
    next_update: Nanos,
    update_interval: Nanos,
    nr_unknown: u64,
}

impl TableLoop {
    /// A loop that has not looked yet.
    pub fn new(attributes: TableAttributes, now: Nanos) -> Self {
        Self {
            monitor: TableMonitor::new(attributes, now),
            attributes,
            touches: Vec::new(),
            next_update: now,
            update_interval: UPDATE_MIN,
            nr_unknown: 0,
        }
    }

    /// Does what is due at `now` and appends the snapshots that are finished. Yields when to come
    /// back; `None` if nobody is left.
    pub fn step<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &mut T,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Option<Nanos>, P::Error> {
        probe.check(&mut self.touches)?;
        let unknown = |touch: &&Touch| matches!(touch, Touch::Unknown(_));
        self.nr_unknown += self.touches.iter().filter(unknown).count() as u64;
        let mut reading = self.monitor.reading_due(now, &probe.cost());
        if now >= self.next_update {
            self.update(now, probe, targets)?;
            if targets.is_over() {
                return Ok(None);
            }
            // New segments need a first look before anything is decided about them.
            reading |= self.monitor.reading_due(now, &probe.cost());
        }
        if reading {
            self.read_tables(now, probe, targets)?;
        }
        let plan = self.monitor.tick(now, &self.touches, &probe.cost());
        self.arm_segments(&plan.arms, now, probe)?;
        probe.arm(&plan.samples)?;
        snapshots.extend(plan.snapshots);
        let update_at = self.next_update.max(now + self.attributes.window);
        Ok(Some(plan.wake_at.min(update_at)))
    }

    /// The next step looks who is there.
    pub fn look_for_ends(&mut self, now: Nanos) {
        self.next_update = now;
    }

    /// Memory was acted on at `now`: its age counts anew.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        self.monitor.reset_age(target, range, now);
    }

    /// Samples so far about which nothing could be known.
    pub fn nr_unknown(&self) -> u64 {
        self.nr_unknown
    }

    /// The intervals in force.
    pub fn intervals(&self) -> Intervals {
        Intervals {
            sample: self.attributes.window,
            aggregation: self.monitor.aggregation_interval(),
            update: self.update_interval,
        }
    }

    /// Looks at targets, mappings and which page tables there are.
    fn update<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &mut T,
    ) -> Result<(), P::Error> {
        let before = probe.cost().monitor_cpu;
        for ended in targets.update(probe, now)? {
            self.monitor.remove(ended);
        }
        for id in targets.ids() {
            let mappings = targets.mappings(id);
            let ranges: Vec<AddressRange> = mappings.iter().map(|m| m.range).collect();
            let Some(blocks) = probe.occupied_blocks(id, &ranges)? else {
                continue;
            };
            self.monitor.set_layout(id, &mappings, &blocks, now);
        }
        let spent = probe.cost().monitor_cpu.since(before).as_secs_f64();
        let needed = spent / (self.attributes.cpu_share * UPDATE_SHARE_OF_BUDGET);
        self.update_interval = Nanos((needed * 1e9) as u64).clamp(UPDATE_MIN, UPDATE_MAX);
        self.next_update = now + self.update_interval;
        Ok(())
    }

    fn read_tables<P: TableProbe, T: TargetSource<P>>(
        &mut self,
        now: Nanos,
        probe: &mut P,
        targets: &T,
    ) -> Result<(), P::Error> {
        for id in targets.ids() {
            // What is seen may say that more is worth a look.
            for _ in 0..READINGS_MAX {
                let monitor = &mut self.monitor;
                let blocks = &monitor.blocks_to_read(id);
                if blocks.is_empty() {
                    break;
                }
                if !probe.read_blocks(id, blocks, |facts| monitor.look(id, &facts, now))? {
                    // It ended, or became another program: find out at once.
                    self.next_update = now;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Clears whole segments, and says how their tables look right after.
    fn arm_segments<P: TableProbe>(
        &mut self,
        orders: &[ArmOrder],
        now: Nanos,
        probe: &mut P,
    ) -> Result<(), P::Error> {
        for group in orders.chunk_by(|a, b| a.target == b.target) {
            let target = group[0].target;
            let mut ranges: Vec<AddressRange> = group.iter().map(|order| order.range).collect();
            ranges.sort_unstable();
            probe.clear(target, &joined(&ranges))?;
            let mut blocks: Vec<u64> = ranges.iter().map(|r| r.start & !(BLOCK_SIZE - 1)).collect();
            blocks.sort_unstable();
            blocks.dedup();
            let monitor = &mut self.monitor;
            probe.read_blocks(target, &blocks, |facts| monitor.armed(target, &facts, now))?;
        }
        Ok(())
    }
}

/// Ranges, in order, with those that touch made one: each costs a flush.
fn joined(ranges: &[AddressRange]) -> Vec<AddressRange> {
    let mut joined: Vec<AddressRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(*range),
        }
    }
    joined
}
