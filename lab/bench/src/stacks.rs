//! The cost of taking stacks of page faults for a program: while it runs it is recorded without and with `--stacks`, in
//! turns.
//!
//! The programs do the same work round after round and print the CPU time of each. They are one that only faults, a
//! heap that grows and shrinks, a compiler and an interpreter. The mean of the rounds in a turn is compared with that
//! of the turn before it. The first burst of samples, which is the most expensive, is in each turn.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use isotherm_engine::statistics::{Interval, median};
use serde::Serialize;
use serde_json::json;

use super::child::{Guarded, compile};
use super::table::Table;
use super::{BenchContext, BenchOutcome};

const ARMS: [&[&str]; 2] = [&[], &["--stacks"]];
/// Pairs of turns for each of the repeats.
const PAIRS: u32 = 10;
/// Length of a turn, unless an option gives it.
const TURN: Duration = Duration::from_secs(5);
/// Time that a recorder may take beyond its turn.
const SLACK: Duration = Duration::from_secs(20);

#[derive(Serialize)]
struct Outcome {
    program: &'static str,
    /// CPU seconds of a round, without and with stacks, pair by pair.
    pairs: Vec<[f64; 2]>,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if !context.named {
        return Ok(BenchOutcome::Skip(
            "runs only when named, as it takes twenty minutes".into(),
        ));
    }
    let Some(program) = compile(context, "faults")? else {
        return Ok(BenchOutcome::Skip("there is no C compiler (cc)".into()));
    };
    let mut table = Table::new(
        "CPU time that --stacks adds, pair by pair",
        &["program", "pairs", "round, ms", "median %", "mean % [95 %]"],
    );
    let mut outcomes = Vec::new();
    for (name, arguments) in programs(context)? {
        if !context.only.is_empty() && !context.only.iter().any(|only| only == name) {
            continue;
        }
        let pairs = measure(context, Command::new(&program).args(&arguments))?;
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

fn row(name: &str, pairs: &[[f64; 2]]) -> Vec<String> {
    let more = |[without, with]: &[f64; 2]| 100.0 * (with / without - 1.0);
    let percents: Vec<f64> = pairs.iter().map(more).collect();
    let mean = Interval::of(percents.iter().copied());
    let mean = mean.map_or_else(String::new, |mean| {
        let (low, high) = mean.bounds().unwrap_or((f64::NAN, f64::NAN));
        format!("{:.2} [{low:.2}..{high:.2}]", mean.mean)
    });
    let round = median(pairs.iter().map(|pair| pair[0]).collect());
    vec![
        name.to_owned(),
        pairs.len().to_string(),
        format!("{:.1}", 1000.0 * round.unwrap_or(f64::NAN)),
        format!("{:.2}", median(percents).unwrap_or(f64::NAN)),
        mean,
    ]
}

/// Returns the programs, by name.
fn programs(context: &BenchContext) -> anyhow::Result<Vec<(&'static str, Vec<String>)>> {
    let unit = context.scratch("unit.c");
    let functions = (0..200).map(|n| {
        format!("int f{n}(int *a, int n) {{ int s = {n}; for (int i = 0; i < n; i++) s = s * a[i] + (s >> 3); return s; }}\n")
    });
    std::fs::write(&unit, functions.collect::<String>()).context("cannot write a program")?;
    let unit = unit.display().to_string();
    let rows = "table = {i: str(i) * 3 for i in range(200000)}; rows = [[i, i + 1] for i in range(200000)]";
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    Ok(vec![
        ("map", owned(&["map"])),
        ("heap", owned(&["heap"])),
        // Many short processes.
        (
            "cc",
            owned(&["run", "cc", "-O1", "-c", "-o", "/dev/null", &unit]),
        ),
        ("python", owned(&["run", "python3", "-c", rows])),
    ])
}

/// Measures the pairs of one program.
fn measure(context: &BenchContext, command: &mut Command) -> anyhow::Result<Vec<[f64; 2]>> {
    let path = context.scratch("rounds");
    let file = File::create(&path).context("cannot write to the temporary folder")?;
    let mut workload = Guarded::spawn(context, command.stdout(file))?;
    context.sleep(Duration::from_secs(1))?;
    let mut turns = Vec::new();
    for _ in 0..context.repeats * PAIRS {
        for arm in ARMS {
            turns.push(turn(context, workload.id(), arm)?);
            workload.check_running()?;
        }
    }
    let rounds = read(&path)?;
    let means: Vec<f64> = turns.iter().map(|turn| mean(&rounds, *turn)).collect();
    Ok(means.as_chunks::<2>().0.to_vec())
}

/// Records for a turn; returns its start and end.
fn turn(context: &BenchContext, pid: u32, arm: &[&str]) -> anyhow::Result<(f64, f64)> {
    let length = context.asked_duration.unwrap_or(TURN);
    let mut command = Command::new(&context.isotherm);
    command
        .args(["record", "--quiet", "--children", "-o"])
        .arg(context.scratch("record.isotherm"))
        .args(["--duration", &format!("{}s", length.as_secs())])
        .args(["--pid", &pid.to_string()])
        .args(arm);
    let from = now()?;
    let mut recorder = Guarded::spawn(context, &mut command)?;
    recorder.finish(context, length + SLACK)?;
    Ok((from, now()?))
}

fn now() -> anyhow::Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Returns the end of each round, and its CPU time.
fn read(path: &Path) -> anyhow::Result<Vec<(f64, f64)>> {
    let text = std::fs::read_to_string(path).context("cannot read the rounds")?;
    let round = |line: &str| {
        let (at, took) = line.split_once(' ')?;
        Some((at.parse().ok()?, took.parse().ok()?))
    };
    // The last line may be cut off.
    Ok(text.lines().filter_map(round).collect())
}

/// Returns the mean of the rounds that ended in a turn; not a number if none did.
fn mean(rounds: &[(f64, f64)], (from, to): (f64, f64)) -> f64 {
    let inside = rounds.iter().filter(|(at, _)| from < *at && *at < to);
    let (mut sum, mut count) = (0.0, 0.0);
    for (_, took) in inside {
        sum += took;
        count += 1.0;
    }
    sum / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_of_the_turn_in_which_they_end() {
        let rounds = [(1.0, 5.0), (2.0, 1.0), (3.0, 3.0), (4.0, 9.0)];
        assert!((mean(&rounds, (1.5, 3.5)) - 2.0).abs() < 1e-9);
        assert!(mean(&rounds, (5.0, 6.0)).is_nan());
        let row = row("p", &[[1.0, 1.01], [2.0, 2.02]]);
        assert_eq!(row, ["p", "2", "1500.0", "1.00", "1.00 [1.00..1.00]"]);
    }
}
