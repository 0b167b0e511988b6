//! A simulated process, for where real ones cannot be watched: the same engine on made-up accesses.
//!
//! One mapping of 1 GiB whose hot tenth is touched often, a second tenth now and then, and the rest
//! never. Accesses to a page come as a Poisson process, so whether one came between two looks is
//! drawn from its rate. Deterministic by seed. Everything it yields says that it is simulated.

use isotherm_engine::{
    AddressRange, Attributes, Cost, Engine, Facts, Intervals, Layout, Nanos, Sample, TargetId,
    Touch,
};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::process::Process;
use isotherm_record::{Item, Mapping, MappingChange, TargetStart, UsageSample};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use super::{Ended, Monitor};

const TARGET: TargetId = TargetId(0);
const MEMORY: AddressRange = AddressRange::new(0x7f00_0000_0000, 0x7f00_4000_0000);
const TENTH: u64 = MEMORY.len() / 10;
/// Accesses a second to each page of the hot tenth, and of the one after it.
const HOT_PER_SECOND: f64 = 200.0;
const WARM_PER_SECOND: f64 = 0.5;

pub(crate) struct Simulated {
    engine: Engine,
    random: Pcg64Mcg,
    armed: Vec<Sample>,
    armed_at: Nanos,
    touches: Vec<Touch>,
    started: bool,
    layouts_wanted: bool,
    cost: Cost,
}

impl Simulated {
    pub(crate) fn new(attributes: Attributes) -> anyhow::Result<Self> {
        Ok(Self {
            random: Pcg64Mcg::new(u128::from(attributes.seed) << 1 | 1),
            engine: Engine::new(attributes)?,
            armed: Vec::new(),
            armed_at: Nanos(0),
            touches: Vec::new(),
            started: false,
            layouts_wanted: true,
            cost: Cost::default(),
        })
    }

    fn draw(&mut self, sample: Sample, elapsed_s: f64) -> Touch {
        let per_second = rate_at(sample.address);
        let chance = 1.0 - (-per_second * elapsed_s).exp();
        let accessed = (0..sample.nr_pages)
            .filter(|_| f64::from(self.random.next_u32()) / f64::from(u32::MAX) < chance);
        Touch::Seen {
            observed: sample.nr_pages,
            accessed: accessed.count() as u32,
        }
    }

    fn introduce(now: Nanos, items: &mut Vec<Item>) {
        let name = "simulated".to_owned();
        items.push(Item::TargetStart(TargetStart {
            time: now,
            target: TARGET,
            pid: 0,
            name,
            context: None,
        }));
        let mapping = Mapping {
            range: MEMORY,
            permissions: "rw-p".into(),
            name: "[simulated]".into(),
        };
        items.push(Item::Mappings(MappingChange {
            time: now,
            target: TARGET,
            removed: Vec::new(),
            added: vec![mapping],
        }));
        let text = "simulated: no real process was watched".to_owned();
        items.push(Item::Note { time: now, text });
    }
}

fn rate_at(address: u64) -> f64 {
    match (address - MEMORY.start) / TENTH {
        3 => HOT_PER_SECOND,
        4 => WARM_PER_SECOND,
        _ => 0.0,
    }
}

impl Monitor for Simulated {
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Result<Nanos, Ended>> {
        let elapsed_s = now.since(self.armed_at).as_secs_f64();
        let armed = std::mem::take(&mut self.armed);
        self.touches.clear();
        for &sample in &armed {
            let touch = self.draw(sample, elapsed_s);
            self.touches.push(touch);
        }
        if !std::mem::replace(&mut self.started, true) {
            Self::introduce(now, items);
        }
        let mut layouts = Vec::new();
        if std::mem::take(&mut self.layouts_wanted) {
            layouts.push((TARGET, Layout::Fixed(vec![MEMORY])));
        }
        self.cost.monitor_cpu = process_cpu();
        let facts = Facts {
            touches: &self.touches,
            layouts,
            ended: &[],
            cost: self.cost,
        };
        let plan = self.engine.tick(now, facts);
        self.armed = plan.samples.clone();
        self.armed_at = now;
        self.cost.checks += plan
            .samples
            .iter()
            .map(|s| u64::from(s.nr_pages))
            .sum::<u64>();
        self.layouts_wanted = plan.layouts_wanted;
        items.extend(plan.snapshots.iter().cloned().map(Item::Snapshot));
        Ok(Ok(plan.next_tick))
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn nr_unknown(&self) -> u64 {
        0
    }

    fn intervals(&self) -> Intervals {
        self.engine.intervals()
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        Vec::new()
    }

    fn made_up_usage(&self, now: Nanos) -> Option<UsageSample> {
        let rss = std::collections::BTreeMap::from([(TARGET.0, MEMORY.len())]);
        Some(UsageSample {
            time: now,
            rss,
            ..UsageSample::default()
        })
    }

    fn summary(&self) -> Option<String> {
        Some("simulated: no real process was watched".to_owned())
    }
}
