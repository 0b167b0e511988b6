//! Live state of the daemon: each target's last snapshot, and the guards' last openings and closings.

use std::collections::{BTreeMap, VecDeque};

use isotherm_engine::{Cost, Nanos};
use isotherm_policy::guard::{GuardStatus, Returns};
use isotherm_record::{GuardSample, Item, KernelMigrations};

use super::machine::Machine;
use super::{BlameStatus, MonitorCost, PodPolicies, SchemeChange, Status, Target, View};
use crate::ActingStatus;

/// Limit of the kept openings and closings of guards.
const EVENTS_MAX: usize = 16;

/// Live state of a daemon.
#[derive(Debug, Default)]
pub struct LiveState {
    since: Nanos,
    pub(super) targets: BTreeMap<u32, Target>,
    guard_events: VecDeque<GuardSample>,
    pub(super) nr_snapshots: u64,
    pub(super) monitor_rss: u64,
    pub(super) machine: Machine,
    /// Rates at which memory is used again, by idle time.
    pub(super) returns: Returns,
    pub(super) migrations: KernelMigrations,
    tuned: Option<SchemeChange>,
    /// Policies of pods, where the API server is asked for them.
    pub pods: Option<PodPolicies>,
    /// Code that touched idle memory first, where stacks are sampled.
    pub blame: Option<BlameStatus>,
}

impl LiveState {
    /// Makes the state of a daemon that started at this time of its session's clock.
    pub fn new(since: Nanos) -> Self {
        Self {
            since,
            ..Self::default()
        }
    }

    /// Takes an item of the session.
    pub fn take(&mut self, item: Item) {
        match item {
            Item::TargetStart(start) => {
                let target = self.targets.entry(start.target.0).or_default();
                (target.pid, target.name) = (start.pid, start.name);
                target.context = start.context;
            }
            Item::TargetExit(exit) => {
                self.machine.forget(exit.target);
                self.returns.forget(exit.target);
                let ended = self.targets.remove(&exit.target.0);
                if let Some(context) = ended.and_then(|of| of.context)
                    && { self.targets.values() }.all(|of| of.context.as_ref() != Some(&context))
                {
                    self.machine.forget_context(context);
                }
            }
            Item::Machine(sample) => self.machine.take(sample),
            Item::Snapshot(snapshot) => {
                self.nr_snapshots += 1;
                if let Some(target) = self.targets.get_mut(&snapshot.target.0) {
                    target.view = View::of(&snapshot);
                    if let Some(ends) = &snapshot.idle_ends {
                        self.returns.observe(&snapshot, ends);
                    }
                }
            }
            Item::Pages(pages) => {
                self.nr_snapshots += 1;
                if let Some(target) = self.targets.get_mut(&pages.target.0) {
                    target.view = View::of_totals(pages.blocks.len(), &pages.totals());
                }
            }
            Item::Usage(usage) => {
                self.migrations = usage.migrations;
                for (id, target) in &mut self.targets {
                    target.rss_bytes = usage.rss.get(id).copied();
                    target.swap_bytes = usage.swap.get(id).copied();
                }
            }
            Item::Cost(cost) => self.monitor_rss = cost.monitor_rss,
            // Only a change of state is an event.
            Item::Guard(sample) if !self.is_known(&sample) => {
                if self.guard_events.len() == EVENTS_MAX {
                    self.guard_events.pop_front();
                }
                self.guard_events.push_back(sample);
            }
            _ => {}
        }
    }

    /// Whether the last event of this context has the same state of the guard.
    fn is_known(&self, sample: &GuardSample) -> bool {
        let of_context = |event: &&GuardSample| event.context == sample.context;
        let last = self.guard_events.iter().rev().find(of_context);
        last.is_some_and(|last| {
            let key = |status: &GuardStatus| {
                let of_cache = status.page_cache.map(|pool| pool.is_open);
                (status.is_open, of_cache, status.nr_stops)
            };
            key(&last.status) == key(&sample.status)
        })
    }

    /// Number of targets.
    pub fn nr_targets(&self) -> usize {
        self.targets.len()
    }

    /// Returns the status of the daemon of this `version` at `now`.
    pub fn status<'a>(
        &'a self,
        version: &'static str,
        config: Option<String>,
        now: Nanos,
        cost: Cost,
        acting: ActingStatus<'a>,
    ) -> Status<'a> {
        let uptime = now.since(self.since).as_secs_f64();
        let cpu_s = cost.monitor_cpu.as_secs_f64();
        Status {
            version,
            pid: std::process::id(),
            config,
            tuned: self.tuned.clone(),
            since: self.since,
            uptime_s: uptime,
            snapshots: self.nr_snapshots,
            targets: self.targets.values().collect(),
            total: self.total(),
            acting,
            guard_events: self.guard_events.iter().collect(),
            kernel_migrations: (!self.migrations.is_empty()).then_some(&self.migrations),
            pod_policy: self.pods.as_ref(),
            blame: self.blame.as_ref(),
            monitor: MonitorCost {
                cpu_s,
                cpu_share: cpu_s / uptime.max(1e-9),
                induced_cpu_s_estimated: cost.induced_cpu.as_secs_f64(),
                rss_bytes: self.monitor_rss,
            },
        }
    }

    /// Records that schemes were tuned.
    pub fn tuned(&mut self, at: Nanos, by: &str) {
        self.tuned = Some(SchemeChange {
            at,
            by: by.to_owned(),
        });
    }

    /// Returns the sum of all targets. With samples of frames, resident memory counts once and comes from the last
    /// sample.
    pub fn total(&self) -> View {
        let targets = self.targets.values();
        let sum = targets.fold(View::default(), |sum, target| sum.sum(target.view));
        let contexts = self.targets.values().map(|target| &target.context);
        match self.machine.mapped_once(contexts) {
            Some(all) if self.targets.len() > 1 => View {
                resident_bytes: all.total(),
                hot_bytes: all.touched,
                idle_bytes: all.total() - all.touched - all.unknown,
                unknown_bytes: all.unknown,
                ..sum
            },
            _ => sum,
        }
    }
}
