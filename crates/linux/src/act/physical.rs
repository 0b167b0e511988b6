//! Acts on physical memory by acting on the pages that map it.
//!
//! The kernel takes no advice about a frame, only about pages. So the page tables of all processes are read once for
//! all operations (half a nanosecond a page). Pages whose frames lie in an operation's range are acted on as pages of
//! their process, and the results are added up per operation. Memory that no process maps is counted as not present.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, PAGE_SIZE, TargetId};
use isotherm_policy::scheme::Action;
use isotherm_policy::{Actuator, Operation, Outcome, Refusal};

use super::{ActOptions, ProcessActuator, batch};
use crate::probe::{PhysicalProbe, ProbeError, Result};
use crate::process::Process;

/// Executes operations whose addresses are physical.
pub struct PhysicalActuator {
    by_process: ProcessActuator,
    map: PhysicalProbe,
    /// Process ids of the targets that `by_process` holds.
    held: BTreeMap<TargetId, u32>,
}

impl PhysicalActuator {
    /// Returns an actuator for all memory that processes map.
    pub fn new(options: ActOptions) -> Result<Self> {
        Ok(Self {
            by_process: ProcessActuator::new(options)?,
            map: PhysicalProbe::without_map()?,
            held: BTreeMap::new(),
        })
    }

    /// Opens the processes that the map contains, and drops all others.
    fn follow(&mut self) {
        let now: BTreeMap<TargetId, u32> = self.map.processes().collect();
        for target in self.held.keys().filter(|held| !now.contains_key(held)) {
            self.by_process.remove(*target);
        }
        for (target, pid) in now.iter().filter(|(t, _)| !self.held.contains_key(t)) {
            // It may end at any time; its operations then report that.
            if let Ok(process) = Process::open(*pid) {
                self.by_process.add(*target, process).ok();
            }
        }
        self.held = now;
    }
}

/// A process's mapping of a part of an operation's range.
struct Part {
    operation: usize,
    target: TargetId,
    range: AddressRange,
}

impl Actuator for PhysicalActuator {
    type Error = ProbeError;

    fn lacks(&self, action: Action) -> Option<String> {
        self.by_process.lacks(action)
    }

    fn act(&mut self, operations: &[Operation], outcomes: &mut Vec<Outcome>) -> Result<()> {
        outcomes.clear();
        outcomes.resize(operations.len(), Outcome::default());
        // Operations on the same frames are executed in order, each after the one before.
        for places in batch::gather(operations, |_| (), usize::MAX, u64::MAX) {
            let round = batch::pick(operations, &places);
            for (place, outcome) in places.into_iter().zip(self.act_apart(&round)?) {
                outcomes[place] = outcome;
            }
        }
        Ok(())
    }
}

impl PhysicalActuator {
    /// Executes operations that do not overlap.
    fn act_apart(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>> {
        let mut outcomes = vec![Outcome::default(); operations.len()];
        let mut sorted: Vec<(AddressRange, usize)> = operations
            .iter()
            .enumerate()
            .map(|(i, operation)| (operation.range, i))
            .collect();
        sorted.sort_unstable();
        let mut parts: Vec<Part> = Vec::new();
        self.map.each_mapped_frame(|target, address, frame| {
            let physical = frame * PAGE_SIZE;
            let at = sorted.partition_point(|(range, _)| range.end <= physical);
            let Some((range, operation)) = sorted.get(at).filter(|(r, _)| r.start <= physical)
            else {
                return;
            };
            debug_assert!(range.contains(physical), "just found");
            let page = AddressRange::new(address, address + PAGE_SIZE);
            match parts.last_mut() {
                Some(last)
                    if (last.operation, last.target, last.range.end)
                        == (*operation, target, page.start) =>
                {
                    last.range.end = page.end;
                }
                _ => parts.push(Part {
                    operation: *operation,
                    target,
                    range: page,
                }),
            }
        })?;
        self.follow();
        let virtual_operations: Vec<Operation> = parts
            .iter()
            .map(|part| Operation {
                target: part.target,
                range: part.range,
                ..operations[part.operation].clone()
            })
            .collect();
        let mut virtual_outcomes = Vec::new();
        self.by_process
            .act(&virtual_operations, &mut virtual_outcomes)?;
        let mut mapped = vec![0; operations.len()];
        for (part, outcome) in parts.iter().zip(virtual_outcomes) {
            mapped[part.operation] += part.range.len();
            outcomes[part.operation].add(&outcome);
        }
        for ((operation, outcome), mapped) in operations.iter().zip(&mut outcomes).zip(mapped) {
            // A frame may be mapped several times; each mapping was refused as shared then.
            let unmapped = operation.range.len().saturating_sub(mapped);
            if unmapped > 0 {
                *outcome.refused.entry(Refusal::NotPresent).or_default() += unmapped;
            }
        }
        Ok(outcomes)
    }
}
