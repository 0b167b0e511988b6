//! What taking stacks of page faults costs a program: recorded from its start without and with `--stacks`, in turns.
//!
//! The programs do the same work each time and say how long it took: one that does nothing but fault, a heap that
//! grows and shrinks, a compiler and an interpreter. Compared is each run's CPU time with that of the run
//! before it; the time that passed tells also what the machine did else.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use isotherm_engine::statistics::{Interval, median};
use serde::Serialize;
use serde_json::json;

use super::child::{Guarded, compile};
use super::table::Table;
use super::{BenchContext, BenchOutcome, stats};

/// How long one run may take.
const RUN_MAX: Duration = Duration::from_mins(3);
const ARMS: [&[&str]; 2] = [&[], &["--stacks"]];
/// Pairs for each of the repeats.
const PAIRS: u32 = 5;

/// What one run took.
#[derive(Clone, Copy, Debug, Serialize)]
struct Took {
    cpu_s: f64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Outcome {
    program: &'static str,
    /// Without and with stacks, pair by pair.
    pairs: Vec<[Took; 2]>,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if !context.named {
        return Ok(BenchOutcome::Skip(
            "runs only when named, as it takes a quarter of an hour".into(),
        ));
    }
    let Some(program) = compile(context, "faults")? else {
        return Ok(BenchOutcome::Skip("there is no C compiler (cc)".into()));
    };
    let mut table = Table::new(
        "slowdown by --stacks, pair by pair",
        &[
            "program",
            "pairs",
            "s",
            "CPU time, median %",
            "mean % [95 %]",
            "elapsed, median %",
        ],
    );
    let mut outcomes = Vec::new();
    for (name, arguments) in programs(context)? {
        if !context.only.is_empty() && !context.only.iter().any(|only| only == name) {
            continue;
        }
        let mut pairs = Vec::new();
        for _ in 0..context.repeats * PAIRS {
            let mut both = ARMS
                .iter()
                .map(|arm| one(context, &program, &arguments, arm));
            let (without, with) = (both.next(), both.next());
            pairs.push([without.context("a run")??, with.context("a run")??]);
        }
        table.row(row(name, &pairs));
        outcomes.push(Outcome {
            program: name,
            pairs,
        });
    }
    Ok(BenchOutcome::Done {
        tables: vec![table],
        data: json!(outcomes),
    })
}

fn row(name: &str, pairs: &[[Took; 2]]) -> Vec<String> {
    let percents = |of: fn(&Took) -> f64| -> Vec<f64> {
        let slower = |[without, with]: &[Took; 2]| 100.0 * (of(with) / of(without) - 1.0);
        pairs.iter().map(slower).collect()
    };
    let cpu = percents(|took| took.cpu_s);
    let mean = Interval::of(cpu.iter().copied());
    let mean = mean.map_or_else(String::new, |mean| {
        let (low, high) = mean.bounds().unwrap_or((f64::NAN, f64::NAN));
        format!("{:.2} [{low:.2}..{high:.2}]", mean.mean)
    });
    let middle = |values: Vec<f64>| format!("{:.2}", median(values).unwrap_or(f64::NAN));
    let seconds: Vec<f64> = pairs.iter().map(|pair| pair[0].wall_s).collect();
    vec![
        name.to_owned(),
        pairs.len().to_string(),
        stats::cell(&seconds, 1),
        middle(cpu),
        mean,
        middle(percents(|took| took.wall_s)),
    ]
}

/// What is run, by name.
fn programs(context: &BenchContext) -> anyhow::Result<Vec<(&'static str, Vec<String>)>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let rounds = |full: u32| if context.quick { full / 10 } else { full };
    // A compiler is many short processes.
    let unit = context.scratch("unit.c");
    let functions = (0..600).map(|n| {
        format!("int f{n}(int *a, int n) {{ int s = {n}; for (int i = 0; i < n; i++) s = s * a[i] + (s >> 3); return s; }}\n")
    });
    std::fs::write(&unit, functions.collect::<String>()).context("cannot write a program")?;
    let make = format!(
        "for i in $(seq {}); do cc -O2 -c -o /dev/null {}; done",
        rounds(10).max(1),
        unit.display()
    );
    let interpret = format!(
        "for round in range({}): table = {{i: str(i) * 3 for i in range(200000)}}; rows = [[i, i + 1] for i in range(200000)]; del table, rows",
        rounds(40)
    );
    let run = |command: &[&str], last: String| {
        let mut all: Vec<String> = ["run"]
            .iter()
            .chain(command)
            .map(|&w| w.to_owned())
            .collect();
        all.push(last);
        all
    };
    Ok(vec![
        ("map", words(&format!("map {}", rounds(400)))),
        ("heap", words(&format!("heap {}", rounds(500)))),
        ("cc", run(&["sh", "-c"], make)),
        ("python", run(&["python3", "-c"], interpret)),
    ])
}

/// Records one run.
fn one(
    context: &BenchContext,
    program: &Path,
    arguments: &[String],
    arm: &[&str],
) -> anyhow::Result<Took> {
    let mut command = Command::new(&context.isotherm);
    command
        .args(["record", "--quiet", "--children", "-o"])
        .arg(context.scratch("record.isotherm"))
        .args(arm)
        .arg("--")
        .arg(program)
        .args(arguments)
        .stdout(Stdio::piped());
    let mut recorder = Guarded::spawn(context, &mut command)?;
    let output = recorder.stdout()?;
    recorder.finish(context, RUN_MAX)?;
    let said = std::io::read_to_string(output).context("cannot read what the program said")?;
    let numbers: Vec<f64> = said
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    let &[cpu_s, wall_s] = &numbers[..] else {
        anyhow::bail!("the program said `{}`", said.trim());
    };
    Ok(Took { cpu_s, wall_s })
}
