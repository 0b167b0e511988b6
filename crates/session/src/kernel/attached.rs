//! A monitor that only listens: the kernel's DAMON as others have set it up, read by its tracepoint.
//!
//! Every kdamond that runs is followed, those of the kernel's modules included. Nothing is written to DAMON's tree.
//!
//! Limits: the tracepoint does not give the intervals. Those of the tree are used; for a module, its parameters, or the
//! time between two snapshots.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use isotherm_config::{SessionSpec, TargetSpec};
use isotherm_damon::Operations;
use isotherm_engine::{Cost, CpuLedger, Intervals, Nanos, TargetId};
use isotherm_linux::clock::{Clock, process_cpu};
use isotherm_linux::cpu::task_cpu;
use isotherm_linux::damon_trace::{DamonTrace, Traced, TracedWhat};
use isotherm_linux::process::Process;
use isotherm_record::item::{TargetExit, TargetStart};
use isotherm_record::{Item, printable};

use super::KernelDamonReport;
use super::assemble::Assembler;
use crate::monitor::{Monitor, MonitorStatus, NextStep};
use crate::start::parts::Started;

/// Interval between two reads of DAMON's tree.
const PERIOD: Nanos = Nanos::from_millis(1_000);
/// Interval between two reads of events.
const WAIT: Nanos = Nanos::from_millis(200);
const UNKNOWN: Intervals = Intervals {
    sample: Nanos::from_millis(5),
    aggregation: Nanos::from_millis(100),
    update: Nanos::from_millis(1_000),
};

/// A kdamond that runs, by its process id.
#[derive(Default)]
struct Followed {
    assembler: Assembler,
    /// Ids in the record of its targets, and the ends of their last snapshots.
    targets: BTreeMap<u32, (TargetId, Option<Nanos>)>,
    /// Processes that it watches, by target; empty for physical memory.
    pids: Vec<u32>,
    name: String,
    intervals: Option<Intervals>,
}

pub(super) struct AttachedMonitor {
    trace: DamonTrace,
    kdamonds: BTreeMap<u32, Followed>,
    nr_targets: u32,
    events: Vec<Traced>,
    /// The session's time less CLOCK_MONOTONIC.
    offset: u64,
    next_look: Nanos,
    checks: u64,
    lost_told: u64,
}

/// Begins to listen to all kdamonds that run.
pub(super) fn start(spec: &SessionSpec) -> anyhow::Result<Started> {
    let mut monitor = AttachedMonitor {
        trace: DamonTrace::attach()?,
        kdamonds: BTreeMap::new(),
        nr_targets: 0,
        events: Vec::new(),
        offset: Clock::start().offset(),
        next_look: Nanos(0),
        checks: 0,
        lost_told: 0,
    };
    ensure!(
        matches!(spec.contexts[..], [ref one] if matches!(one.targets, TargetSpec::Physical { .. })),
        "what others watch is recorded whole: name no target"
    );
    monitor.look()?;
    ensure!(
        !monitor.kdamonds.is_empty(),
        "no kdamond runs that could be listened to; `isotherm damon` shows what is set up"
    );
    Ok(Started::of(Box::new(monitor)))
}

impl AttachedMonitor {
    /// Follows the kdamonds that run now. Returns those that have ended since.
    fn look(&mut self) -> anyhow::Result<Vec<Followed>> {
        let report = KernelDamonReport::read()?;
        let mut running = BTreeSet::new();
        for (at, kdamond) in report.kdamonds.iter().enumerate() {
            let Some(pid) = kdamond.pid.and_then(|pid| u32::try_from(pid).ok()) else {
                continue;
            };
            let is_physical = kdamond.operations == Some(Operations::Paddr.name());
            let found = Followed {
                pids: if is_physical {
                    Vec::new()
                } else {
                    kdamond.pids.clone()
                },
                name: format!("kdamond {at}"),
                intervals: kdamond
                    .sample_interval
                    .zip(kdamond.aggregation_interval)
                    .map(known),
                ..Followed::default()
            };
            self.follow(pid, found, &mut running)?;
        }
        for module in report.modules.iter().filter(|module| module.is_enabled) {
            let time = |name: &str| {
                let us: u64 = module.parameters.get(name)?.parse().ok()?;
                Some(Nanos(us.saturating_mul(1_000)))
            };
            let found = Followed {
                name: module.name.to_owned(),
                intervals: time("sample_interval")
                    .zip(time("aggr_interval"))
                    .map(known),
                ..Followed::default()
            };
            if let Some(pid) = module.pid {
                self.follow(pid, found, &mut running)?;
            }
        }
        let ended = self
            .kdamonds
            .extract_if(.., |pid, _| !running.contains(pid));
        Ok(ended.map(|(_, followed)| followed).collect())
    }

    fn follow(
        &mut self,
        pid: u32,
        found: Followed,
        running: &mut BTreeSet<u32>,
    ) -> anyhow::Result<()> {
        running.insert(pid);
        if let Some(known) = self.kdamonds.get_mut(&pid) {
            known.pids = found.pids;
            known.intervals = found.intervals.or(known.intervals);
        } else {
            self.trace.follow(pid)?;
            self.kdamonds.insert(pid, found);
        }
        Ok(())
    }

    fn fetch(&mut self, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.trace.take(&mut events)?;
        for event in events.drain(..) {
            let Some(kdamond) = self.kdamonds.get_mut(&event.kdamond) else {
                continue;
            };
            let end = Nanos(self.offset + event.monotonic.0);
            let intervals = kdamond.intervals.unwrap_or(UNKNOWN);
            match event.what {
                TracedWhat::Aggregated(region) => {
                    let whole = kdamond.assembler.take(region, end, intervals);
                    let Some(mut snapshot) = whole else { continue };
                    let nr_targets = &mut self.nr_targets;
                    let target = snapshot.target.0;
                    let known = kdamond.targets.entry(target).or_insert_with(|| {
                        let id = TargetId(*nr_targets);
                        *nr_targets += 1;
                        (id, None)
                    });
                    if known.1.is_none() {
                        items.push(begin(
                            known.0,
                            end,
                            kdamond.pids.get(target as usize),
                            &kdamond.name,
                        ));
                    }
                    let before = known.1.replace(end);
                    if kdamond.intervals.is_none() {
                        // The length of an interval shows only with the second snapshot.
                        let Some(before) = before else { continue };
                        snapshot.start = before;
                    }
                    snapshot.target = known.0;
                    self.checks += snapshot.regions.len() as u64;
                    items.push(Item::Snapshot(snapshot));
                }
                TracedWhat::IntervalsTuned { sample } => {
                    let nr = isotherm_damon::nr_samples(intervals);
                    kdamond.intervals = Some(Intervals {
                        sample,
                        aggregation: Nanos(sample.0.saturating_mul(nr.into())),
                        ..intervals
                    });
                }
                TracedWhat::BeforeApply { .. } | TracedWhat::EffectiveSize { .. } => {}
            }
        }
        self.events = events;
        Ok(())
    }

    fn tell_lost(&mut self, now: Nanos, items: &mut Vec<Item>) {
        let lost = self.trace.nr_lost();
        if lost > self.lost_told.saturating_mul(2) {
            self.lost_told = lost;
            let text = format!("{lost} of DAMON's events did not fit into the buffer");
            items.push(Item::Note { time: now, text });
        }
    }
}

fn known((sample, aggregation): (Nanos, Nanos)) -> Intervals {
    Intervals {
        sample,
        aggregation,
        ..UNKNOWN
    }
}

/// Returns the start of a target: a process, or physical memory.
fn begin(target: TargetId, time: Nanos, pid: Option<&u32>, name: &str) -> Item {
    let process = pid.and_then(|pid| Process::open(*pid).ok());
    let name = process.map_or_else(
        || format!("physical ({name})"),
        |process| printable(&process.name()).into_owned(),
    );
    Item::TargetStart(TargetStart::new(
        time,
        target,
        pid.copied().unwrap_or(0),
        name,
    ))
}

impl Monitor for AttachedMonitor {
    fn step(&mut self, now: Nanos, _cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        self.fetch(items)?;
        if now >= self.next_look {
            self.next_look = now + PERIOD;
            for ended in self.look()? {
                let targets = ended.targets.values();
                items.extend(targets.map(|(target, _)| {
                    Item::TargetExit(TargetExit {
                        time: now,
                        target: *target,
                        exit_code: None,
                        signal: None,
                    })
                }));
            }
            if self.kdamonds.is_empty() {
                return Ok(None);
            }
            self.tell_lost(now, items);
        }
        Ok(Some((now + WAIT).min(self.next_look)))
    }

    fn last_look(&mut self, _now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        self.fetch(items)
    }

    fn summary(&self, _cpu: CpuLedger) -> Option<String> {
        let names: Vec<&str> = self.kdamonds.values().map(|of| of.name.as_str()).collect();
        Some(format!("listened to: {}", names.join(", ")))
    }

    fn status(&self, cpu: CpuLedger) -> MonitorStatus {
        let kdamonds = self.kdamonds.keys().filter_map(|pid| task_cpu(*pid));
        let kdamonds = kdamonds.fold(Nanos(0), |sum, cpu| sum + cpu);
        let mut known = self.kdamonds.values().filter_map(|of| of.intervals);
        MonitorStatus {
            cost: Cost {
                monitor_cpu: process_cpu().since(cpu.other) + kdamonds,
                checks: self.checks,
                ..Cost::default()
            },
            nr_unknown: 0,
            intervals: known.next().unwrap_or(UNKNOWN),
        }
    }
}
