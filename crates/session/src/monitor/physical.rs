//! Physical memory: the region engine on the reverse-mapping probe.

use anyhow::Context;
use isotherm_engine::engine::{Engine, Facts};
use isotherm_engine::layout::Layout;
use isotherm_engine::{
    AccessProbe, AddressRange, Attributes, Cost, Intervals, Nanos, TargetId, Touch,
};
use isotherm_linux::host;
use isotherm_linux::probe::{MapFacts, PhysicalProbe};
use isotherm_linux::process::Process;
use isotherm_record::{Item, TargetStart};

use super::{Ended, Monitor};

const MEMORY: TargetId = TargetId(0);
/// The reverse map is refreshed with the engine's updates, but may take at most this part of the
/// time that has passed since the last refresh; the maps of all contexts together.
const REFRESH_SHARE: f64 = 0.005;

pub(crate) struct Physical {
    probe: PhysicalProbe,
    ranges: Vec<AddressRange>,
    engine: Engine,
    refresh_share: f64,
    started: bool,
    layouts_wanted: bool,
    next_refresh: Nanos,
    touches: Vec<Touch>,
    nr_unknown: u64,
    nr_samples: u64,
}

impl Physical {
    /// One of `nr` contexts.
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
            ranges,
            engine: Engine::new(attributes)?,
            refresh_share: REFRESH_SHARE / nr as f64,
            started: false,
            layouts_wanted: true,
            next_refresh: Nanos(0),
            touches: Vec::new(),
            nr_unknown: 0,
            nr_samples: 0,
        })
    }

    fn refresh_if_due(&mut self, now: Nanos) -> anyhow::Result<()> {
        if now < self.next_refresh {
            return Ok(());
        }
        let before = self.probe.cost().monitor_cpu;
        self.probe.refresh()?;
        let spent = self.probe.cost().monitor_cpu.since(before);
        self.next_refresh = now + Nanos((spent.0 as f64 / self.refresh_share) as u64);
        Ok(())
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
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Result<Nanos, Ended>> {
        self.probe.check(&mut self.touches)?;
        self.nr_samples += self.touches.len() as u64;
        self.nr_unknown += self
            .touches
            .iter()
            .filter(|t| matches!(t, Touch::Unknown(_)))
            .count() as u64;
        if !self.started {
            self.started = true;
            let name = "physical".to_owned();
            items.push(Item::TargetStart(TargetStart {
                time: now,
                target: MEMORY,
                pid: 0,
                name,
                context: None,
            }));
            items.push(Item::Note {
                time: now,
                text: self.map_note(),
            });
        }
        let mut layouts = Vec::new();
        if std::mem::take(&mut self.layouts_wanted) {
            self.refresh_if_due(now)?;
            layouts.push((MEMORY, Layout::Fixed(self.ranges.clone())));
        }
        let facts = Facts {
            touches: &self.touches,
            layouts,
            ended: &[],
            cost: self.probe.cost(),
        };
        let plan = self.engine.tick(now, facts);
        self.probe.arm(&plan.samples)?;
        items.extend(plan.snapshots.iter().cloned().map(Item::Snapshot));
        self.layouts_wanted = plan.layouts_wanted;
        Ok(Ok(plan.next_tick))
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
        Vec::new()
    }

    fn summary(&self) -> Option<String> {
        let share = 100.0 * self.nr_unknown as f64 / self.nr_samples.max(1) as f64;
        Some(format!(
            "{}; {share:.1} % of the samples were of unknown frames",
            self.map_note()
        ))
    }
}
