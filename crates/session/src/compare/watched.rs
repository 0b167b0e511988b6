//! Snapshots and cost of a world in one turn.

use std::collections::BTreeMap;

use isotherm_engine::{Nanos, Snapshot};

#[derive(Default)]
pub(super) struct Watched {
    /// Length of the turn's last part, which is compared with the truth: ages begin with a turn.
    last: Nanos,
    pub(super) nr: u64,
    /// Snapshots of the turn's last part, with their processes' ids.
    pub(super) snapshots: Vec<(u32, Snapshot)>,
    pub(super) cpu_share: f64,
    pub(super) kdamond_cpu_share: Option<f64>,
}

impl Watched {
    /// Longest last part of a turn that counts.
    const LAST: Nanos = Nanos::from_millis(3_000);

    pub(super) fn of_turn(window: Nanos) -> Self {
        Self {
            last: Nanos(window.0 / 5).min(Self::LAST),
            ..Self::default()
        }
    }

    /// Adds a snapshot of a process, and drops those that are not of the turn's last part any more.
    pub(super) fn add(&mut self, pid: u32, snapshot: Snapshot) {
        self.nr += 1;
        self.snapshots.push((pid, snapshot));
        let end = { self.snapshots.iter() }.map(|(_, s)| s.end).max();
        let end = end.unwrap_or_default();
        let mut newest: BTreeMap<u32, Nanos> = BTreeMap::new();
        for (pid, snapshot) in &self.snapshots {
            newest.insert(*pid, snapshot.end);
        }
        self.snapshots.retain(|(pid, snapshot)| {
            end.since(snapshot.end) <= self.last || newest[pid] == snapshot.end
        });
    }
}
