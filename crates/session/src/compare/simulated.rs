//! The simulated world: a replay of exact scans.

use anyhow::Context as _;
use isotherm_config::{SessionSpec, TargetSpec};
use isotherm_engine::Nanos;
use isotherm_record::Item;

use super::truth::{Scans, Truth};
use super::watched::Watched;
use crate::simulated::{Replay, Scenario, SimulatedSession};

/// Items of the first scans about the first process.
#[derive(Default)]
pub(super) struct Trace {
    items: Vec<Item>,
    pid: Option<u32>,
    target: u32,
}

impl Trace {
    pub(super) fn take(&mut self, item: &Item) {
        if let (Item::TargetStart(start), None) = (item, self.pid) {
            self.pid = Some(start.pid);
            self.target = start.target.0;
        }
        let is_of_trace = match item {
            Item::TargetStart(start) => start.target.0 == self.target,
            Item::Mappings(change) => change.target.0 == self.target,
            Item::Pages(pages) => pages.target.0 == self.target,
            Item::Usage(_) => true,
            _ => false,
        };
        if is_of_trace {
            self.items.push(item.clone());
        }
    }

    /// Returns the truth at the trace's end: by the scans of the last `span`.
    pub(super) fn truth(&self, span: Nanos) -> Truth {
        let all = { self.items.iter() }.filter_map(|item| match item {
            Item::Pages(scan) => Some(scan),
            _ => None,
        });
        let end = all.clone().next_back().map_or(Nanos(0), |scan| scan.end);
        let mut scans = Scans::default();
        for scan in all.filter(|scan| end.since(scan.start) <= span) {
            scans.take(self.pid.unwrap_or(0), scan);
        }
        Truth::between(&scans, &scans)
    }

    pub(super) fn watch(&self, spec: &SessionSpec, window: Nanos) -> anyhow::Result<Watched> {
        let pid = self.pid.unwrap_or(0);
        let replay = Replay::of(self.items.iter().cloned())
            .context("what was scanned cannot be replayed")?;
        let mut spec = spec.clone();
        for context in &mut spec.contexts {
            context.targets = TargetSpec::named(Vec::new());
        }
        let mut scenario = Scenario {
            machine: replay.machine.clone(),
            ..Scenario::default()
        };
        scenario.machine.seed = spec.seed;
        scenario.replay(replay);
        let end = scenario.end(None)?;
        let mut session = SimulatedSession::start(&spec, scenario, end)?;
        let mut watched = Watched::of_turn(window);
        let mut items = Vec::new();
        loop {
            let goes_on = session.step(&mut items);
            for item in items.drain(..) {
                if let Item::Snapshot(snapshot) = item {
                    watched.add(pid, snapshot);
                }
            }
            if !goes_on {
                break;
            }
        }
        watched.cpu_share = session.report().monitor_cpu_percent / 100.0;
        Ok(watched)
    }
}
