//! The simulated machine as monitors and schemes see it.

use std::collections::BTreeMap;
use std::convert::Infallible;

use isotherm_engine::drive::{MonitorLoop, TargetSource};
use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, Snapshot, TargetId};
use isotherm_policy::Platform;
use isotherm_policy::scheme::huge::BlockUse;
use isotherm_policy::scheme::{Action, Metric, NodeUsage, SchemeEngine, SystemFacts};
use isotherm_policy::{Actuator, Operation, Outcome};

use super::PHYSICAL;
use crate::machine::{Rules, SimActuator, SimMachine, SimProbe};

/// Targets of a simulated monitor.
pub struct Followed {
    is_physical: bool,
    known: BTreeMap<TargetId, Vec<AddressRange>>,
    /// The only monitored addresses, if any.
    limits: Option<Vec<AddressRange>>,
    /// Number of the machine's processes that were seen already.
    nr_seen: usize,
}

impl Followed {
    /// Follows all processes, within `limits` if there are any.
    pub fn processes(limits: Vec<AddressRange>) -> Self {
        Self {
            is_physical: false,
            known: BTreeMap::new(),
            limits: (!limits.is_empty()).then_some(limits),
            nr_seen: 0,
        }
    }

    /// Follows physical memory, of which `ranges` are monitored.
    pub(super) fn physical(ranges: Vec<AddressRange>) -> Self {
        Self {
            is_physical: true,
            known: BTreeMap::from([(PHYSICAL, Vec::new())]),
            limits: Some(ranges),
            nr_seen: 0,
        }
    }

    /// The monitored parts of a process's mappings.
    fn mapped(&self, machine: &SimMachine, target: TargetId) -> Vec<AddressRange> {
        let ranges = machine.mappings(target).map(|(_, range, _)| range);
        let limits = self.limits.as_deref().unwrap_or_default();
        AddressRange::within(ranges, limits)
    }
}

impl TargetSource<SimProbe<'_>> for Followed {
    fn update(
        &mut self,
        probe: &mut SimProbe<'_>,
        _now: Nanos,
    ) -> Result<Vec<TargetId>, Infallible> {
        if self.is_physical {
            return Ok(Vec::new());
        }
        let processes = probe.machine.processes();
        let ended = |target: &TargetId| !processes[target.0 as usize].is_running();
        let gone: Vec<TargetId> = self.known.keys().copied().filter(ended).collect();
        self.known.retain(|target, _| !ended(target));
        for (index, process) in processes.iter().enumerate().skip(self.nr_seen) {
            let target = TargetId(index as u32);
            if process.is_running() {
                let mapped = self.mapped(probe.machine, target);
                self.known.insert(target, mapped);
            }
        }
        self.nr_seen = processes.len();
        Ok(gone)
    }

    fn is_over(&self) -> bool {
        // Others may still start: the simulation knows when nothing more happens.
        false
    }

    fn ids(&self) -> Vec<TargetId> {
        self.known.keys().copied().collect()
    }

    fn mappings(&self, target: TargetId) -> Vec<AddressRange> {
        self.known.get(&target).cloned().unwrap_or_default()
    }

    fn limits(&self) -> Option<&[AddressRange]> {
        self.limits.as_deref()
    }
}

pub(super) struct SimulatedWorld<'a> {
    pub(super) actuator: SimActuator<'a>,
    pub(super) monitor: &'a mut MonitorLoop,
    /// The time on the monitors' clock.
    pub(super) clock: Nanos,
    /// Ranges of each target that were refused as unreclaimable.
    pub(super) left_alone: BTreeMap<TargetId, Vec<AddressRange>>,
}

impl Actuator for SimulatedWorld<'_> {
    type Error = Infallible;

    fn lacks(&self, action: Action) -> Option<String> {
        self.actuator.lacks(action)
    }

    fn act(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Infallible> {
        self.actuator.act(operations, outcomes)
    }
}

impl Platform for SimulatedWorld<'_> {
    fn facts(&mut self, wanted: &[Metric], _: &SchemeEngine, _: &[Snapshot]) -> SystemFacts {
        SystemFacts {
            left_alone: self.left_alone.clone(),
            ..facts(self.actuator.machine, wanted)
        }
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        self.monitor.reset_age(target, range, self.clock);
    }

    fn knows_present(&self) -> bool {
        !self.actuator.is_physical && self.actuator.machine.spec().rules == Rules::Isotherm
    }

    fn present(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut look: impl FnMut(u64, u32),
    ) -> Result<(), Infallible> {
        for block in blocks {
            if let Some(pages) = self.actuator.present_in(target, *block) {
                look(*block, pages);
            }
        }
        Ok(())
    }

    fn knows_blocks(&self) -> bool {
        !self.actuator.is_physical
    }

    fn block_uses(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        is_read: bool,
        mut look: impl FnMut(BlockUse),
    ) -> Result<(), Infallible> {
        let uses = blocks.iter();
        uses.filter_map(|block| self.actuator.block_use(target, *block, is_read))
            .for_each(&mut look);
        Ok(())
    }
}

/// Returns the facts that goals and watermarks need.
fn facts(machine: &SimMachine, wanted: &[Metric]) -> SystemFacts {
    let mut facts = SystemFacts::default();
    for metric in wanted {
        match metric {
            Metric::FreeMem => {
                let all = machine.memory().pages();
                let free = machine.memory().free_pages();
                facts.free_mem_permil = Some((free * 1000 / all.max(1)) as u32);
            }
            Metric::SomeMemPsi => {
                let processes = machine.processes().iter();
                let lost: f64 = processes.map(|p| p.losses.refaults).sum();
                facts.some_mem_psi_total_us = Some((lost * 1e6) as u64);
            }
            Metric::Node(node) => {
                if *node < machine.memory().nr_nodes() {
                    let frames = machine.memory().frames_of(*node);
                    let memory = NodeUsage {
                        total: (frames.end - frames.start) * PAGE_SIZE,
                        free: machine.memory().free_on(*node) * PAGE_SIZE,
                    };
                    facts.nodes.insert(*node, memory);
                }
            }
            // Groups and lists are not simulated, so that these facts are unknown.
            Metric::NodeMemcg(..) | Metric::Lru | Metric::Eligible(..) => {}
        }
    }
    facts
}
