//! The default method: the engine's table monitor on the page-table probe.

use isotherm_engine::drive::{TableLoop, TargetSource};
use isotherm_engine::table::{MappedRange, TableAttributes};
use isotherm_engine::{AccessProbe, AddressRange, Cost, Intervals, Nanos, TargetId};
use isotherm_linux::probe::{PageTableProbe, ProbeError};
use isotherm_linux::process::Process;
use isotherm_record::Item;

use super::{Ended, Monitor};
use crate::targets::TargetSet;

pub(crate) struct Tables {
    probe: PageTableProbe,
    targets: TargetSet,
    look: TableLoop,
}

/// The targets, and where it is told who comes and goes.
struct Followed<'a> {
    set: &'a mut TargetSet,
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

    fn is_over(&self) -> bool {
        self.set.ended().is_some()
    }

    fn ids(&self) -> Vec<TargetId> {
        self.set.ids().collect()
    }

    fn mappings(&self, target: TargetId) -> Vec<MappedRange> {
        self.set.mappings(target)
    }
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
            look: TableLoop::new(attributes, now),
        }
    }
}

impl Monitor for Tables {
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Result<Nanos, Ended>> {
        let mut snapshots = Vec::new();
        let mut followed = Followed {
            set: &mut self.targets,
            items,
        };
        let next = self
            .look
            .step(now, &mut self.probe, &mut followed, &mut snapshots)?;
        items.extend(snapshots.into_iter().map(Item::Snapshot));
        Ok(next.ok_or(Ended::TargetsGone))
    }

    fn look_for_ends(&mut self, now: Nanos) {
        self.look.look_for_ends(now);
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        self.look.reset_age(target, range, now);
    }

    fn leave_out(&mut self, cpu: Nanos) {
        self.probe.leave_out(cpu);
    }

    fn cost(&self) -> Cost {
        self.probe.cost()
    }

    fn nr_unknown(&self) -> u64 {
        self.look.nr_unknown()
    }

    fn intervals(&self) -> Intervals {
        self.look.intervals()
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        self.targets
            .ids()
            .filter_map(|id| Some((id, self.probe.process(id)?)))
            .collect()
    }
}
