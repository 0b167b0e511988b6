//! Scores of many snapshots: medians, the worst, and errors that must never occur.

use isotherm_engine::Nanos;
use isotherm_engine::statistics::median;
use isotherm_workload::family::verdict::Verdict;
use isotherm_workload::score::{AccuracyScore, share};
use serde::Serialize;

use super::{Rss, Run, Watched};
use crate::table::{Table, number};

const AIM: f64 = 0.95;
/// The share of touched pages that may be unknown in a case that is scored.
const UNKNOWN_MAX: f64 = 0.05;
/// Error of the kernel's count of resident memory, and the distance of its samples.
const RSS_SLACK: f64 = 0.01;
const RSS_SLACK_BYTES: f64 = (4u64 << 20) as f64;
const RSS_NEAR: Nanos = Nanos::from_millis(250);

pub(super) const LEGEND: &str = "\
P precision, R recall of touched pages, median and worst over snapshots; all: over all pages of all
snapshots together. WSS: error of the working set, median of the absolute and worst with its sign.
idle!: most said to be idle for 2 s that was touched in that time. ?: share unknown. >RSS: most by
which touched or idle bytes exceed the process' resident memory. CPU: the monitor's, with what it takes
from the target, of one CPU, by its own account; and by the kernel's, loading included. ~: what the same
program did, replayed in the simulated machine.";

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Score {
    pub(super) snapshots: usize,
    interval_seconds: Option<f64>,
    pub(super) precision: Option<f64>,
    pub(super) precision_worst: Option<f64>,
    precision_all: Option<f64>,
    pub(super) recall: Option<f64>,
    pub(super) recall_worst: Option<f64>,
    recall_all: Option<f64>,
    /// Median of absolute values.
    pub(super) error: Option<f64>,
    /// The largest absolute value, with its sign.
    pub(super) error_worst: Option<f64>,
    truth_bytes: Option<f64>,
    working_set_bytes: Option<f64>,
    /// Share of the touched pages that the monitor does not know.
    unknown: Option<f64>,
    wrongly_idle_bytes: f64,
    touched_over_rss_bytes: f64,
    idle_over_rss_bytes: f64,
}

impl Score {
    pub(super) fn of(verdicts: &[Verdict], rss: &Rss) -> Self {
        let of = |f: &dyn Fn(&Verdict) -> Option<f64>| verdicts.iter().filter_map(f).collect();
        let precision: Vec<f64> = of(&Verdict::precision);
        let recall: Vec<f64> = of(&Verdict::recall);
        let errors: Vec<f64> = of(&Verdict::error);
        let all: AccuracyScore = verdicts.iter().map(Verdict::score).sum();
        let least = |values: &[f64]| values.iter().copied().reduce(f64::min);
        let most = |f: &dyn Fn(&Verdict) -> f64| verdicts.iter().map(f).fold(0.0, f64::max);
        let bytes = |pages: f64| pages * isotherm_engine::PAGE_SIZE as f64;
        let worst = |a: f64, b: f64| if a.abs() >= b.abs() { a } else { b };
        Self {
            snapshots: verdicts.len(),
            interval_seconds: median(of(&|v| Some(v.interval.as_secs_f64()))),
            precision: median(precision.clone()),
            precision_worst: least(&precision),
            precision_all: all.precision(),
            recall: median(recall.clone()),
            recall_worst: least(&recall),
            recall_all: all.recall(),
            error: median(errors.iter().map(|e| e.abs()).collect()),
            error_worst: errors.iter().copied().reduce(worst),
            truth_bytes: median(of(&|v| Some(bytes(v.truth + v.unknown_touched)))),
            working_set_bytes: median(of(&|v| Some(bytes(v.working_set)))),
            unknown: median(of(&|v| {
                share(v.unknown_touched, v.truth + v.unknown_touched)
            })),
            wrongly_idle_bytes: bytes(most(&|v| v.wrongly_idle)),
            touched_over_rss_bytes: most(&|v| over(v.touched_bytes, v.end, rss)),
            idle_over_rss_bytes: most(&|v| over(v.idle_bytes, v.end, rss)),
        }
    }

    /// Returns precision and recall by `f`, if there was anything to find.
    fn both(precision: Option<f64>, recall: Option<f64>) -> Option<f64> {
        // If nothing is claimed though something was to be found, recall shows it.
        let any = precision.or(recall).is_some();
        any.then(|| precision.unwrap_or(1.0).min(recall.unwrap_or(1.0)))
    }

    fn is_known(&self) -> bool {
        self.unknown.is_none_or(|share| share <= UNKNOWN_MAX)
    }
}

/// Returns by how much `bytes` exceed the resident memory at about that time.
fn over(bytes: u64, time: Nanos, rss: &Rss) -> f64 {
    let near = rss
        .iter()
        .filter(|(at, _)| at.since(time).0.max(time.since(*at).0) <= RSS_NEAR.0);
    let Some(most) = near.map(|(_, rss)| *rss).max() else {
        return 0.0;
    };
    (bytes as f64 - most as f64 * (1.0 + RSS_SLACK) - RSS_SLACK_BYTES).max(0.0)
}

/// Returns the head of the table that grows while the bench runs.
pub(super) fn head() -> String {
    line(&[
        "case", "mode", "n", "P", "worst", "all", "R", "worst", "all", "WSS%", "worst%", "truth",
        "said", "idle!", "?%", ">RSS", "CPU%", "",
    ])
}

fn line(cells: &[&str]) -> String {
    const WIDTHS: [usize; 18] = [4, 9, 4, 5, 5, 5, 5, 5, 5, 6, 7, 7, 7, 6, 4, 7, 11, 0];
    let cells: Vec<String> = std::iter::zip(cells, WIDTHS)
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect();
    cells.join(" ").trim_end().to_owned()
}

pub(super) fn lines(watched: &Watched) -> Vec<String> {
    let case = &watched.case;
    let mut lines = vec![format!(
        "{:<4} {case} ({:.3} touches/s), {}{}",
        case.index,
        watched.touches_per_second,
        case.traits(),
        watched
            .ready
            .without
            .iter()
            .fold(String::new(), |all, one| format!("{all}; {one}"))
    )];
    lines.extend(
        watched
            .runs
            .iter()
            .map(|run| run_line(&case.index.to_string(), run)),
    );
    let failures = watched.failures.iter();
    lines.extend(failures.map(|failure| format!("     FAILED {failure}")));
    lines
}

pub(super) fn run_line(index: &str, run: &Run) -> String {
    let score = &run.score;
    let mib = |bytes: f64| format!("{:.0}M", bytes / f64::from(1 << 20));
    let over = score.touched_over_rss_bytes.max(score.idle_over_rss_bytes);
    line(&[
        index,
        &run.mode,
        &score.snapshots.to_string(),
        &number(score.precision, 3),
        &number(score.precision_worst, 3),
        &number(score.precision_all, 3),
        &number(score.recall, 3),
        &number(score.recall_worst, 3),
        &number(score.recall_all, 3),
        &percent(score.error, 1),
        &score
            .error_worst
            .map_or("-".into(), |v| format!("{:+.0}", v * 100.0)),
        &score.truth_bytes.map_or("-".into(), mib),
        &score.working_set_bytes.map_or("-".into(), mib),
        &mib(score.wrongly_idle_bytes),
        &percent(score.unknown, 0),
        &mib(over),
        &cpu_cell(run.cpu_claimed_induced_percent, run.cpu_measured_percent),
    ])
}

fn percent(share: Option<f64>, digits: usize) -> String {
    number(share.map(|share| share * 100.0), digits)
}

/// Formats CPU time by the monitor's own account and by the kernel's.
pub(super) fn cpu_cell(claimed_percent: Option<f64>, measured_percent: f64) -> String {
    format!("{}, {measured_percent:.2}", number(claimed_percent, 2))
}

pub(super) fn summary(watched: &[Watched]) -> Table {
    let mut table = Table::new(
        "All cases",
        "mode | cases | of these unknown | P and R >= 0.95 (median) | worst case (median) | worst snapshot | \
         WSS error <= 10 % (median) | WSS error %, median of cases | over RSS",
    );
    let mut modes: Vec<&str> = Vec::new();
    for run in watched.iter().flat_map(|one| &one.runs) {
        if !modes.contains(&run.mode.as_str()) {
            modes.push(&run.mode);
        }
    }
    for mode in modes {
        let runs = watched.iter().flat_map(|one| &one.runs);
        let all: Vec<&Score> = runs.filter(|r| r.mode == mode).map(|r| &r.score).collect();
        table.row(summary_row(mode, &all));
    }
    table
}

fn summary_row(mode: &str, all: &[&Score]) -> Vec<String> {
    // An unknown result is no error, but no merit either.
    let known: Vec<&Score> = all.iter().copied().filter(|s| s.is_known()).collect();
    let of = |f: &dyn Fn(&Score) -> Option<f64>| -> Vec<f64> {
        known.iter().filter_map(|score| f(score)).collect()
    };
    let medians = of(&|s| Score::both(s.precision, s.recall));
    let worst = of(&|s| Score::both(s.precision_worst, s.recall_worst));
    let errors = of(&|score| score.error);
    let count = |good: usize, all: usize| format!("{good} of {all}");
    let least = |values: &[f64]| number(values.iter().copied().reduce(f64::min), 3);
    let exceeds = |s: &&&Score| s.touched_over_rss_bytes > 0.0 || s.idle_over_rss_bytes > 0.0;
    vec![
        mode.to_owned(),
        all.len().to_string(),
        (all.len() - known.len()).to_string(),
        count(medians.iter().filter(|v| **v >= AIM).count(), medians.len()),
        least(&medians),
        least(&worst),
        count(errors.iter().filter(|e| **e <= 0.1).count(), errors.len()),
        percent(median(errors), 1),
        count(all.iter().filter(exceeds).count(), all.len()),
    ]
}
