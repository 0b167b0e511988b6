//! The summary of a record on one screen: memory in use, cold memory, and the savings of paging out.
//!
//! JSON: [`SummaryReport`].

use isotherm_engine::{Nanos, units};
use serde::Serialize;

use super::overview::{IDLE, MappingOverview, Overview};

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
    /// The suggested next command.
    pub next: String,
    /// The whole overview. Its mappings are those with the most idle bytes.
    #[serde(flatten)]
    pub overview: Overview,
}

impl SummaryReport {
    /// Builds the summary of a record.
    pub fn new(mut overview: Overview) -> Self {
        overview
            .mappings
            .retain(|m: &MappingOverview| m.idle_bytes > 0);
        overview.mappings.truncate(MAPPINGS);
        let bytes = overview.total.reclaimable_bytes();
        let resident = overview.total.resident_bytes.filter(|bytes| *bytes > 0);
        let share = bytes
            .zip(resident)
            .map(|(bytes, all)| bytes as f64 / all as f64);
        let reclaim = Reclaim {
            idle_for_ns: IDLE,
            bytes,
            unreclaimable_bytes: overview.total.unreclaimable_bytes,
            share,
        };
        Self {
            report: "summary",
            version: crate::VERSION,
            verdict: verdict(&overview, reclaim),
            next: next(&overview, reclaim),
            reclaim,
            overview,
        }
    }
}

fn verdict(overview: &Overview, reclaim: Reclaim) -> String {
    let who = match &overview.targets[..] {
        [] => return "no target was left at the end".into(),
        [one] => one
            .target
            .name
            .clone()
            .unwrap_or_else(|| one.target.label()),
        several => format!("these {} targets", several.len()),
    };
    let total = &overview.total;
    let verb = if overview.targets.len() == 1 {
        "uses"
    } else {
        "use"
    };
    let resident = total.resident_bytes.map_or_else(String::new, |resident| {
        format!(" of {} resident", units::format_bytes(resident))
    });
    let used = match (total.working_set_bytes, total.resident_bytes) {
        (None, _) => format!("how much{resident} {who} {verb} is unknown"),
        (Some(used), all) => {
            let share = all.map(|all| used as f64 / all.max(1) as f64);
            let share = share.map(|share| format!(" ({})", units::format_share(share)));
            let used = units::format_bytes(used);
            format!("{who} {verb} {used}{resident}{}", share.unwrap_or_default())
        }
    };
    let idle = match reclaim {
        Reclaim { bytes: None, .. } => format!(
            "watched for {} only, too short to tell what stays idle for {}",
            units::format_time(total.watched_ns),
            units::format_time(IDLE)
        ),
        Reclaim {
            bytes: Some(bytes),
            unreclaimable_bytes,
            ..
        } => {
            let idle = bytes.saturating_add(unreclaimable_bytes);
            let share = total.resident_bytes.filter(|bytes| *bytes > 0);
            let share = share.map(|resident| idle as f64 / resident as f64);
            let share =
                share.map_or_else(String::new, |s| format!(" ({})", units::format_share(s)));
            let long = units::format_time(IDLE);
            if idle == 0 {
                format!("nothing has been idle for {long}")
            } else {
                let idle = units::format_bytes(idle);
                format!("{idle}{share} has been idle for {long} or more")
            }
        }
    };
    format!("{used}; {idle}")
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
