//! Comparison of worlds: the same session runs in several worlds, one after the other, on the same processes. The
//! report holds the snapshots' accuracy and the cost of each world.
//!
//! Problem: two monitors cannot watch the same memory at once, as each clears the accessed bits that the other has yet
//! to read. The true accesses of an arbitrary program are not known. Approach: worlds take turns, and exact scans of
//! every page run before, between and after the turns ([`truth`]). Pages on which the scans on both sides of a turn
//! agree are compared with the world's snapshots. Only the turn's last part counts, when the world has settled. Nothing
//! is acted on; the memory that schemes would act on is counted instead, as far as it is present.
//!
//! The simulated world replays the first scans, and is compared with those.
//!
//! Limits: memory that changes during a world's turn is left out, and the amount reported; of a program whose phases
//! are shorter than a turn, that is most of the memory. An exact scan sees whether a page was touched within a second,
//! not how often.

mod runner;
mod score;
mod simulated;
mod text;
mod truth;
mod watched;

use std::collections::BTreeMap;

use isotherm_config::SessionSpec;
use isotherm_engine::Nanos;
use isotherm_engine::statistics::median;
use isotherm_policy::scheme::{Action, Scheme};
use serde::{Deserialize, Serialize};

pub use runner::compare;
pub use truth::TruthBytes;

const SCAN_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// Age from which memory is idle if no scheme specifies one.
const IDLE_FOR: Nanos = Nanos::from_millis(5_000);
/// Longest age of a scheme that a comparison uses.
const IDLE_MAX: Nanos = Nanos::from_millis(120_000);

isotherm_engine::named! {
    /// A world that watches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum ComparedWorld {
        /// Isotherm's own monitor.
        Linux = "linux",
        /// Isotherm's own monitor with DAMON's rules, at the kernel's intervals.
        Faithful = "faithful",
        /// The kernel's DAMON.
        Kernel = "kernel",
        /// Isotherm on a simulated machine that replays what exact scans saw.
        Simulated = "simulated",
    }

    /// Returns the name that command-line flags use.
    fn name;
}

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonSpec {
    /// A session for each world, all of the same processes; the targets of the simulated one are ignored.
    pub worlds: Vec<(ComparedWorld, SessionSpec)>,
    /// Length of a world's turn.
    pub window: Nanos,
    /// Number of turns of each world.
    pub turns: u32,
    /// Longest time for which one exact scan may stall a process.
    pub max_stall: Nanos,
    /// Whether the CPU budget of Isotherm's own monitor equals the median share that the kernel's took so far.
    pub is_cpu_equal: bool,
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// Processes that were watched: names by process id.
    pub processes: BTreeMap<u32, String>,
    /// Length of a turn, in seconds.
    pub window_seconds: f64,
    /// Time after which untouched memory is idle, in seconds.
    pub idle_seconds: f64,
    /// The worlds, in the order of the request.
    pub worlds: Vec<WorldReport>,
    /// Remarks on the comparison for the user, one sentence each.
    pub notes: Vec<String>,
}

/// Accuracy and cost of one world. Medians are over turns.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorldReport {
    /// The world that watched.
    pub world: ComparedWorld,
    /// Reason why the world has no results, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Turns of this world.
    pub turns: Vec<Turn>,
}

/// One turn.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turn {
    /// Number of snapshots of all processes.
    pub snapshots: u64,
    /// Number of regions in the last snapshots of all processes.
    pub regions: u64,
    /// Share of one CPU that watching took: Isotherm's and the kdamond's; in the simulated world the predicted share.
    pub cpu_share: f64,
    /// The kdamond's part of `cpu_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdamond_cpu_share: Option<f64>,
    /// Memory by the state on which exact scans before and after the turn agree.
    pub truth: TruthBytes,
    /// Precision for memory in use: share of the memory reported as in use that was in use.
    pub accessed_precision: Option<f64>,
    /// Recall for memory in use: share of the memory in use that was reported as such.
    pub accessed_recall: Option<f64>,
    /// Precision for memory that was idle for `idle_seconds`.
    pub idle_precision: Option<f64>,
    /// Recall for memory that was idle for `idle_seconds`.
    pub idle_recall: Option<f64>,
    /// Share of memory on which the world reported nothing.
    pub unknown_share: Option<f64>,
    /// Memory that each scheme would act on at the turn's end.
    pub schemes: Vec<SchemeTurn>,
}

/// Memory that a scheme would act on at the end of a turn: present memory of which the truth is known.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeTurn {
    /// Action of the scheme.
    pub action: Action,
    /// Bytes that it would act on.
    pub bytes: u64,
    /// Part of `bytes` that was in use.
    pub accessed_bytes: u64,
}

/// Progress of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonProgress {
    /// Exact scans run.
    Scanning,
    /// A world takes one of its turns.
    Watching {
        /// The world that watches.
        world: ComparedWorld,
        /// Number of the turn, from 1 on.
        turn: u32,
        /// Number of turns of this world.
        turns: u32,
    },
}

impl ComparisonSpec {
    /// Returns the age from which memory is idle: the least age that a scheme of the first world asks for, limited to
    /// between a second and two minutes.
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

    /// Returns the expected length of the comparison.
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

    /// Returns the length of exact scanning between turns: the age at which memory is idle, and one and a half scans.
    fn scan_for(&self) -> Nanos {
        self.idle_for() + SCAN_INTERVAL + Nanos(SCAN_INTERVAL.0 / 2)
    }
}

impl WorldReport {
    fn take(&mut self, turn: anyhow::Result<Turn>) {
        match turn {
            Ok(turn) => self.turns.push(turn),
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// Returns the median of a value over the turns for which it is known; none if there is no such turn.
    pub fn median(&self, of: impl Fn(&Turn) -> Option<f64>) -> Option<f64> {
        median(self.turns.iter().filter_map(of).collect())
    }
}
