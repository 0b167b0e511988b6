//! The experiments of *HMSDK v2.0 Performance Results* and *DAMON based tiered memory management for
//! CXL memory* (both 2024): redis with YCSB on 512 GB of DRAM and 96 GB of CXL memory, while a block of
//! cold memory takes most of the DRAM.
//!
//! The simulation fills the cold block, then redis loads 52.6 GB of anonymous memory, and 33 GB of its snapshot stay in
//! the page cache. Then clients read for as long as 50 runs of a minute. Pages go to DRAM while it has free memory. In
//! the tiered configuration two monitors (the engine, by DAMON's rules) watch the two nodes by physical address from
//! the start, and HMSDK's schemes migrate.
//!
//! The share of redis' accesses that go to CXL memory costs what running wholly on CXL memory costs, in proportion. A
//! run's time is `1 + (CXL-only - 1) x share`. CXL-only is therefore calibrated; placement, and with it every other
//! cell, follows.
//!
//! Limits: an access is a cache line that a read touches ([`super::redis`]). Migration and monitoring cost
//! redis nothing here; the published tiered runs are 3 to 5 % slower even with next to no CXL use.

pub(super) mod setting;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, TargetId};

use super::redis::Reads;
use isotherm_sim::cost::PUBLISHED_TIERS;
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, Rates, SimMachine, SimProcessSpec, ThpMode, Use,
};
use isotherm_sim::memory::BLOCK_PAGES;
use isotherm_sim::simulation::{Event, SimContextSpec, Simulation};
use setting::blocks;
pub use setting::{KeyDistribution, TieringSetting};

const MIB_PAGES: u64 = 1 << 8;
const SLOW: u32 = 1;
const REDIS: TargetId = TargetId(1);
/// Latency of the slow node as a multiple of the fast node's. With [`TieringSetting::all_slow`] it only determines how
/// much of its time redis waits for memory, and not how slow it gets.
const SLOW_LATENCY: u64 = 2;

/// Placement of redis' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It goes to DRAM while DRAM has free memory, and it stays.
    Default,
    /// It starts as by default, and HMSDK's schemes migrate it.
    Tiered,
}

impl Placement {
    /// Returns its name in titles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Tiered => "tiered",
        }
    }

    /// Returns the contexts of a run, where `tiered` monitor the nodes and migrate.
    pub fn contexts(self, tiered: &[SimContextSpec]) -> Vec<SimContextSpec> {
        match self {
            Self::Default => Vec::new(),
            Self::Tiered => tiered.to_vec(),
        }
    }
}

/// Outcome of an experiment, while clients read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TieringOutcome {
    /// Mean share of what redis read (in cache lines) that was on the slow node.
    pub slow_share: f64,
    /// Mean of redis' anonymous memory on the slow node, in GiB.
    pub slow_gib: f64,
    /// Pages demoted since the start.
    pub demoted: u64,
    /// Pages promoted.
    pub promoted: u64,
    /// Pages of the snapshot that were dropped from the page cache to make room.
    pub dropped: u64,
}

/// Runs one experiment with these contexts: none, or one whose schemes demote, and one whose schemes promote.
pub fn run(
    setting: &TieringSetting,
    contexts: Vec<SimContextSpec>,
    reads: &Reads,
) -> TieringOutcome {
    let machine = SimMachine::new(setting.machine());
    let starts = vec![
        (Nanos(0), setting.cold()),
        (setting.fill, setting.redis(reads)),
    ];
    // redis is slowed down, to twice its time at most.
    let most = setting.fill + setting.load + Nanos(2 * setting.run.0);
    let simulation = Simulation::new(machine, starts, contexts, most);
    let mut simulation = simulation.expect("an experiment of ours");
    let mut moved = [0, 0];
    let mut reading = Reading::default();
    let mut events = Vec::new();
    while simulation.step(&mut events) {
        #[cfg(test)]
        if setting.fast_mib <= 64 {
            let is_whole = simulation.machine().check();
            is_whole.expect("everything is in one place");
        }
        for event in events.drain(..) {
            match event {
                Event::Acted {
                    context, outcomes, ..
                } => {
                    let applied = outcomes.iter().map(|o| o.applied / PAGE_SIZE);
                    moved[context] += applied.sum::<u64>();
                }
                Event::Second => reading.note(setting, simulation.machine()),
                _ => {}
            }
        }
        if reading.done >= setting.run {
            break;
        }
    }
    let slow_share = reading.lost / reading.done.as_secs_f64().max(1e-9);
    TieringOutcome {
        slow_share: slow_share / setting.all_slow,
        slow_gib: reading.slow_pages / reading.seconds.max(1.0) / (1024 * MIB_PAGES) as f64,
        demoted: moved[0],
        promoted: moved[1],
        dropped: simulation.machine().stats().reclaimed_pages,
    }
}

/// Counts of each second in which clients read.
#[derive(Default)]
struct Reading {
    seconds: f64,
    slow_pages: f64,
    /// Work that redis has done.
    done: Nanos,
    /// Seconds that it has lost to the slow node.
    lost: f64,
}

impl Reading {
    fn note(&mut self, setting: &TieringSetting, machine: &SimMachine) {
        let Some(redis) = machine.processes().get(REDIS.0 as usize) else {
            return;
        };
        if redis.work() < setting.load {
            return;
        }
        self.seconds += 1.0;
        self.slow_pages += machine.anon_on(REDIS, SLOW) as f64;
        self.done = redis.work().since(setting.load);
        self.lost = redis.losses.tiers;
    }
}

/// Start of each process's memory, which may be the same in all of them.
const START: u64 = 0x7f00_0000_0000;

impl TieringSetting {
    /// Bytes of both nodes, the fast one first. They lie one behind the other from address 0 on.
    pub fn node_bytes(&self) -> [u64; 2] {
        let fast = self.fast_mib - self.system_mib;
        [fast << 20, self.slow_mib << 20]
    }

    fn machine(&self) -> MachineSpec {
        let [fast, slow] = self.node_bytes().map(NodeSpec::new);
        MachineSpec {
            cpus: 64,
            nodes: vec![
                fast,
                NodeSpec {
                    latency: Nanos(fast.latency.0 * SLOW_LATENCY),
                    ..slow
                },
            ],
            thp: ThpMode::Never,
            costs: PUBLISHED_TIERS,
            seed: self.seed,
            ..MachineSpec::default()
        }
    }

    /// A process that fills its memory, and never accesses it again.
    fn cold(&self) -> SimProcessSpec {
        let pages = self.cold_mib * MIB_PAGES;
        let area = area("cold", START, pages, (Nanos(0), self.fill), Rates::Never);
        program("cold", vec![area])
    }

    /// redis, which loads its snapshot, a block of it for each of its own, and is read from then on.
    fn redis(&self, reads: &Reads) -> SimProcessSpec {
        let rates = Rates::EachWithLines(reads.touches.clone(), reads.lines.clone());
        let loading = (Nanos(0), self.load);
        let mut anon = area("heap", START, self.anon_pages(), loading, Rates::Never);
        anon.pattern = Pattern::Phases(vec![(Nanos(0), Rates::Never), (self.load, rates)]);
        let pages = blocks(self.file_mib) * BLOCK_PAGES;
        let file = area("snapshot", anon.range.end, pages, loading, Rates::Never);
        let file = AreaSpec {
            purpose: Use::File,
            ..file
        };
        SimProcessSpec {
            // With this share of its time redis takes as long as it does on the slow node alone.
            memory_bound: self.all_slow / (SLOW_LATENCY - 1) as f64,
            ..program("redis", vec![anon, file])
        }
    }
}

fn program(name: &str, areas: Vec<AreaSpec>) -> SimProcessSpec {
    SimProcessSpec {
        name: name.to_owned(),
        areas,
        ..SimProcessSpec::default()
    }
}

fn area(name: &str, start: u64, pages: u64, fill: (Nanos, Nanos), rates: Rates) -> AreaSpec {
    let range = AddressRange::new(start, start + pages * PAGE_SIZE);
    AreaSpec {
        fill: Some(fill),
        ..AreaSpec::new(name, range, Pattern::steady(rates))
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::Attributes;
    use isotherm_policy::Scheme;
    use isotherm_policy::scheme::{AccessPattern, Action, Bounds, Destination, Frequency};

    use super::*;
    use crate::experiment::redis::reads;
    use isotherm_sim::simulation::Watch;

    /// Migrates memory that is accessed with a frequency in `percent` of the checks from one node to another, `node`.
    fn context(from: u32, node: u32, action: Action, percent: (f64, f64)) -> SimContextSpec {
        let pattern = AccessPattern {
            nr_accesses: Bounds::new(Frequency::Percent(percent.0), Frequency::Percent(percent.1)),
            ..AccessPattern::ANY
        };
        let attributes = Attributes {
            sample_interval: Nanos::from_millis(100),
            aggregation_interval: Nanos::from_millis(2_000),
            ..Attributes::default()
        };
        let scheme = Scheme {
            destinations: vec![Destination { node, weight: 1 }],
            ..Scheme::new(pattern, action)
        };
        SimContextSpec::new(Watch::Physical(attributes, Some(from)), vec![scheme])
    }

    #[test]
    fn everything_is_in_one_place_after_every_event() {
        let setting = TieringSetting {
            fast_mib: 64,
            slow_mib: 24,
            system_mib: 4,
            cold_mib: 52,
            anon_mib: 16,
            file_mib: 12,
            records: 6_000,
            reads_per_s: 500.0,
            fill: Nanos::from_millis(20_000),
            load: Nanos::from_millis(20_000),
            run: Nanos::from_millis(120_000),
            all_slow: 0.2,
            seed: 3,
        };
        for distribution in KeyDistribution::ALL {
            let reads = reads(&setting, distribution);
            let contexts = vec![
                context(0, 1, Action::MigrateCold, (0.0, 0.0)),
                context(1, 0, Action::MigrateHot, (5.0, 100.0)),
            ];
            let outcome = run(&setting, contexts, &reads);
            assert!(outcome.demoted > 0 && outcome.dropped > 0, "{outcome:?}");
            run(&setting, Vec::new(), &reads);
        }
    }
}
