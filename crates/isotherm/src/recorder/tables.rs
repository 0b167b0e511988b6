//! The default method: the engine's table monitor on the page-table probe.

use isotherm_engine::table::{ArmOrder, BlockFacts, TableAttributes, TableMonitor};
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, Cost, Intervals, Nanos, TargetId, Touch,
};
use isotherm_linux::probe::{PageTableProbe, ProbeError};
use isotherm_linux::process::Process;
use isotherm_record::Item;

use super::targets::TargetSet;
use super::{Ended, Monitor};

/// Shortest time between two looks at who is there and what they map.
const UPDATE_MIN: Nanos = Nanos(1_000_000_000);
/// Such looks may take at most this part of what may be spent; with many thousand mappings they
/// come less often.
const UPDATE_SHARE_OF_BUDGET: f64 = 0.2;

/// Each reading reaches some hundred MiB further around what was touched.
const READINGS_MAX: usize = 4;

pub(crate) struct Tables {
    probe: PageTableProbe,
    targets: TargetSet,
    monitor: TableMonitor,
    attributes: TableAttributes,
    touches: Vec<Touch>,
    next_update: Nanos,
    update_interval: Nanos,
    nr_unknown: u64,
}

impl Tables {
    pub(crate) fn new(
        probe: PageTableProbe,
        targets: TargetSet,
        attributes: TableAttributes,
        now: Nanos,
    ) -> Self {
        Self {
            probe,
            targets,
            monitor: TableMonitor::new(attributes, now),
            attributes,
            touches: Vec::new(),
            next_update: now,
            update_interval: UPDATE_MIN,
            nr_unknown: 0,
        }
    }

    /// Looks at targets, mappings and which page tables there are.
    fn update(&mut self, now: Nanos, items: &mut Vec<Item>) -> Result<(), ProbeError> {
        let before = self.probe.cost().monitor_cpu;
        for ended in self.targets.update(&mut self.probe, now, items)? {
            self.monitor.remove(ended);
        }
        for id in self.targets.ids().collect::<Vec<_>>() {
            let mappings = self.targets.mappings(id);
            let ranges: Vec<AddressRange> = mappings.iter().map(|m| m.range).collect();
            let Some(blocks) = self.probe.occupied_blocks(id, &ranges)? else {
                continue;
            };
            self.monitor.set_layout(id, &mappings, &blocks, now);
        }
        let spent = self.probe.cost().monitor_cpu.since(before).as_secs_f64();
        let needed = spent / (self.attributes.cpu_share * UPDATE_SHARE_OF_BUDGET);
        self.update_interval =
            Nanos((needed * 1e9) as u64).clamp(UPDATE_MIN, Nanos(60_000_000_000));
        self.next_update = now + self.update_interval;
        Ok(())
    }

    fn read_tables(&mut self, now: Nanos) -> Result<(), ProbeError> {
        for id in self.targets.ids().collect::<Vec<_>>() {
            // What is seen may say that more is worth a look.
            for _ in 0..READINGS_MAX {
                let monitor = &mut self.monitor;
                let blocks = &monitor.blocks_to_read(id);
                if blocks.is_empty() {
                    break;
                }
                if !self
                    .probe
                    .read_blocks(id, blocks, |facts| monitor.look(id, &facts, now))?
                {
                    // It ended, or became another program: find out at once.
                    self.next_update = now;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Clears whole segments, and says how their tables look right after.
    fn arm_segments(&mut self, orders: &[ArmOrder], now: Nanos) -> Result<(), ProbeError> {
        for group in orders.chunk_by(|a, b| a.target == b.target) {
            let target = group[0].target;
            let mut ranges: Vec<AddressRange> = group.iter().map(|order| order.range).collect();
            ranges.sort_unstable();
            self.probe.clear(target, &joined(&ranges))?;
            let mut blocks: Vec<u64> = ranges.iter().map(|r| r.start & !(BLOCK_SIZE - 1)).collect();
            blocks.sort_unstable();
            blocks.dedup();
            let mut seen: Vec<BlockFacts> = Vec::with_capacity(blocks.len());
            self.probe
                .read_blocks(target, &blocks, |facts| seen.push(facts))?;
            for facts in &seen {
                self.monitor.armed(target, facts, now);
            }
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

impl Monitor for Tables {
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Result<Nanos, Ended>> {
        self.probe.check(&mut self.touches)?;
        self.nr_unknown += self
            .touches
            .iter()
            .filter(|t| matches!(t, Touch::Unknown(_)))
            .count() as u64;
        let mut reading = self.monitor.reading_due(now, &self.probe.cost());
        if now >= self.next_update {
            self.update(now, items)?;
            if let Some(ended) = self.targets.ended() {
                return Ok(Err(ended));
            }
            // New segments need a first look before anything is decided about them.
            reading |= self.monitor.reading_due(now, &self.probe.cost());
        }
        if reading {
            self.read_tables(now)?;
        }
        let plan = self.monitor.tick(now, &self.touches, &self.probe.cost());
        self.arm_segments(&plan.arms, now)?;
        self.probe.arm(&plan.samples)?;
        items.extend(plan.snapshots.into_iter().map(Item::Snapshot));
        Ok(Ok(plan
            .wake_at
            .min(self.next_update.max(now + self.attributes.window))))
    }

    fn look_for_ends(&mut self, now: Nanos) {
        self.next_update = now;
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        self.monitor.reset_age(target, range, now);
    }

    fn leave_out(&mut self, cpu: Nanos) {
        self.probe.leave_out(cpu);
    }

    fn cost(&self) -> Cost {
        self.probe.cost()
    }

    fn nr_unknown(&self) -> u64 {
        self.nr_unknown
    }

    fn intervals(&self) -> Intervals {
        Intervals {
            sample: self.attributes.window,
            aggregation: self.monitor.aggregation_interval(),
            update: self.update_interval,
        }
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        self.targets
            .ids()
            .filter_map(|id| Some((id, self.probe.process(id)?)))
            .collect()
    }
}
