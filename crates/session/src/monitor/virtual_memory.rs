//! Memory of processes by virtual addresses: either of the engine's monitors on the page-table probe.

use isotherm_engine::drive::{MonitorLoop, TargetSource};
use isotherm_engine::table::TableMonitor;
use isotherm_engine::{AccessProbe, AddressRange, CpuLedger, Nanos, TargetId};
use isotherm_linux::probe::{PageTableProbe, ProbeError};
use isotherm_linux::process::Process;
use isotherm_record::Item;

use super::by_frame::drop_mappings;
use super::{CacheView, MachineView, Monitor, MonitorStatus, NextStep, TargetTables};
use crate::targets::TargetSet;

pub(crate) struct VirtualMemory {
    pub(crate) probe: PageTableProbe,
    pub(crate) targets: TargetSet,
    pub(crate) monitor: MonitorLoop,
    pub(crate) machine: Option<MachineView>,
    /// Snapshots of processes that are recorded by frame, if they are acted on.
    pub(crate) unrecorded: Option<Vec<Item>>,
}

/// Targets, with the items of their starts and ends.
struct Followed<'a> {
    set: &'a mut TargetSet,
    machine: Option<&'a mut MachineView>,
    items: &'a mut Vec<Item>,
}

impl TargetSource<PageTableProbe> for Followed<'_> {
    fn update(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
    ) -> Result<Vec<TargetId>, ProbeError> {
        self.set.update(probe, now, self.items)
    }

    fn follow(&mut self, probe: &mut PageTableProbe, now: Nanos) -> Result<bool, ProbeError> {
        self.set.follow(probe, now, self.items)
    }

    fn interval_ended(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        monitor: &TableMonitor,
    ) -> Result<(), ProbeError> {
        if let Some(machine) = &mut self.machine {
            self.items
                .extend(machine.look(now, probe, monitor, self.set)?);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.set.is_over()
    }

    fn ids(&self) -> Vec<TargetId> {
        self.set.ids().collect()
    }

    fn mappings(&self, target: TargetId) -> Vec<AddressRange> {
        self.set.mappings(target)
    }

    fn limits(&self) -> Option<&[AddressRange]> {
        self.set.limits()
    }
}

impl VirtualMemory {
    fn is_by_frame(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.is_some_and(|machine| machine.by_frame.is_some())
    }
}

impl Monitor for VirtualMemory {
    fn step(&mut self, now: Nanos, cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        let mut snapshots = Vec::new();
        items.extend(self.machine.as_mut().and_then(|machine| machine.start(now)));
        let first_new = items.len();
        let mut followed = Followed {
            set: &mut self.targets,
            machine: self.machine.as_mut(),
            items,
        };
        let next = self
            .monitor
            .step(now, cpu, &mut self.probe, &mut followed, &mut snapshots)?;
        let snapshots = snapshots.into_iter().map(Item::Snapshot);
        if !self.is_by_frame() {
            items.extend(snapshots);
            return Ok(next);
        }
        if let Some(unrecorded) = &mut self.unrecorded {
            unrecorded.extend(snapshots);
        }
        drop_mappings(items, first_new);
        Ok(next)
    }

    fn last_look(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let Some(machine) = &mut self.machine else {
            return Ok(());
        };
        let followed = Followed {
            set: &mut self.targets,
            machine: None,
            items,
        };
        let monitor = self.monitor.end_interval(now, &mut self.probe, &followed)?;
        if let Some(monitor) = monitor {
            items.extend(machine.last_look(now, &mut self.probe, monitor, &self.targets)?);
        }
        Ok(())
    }

    fn take_internal_snapshots(&mut self) -> Vec<Item> {
        let unrecorded = self.unrecorded.as_mut();
        unrecorded.map(std::mem::take).unwrap_or_default()
    }

    fn look_for_ends(&mut self, now: Nanos) {
        self.monitor.look_for_ends(now);
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        self.monitor.reset_age(target, range, now);
    }

    fn target_tables(&mut self, target: TargetId) -> Option<TargetTables<'_>> {
        // Records by frame hold no virtual addresses of processes.
        let is_told = !self.is_by_frame();
        is_told.then_some((&mut self.probe, &self.targets, target))
    }

    fn page_cache(&mut self, _context: usize) -> Option<&mut CacheView> {
        self.machine.as_mut()?.page_cache.as_mut()
    }

    fn status(&self, cpu: CpuLedger) -> MonitorStatus {
        MonitorStatus {
            cost: cpu.of_watching(self.probe.cost()),
            nr_unknown: self.monitor.nr_unknown(),
            intervals: self.monitor.intervals(),
        }
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        self.targets.processes(&self.probe)
    }
}
