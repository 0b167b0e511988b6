//! How near the simulated machine comes: a program's trace is replayed under a scheme, and the program
//! itself is run under it.
//!
//! The trace (`record --pages`) and the live run are of two runs of the same program, each watched from
//! the same moment of its life on. Memory saved is compared exactly; the slowdown of the live run is
//! measured against the seconds before it, and no better known than this machine's speed is steady.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::accuracy::config_path;
use super::child::Guarded;
use super::stats::cell;
use super::subject::Subject;
use super::table::Table;
use super::workload::Workload;
use super::{BenchContext, BenchOutcome, redis};

const PROGRAMS: [&str; 3] = ["static_1g", "phases_1g", "redis"];
const REDIS_KEYS: u64 = 500_000;
/// From a program's start on until it is watched.
const SETTLE: Duration = Duration::from_secs(8);
/// Time that a child may take beyond what it was asked for.
const SLACK: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Pair {
    program: String,
    guard: bool,
    live_saved_percent: f64,
    predicted_saved_percent: f64,
    error_points: f64,
    live_slowdown_percent: f64,
    predicted_slowdown_percent: f64,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if !std::path::Path::new("/sys/block/zram0").exists() {
        return Ok(BenchOutcome::Skip(
            "there is no zram, so nothing can be paged out".into(),
        ));
    }
    swap(context, &["zram", "--size", "4G"])?;
    let pairs = measure(context);
    swap(context, &["off"])?;
    let pairs = pairs?;
    let mut table = Table::new(
        "prcl (5 s): memory saved and slowdown, live and as predicted from a trace",
        &[
            "program",
            "guard",
            "saved %",
            "predicted",
            "off by",
            "slowdown %",
            "predicted",
        ],
    );
    for group in pairs.chunk_by(|a, b| (&a.program, a.guard) == (&b.program, b.guard)) {
        let of = |value: fn(&Pair) -> f64| cell(&group.iter().map(value).collect::<Vec<f64>>(), 1);
        table.row(vec![
            group[0].program.clone(),
            if group[0].guard { "1 %" } else { "none" }.into(),
            of(|p| p.live_saved_percent),
            of(|p| p.predicted_saved_percent),
            of(|p| p.error_points),
            of(|p| p.live_slowdown_percent),
            of(|p| p.predicted_slowdown_percent),
        ]);
    }
    Ok(BenchOutcome::Done {
        tables: vec![table],
        data: json!(pairs),
    })
}

fn measure(context: &BenchContext) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for program in PROGRAMS {
        let is_wanted = context.only.is_empty() || context.only.iter().any(|o| o == program);
        if !is_wanted || (program == "redis" && !redis::installed()) {
            continue;
        }
        for guard in [true, false] {
            for _ in 0..context.repeats {
                pairs.push(pair(context, program, guard)?);
            }
        }
    }
    Ok(pairs)
}

fn start(context: &BenchContext, program: &str) -> anyhow::Result<Subject> {
    let subject = if program == "redis" {
        Subject::busy_redis(context, REDIS_KEYS)?
    } else {
        Subject::Exercise(Workload::start(context, &config_path(context, program))?)
    };
    context.sleep(SETTLE)?;
    Ok(subject)
}

fn pair(context: &BenchContext, program: &str, guard: bool) -> anyhow::Result<Pair> {
    let (trace, live) = (
        context.scratch("trace.isotherm"),
        context.scratch("live.isotherm"),
    );
    let seconds = format!("{}s", context.duration.as_secs());
    let no_guard: &[&str] = if guard { &[] } else { &["--no-guard"] };

    let subject = start(context, program)?;
    let mut record = Command::new(&context.isotherm);
    record.args([
        "record",
        "--pages",
        "-q",
        "--max-stall",
        "1s",
        "--duration",
        &seconds,
    ]);
    record
        .args(["--pid", &subject.pid().to_string(), "-o"])
        .arg(&trace);
    Guarded::spawn(context, &mut record)?.finish(context, context.duration + SLACK)?;
    drop(subject);

    let mut subject = start(context, program)?;
    let mut acting = Command::new(&context.isotherm);
    acting
        .args(["run", "-q", "--preset", "prcl", "--duration", &seconds])
        .args(no_guard);
    acting
        .args(["--pid", &subject.pid().to_string(), "-o"])
        .arg(&live);
    let before = subject.mark()?;
    context.sleep(Duration::from_secs(2))?;
    let from = subject.mark()?;
    let alone = subject.rate(context, before, from)?;
    Guarded::spawn(context, &mut acting)?.finish(context, context.duration + SLACK)?;
    let to = subject.mark()?;
    let under = subject.rate(context, from, to)?;
    drop(subject);

    let mut simulate = Command::new(&context.isotherm);
    simulate
        .args(["simulate", "--json", "--preset", "prcl"])
        .args(no_guard);
    simulate
        .arg("--trace")
        .arg(&trace)
        .arg("--against")
        .arg(&live);
    let output = simulate
        .stderr(Stdio::inherit())
        .output()
        .context("cannot simulate")?;
    ensure!(output.status.success(), "the simulation failed");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let number = |value: &Value| value.as_f64().context("a number is missing in the report");
    let against = &report["against"];
    Ok(Pair {
        program: program.to_owned(),
        guard,
        live_saved_percent: number(&against["live_saved_percent"])?,
        predicted_saved_percent: number(&against["predicted_saved_percent"])?,
        error_points: number(&against["error_points"])?,
        live_slowdown_percent: 100.0 * (1.0 - under.wall / alone.wall),
        predicted_slowdown_percent: number(&report["processes"][0]["slowdown_percent"])?,
    })
}

fn swap(context: &BenchContext, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(&context.isotherm);
    command.arg("swap").args(arguments).stdout(Stdio::null());
    let status = command.status().context("cannot set swap up")?;
    ensure!(status.success(), "swap cannot be set up or undone here");
    Ok(())
}
