//! Quality of the settings that `tune` finds, and its number of replays, compared with the published methods.
//!
//! Programs of the family that is drawn from a seed are recorded once (`record --pages`). Each method tunes prcl by
//! DAMOOS' score on that trace. All of it is replay. Tuning on the running program is not measured here: each run takes
//! as long as the program, and no two give the same result.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::child::Guarded;
use super::recording::trace;
use super::table::{Table, cell};
use super::truth::program::Running;
use super::{BenchContext, BenchOutcome, machine};

/// Name and flags of each method. A search with the same number of replays is beside each published method.
const METHODS: [(&str, &str); 8] = [
    ("search, 256", "--preset prcl --budget 256"),
    ("search by default", "--preset prcl"),
    ("search, 40", "--preset prcl --budget 40"),
    ("search, 9", "--preset prcl --budget 9"),
    ("damoos-grid", "--preset prcl --method damoos-grid"),
    ("damoos-polyfit", "--preset prcl --method damoos-polyfit"),
    ("swarm", "--preset prcl --method swarm"),
    // DAMON's own tuning is a quota that follows a goal, at the preset's age.
    (
        "quota goal",
        "-c experiments/quota_goal.yaml --param age=5s",
    ),
];

const CASES: u64 = 4;
/// Largest memory of a program: replays of more take minutes for each method.
const MEMORY_MAX: u64 = 512 << 20;
const LIMIT: Duration = Duration::from_hours(1);

#[derive(Serialize)]
struct Found {
    case: u64,
    method: &'static str,
    runs: f64,
    score: f64,
    given: f64,
    settings: Value,
}

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let (seed, cases) = (context.truth.seed, context.truth.cases);
    let mut found = Vec::new();
    for case in 0..cases.unwrap_or(CASES) {
        let trace = record(context, seed, case);
        let trace = trace.with_context(|| format!("case {case} of seed {seed}"))?;
        for (method, flags) in METHODS {
            found.push(tune(context, &trace, case, method, flags)?);
        }
    }
    let mut table = Table::new(
        "prcl tuned by DAMOOS' score on traces: replays, score, and how far below the best of all methods",
        "method | replays | score | below the best | worst",
    );
    let best = |case: u64| {
        let of_case = found.iter().filter(|one| one.case == case);
        of_case.map(|one| one.score).fold(f64::MIN, f64::max)
    };
    let mut row = |name: &str, of: &[&Found], score: fn(&Found) -> f64, runs: fn(&Found) -> f64| {
        let all =
            |value: &dyn Fn(&Found) -> f64| of.iter().map(|one| value(one)).collect::<Vec<f64>>();
        let below = all(&|one| best(one.case) - score(one));
        table.row(vec![
            name.to_owned(),
            cell(&all(&runs), 0),
            cell(&all(&score), 1),
            cell(&below, 1),
            format!("{:.1}", below.iter().copied().fold(0.0, f64::max)),
        ]);
    };
    for (method, _) in METHODS {
        let of: Vec<&Found> = found.iter().filter(|one| one.method == method).collect();
        row(method, &of, |one| one.score, |one| one.runs);
    }
    let of: Vec<&Found> = found
        .iter()
        .filter(|one| one.method == METHODS[0].0)
        .collect();
    row("prcl as it is", &of, |one| one.given, |_| 0.0);
    Ok(BenchOutcome::Done(
        vec![table],
        json!({ "seed": seed, "found": found }),
    ))
}

fn record(context: &BenchContext, seed: u64, case: u64) -> Result<PathBuf> {
    let available = machine::meminfo("MemAvailable:").unwrap_or(0);
    let program = Running::start(context, seed, case, (available / 8).min(MEMORY_MAX))?;
    let path = trace(context, program.child.id(), context.duration)?;
    program.finish()?;
    Ok(path)
}

fn tune(
    context: &BenchContext,
    trace: &Path,
    case: u64,
    method: &'static str,
    flags: &str,
) -> Result<Found> {
    let mut command = Command::new(&context.isotherm);
    command
        .args(["tune", "--objective", "damoos", "--json", "-q"])
        .arg(trace)
        .args(flags.split(' '));
    let report = Guarded::json(context, &mut command, LIMIT).context(method)?;
    let number = |value: &Value| value.as_f64().context("a number is missing in the report");
    Ok(Found {
        case,
        method,
        runs: number(&report["nr_tried"])?,
        score: number(&report["recommended"]["damoos_score"])?,
        given: number(&report["given"]["damoos_score"]).unwrap_or(f64::NAN),
        settings: report["recommended"]["settings"].clone(),
    })
}
