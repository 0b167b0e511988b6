//! A simulated process, for machines where real ones cannot be watched. The engine is the same; the time of the
//! simulated machine runs at real speed.
//!
//! The process has one mapping of 1 GiB: one tenth is touched often, a second tenth rarely, and the rest never. Results
//! are deterministic by seed, except for the times of samples. All its items are marked as simulated.

use isotherm_engine::drive::RegionLoop;
use isotherm_engine::{AddressRange, Attributes, CpuLedger, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::{Item, Mapping, MappingChange, TargetStart, UsageSample};
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, Pattern, ProbeState, Rates, SimMachine, SimProbe, SimProcessSpec,
};
use isotherm_sim::simulation::Followed;

use super::{Monitor, MonitorStatus, NextStep};

const MEMORY: AddressRange = AddressRange::new(0x7f00_0000_0000, 0x7f00_4000_0000);
const TENTH_PAGES: u32 = (MEMORY.len() / PAGE_SIZE / 10) as u32;
/// Accesses per second to each page of the hot tenth, and of the warm one after it.
const HOT_PER_SECOND: f32 = 200.0;
const WARM_PER_SECOND: f32 = 0.5;

/// Time by which all memory is resident.
const FILLED: Nanos = Nanos::from_millis(1_000);

pub(crate) struct Simulated {
    monitor: RegionLoop,
    machine: SimMachine,
    target: TargetId,
    followed: Followed,
    probe: ProbeState,
    started: Option<Nanos>,
}

impl Simulated {
    pub(crate) fn new(attributes: Attributes) -> anyhow::Result<Self> {
        let mut machine = SimMachine::new(MachineSpec {
            seed: attributes.seed,
            ..MachineSpec::default()
        });
        let target = machine.start(program());
        machine.advance(FILLED);
        Ok(Self {
            monitor: RegionLoop::new(attributes)?,
            machine,
            target,
            followed: Followed::processes(vec![MEMORY]),
            probe: ProbeState::new(false),
            started: None,
        })
    }

    fn introduce(&self, now: Nanos, items: &mut Vec<Item>) {
        let (time, target) = (now, self.target);
        let start = TargetStart::new(time, target, 0, "simulated");
        items.push(Item::TargetStart(start));
        let mappings = vec![Mapping::private(MEMORY, "[simulated]")];
        let mappings = MappingChange::adding(time, target, mappings);
        items.push(Item::Mappings(mappings));
        let text = "simulated: no real process was watched".to_owned();
        items.push(Item::Note { time, text });
    }
}

fn program() -> SimProcessSpec {
    let rates = Rates::Steps(vec![
        (3 * TENTH_PAGES, 0.0),
        (4 * TENTH_PAGES, HOT_PER_SECOND),
        (5 * TENTH_PAGES, WARM_PER_SECOND),
    ]);
    SimProcessSpec {
        name: "simulated".to_owned(),
        areas: vec![AreaSpec {
            fill: Some((Nanos(0), Nanos(0))),
            ..AreaSpec::new("[simulated]", MEMORY, Pattern::steady(rates))
        }],
        ..SimProcessSpec::default()
    }
}

impl Monitor for Simulated {
    fn step(&mut self, now: Nanos, _cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        if self.started.is_none() {
            self.introduce(now, items);
        }
        let started = *self.started.get_or_insert(now);
        self.machine.advance(FILLED + now.since(started));
        let mut probe = SimProbe {
            machine: &mut self.machine,
            state: &mut self.probe,
        };
        let mut snapshots = Vec::new();
        // The costs are simulated, and so is all other work: none.
        let step = self
            .monitor
            .step(now, &mut probe, &mut self.followed, &mut snapshots);
        let Ok(next) = step;
        items.extend(snapshots.into_iter().map(Item::Snapshot));
        Ok(next)
    }

    fn status(&self, _cpu: CpuLedger) -> MonitorStatus {
        MonitorStatus {
            cost: self.probe.cost,
            nr_unknown: self.monitor.nr_unknown(),
            intervals: self.monitor.intervals(),
        }
    }

    fn simulated_usage(&self, now: Nanos) -> Option<UsageSample> {
        let rss = self.machine.processes()[self.target.0 as usize].rss();
        Some(UsageSample {
            time: now,
            rss: std::collections::BTreeMap::from([(self.target.0, rss)]),
            ..UsageSample::default()
        })
    }

    fn summary(&self, _cpu: CpuLedger) -> Option<String> {
        Some("simulated: no real process was watched".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_hot_tenth_is_found() {
        let mut monitor = Simulated::new(Attributes::default()).expect("attributes of ours");
        let (mut now, mut items) = (Nanos::from_millis(700), Vec::new());
        while now < Nanos::from_millis(20_700) {
            let next = monitor.step(now, CpuLedger::default(), &mut items);
            now = next.expect("no error").expect("it goes on");
        }
        let last = items.iter().rev().find_map(|item| match item {
            Item::Snapshot(snapshot) => Some(snapshot),
            _ => None,
        });
        let regions = &last.expect("there are some").regions;
        // Sampling a thousand regions every 5 ms takes 40 % of the process's time: hot pages are found
        // accessed 8 times of 20, and the warm ones hardly ever.
        let hot = regions.iter();
        let hot = hot.filter(|r| r.nr_accesses.is_some_and(|nr| nr > 2.0));
        let hot: Vec<AddressRange> = hot.map(|region| region.range).collect();
        let page = |page: u32| MEMORY.start + u64::from(page) * PAGE_SIZE;
        let tenth = AddressRange::new(page(3 * TENTH_PAGES), page(4 * TENTH_PAGES));
        let found = hot.iter().filter_map(|range| range.intersection(tenth));
        let found: u64 = found.map(AddressRange::len).sum();
        let all: u64 = hot.iter().copied().map(AddressRange::len).sum();
        let is_found = found * 10 > tenth.len() * 9 && found * 10 > all * 9;
        assert!(is_found, "{hot:?}");
        let usage = monitor.simulated_usage(now).expect("some");
        assert_eq!(usage.rss[&0], MEMORY.len());
    }
}
