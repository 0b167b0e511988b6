//! What the daemon knows of its targets: the last that was seen of each, and the guard's last deeds.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::{Nanos, Snapshot};
use isotherm_record::{GuardSample, Item};
use serde::Serialize;

/// The guard's last openings and closings that are kept.
const EVENTS_MAX: usize = 16;
/// Equal steps of access rates above zero.
pub(super) const RATES: usize = 5;

/// All of it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) since: Nanos,
    pub(super) targets: BTreeMap<u32, Target>,
    pub(super) guard_events: VecDeque<GuardSample>,
    pub(super) nr_snapshots: u64,
    pub(super) monitor_rss: u64,
    pub(super) tuned: Option<Tuned>,
}

/// When schemes were changed last, and by what.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tuned {
    pub(super) at: Nanos,
    pub(super) by: String,
}

/// A live target.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) name: String,
    /// The context that it belongs to, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<String>,
    pub(super) rss_bytes: Option<u64>,
    pub(super) swap_bytes: Option<u64>,
    #[serde(flatten)]
    pub(super) view: View,
}

/// A target's last snapshot, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct View {
    pub(super) regions: usize,
    /// Addresses, whatever they hold.
    pub(super) watched_bytes: u64,
    /// In memory, by the monitor; all addresses where it cannot tell. Hot, idle and unknown add up to it.
    pub(super) resident_bytes: u64,
    /// Swapped out, by the monitor.
    pub(super) swapped_bytes: u64,
    /// Touched in the last interval.
    pub(super) hot_bytes: u64,
    pub(super) idle_bytes: u64,
    pub(super) unknown_bytes: u64,
    /// Accessed bytes by access rate: up to a fifth, two fifths, ... of the checks made.
    pub(super) bytes_by_rate: [u64; RATES],
}

impl View {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut view = Self {
            regions: snapshot.regions.len(),
            ..Self::default()
        };
        let totals = snapshot.totals();
        view.watched_bytes = totals.addresses;
        view.resident_bytes = totals.resident;
        view.swapped_bytes = totals.swapped;
        view.hot_bytes = totals.touched;
        view.idle_bytes = totals.untouched;
        view.unknown_bytes = totals.unknown;
        for region in &snapshot.regions {
            if let Some(rate) = snapshot.access_rate(region)
                && rate > 0.0
            {
                let step = (rate * RATES as f32).ceil() as usize;
                view.bytes_by_rate[step.clamp(1, RATES) - 1] += region.touched();
            }
        }
        view
    }

    pub(super) fn sum(self, other: Self) -> Self {
        Self {
            regions: self.regions + other.regions,
            watched_bytes: self.watched_bytes + other.watched_bytes,
            resident_bytes: self.resident_bytes + other.resident_bytes,
            swapped_bytes: self.swapped_bytes + other.swapped_bytes,
            hot_bytes: self.hot_bytes + other.hot_bytes,
            idle_bytes: self.idle_bytes + other.idle_bytes,
            unknown_bytes: self.unknown_bytes + other.unknown_bytes,
            bytes_by_rate: std::array::from_fn(|i| self.bytes_by_rate[i] + other.bytes_by_rate[i]),
        }
    }
}

impl Seen {
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

#[cfg(test)]
mod tests {
    use isotherm_engine::{AddressRange, RegionMemory, RegionSnapshot};

    use super::*;

    #[test]
    fn bytes_are_told_apart_by_access_rate() {
        let region = |start: u64, nr_accesses| RegionSnapshot {
            range: AddressRange::new(start * 4096, (start + 1) * 4096),
            nr_accesses,
            age: 0,
            age_ns: Nanos(0),
            memory: None,
        };
        let snapshot = Snapshot {
            nr_samples: 20,
            regions: vec![
                region(0, Some(0.0)),
                region(1, Some(0.5)),
                region(2, Some(4.0)),
                region(3, Some(5.0)),
                region(4, Some(20.0)),
                region(5, None),
            ],
            ..Snapshot::default()
        };
        let view = View::of(&snapshot);
        assert_eq!(view.bytes_by_rate, [8192, 4096, 0, 0, 4096]);
        assert_eq!((view.hot_bytes, view.idle_bytes), (4 * 4096, 4096));
        assert_eq!((view.unknown_bytes, view.watched_bytes), (4096, 6 * 4096));
    }

    #[test]
    fn only_memory_is_hot_or_idle() {
        let region = RegionSnapshot {
            range: AddressRange::new(0, 100 * 4096),
            nr_accesses: Some(5.0),
            age: 0,
            age_ns: Nanos(0),
            memory: Some(RegionMemory {
                resident: 30 * 4096,
                touched: 10 * 4096,
                unknown: 4096,
                swapped: 20 * 4096,
            }),
        };
        let snapshot = Snapshot {
            nr_samples: 20,
            regions: vec![region],
            ..Snapshot::default()
        };
        let view = View::of(&snapshot);
        let pages = |bytes: u64| bytes / 4096;
        assert_eq!((pages(view.hot_bytes), pages(view.idle_bytes)), (10, 19));
        assert_eq!(
            (pages(view.resident_bytes), pages(view.swapped_bytes)),
            (30, 20)
        );
        assert_eq!(pages(view.bytes_by_rate.iter().sum()), 10);
    }
}
