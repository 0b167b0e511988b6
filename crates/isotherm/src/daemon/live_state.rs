//! The daemon's live state: each target's last snapshot, and the guards' last openings and closings.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::Nanos;
use isotherm_record::{GuardSample, Item};
use isotherm_session::protocol::{Target, Tuned, View};

/// The guard's last openings and closings that are kept.
const EVENTS_MAX: usize = 16;

/// The live state.
#[derive(Debug)]
pub(super) struct LiveState {
    pub(super) since: Nanos,
    pub(super) targets: BTreeMap<u32, Target>,
    pub(super) guard_events: VecDeque<GuardSample>,
    pub(super) nr_snapshots: u64,
    pub(super) monitor_rss: u64,
    pub(super) tuned: Option<Tuned>,
}

impl LiveState {
    pub(super) fn new(since: Nanos) -> Self {
        Self {
            since,
            targets: BTreeMap::new(),
            guard_events: VecDeque::new(),
            nr_snapshots: 0,
            monitor_rss: 0,
            tuned: None,
        }
    }

    /// Takes in what has happened.
    pub(super) fn take(&mut self, item: Item) {
        match item {
            Item::TargetStart(start) => {
                let target = self.targets.entry(start.target.0).or_default();
                (target.pid, target.name) = (start.pid, start.name);
                target.context = start.context;
            }
            Item::TargetExit(exit) => drop(self.targets.remove(&exit.target.0)),
            Item::Snapshot(snapshot) => {
                self.nr_snapshots += 1;
                if let Some(target) = self.targets.get_mut(&snapshot.target.0) {
                    target.view = View::of(&snapshot);
                }
            }
            Item::Usage(usage) => {
                for (id, target) in &mut self.targets {
                    target.rss_bytes = usage.rss.get(id).copied();
                    target.swap_bytes = usage.swap.get(id).copied();
                }
            }
            Item::Cost(cost) => self.monitor_rss = cost.monitor_rss,
            // Only what has changed is an event.
            Item::Guard(sample) if !self.is_known(&sample) => {
                if self.guard_events.len() == EVENTS_MAX {
                    self.guard_events.pop_front();
                }
                self.guard_events.push_back(sample);
            }
            _ => {}
        }
    }

    /// Whether the guard of its context stood like this already.
    fn is_known(&self, sample: &GuardSample) -> bool {
        let of_context = |event: &&GuardSample| event.context == sample.context;
        let last = self.guard_events.iter().rev().find(of_context);
        last.is_some_and(|last| {
            (last.status.is_open, last.status.nr_stops)
                == (sample.status.is_open, sample.status.nr_stops)
        })
    }

    pub(super) fn tuned(&mut self, at: Nanos, by: &str) {
        self.tuned = Some(Tuned {
            at,
            by: by.to_owned(),
        });
    }

    /// Of all targets together.
    pub(super) fn total(&self) -> View {
        self.targets
            .values()
            .fold(View::default(), |sum, target| sum.sum(target.view))
    }
}
