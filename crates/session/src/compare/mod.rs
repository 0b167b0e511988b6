//! The same session in several worlds, one after the other, on the same processes: what each says, how true that is,
//! and what it costs.
//!
//! Problem: two monitors cannot watch the same memory at once, as each clears the accessed bits that the other is to
//! read, and of a program that nobody wrote for it the truth is not known. Approach: worlds take turns, and exact scans
//! of every page stand before, between and after them ([`truth`]). What scans on both sides of a turn agree on is held
//! against what the world said in its last part, when it has settled. Nothing is acted on; what schemes are about is
//! counted instead, in memory that is there.
//!
//! The simulated world replays the first scans, and is held against those.
//!
//! Limits: what changes while a world has its turn is left out, and its share told; a program of phases that are
//! shorter than a turn is mostly that. An exact scan sees whether a page was touched within a second, not how often.

mod runner;
mod score;
mod simulated;
mod text;
mod truth;

use std::collections::BTreeMap;

use isotherm_config::SessionSpec;
use isotherm_engine::Nanos;
use isotherm_engine::scheme::{Action, Scheme};
use isotherm_engine::statistics::median;
use serde::{Deserialize, Serialize};

pub use runner::compare;
pub use text::ComparisonRow;
pub use truth::TruthBytes;

/// How often exact scans look.
const SCAN_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// Memory is idle from this age on where no scheme says another.
const IDLE_FOR: Nanos = Nanos::from_millis(5_000);
/// Ages that schemes may ask for, to be compared here.
const IDLE_MAX: Nanos = Nanos::from_millis(120_000);

/// Who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ComparedWorld {
    /// Isotherm's own monitor.
    Linux,
    /// The same by DAMON's rules, at the kernel's intervals.
    Faithful,
    /// The kernel's DAMON.
    Kernel,
    /// Isotherm on a simulated machine that replays what exact scans saw.
    Simulated,
}

impl ComparedWorld {
    /// As flags have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Faithful => "faithful",
            Self::Kernel => "kernel",
            Self::Simulated => "simulated",
        }
    }
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct ComparisonSpec {
    /// A session for each world, of the same processes; the simulated one's targets do not matter.
    pub worlds: Vec<(ComparedWorld, SessionSpec)>,
    /// How long a world has its turn.
    pub window: Nanos,
    /// How many turns each has.
    pub turns: u32,
    /// Longest time that one exact scan may hold a process up.
    pub max_stall: Nanos,
    /// Isotherm's own monitor may take as much CPU time as the kernel's took so far.
    pub is_cpu_equal: bool,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// Processes that were watched, by their ids and names.
    pub processes: BTreeMap<u32, String>,
    /// How long a turn was, in seconds.
    pub window_seconds: f64,
    /// Memory that was not touched for so many seconds is idle.
    pub idle_seconds: f64,
    /// In the order that was asked for.
    pub worlds: Vec<WorldReport>,
    /// What the user should know of how it went, a sentence each.
    pub notes: Vec<String>,
}

/// What one world said and cost. Medians are over turns.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorldReport {
    /// Who watched.
    pub world: ComparedWorld,
    /// Why there is nothing of it, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Turns that it had.
    pub turns: Vec<Turn>,
}

/// One turn.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turn {
    /// Snapshots, of all processes.
    pub snapshots: u64,
    /// Regions of the last snapshot, of all processes.
    pub regions: u64,
    /// Share of one CPU that watching took: Isotherm's and the kdamond's; of the simulated world as it foretells.
    pub cpu_share: f64,
    /// The kdamond's part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdamond_cpu_share: Option<f64>,
    /// What exact scans before and after agree on.
    pub truth: TruthBytes,
    /// Memory in use: of what was said to be, the share that was, and of what was, the share that was said to be.
    pub accessed_precision: Option<f64>,
    /// See `accessed_precision`.
    pub accessed_recall: Option<f64>,
    /// The same of memory that was idle for `idle_seconds`.
    pub idle_precision: Option<f64>,
    /// See `idle_precision`.
    pub idle_recall: Option<f64>,
    /// Share of memory of which it said nothing.
    pub unknown_share: Option<f64>,
    /// What each scheme was about at the end.
    pub schemes: Vec<SchemeTurn>,
}

/// What a scheme was about at the end of a turn: memory that is there and of which the truth is known.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeTurn {
    /// What it does.
    pub action: Action,
    /// Bytes that it would act on.
    pub bytes: u64,
    /// Of these, bytes that were in use.
    pub accessed_bytes: u64,
}

/// How far a comparison is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Exact scans.
    Scanning,
    /// A world has its turn, this one of so many.
    Watching {
        /// Who watches.
        world: ComparedWorld,
        /// Its number, from 1 on.
        turn: u32,
        /// How many it has.
        turns: u32,
    },
}

impl ComparisonSpec {
    /// From which age on memory is idle: the least that a scheme asks for, within reason.
    pub fn idle_for(&self) -> Nanos {
        let schemes = self
            .worlds
            .first()
            .map(|(_, spec)| spec.contexts[0].schemes());
        let schemes = schemes.unwrap_or_default().iter();
        let ages = schemes.filter_map(Scheme::idle_for);
        ages.min()
            .unwrap_or(IDLE_FOR)
            .clamp(SCAN_INTERVAL, IDLE_MAX)
    }

    /// How long it will take.
    pub fn duration(&self) -> Nanos {
        let live = { self.worlds.iter() }.filter(|(world, _)| *world != ComparedWorld::Simulated);
        let turns = live.count() as u64 * u64::from(self.turns);
        let first = if self.is_simulated() {
            self.window
        } else {
            self.scan_for()
        };
        Nanos(first.0 + turns * (self.window.0 + self.scan_for().0))
    }

    fn is_simulated(&self) -> bool {
        { self.worlds.iter() }.any(|(world, _)| *world == ComparedWorld::Simulated)
    }

    /// How long exact scans look between turns: as long as memory must be idle, and a scan to begin with.
    fn scan_for(&self) -> Nanos {
        self.idle_for() + SCAN_INTERVAL + Nanos(SCAN_INTERVAL.0 / 2)
    }
}

impl WorldReport {
    /// The median of what turns came to, where that is known of any.
    pub fn median(&self, of: impl Fn(&Turn) -> Option<f64>) -> Option<f64> {
        median(self.turns.iter().filter_map(of).collect())
    }
}
