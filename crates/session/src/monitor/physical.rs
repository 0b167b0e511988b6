//! Physical memory: the region engine on the reverse-mapping probe.

use anyhow::Context;
use isotherm_engine::drive::{RegionLoop, TargetSource};
use isotherm_engine::{AccessProbe, AddressRange, Attributes, CpuLedger, Nanos, TargetId};
use isotherm_linux::host;
use isotherm_linux::probe::{MapFacts, PhysicalProbe, ProbeError};
use isotherm_record::Item;

use super::by_frame::{MEMORY, start_of_memory};
use super::{Monitor, MonitorStatus, NextStep};

/// Share of the time since the last refresh that a refresh of the reverse map may take. It holds for the maps of all
/// contexts together; refreshes come with the engine's updates.
const REFRESH_SHARE: f64 = 0.005;

pub(crate) struct Physical {
    probe: PhysicalProbe,
    monitor: RegionLoop,
    memory: Memory,
}

/// Memory, the only target; its reverse map must be kept up to date.
struct Memory {
    ranges: Vec<AddressRange>,
    refresh_share: f64,
    next_refresh: Nanos,
    is_started: bool,
}

impl TargetSource<PhysicalProbe> for Memory {
    fn update(
        &mut self,
        probe: &mut PhysicalProbe,
        now: Nanos,
    ) -> Result<Vec<TargetId>, ProbeError> {
        if now >= self.next_refresh {
            let before = probe.cost().monitor_cpu;
            probe.refresh()?;
            let spent = probe.cost().monitor_cpu.since(before);
            self.next_refresh = now + Nanos((spent.0 as f64 / self.refresh_share) as u64);
        }
        Ok(Vec::new())
    }

    fn is_over(&self) -> bool {
        false
    }

    fn ids(&self) -> Vec<TargetId> {
        vec![MEMORY]
    }

    fn mappings(&self, _target: TargetId) -> Vec<AddressRange> {
        Vec::new()
    }

    fn limits(&self) -> Option<&[AddressRange]> {
        Some(&self.ranges)
    }
}

impl Physical {
    /// Makes the monitor of one of `nr` contexts.
    pub(crate) fn new(
        ranges: Vec<AddressRange>,
        attributes: Attributes,
        nr: usize,
    ) -> anyhow::Result<Self> {
        let probe = PhysicalProbe::new(ranges.clone())
            .map_err(host::explain)
            .context("cannot watch physical memory")?;
        Ok(Self {
            probe,
            monitor: RegionLoop::new(attributes)?,
            memory: Memory {
                ranges,
                refresh_share: REFRESH_SHARE / nr as f64,
                next_refresh: Nanos(0),
                is_started: false,
            },
        })
    }

    fn map_note(&self) -> String {
        let MapFacts {
            frames,
            mapped,
            processes,
            thinning,
        } = self.probe.map_facts();
        let share = 100.0 * mapped as f64 / frames.max(1) as f64;
        let thinned = if thinning > 1 {
            format!("; 1 in {thinning} stretches of frames kept")
        } else {
            String::new()
        };
        format!(
            "{processes} processes map {mapped} of {frames} frames ({share:.1} %); the others are unknown{thinned}"
        )
    }
}

impl Monitor for Physical {
    fn step(&mut self, now: Nanos, _cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        if !std::mem::replace(&mut self.memory.is_started, true) {
            items.push(start_of_memory(now));
            items.push(Item::Note {
                time: now,
                text: self.map_note(),
            });
        }
        let mut snapshots = Vec::new();
        let (probe, memory) = (&mut self.probe, &mut self.memory);
        let next = self.monitor.step(now, probe, memory, &mut snapshots)?;
        items.extend(snapshots.into_iter().map(Item::Snapshot));
        Ok(next)
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange, _now: Nanos) {
        self.monitor.reset_age(target, range);
    }

    fn status(&self, cpu: CpuLedger) -> MonitorStatus {
        MonitorStatus {
            cost: cpu.of_watching(self.probe.cost()),
            nr_unknown: self.monitor.nr_unknown(),
            intervals: self.monitor.intervals(),
        }
    }

    fn summary(&self, _cpu: CpuLedger) -> Option<String> {
        let share =
            100.0 * self.monitor.nr_unknown() as f64 / self.monitor.nr_samples().max(1) as f64;
        Some(format!(
            "{}; {share:.1} % of the samples were of unknown frames",
            self.map_note()
        ))
    }
}
