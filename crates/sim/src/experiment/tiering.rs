//! The experiments of *HMSDK v2.0 Performance Results* and *DAMON based tiered memory management for
//! CXL memory* (both 2024): redis with YCSB on 512 GB of DRAM and 96 GB of CXL memory, while a block of
//! cold memory takes most of the DRAM.
//!
//! What is simulated: the cold block is filled, then redis loads 52.6 GB of anonymous memory, and 33 GB
//! of its snapshot stay in the page cache; then clients read for as long as 50 runs of a minute. Pages
//! go to DRAM while there is room. In the tiered configuration two monitors (the engine, by DAMON's
//! rules) watch the two nodes by physical address from the start, and HMSDK's schemes migrate.
//!
//! What time a run takes: the share of redis' accesses that go to CXL memory costs what running wholly
//! on CXL memory costs, in proportion: `1 + (CXL-only - 1) x share`. CXL-only is therefore calibrated;
//! placement, and with it every other cell, follows.
//!
//! Limits: an access is a cache line that a read touches ([`super::redis`]). Migration and monitoring cost
//! redis nothing here; the published tiered runs are 3 to 5 % slower even with next to no CXL use.

use std::ops::Range;

use isotherm_engine::scheme::{
    AccessPattern, Action, Age, Bounds, Destination, Filter, FilterKind, Frequency, OpsFilter,
    Quota, Scheme, SystemFacts, Weights,
};
use isotherm_engine::{
    Attributes, Cost, Engine, Facts, Layout, Nanos, SchemeEngine, Strategy, TargetId, Touch,
};
use serde::Serialize;

use super::redis::Reads;
use crate::access::{Rates, Use};
use crate::cost::PUBLISHED_TIERS;
use crate::memory::{BLOCK_ORDER, BLOCK_PAGES, Page};
use crate::tiers::{TieredMachine, Watched};

const MIB_PAGES: u64 = 1 << 8;
const FAST: u32 = 0;
const SLOW: u32 = 1;

/// Which records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// A few much more often than the others, wherever they lie (YCSB's scrambled zipfian).
    Zipfian,
    /// The last loaded most often (YCSB's latest).
    Latest,
}

/// Where redis' memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// To DRAM while there is room, and it stays.
    Default,
    /// Likewise, and HMSDK's schemes migrate it.
    Tiered,
}

/// Sizes and times of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Memory of the nodes, in MiB as all sizes.
    pub fast_mib: u64,
    /// The slow node's.
    pub slow_mib: u64,
    /// DRAM that the system itself needs. Calibrated on the CXL use by default at 440 GB: the memory
    /// map of both nodes takes 9.5 of it.
    pub system_mib: u64,
    /// The cold block.
    pub cold_mib: u64,
    /// redis' anonymous memory in MiB, and its snapshot in the page cache.
    pub anon_mib: u64,
    /// The snapshot.
    pub file_mib: u64,
    /// Records in it.
    pub records: u64,
    /// Reads per second.
    pub reads_per_s: f64,
    /// How long filling the cold block takes, and then loading redis.
    pub fill: Nanos,
    /// The load.
    pub load: Nanos,
    /// How long clients read.
    pub run: Nanos,
    /// Seed of every draw.
    pub seed: u64,
}

impl Setting {
    /// The published one: YCSB with 30 M records, 5 M operations a minute.
    pub fn published(cold_gib: u64) -> Self {
        Self {
            fast_mib: 512 << 10,
            slow_mib: 96 << 10,
            system_mib: 20 << 10,
            cold_mib: cold_gib << 10,
            anon_mib: 53_862,
            file_mib: 33 * 1024,
            records: 30_000_000,
            reads_per_s: 5_000_000.0 / 60.0,
            fill: Nanos::from_millis(120_000),
            load: Nanos::from_millis(180_000),
            run: Nanos::from_millis(3_000_000),
            seed: 1,
        }
    }

    /// redis' anonymous memory, in whole huge pages.
    pub(super) fn anon_pages(&self) -> u64 {
        blocks(self.anon_mib) * BLOCK_PAGES
    }
}

fn blocks(mib: u64) -> u64 {
    mib / 2
}

/// What an experiment came to, while clients read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
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
    /// Accessed bits of redis' pages that were cleared while clients read.
    pub cleared: u64,
}

/// One experiment.
pub fn run(setting: &Setting, placement: Placement, reads: &Reads) -> Outcome {
    let mut stage = Stage::new(setting, reads);
    let mut kdamonds = match placement {
        Placement::Default => Vec::new(),
        Placement::Tiered => vec![
            Kdamond::new(&stage.machine, FAST, demote(), setting.seed),
            Kdamond::new(&stage.machine, SLOW, promote(), setting.seed + 1),
        ],
    };
    let end = setting.fill + setting.load + setting.run;
    let mut now = Nanos(0);
    while now < end {
        stage.advance(now);
        let next = kdamonds.iter().map(|kdamond| kdamond.next).min();
        // Without monitors nothing happens once everything is loaded.
        now = next
            .unwrap_or(now + Nanos::from_millis(1_000))
            .max(now + Nanos(1));
        for kdamond in kdamonds.iter_mut().filter(|kdamond| kdamond.next <= now) {
            kdamond.tick(now, &mut stage);
        }
        #[cfg(test)]
        (stage.machine.check_places()).expect("everything is in one place");
    }
    stage.outcome()
}

/// The machine, what runs on it, and what is counted.
struct Stage<'a> {
    setting: &'a Setting,
    machine: TieredMachine,
    cold: Filling,
    anon: Filling,
    file: Filling,
    anon_pages: Range<Page>,
    reads: &'a Reads,
    /// Cache lines read per second that are on the slow node, and on both.
    slow_rate: f64,
    all_rate: f64,
    /// redis' pages on the slow node.
    slow_pages: u64,
    is_serving: bool,
    last: Nanos,
    /// Sums over time, in seconds.
    slow_rate_seconds: f64,
    slow_page_seconds: f64,
    moves: Vec<(Page, u32)>,
}

/// Pages that are filled one block after the other.
struct Filling {
    next: Page,
    end: Page,
    from: Nanos,
    to: Nanos,
}

impl Filling {
    /// How many blocks are due.
    fn due(&self, start: Page, now: Nanos) -> u64 {
        let share = now.since(self.from).0 as f64 / self.to.since(self.from).0.max(1) as f64;
        let all = u64::from(self.end - start) / BLOCK_PAGES;
        ((all as f64 * share.min(1.0)) as u64) - u64::from(self.next - start) / BLOCK_PAGES
    }
}

impl<'a> Stage<'a> {
    fn new(setting: &'a Setting, reads: &'a Reads) -> Self {
        let nodes = [
            (setting.fast_mib * MIB_PAGES, setting.system_mib * MIB_PAGES),
            (setting.slow_mib * MIB_PAGES, 0),
        ];
        let mut machine = TieredMachine::new(&nodes, PUBLISHED_TIERS, setting.seed);
        let mut add = |pages: u64, purpose| {
            let pages = machine.memory.add_pages(pages);
            machine.accesses.add(pages.clone(), purpose, Rates::Never);
            pages
        };
        let cold = add(setting.cold_mib * MIB_PAGES, Use::Anon);
        let anon = add(setting.anon_pages(), Use::Anon);
        let file = add(blocks(setting.file_mib) * BLOCK_PAGES, Use::File);
        machine.set_page_cache(file.clone());
        let filled = setting.fill;
        let loaded = filled + setting.load;
        let filling = |pages: &Range<Page>, from, to| Filling {
            next: pages.start,
            end: pages.end,
            from,
            to,
        };
        Self {
            setting,
            cold: filling(&cold, Nanos(0), filled),
            anon: filling(&anon, filled, loaded),
            file: filling(&file, filled, loaded),
            anon_pages: anon,
            machine,
            reads,
            slow_rate: 0.0,
            all_rate: reads.lines.iter().map(|rate| f64::from(*rate)).sum(),
            slow_pages: 0,
            is_serving: false,
            last: loaded,
            slow_rate_seconds: 0.0,
            slow_page_seconds: 0.0,
            moves: Vec::new(),
        }
    }

    /// Fills what is due at `now`, and counts what was since the last time.
    fn advance(&mut self, now: Nanos) {
        if self.is_serving {
            let elapsed = now.since(self.last).as_secs_f64();
            self.slow_rate_seconds += self.slow_rate * elapsed;
            self.slow_page_seconds += self.slow_pages as f64 * elapsed;
            self.last = now;
            return;
        }
        let machine = &mut self.machine;
        let cold_start = 0;
        for _ in 0..self.cold.due(cold_start, now) {
            machine.populate(self.cold.next, BLOCK_ORDER, &[FAST, SLOW]);
            self.cold.next += BLOCK_PAGES as u32;
        }
        let file_start = self.anon_pages.end;
        // A block of either in turn, as reading the snapshot fills the page cache.
        let (anon, file) = (
            self.anon.due(self.anon_pages.start, now),
            self.file.due(file_start, now),
        );
        for i in 0..anon.max(file) {
            if i < anon {
                machine.populate(self.anon.next, BLOCK_ORDER, &[FAST, SLOW]);
                self.anon.next += BLOCK_PAGES as u32;
            }
            if i < file {
                machine.populate(self.file.next, BLOCK_ORDER, &[FAST, SLOW]);
                self.file.next += BLOCK_PAGES as u32;
            }
        }
        if self.anon.next == self.anon.end && now >= self.anon.to {
            self.serve(now);
        }
    }

    /// Clients begin to read.
    fn serve(&mut self, now: Nanos) {
        self.is_serving = true;
        self.last = now;
        self.machine
            .accesses
            .set_rates(1, Rates::Each(self.reads.touches.clone()), now);
        for page in self.anon_pages.clone() {
            if let Some(frame) = self.machine.memory.frame_of(page)
                && self.machine.node_of(frame) == SLOW
            {
                self.slow_pages += 1;
                self.slow_rate += self.rate(page);
            }
        }
    }

    fn rate(&self, page: Page) -> f64 {
        f64::from(self.reads.lines[(page - self.anon_pages.start) as usize])
    }

    /// Pages were moved.
    fn note_moves(&mut self) {
        let moves = std::mem::take(&mut self.moves);
        if self.is_serving {
            for &(page, to) in moves
                .iter()
                .filter(|(page, _)| self.anon_pages.contains(page))
            {
                let rate = self.rate(page);
                if to == SLOW {
                    self.slow_pages += 1;
                    self.slow_rate += rate;
                } else {
                    self.slow_pages -= 1;
                    self.slow_rate -= rate;
                }
            }
        }
        self.moves = moves;
        self.moves.clear();
    }

    fn outcome(&self) -> Outcome {
        let seconds = self
            .last
            .since(self.setting.fill + self.setting.load)
            .as_secs_f64()
            .max(1e-9);
        let moved = |from, to| self.machine.moved().get(&(from, to)).copied().unwrap_or(0);
        Outcome {
            slow_share: self.slow_rate_seconds / seconds / self.all_rate,
            slow_gib: self.slow_page_seconds / seconds / (1024 * MIB_PAGES) as f64,
            demoted: moved(FAST, SLOW),
            promoted: moved(SLOW, FAST),
            dropped: self.machine.dropped(),
            cleared: self.machine.accesses.cleared(),
        }
    }
}

/// A monitor of one node with its scheme.
struct Kdamond {
    engine: Engine,
    schemes: SchemeEngine,
    layout: Option<Layout>,
    next: Nanos,
    watched: Watched,
    touches: Vec<Touch>,
}

const TARGET: TargetId = TargetId(0);

impl Kdamond {
    fn new(machine: &TieredMachine, node: u32, scheme: Scheme, seed: u64) -> Self {
        // HMSDK's intervals and regions.
        let attributes = Attributes {
            sample_interval: Nanos::from_millis(100),
            aggregation_interval: Nanos::from_millis(2_000),
            update_interval: Nanos::from_millis(20_000),
            min_nr_regions: 100,
            max_nr_regions: 10_000,
            strategy: Strategy::faithful(),
            seed,
            ..Attributes::faithful()
        };
        Self {
            engine: Engine::new(attributes).expect("attributes of ours"),
            schemes: SchemeEngine::new(vec![scheme]).expect("a scheme of ours"),
            layout: Some(Layout::Fixed(vec![machine.range_of(node)])),
            next: Nanos(0),
            watched: Watched::default(),
            touches: Vec::new(),
        }
    }

    fn tick(&mut self, now: Nanos, stage: &mut Stage<'_>) {
        let machine = &mut stage.machine;
        machine.check(&mut self.watched, now, &mut self.touches);
        let facts = Facts {
            touches: &self.touches,
            layouts: self
                .layout
                .take()
                .map(|layout| (TARGET, layout))
                .into_iter()
                .collect(),
            ended: &[],
            cost: Cost::default(),
        };
        let plan = self.engine.tick(now, facts);
        self.watched.set(&plan.samples);
        self.next = plan.next_tick;
        let operations = self
            .schemes
            .plan(now, &plan.snapshots, &SystemFacts::default());
        if !operations.is_empty() {
            let outcomes = stage.machine.act(&operations, now, &mut stage.moves);
            stage.note_moves();
            for (target, range) in self.schemes.done(&operations, &outcomes) {
                self.engine.reset_age(target, range);
            }
        }
        stage.machine.arm(&mut self.watched, now);
    }
}

/// HMSDK's scheme for the fast node: what idled for 30 s, and is not young, goes to the slow one.
fn demote() -> Scheme {
    let idle = Bounds {
        min: Frequency::Percent(0.0),
        max: Frequency::Percent(0.0),
    };
    let old = Bounds {
        min: Age::Time(Nanos::from_millis(30_000)),
        max: Age::Time(Nanos(u64::MAX)),
    };
    Scheme {
        quota: quota(1_000, 0),
        filters: vec![young(false)],
        ..migration(Action::MigrateCold, SLOW, idle, old)
    }
}

/// And for the slow node: what is accessed in 5 % of the checks or more, and is young.
fn promote() -> Scheme {
    let busy = Bounds {
        min: Frequency::Percent(5.0),
        max: Frequency::Percent(100.0),
    };
    let any = Bounds {
        min: Age::Time(Nanos(0)),
        max: Age::Time(Nanos(u64::MAX)),
    };
    Scheme {
        quota: quota(2_000, 10),
        filters: vec![young(true)],
        ..migration(Action::MigrateHot, FAST, busy, any)
    }
}

fn migration(action: Action, to: u32, nr_accesses: Bounds<Frequency>, age: Bounds<Age>) -> Scheme {
    let pattern = AccessPattern {
        size: Bounds {
            min: 4096,
            max: u64::MAX,
        },
        nr_accesses,
        age,
    };
    Scheme {
        destinations: vec![Destination {
            node: to,
            weight: 1,
        }],
        ..Scheme::new(pattern, action)
    }
}

/// So many ms, and 50 GiB, in 20 s; the oldest first.
fn quota(ms: u64, nr_accesses_permil: u32) -> Quota {
    Quota {
        time: Nanos::from_millis(ms),
        bytes: 50 << 30,
        reset_interval: Nanos::from_millis(20_000),
        weights: Weights {
            size_permil: 0,
            nr_accesses_permil,
            age_permil: 10,
        },
        ..Quota::default()
    }
}

/// Only pages that are young, or only those that are not.
fn young(is_meant: bool) -> Filter {
    Filter {
        kind: FilterKind::Ops(OpsFilter::Young),
        matching: !is_meant,
        allow: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::redis::reads;

    #[test]
    fn everything_is_in_one_place_after_every_event() {
        let setting = Setting {
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
            seed: 3,
        };
        for distribution in [Distribution::Zipfian, Distribution::Latest] {
            let reads = reads(&setting, distribution);
            let outcome = run(&setting, Placement::Tiered, &reads);
            assert!(outcome.demoted > 0 && outcome.dropped > 0, "{outcome:?}");
            run(&setting, Placement::Default, &reads);
        }
    }
}
