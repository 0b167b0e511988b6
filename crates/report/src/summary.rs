//! The summary of a record on one screen: memory in use, cold memory, and the savings of paging out.
//!
//! JSON: [`SummaryReport`].

use isotherm_engine::{Nanos, units};
use serde::Serialize;

use super::overview::{IDLE, Overview, TargetOverview};

const MAPPINGS: usize = 8;
/// Share of the resident memory from which paging out is worthwhile.
const WORTH_A_TRY: f64 = 0.05;

/// The memory that the preset `prcl` would page out at the end of the record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reclaim {
    /// The minimum idle time.
    pub idle_for_ns: Nanos,
    /// The largest amount of bytes; `null` if nothing was watched for the idle time.
    pub bytes: Option<u64>,
    /// Bytes with this idle time that cannot be paged out: locked, mapped several times or by several processes, or a
    /// device's.
    pub unreclaimable_bytes: u64,
    /// The bytes as a share of the resident bytes, 0 to 1.
    pub share: Option<f64>,
}

/// The memory that the targets need at an allowed loss, with swap for the rest; from page scans.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NeededMemory {
    /// The estimate.
    pub bytes: u64,
    /// Lower bound.
    pub low_bytes: u64,
    /// Upper bound.
    pub high_bytes: u64,
    /// All memory at its peak.
    pub peak_bytes: u64,
    /// The allowed loss, as a share of the program's time.
    pub max_slowdown: f64,
}

impl NeededMemory {
    /// Returns the estimate in words.
    pub fn words(&self) -> String {
        let [bytes, low, high, peak] =
            [self.bytes, self.low_bytes, self.high_bytes, self.peak_bytes].map(units::format_bytes);
        let loss = units::format_share(self.max_slowdown);
        format!("needs {bytes} ({low} to {high}) of {peak} at a loss of {loss}")
    }
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SummaryReport {
    /// `summary`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record's result in a sentence.
    pub verdict: String,
    /// The savings of paging out.
    pub reclaim: Reclaim,
    /// The memory that the targets need; `null` without page scans.
    pub needed: Option<NeededMemory>,
    /// The suggested next command.
    pub next: String,
    /// The whole overview. Its mappings are those with the most idle bytes.
    #[serde(flatten)]
    pub overview: Overview,
}

impl SummaryReport {
    /// Builds the summary of a record.
    pub fn new(mut overview: Overview) -> Self {
        overview.mappings.retain(|mapping| mapping.idle_bytes > 0);
        overview.mappings.truncate(MAPPINGS);
        let total = &overview.total;
        let bytes = total.reclaimable_bytes();
        let reclaim = Reclaim {
            idle_for_ns: IDLE,
            bytes,
            unreclaimable_bytes: total.unreclaimable_bytes,
            share: bytes.and_then(|bytes| share_of(bytes, total)),
        };
        Self {
            report: "summary",
            version: crate::VERSION,
            verdict: verdict(&overview, reclaim),
            next: next(&overview, reclaim),
            needed: None,
            reclaim,
            overview,
        }
    }
}

fn verdict(overview: &Overview, reclaim: Reclaim) -> String {
    let who = match &overview.targets[..] {
        [] => return "no target was left at the end".into(),
        [one] => {
            let name = one.target.name.clone();
            name.unwrap_or_else(|| one.target.label()) + " uses"
        }
        several => format!("these {} targets use", several.len()),
    };
    let total = &overview.total;
    let resident = total.resident_bytes.map_or_else(String::new, |resident| {
        format!(" of {} resident", units::format_bytes(resident))
    });
    let used = match (total.working_set_bytes, total.resident_bytes) {
        (None, _) => format!("how much{resident} {who} is unknown"),
        (Some(used), all) => {
            let share = in_brackets(all.map(|all| used as f64 / all.max(1) as f64));
            format!("{who} {}{resident}{share}", units::format_bytes(used))
        }
    };
    let long = units::format_time(IDLE);
    let idle = reclaim.bytes;
    let idle = idle.map(|bytes| bytes.saturating_add(reclaim.unreclaimable_bytes));
    let idle = match idle {
        None => {
            let watched = units::format_time(total.watched_ns);
            format!("watched for {watched} only, too short to tell what stays idle for {long}")
        }
        Some(0) => format!("nothing has been idle for {long}"),
        Some(idle) => {
            let share = in_brackets(share_of(idle, total));
            let idle = units::format_bytes(idle);
            format!("{idle}{share} has been idle for {long} or more")
        }
    };
    format!("{used}; {idle}")
}

fn share_of(bytes: u64, total: &TargetOverview) -> Option<f64> {
    let resident = total.resident_bytes.filter(|resident| *resident > 0)?;
    Some(bytes as f64 / resident as f64)
}

fn in_brackets(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| {
        format!(" ({})", units::format_share(share))
    })
}

fn next(overview: &Overview, reclaim: Reclaim) -> String {
    let targets = &overview.target_options;
    if reclaim.bytes.is_none() {
        return format!("isotherm record --duration 1min {targets}");
    }
    if reclaim.share.is_some_and(|share| share >= WORTH_A_TRY) {
        return format!("isotherm run --dry-run --preset prcl --duration 1min {targets}");
    }
    "isotherm report heatmap -o heatmap.html".into()
}
