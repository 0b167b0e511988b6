//! Does the guard keep its promise? Programs that are hard for it run alone, with `prcl` and its guard, and without a
//! guard.
//!
//! Each program works for a fixed time and prints its progress. Programs that work all the time run one after the
//! other, and the first of the three arms changes each time. Programs that sleep run at the same time, in several pairs
//! and out of step. The slowdown is by progress; its interval is the bootstrap's (95 %) over pairs. The saved memory is
//! the target's swap at the end, less the memory that zram uses for it.

mod programs;
mod run;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::machine::meminfo;
use super::table::Table;
use super::{BenchContext, BenchOutcome};
use programs::{CASES, Case};
use run::Run;

const ARMS: [(&str, Option<&[&str]>); 3] = [
    ("alone", None),
    ("guard 1%", Some(&[])),
    ("no guard", Some(&["--no-guard"])),
];
const RESAMPLES: usize = 2000;
/// Pairs of sleeping programs that run at once; they take 6 GiB.
const PAIRS_AT_ONCE: usize = 5;

#[derive(Serialize)]
struct Row {
    case: &'static str,
    arm: &'static str,
    alone: Vec<Run>,
    with: Vec<Run>,
    slowdown_percent: f64,
    interval: (f64, f64),
}

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    if meminfo("SwapTotal:").is_none_or(|bytes| bytes == 0) {
        return Ok(BenchOutcome::Skip(
            "there is no swap; `isotherm swap zram --size 2G`, or swapon a disk, and run it again"
                .into(),
        ));
    }
    let mut table = Table::new(
        "slowdown by progress under prcl, interleaved",
        "case | arm | pairs | slowdown % | 95 % | saved MiB | acting s | stops",
    );
    let mut rows = Vec::new();
    for case in &CASES {
        if !context.is_selected(case.name) {
            continue;
        }
        if let Some(missing) = case.missing() {
            println!("{}: left out, as {missing} cannot be started", case.name);
            continue;
        }
        for row in compare(context, case)? {
            let line = cells(&row);
            println!("{}", line.join("  "));
            table.row(line);
            rows.push(row);
        }
    }
    Ok(BenchOutcome::Done(vec![table], json!({ "rows": rows })))
}

fn cells(row: &Row) -> Vec<String> {
    let mean =
        |of: fn(&Run) -> f64| row.with.iter().map(of).sum::<f64>() / row.with.len().max(1) as f64;
    vec![
        row.case.into(),
        row.arm.into(),
        row.with.len().to_string(),
        format!("{:.2}", row.slowdown_percent),
        format!("{:.2}..{:.2}", row.interval.0, row.interval.1),
        format!("{:.0}", mean(|run| run.saved as f64) / f64::from(1 << 20)),
        format!("{:.2}", mean(|run| run.acting_cpu_s)),
        format!("{:.1}", mean(|run| run.stops as f64)),
    ]
}

fn compare(context: &BenchContext, case: &Case) -> Result<Vec<Row>> {
    let mut runs = [const { Vec::new() }; ARMS.len()];
    let repeats = context.repeats as usize;
    if case.period_s > 0 {
        for first in (0..repeats).step_by(PAIRS_AT_ONCE) {
            let more = together(context, case, PAIRS_AT_ONCE.min(repeats - first))?;
            for (runs, more) in runs.iter_mut().zip(more) {
                runs.extend(more);
            }
        }
        return Ok(rows(case, runs));
    }
    for repeat in 0..repeats {
        for turn in 0..ARMS.len() {
            let at = (repeat + turn) % ARMS.len();
            runs[at].push(run::once(context, case, ARMS[at].1, Duration::ZERO)?);
        }
    }
    Ok(rows(case, runs))
}

/// Compares each of the other arms with the first.
fn rows(case: &Case, runs: [Vec<Run>; ARMS.len()]) -> Vec<Row> {
    let [alone, guarded, free] = runs;
    let arms = [(ARMS[1].0, guarded), (ARMS[2].0, free)];
    let rows = arms.into_iter().map(|(arm, with)| {
        let pairs: Vec<(f64, f64)> = alone
            .iter()
            .zip(&with)
            .map(|(alone, with)| (alone.progress, with.progress))
            .collect();
        Row {
            case: case.name,
            arm,
            slowdown_percent: slowdown(&pairs),
            interval: bootstrap(&pairs),
            alone: alone.clone(),
            with,
        }
    });
    rows.collect()
}

/// Runs all arms of a program that sleeps most of the time, `pairs` times, at once and out of step.
fn together(context: &BenchContext, case: &Case, pairs: usize) -> Result<[Vec<Run>; ARMS.len()]> {
    let apart = Duration::from_secs(case.period_s) / (pairs * ARMS.len()) as u32;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..pairs * ARMS.len())
            .map(|at| {
                let (_, flags) = ARMS[at % ARMS.len()];
                let delay = apart * at as u32;
                scope.spawn(move || run::once(context, case, flags, delay))
            })
            .collect();
        let mut runs = [const { Vec::new() }; ARMS.len()];
        for (at, run) in all.into_iter().enumerate() {
            match run.join() {
                Ok(run) => runs[at % ARMS.len()].push(run?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(runs)
    })
}

/// Returns the slowdown in percent, of the sums.
fn slowdown(pairs: &[(f64, f64)]) -> f64 {
    let alone: f64 = pairs.iter().map(|pair| pair.0).sum();
    let with: f64 = pairs.iter().map(|pair| pair.1).sum();
    100.0 * (1.0 - with / alone.max(f64::MIN_POSITIVE))
}

/// Returns the 95 % interval of the slowdowns of pairs drawn from these.
fn bootstrap(pairs: &[(f64, f64)]) -> (f64, f64) {
    // Any sequence without structure is enough, and this one is the same each time.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pairs[(state % pairs.len() as u64) as usize]
    };
    let mut slowdowns: Vec<f64> = (0..RESAMPLES)
        .map(|_| slowdown(&pairs.iter().map(|_| draw()).collect::<Vec<_>>()))
        .collect();
    slowdowns.sort_by(f64::total_cmp);
    (
        slowdowns[RESAMPLES / 40],
        slowdowns[RESAMPLES - RESAMPLES / 40],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdowns_and_their_intervals() {
        let same = [(100.0, 99.0); 10];
        assert!((slowdown(&same) - 1.0).abs() < 1e-9);
        let (low, high) = bootstrap(&same);
        assert!((low - 1.0).abs() < 1e-9 && (high - 1.0).abs() < 1e-9);
        let mixed: Vec<(f64, f64)> = (0..10).map(|i| (100.0, 90.0 + f64::from(i))).collect();
        let (low, high) = bootstrap(&mixed);
        assert!(low < slowdown(&mixed) && slowdown(&mixed) < high && high - low < 6.0);
    }
}
