//! DAMON's method: the region engine on the page-table probe.

use isotherm_engine::engine::{Engine, Facts};
use isotherm_engine::layout::Layout;
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, Cost, Intervals, Nanos, TargetId, Touch,
};
use isotherm_linux::probe::{PageTableProbe, ProbeError};
use isotherm_linux::process::Process;
use isotherm_record::Item;

use super::{Ended, Monitor};
use crate::targets::TargetSet;

pub(crate) struct Regions {
    probe: PageTableProbe,
    targets: TargetSet,
    engine: Engine,
    populated_only: bool,
    layouts_wanted: bool,
    touches: Vec<Touch>,
    nr_unknown: u64,
}

impl Regions {
    pub(crate) fn new(
        probe: PageTableProbe,
        targets: TargetSet,
        attributes: isotherm_engine::attributes::Attributes,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            probe,
            targets,
            populated_only: attributes.strategy.populated_only,
            engine: Engine::new(attributes)?,
            layouts_wanted: true,
            touches: Vec::new(),
            nr_unknown: 0,
        })
    }

    fn layouts(&mut self) -> Result<Vec<(TargetId, Layout)>, ProbeError> {
        let mut layouts = Vec::new();
        for id in self.targets.ids().collect::<Vec<_>>() {
            let mappings: Vec<AddressRange> =
                self.targets.mappings(id).iter().map(|m| m.range).collect();
            let layout = if self.targets.limits().is_empty() {
                let populated = if self.populated_only {
                    self.populated(id, &mappings)?
                } else {
                    None
                };
                Layout::Mappings {
                    mappings,
                    populated,
                }
            } else {
                Layout::Fixed(self.targets.limits().to_vec())
            };
            layouts.push((id, layout));
        }
        Ok(layouts)
    }

    /// The parts of the mappings that have page tables.
    fn populated(
        &mut self,
        id: TargetId,
        mappings: &[AddressRange],
    ) -> Result<Option<Vec<AddressRange>>, ProbeError> {
        let Some(blocks) = self.probe.occupied_blocks(id, mappings)? else {
            return Ok(None);
        };
        let mut populated: Vec<AddressRange> = Vec::new();
        let mut mappings = mappings.iter().peekable();
        for block in blocks {
            let block = AddressRange::new(block, block + BLOCK_SIZE);
            while let Some(mapping) = mappings.peek() {
                if let Some(part) = mapping.intersection(block) {
                    match populated.last_mut() {
                        Some(last) if last.end == part.start => last.end = part.end,
                        _ => populated.push(part),
                    }
                }
                if mapping.end > block.end {
                    break;
                }
                mappings.next();
            }
        }
        Ok(Some(populated))
    }
}

impl Monitor for Regions {
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Result<Nanos, Ended>> {
        self.probe.check(&mut self.touches)?;
        self.nr_unknown += self
            .touches
            .iter()
            .filter(|t| matches!(t, Touch::Unknown(_)))
            .count() as u64;
        let mut ended = Vec::new();
        let mut layouts = Vec::new();
        if std::mem::take(&mut self.layouts_wanted) {
            ended = self.targets.update(&mut self.probe, now, items)?;
            if let Some(ended) = self.targets.ended() {
                return Ok(Err(ended));
            }
            layouts = self.layouts()?;
        }
        let facts = Facts {
            touches: &self.touches,
            layouts,
            ended: &ended,
            cost: self.probe.cost(),
        };
        let plan = self.engine.tick(now, facts);
        self.probe.arm(&plan.samples)?;
        items.extend(plan.snapshots.iter().cloned().map(Item::Snapshot));
        self.layouts_wanted = plan.layouts_wanted;
        // Layouts that are wanted are told with the very next tick.
        Ok(Ok(plan.next_tick))
    }

    fn look_for_ends(&mut self, _now: Nanos) {
        self.layouts_wanted = true;
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange, _now: Nanos) {
        self.engine.reset_age(target, range);
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
        self.engine.intervals()
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        self.targets
            .ids()
            .filter_map(|id| Some((id, self.probe.process(id)?)))
            .collect()
    }
}
