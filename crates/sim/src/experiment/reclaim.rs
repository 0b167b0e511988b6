//! The configurations of *DAMON: data access monitor* and of its physical memory patches (SeongJae
//! Park, 2021): orig, rec, prec, thp, ethp, prcl and pprcl, on synthetic programs with the published
//! footprints.
//!
//! A [`Profile`] is no program: it has a program's published footprint, a hot part at its start and an
//! idle rest, and fills a part of each of its 2 MiB blocks. How much is hot and how much of a block is
//! filled are calibrated, on what prcl saved and what huge pages added of the program; what the other
//! configurations make of that is predicted.
//!
//! Limits: real programs have phases, which these have not; so nothing that was reclaimed comes back,
//! and the published slowdown of reclamation, all of which is refaults, is not predicted; nor is what huge
//! pages gained, as how often the programs access memory is not known.

use isotherm_engine::guard::GuardLimits;
use isotherm_engine::{AddressRange, Attributes, BLOCK_SIZE, Nanos, PAGE_SIZE, Scheme};
use serde::Serialize;

use crate::cost::KERNEL_DAMON;
use crate::machine::{
    AreaSpec, Machine, MachineSpec, NodeSpec, Pattern, ProcessSpec, Rates, SwapKind, ThpMode, Use,
};
use crate::memory::BLOCK_PAGES;
use crate::simulation::{ContextSpec, Event, Simulation, Watch};

/// How long each is simulated: DAMON's 5 s of idleness, its finding of regions, and then some.
const LENGTH: Nanos = Nanos::from_millis(60_000);
/// From the start on, what prcl needs before it has reclaimed all that idles. Found by a program of
/// which nothing is hot.
const NEEDED_S: f64 = 7.5;
/// Accesses per second to each hot page: none is idle for seconds.
const HOT_RATE: f32 = 50.0;

/// A synthetic program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Its footprint.
    pub bytes: u64,
    /// Share of it that is accessed all the time.
    pub hot: f64,
    /// Share of each block that is filled.
    pub filled: f64,
}

impl Profile {
    /// Of a program of `bytes` of which prcl saved `saved`, and to which huge pages added `bloat`, both
    /// as shares.
    pub fn new(bytes: u64, saved: f64, bloat: f64) -> Self {
        let reclaimed_for = 1.0 - NEEDED_S / LENGTH.as_secs_f64();
        Self {
            bytes,
            hot: (1.0 - saved.max(0.0) / reclaimed_for).clamp(0.0, 1.0),
            filled: 1.0 / (1.0 + bloat.max(0.0)),
        }
    }

    fn program(&self) -> ProcessSpec {
        let per_block = ((BLOCK_PAGES as f64 * self.filled).round() as u32).clamp(1, 512);
        let blocks = (self.bytes / PAGE_SIZE).div_ceil(u64::from(per_block));
        let start = 0x7f00_0000_0000;
        let hot = (blocks as f64 * self.hot * BLOCK_PAGES as f64) as u32;
        ProcessSpec {
            name: "synthetic".to_owned(),
            threads: 1,
            work: None,
            memory_bound: 0.0,
            accesses_per_s: None,
            areas: vec![AreaSpec {
                name: "heap".to_owned(),
                range: AddressRange::new(start, start + blocks * BLOCK_SIZE),
                purpose: Use::Anon,
                huge: None,
                pattern: Pattern::steady(Rates::Steps(vec![(hot, HOT_RATE)])),
                fill: Some((Nanos(0), Nanos::from_millis(500))),
                filled_of_block: Some(per_block),
                released: None,
            }],
        }
    }
}

/// A configuration of the evaluation.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Its name there.
    pub name: &'static str,
    /// Huge pages for everything.
    pub thp: bool,
    /// Whether DAMON watches, and if so by physical address.
    pub watched: Option<bool>,
    /// What is done.
    pub schemes: Vec<Scheme>,
}

/// What it came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReclaimOutcome {
    /// Mean resident memory, in KiB.
    pub rss_kib: f64,
    /// Share of its time that the program lost to watching and refaults.
    pub slowdown: f64,
}

/// One run, on a machine of 36 CPUs and 128 GiB, as published, with zram.
pub fn run(profile: &Profile, configuration: &Configuration) -> ReclaimOutcome {
    let machine = Machine::new(MachineSpec {
        cpus: 36,
        nodes: vec![NodeSpec::new(128 << 30)],
        swap: Some((SwapKind::Zram { ratio: 3.0 }, 64 << 30)),
        costs: KERNEL_DAMON,
        thp: if configuration.thp {
            ThpMode::Always
        } else {
            ThpMode::Madvise
        },
        ..MachineSpec::default()
    });
    let faithful = Attributes::faithful();
    let context = configuration.watched.map(|is_physical| ContextSpec {
        name: None,
        watch: if is_physical {
            Watch::Physical(faithful, None)
        } else {
            Watch::Regions(faithful)
        },
        limits: Vec::new(),
        schemes: configuration.schemes.clone(),
        guard: GuardLimits::default(),
        dry_run: false,
    });
    let starts = vec![(Nanos(0), profile.program())];
    let contexts = context.into_iter().collect();
    let simulation = Simulation::new(machine, starts, contexts, LENGTH);
    let mut simulation = simulation.expect("a configuration of ours");
    let (mut seconds, mut sum) = (0.0, 0.0);
    let mut events = Vec::new();
    while simulation.step(&mut events) {
        let is_second = |event: &Event| matches!(event, Event::Second);
        // The first second is the program's start.
        if events.drain(..).any(|event| is_second(&event))
            && simulation.machine().now().0 > 1_000_000_000
        {
            seconds += 1.0;
            sum += simulation.machine().processes()[0].rss() as f64 / 1024.0;
        }
    }
    let losses = simulation.machine().processes()[0].losses();
    ReclaimOutcome {
        rss_kib: sum / f64::max(seconds, 1.0),
        slowdown: (losses.monitoring + losses.refaults) / LENGTH.as_secs_f64(),
    }
}
