//! Does the monitor find hot memory, how soon, and at what cost?
//!
//! Each repeat starts a workload of known truth, and then takes turns: a window without a recorder, a recording in one
//! mode, a window without, a recording in the next mode, and so on. A mode's slowdown is the target's loss of speed
//! against the mean of the windows before and after it. It is measured by the clock and by the target's own CPU time
//! (the steadier one if the machine is shared).
//!
//! The truth of redis is not known but observed: by exact scans of every page, just before.

use std::path::PathBuf;

use anyhow::Context as _;
use isotherm_engine::Nanos;
use isotherm_workload::Config;
use isotherm_workload::accuracy::{Accuracy, WarmUp, score};
use serde::Serialize;
use serde_json::json;

use super::recording::{Recorded, Recording};
use super::stats::cell;
use super::subject::{Rate, Subject};
use super::table::Table;
use super::workload::Workload;
use super::{BenchContext, BenchOutcome, Mode, machine, redis};

/// Memory that must stay available beside a workload.
const HEADROOM: u64 = 1 << 30;
/// Time that the "settled" columns leave out: at the start of the record, and of each phase.
const WARM_UP: WarmUp = WarmUp {
    record: Nanos::from_millis(10_000),
    phase: Nanos::from_millis(1000),
};
const WARM_UP_QUICK: WarmUp = WarmUp {
    record: Nanos::from_millis(2000),
    phase: Nanos::from_millis(0),
};

const WORKLOADS: [&str; 6] = [
    "stairs",
    "zigzag",
    "static_1g",
    "scattered_4g",
    "small_hot_16g",
    REDIS,
];
/// A workload that is not a file in experiments/workloads/.
const REDIS: &str = "redis";
/// About 1.2 GB in redis, with its own bookkeeping.
const REDIS_KEYS: u64 = 1_000_000;
const REDIS_BYTES: u64 = 1200 * REDIS_KEYS;
const WORKLOADS_QUICK: [&str; 1] = ["static_1g"];

/// The compared modes.
const MODES: [&str; 3] = ["default=", "faithful=--faithful", "pages=--pages"];

/// One recording, scored.
#[derive(Serialize)]
struct Run {
    whole: Accuracy,
    warmed_up: Accuracy,
    cpu_claimed_percent: Option<f64>,
    cpu_claimed_induced_percent: Option<f64>,
    cpu_measured_percent: f64,
    slowdown_wall_percent: f64,
    slowdown_cpu_percent: f64,
    clears_per_second: Option<f64>,
    recorder_rss_bytes: u64,
}

/// All repeats of a mode on a workload.
#[derive(Serialize)]
struct Series {
    workload: String,
    mode: String,
    flags: Vec<String>,
    runs: Vec<Run>,
    failures: Vec<String>,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    let modes = modes(context, &MODES)?;
    let all: &[&str] = if context.quick {
        &WORKLOADS_QUICK
    } else {
        &WORKLOADS
    };
    let workloads: Vec<String> = if context.only.is_empty() {
        all.iter().map(ToString::to_string).collect()
    } else {
        context.only.clone()
    };
    let (mut series, mut skipped) = (Vec::new(), Vec::new());
    for workload in &workloads {
        match missing(context, workload)? {
            Some(reason) => {
                println!("SKIP {workload}: {reason}");
                skipped.push(json!({ "workload": workload, "reason": reason }));
            }
            None => series.extend(one_workload(context, workload, &modes)?),
        }
    }
    if series.is_empty() {
        return Ok(BenchOutcome::Skip("no workload could be run".into()));
    }
    Ok(BenchOutcome::Done {
        tables: vec![
            accuracy_table(&series, warm_up(context)),
            cost_table(&series),
        ],
        data: json!({ "series": series, "skipped": skipped }),
    })
}

/// Returns the modes of the command line, or else the usual ones.
pub(super) fn modes(context: &BenchContext, usual: &[&str]) -> anyhow::Result<Vec<Mode>> {
    if !context.modes.is_empty() {
        return Ok(context.modes.clone());
    }
    usual.iter().map(|mode| Mode::parse(mode)).collect()
}

fn warm_up(context: &BenchContext) -> WarmUp {
    if context.quick {
        WARM_UP_QUICK
    } else {
        WARM_UP
    }
}

pub(super) fn config_path(context: &BenchContext, workload: &str) -> PathBuf {
    context
        .root
        .join(format!("experiments/workloads/{workload}.cfg"))
}

/// Returns what `workload` lacks here, if anything.
fn missing(context: &BenchContext, workload: &str) -> anyhow::Result<Option<String>> {
    if workload == REDIS {
        if !redis::installed() {
            return Ok(Some(
                "redis-server is not installed (apt-get install redis-server)".into(),
            ));
        }
        return memory_missing(REDIS_BYTES);
    }
    let path = config_path(context, workload);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read the workload {}", path.display()))?;
    let config = Config::parse(&text).with_context(|| path.display().to_string())?;
    memory_missing(config.total_bytes())
}

fn memory_missing(bytes: u64) -> anyhow::Result<Option<String>> {
    let needed = bytes + HEADROOM;
    let available = machine::meminfo("MemAvailable:").context("cannot read /proc/meminfo")?;
    Ok((needed > available).then(|| {
        format!(
            "needs {} of memory, {} are available",
            isotherm_engine::units::format_bytes(needed),
            isotherm_engine::units::format_bytes(available)
        )
    }))
}

fn one_workload(context: &BenchContext, name: &str, modes: &[Mode]) -> anyhow::Result<Vec<Series>> {
    let mut series: Vec<Series> = modes
        .iter()
        .map(|mode| Series {
            workload: name.to_owned(),
            mode: mode.name.clone(),
            flags: mode.flags.clone(),
            runs: Vec::new(),
            failures: Vec::new(),
        })
        .collect();
    for repeat in 0..context.repeats {
        let mut subject = if name == REDIS {
            Subject::redis(context, REDIS_KEYS)?
        } else {
            Subject::Exercise(Workload::start(context, &config_path(context, name))?)
        };
        let mut before = quiet_window(context, &mut subject)?;
        for (mode, series) in std::iter::zip(modes, &mut series) {
            println!("{name}, repeat {}: {}", repeat + 1, mode.name);
            let recorded = record(context, &mut subject, mode);
            let after = quiet_window(context, &mut subject)?;
            match recorded {
                Ok((recorded, during)) => {
                    let slowdown = |of: fn(&Rate) -> f64| {
                        100.0 * (1.0 - of(&during) / f64::midpoint(of(&before), of(&after)))
                    };
                    let walls = (slowdown(|r| r.wall), slowdown(|r| r.cpu));
                    series
                        .runs
                        .push(scored(context, &subject, &recorded, walls)?);
                }
                // A mode that fails must not hide the others' numbers.
                Err(error) => {
                    println!("  FAILED: {error:#}");
                    series.failures.push(format!("{error:#}"));
                }
            }
            before = after;
        }
    }
    Ok(series)
}

/// Measures the target alone, for a third of a recording's time.
fn quiet_window(context: &BenchContext, subject: &mut Subject) -> anyhow::Result<Rate> {
    let from = subject.mark()?;
    context.sleep(context.duration / 3)?;
    let to = subject.mark()?;
    subject.rate(context, from, to)
}

fn record(
    context: &BenchContext,
    subject: &mut Subject,
    mode: &Mode,
) -> anyhow::Result<(Recorded, Rate)> {
    let recording = Recording::start(context, mode, subject.pid(), context.duration)?;
    let from = subject.mark()?;
    let recorded = recording.finish(context)?;
    let to = subject.mark()?;
    let rate = subject.rate(context, from, to)?;
    Ok((recorded, rate))
}

fn scored(
    context: &BenchContext,
    subject: &Subject,
    recorded: &Recorded,
    (slowdown_wall_percent, slowdown_cpu_percent): (f64, f64),
) -> anyhow::Result<Run> {
    let episodes = subject.episodes()?;
    let warm_up = warm_up(context);
    let percent = |share: f64| share * 100.0;
    Ok(Run {
        whole: score(&recorded.snapshots, &episodes, WarmUp::default()),
        warmed_up: score(&recorded.snapshots, &episodes, warm_up),
        cpu_claimed_percent: recorded.cpu_claimed.map(percent),
        cpu_claimed_induced_percent: recorded.cpu_claimed_induced.map(percent),
        cpu_measured_percent: percent(recorded.cpu_measured),
        slowdown_wall_percent,
        slowdown_cpu_percent,
        clears_per_second: recorded.clears_per_second,
        recorder_rss_bytes: recorded.rss_max,
    })
}

impl Series {
    fn cell(&self, digits: usize, of: impl Fn(&Run) -> Option<f64>) -> String {
        if self.runs.is_empty() && !self.failures.is_empty() {
            return "FAILED".into();
        }
        cell(&self.runs.iter().filter_map(of).collect::<Vec<_>>(), digits)
    }
}

fn accuracy_table(series: &[Series], warm_up: WarmUp) -> Table {
    let title = format!(
        "Accuracy by bytes after settling ({} s of the record, {} s of a phase); top-k also from the start. P precision, R recall.",
        warm_up.record.as_secs_f64(),
        warm_up.phase.as_secs_f64()
    );
    let head = [
        "workload",
        "mode",
        "P any",
        "R any",
        "P 25%",
        "R 25%",
        "top-k",
        "top-k whole",
        "|WSS error| %",
        "found after s",
        "regions",
        "unknown %",
    ];
    let mut table = Table::new(title, &head);
    for s in series {
        table.row(vec![
            s.workload.clone(),
            s.mode.clone(),
            s.cell(2, |r| r.warmed_up.any.precision()),
            s.cell(2, |r| r.warmed_up.any.recall()),
            s.cell(2, |r| r.warmed_up.quarter.precision()),
            s.cell(2, |r| r.warmed_up.quarter.recall()),
            s.cell(2, |r| r.warmed_up.top_k),
            s.cell(2, |r| r.whole.top_k),
            s.cell(1, |r| {
                r.warmed_up.wss_error_absolute.map(|error| error * 100.0)
            }),
            s.cell(1, |r| r.whole.detection_lag()),
            s.cell(0, |r| Some(r.whole.regions_mean)),
            s.cell(1, |r| Some(r.whole.unknown_share * 100.0)),
        ]);
    }
    table
}

fn cost_table(series: &[Series]) -> Table {
    let head = [
        "workload",
        "mode",
        "CPU % (kernel)",
        "CPU % (record)",
        "with induced",
        "slowdown % (CPU time)",
        "slowdown % (clock)",
        "clears/s",
        "recorder MiB",
    ];
    let mut table = Table::new(
        "Cost, in per cent of one CPU and of the target's speed",
        &head,
    );
    for s in series {
        table.row(vec![
            s.workload.clone(),
            s.mode.clone(),
            s.cell(2, |r| Some(r.cpu_measured_percent)),
            s.cell(2, |r| r.cpu_claimed_percent),
            s.cell(2, |r| r.cpu_claimed_induced_percent),
            s.cell(2, |r| Some(r.slowdown_cpu_percent)),
            s.cell(2, |r| Some(r.slowdown_wall_percent)),
            s.cell(0, |r| r.clears_per_second),
            s.cell(1, |r| {
                Some(r.recorder_rss_bytes as f64 / f64::from(1 << 20))
            }),
        ]);
    }
    table
}
