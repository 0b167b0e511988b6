//! Memory use and monitoring cost, once a second.
//!
//! Limits: of many targets, [`TARGETS_PER_READING`] are read each time, in turns; the others keep their last values. At
//! the end all are read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use isotherm_engine::{CpuLedger, Nanos};
use isotherm_linux::load::CpuTimes;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::process::ProcessUsage;
use isotherm_linux::{cgroup, migrations, node, pressure};
use isotherm_record::{CostSample, Item, KernelMigrations, UsageSample};

use crate::monitor::Monitor;

const PERIOD: Nanos = Nanos(1_000_000_000);
/// Targets of one reading. Each takes some 30 us; all of them together take a twentieth of a budget of 1 %.
const TARGETS_PER_READING: usize = 16;
const NEW_PER_READING: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Meters {
    next: Nanos,
    /// Largest observed memory use of the monitor itself.
    pub(crate) peak_rss: u64,
    known: BTreeMap<u32, ProcessUsage>,
    cpu: BTreeMap<u32, Nanos>,
    turn: u32,
    /// Whether memory is on several nodes, once that is known.
    has_nodes: Option<bool>,
    /// Directory of the control group that is watched.
    group: Option<PathBuf>,
}

impl Meters {
    /// Reads the charge of the control group at `group` as well.
    pub(crate) fn of_group(group: Option<PathBuf>) -> Self {
        Self {
            group,
            ..Self::default()
        }
    }

    /// Appends the two samples if a second has passed, or if `at_the_end`.
    pub(crate) fn read(
        &mut self,
        monitor: &dyn Monitor,
        cpu: CpuLedger,
        now: Nanos,
        at_the_end: bool,
        items: &mut Vec<Item>,
    ) {
        if now < self.next && !at_the_end {
            return;
        }
        self.next = now + PERIOD;
        let made_up = monitor.simulated_usage(now);
        let mut usage = made_up.unwrap_or_else(|| UsageSample {
            time: now,
            ..UsageSample::default()
        });
        self.read_targets(monitor, at_the_end);
        for (id, used) in &self.known {
            usage.rss.insert(*id, used.rss);
            usage.swap.insert(*id, used.swap);
        }
        usage.cpu.clone_from(&self.cpu);
        usage.system_idle = CpuTimes::read().map(|times| times.idle);
        let memory = Meminfo::read();
        let bytes = |name| memory.get(name).unwrap_or(0);
        usage.system_total = bytes("MemTotal");
        usage.system_free = bytes("MemFree");
        usage.system_available = bytes("MemAvailable");
        usage.system_swap = memory.get("SwapTotal");
        if *self.has_nodes.get_or_insert_with(|| node::count() > 1) {
            let (machine, nodes) = migrations::read();
            usage.migrations = KernelMigrations { machine, nodes };
        }
        usage.charged = self.group.as_deref().map(cgroup::charge);
        usage.cached = monitor.group_cache();
        items.push(Item::Usage(usage));
        let monitor_rss = Meminfo::of_ourselves().get("VmRSS").unwrap_or(0);
        self.peak_rss = self.peak_rss.max(monitor_rss);
        let status = monitor.status(cpu);
        items.push(Item::Cost(CostSample {
            time: now,
            cost: status.cost,
            sample_interval: status.intervals.sample,
            aggregation_interval: status.intervals.aggregation,
            monitor_rss,
            unknown: status.nr_unknown,
        }));
    }

    fn read_targets(&mut self, monitor: &dyn Monitor, all: bool) {
        let live = monitor.live();
        let ids: std::collections::BTreeSet<u32> = live.iter().map(|(id, _)| id.0).collect();
        self.known.retain(|id, _| ids.contains(id));
        self.cpu.retain(|id, _| ids.contains(id));
        let nr = if all { live.len() } else { TARGETS_PER_READING };
        let first = live
            .iter()
            .position(|(id, _)| id.0 >= self.turn)
            .unwrap_or(0);
        let new = live
            .iter()
            .filter(|(id, _)| !self.known.contains_key(&id.0));
        let new: Vec<_> = new.take(NEW_PER_READING).collect();
        let in_turn = live[first..].iter().chain(&live[..first]).take(nr);
        let in_turn: Vec<_> = in_turn.collect();
        self.turn = in_turn.last().map_or(0, |(id, _)| id.0 + 1);
        for (id, process) in new.into_iter().chain(in_turn) {
            if let Some(progress) = pressure::progress(process) {
                self.cpu.insert(id.0, progress.cpu);
            }
            match process.usage() {
                Ok(used) => drop(self.known.insert(id.0, used)),
                Err(_) => drop(self.known.remove(&id.0)),
            }
        }
    }
}
