//! The cost of monitoring for a program, to a fraction of a percent. The recorder is stopped and continued every
//! second, so that each second with it is between two without.
//!
//! Separate runs differ by more than the cost of monitoring (other guests, the placement of memory). Neighbouring
//! seconds of the same run differ much less. A recorder that was stopped must catch up when it continues, so its cost
//! here is, if anything, too high.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isotherm_engine::Nanos;
use isotherm_record::CostSample;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::json;

use super::recording::Recording;
use super::table::Table;
use super::workload::Workload;
use super::{BenchContext, BenchOutcome, accuracy};

const MODES: [&str; 2] = ["default=", "physical=--physical"];
/// Reads that each wait for the one before, random accesses of a dense and of a scattered part, sequential accesses.
const WORKLOADS: [&str; 4] = ["chain_2g", "static_1g", "scattered_4g", "zigzag"];
/// Time until the recorder knows the program.
const LEARN: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Loss {
    workload: String,
    mode: String,
    /// Pairs of seconds.
    pairs: usize,
    mean_percent: f64,
    /// Standard error of the mean.
    error_percent: f64,
    /// Time that the recorder says it took from the target, as a share of the seconds in which it ran.
    reported_percent: f64,
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    let modes = accuracy::modes(context, &MODES)?;
    let mut table = Table::new(
        "speed lost in seconds with the recorder, against those before and after it",
        &[
            "workload",
            "recording",
            "pairs",
            "loss %",
            "standard error",
            "reported %",
        ],
    );
    let mut losses = Vec::new();
    for workload in WORKLOADS {
        if !context.only.is_empty() && !context.only.iter().any(|only| only == workload) {
            continue;
        }
        for mode in &modes {
            let (percents, reported_percent) = measure(context, workload, mode)?;
            let (mean, error) = mean_and_error(&percents);
            table.row(vec![
                workload.into(),
                mode.name.clone(),
                percents.len().to_string(),
                format!("{mean:.2}"),
                format!("{error:.2}"),
                format!("{reported_percent:.2}"),
            ]);
            losses.push(Loss {
                workload: workload.into(),
                mode: mode.name.clone(),
                pairs: percents.len(),
                mean_percent: mean,
                error_percent: error,
                reported_percent,
            });
        }
    }
    Ok(BenchOutcome::Done {
        tables: vec![table],
        data: json!(losses),
    })
}

/// Measures the loss of each second with the recorder, and the loss that the recorder reports, in percent.
fn measure(
    context: &BenchContext,
    name: &str,
    mode: &super::Mode,
) -> anyhow::Result<(Vec<f64>, f64)> {
    let mut workload = Workload::start(context, &accuracy::config_path(context, name))?;
    let turns = (context.duration.as_secs() * u64::from(context.repeats)).max(4) as usize;
    let time = LEARN + TURN * (turns as u32 + 2);
    let mut recording = Recording::start(context, mode, workload.pid(), time)?;
    context.sleep(LEARN)?;
    let mut moments = vec![now()?];
    for turn in 0..turns {
        recording.check_running()?;
        let signal = if turn % 2 == 0 {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        kill(Pid::from_raw(recording.id() as i32), signal)?;
        context.sleep(TURN)?;
        moments.push(now()?);
    }
    kill(Pid::from_raw(recording.id() as i32), Signal::SIGCONT)?;
    let recorded = recording.finish(context)?;
    workload.check_running()?;
    let rates = workload.rates(&moments)?;
    let with = (1..rates.len().saturating_sub(1)).step_by(2);
    let percents = with.map(|at| {
        let without = f64::midpoint(rates[at - 1], rates[at + 1]);
        100.0 * (1.0 - rates[at] / without)
    });
    let runs = LEARN..LEARN + TURN * turns as u32;
    let induced = induced_within(&recorded.costs, &runs);
    let running = TURN.as_secs_f64() * (turns / 2) as f64;
    Ok((percents.collect(), 100.0 * induced / running))
}

/// Seconds that the recorder reports to have taken from the target within `runs`, since its first cost sample.
fn induced_within(costs: &[CostSample], runs: &Range<Duration>) -> f64 {
    let first = costs.first().map_or(Nanos(0), |cost| cost.time);
    let within = costs.iter().filter(|cost| {
        let since = Duration::from_nanos(cost.time.since(first).0);
        runs.contains(&since)
    });
    let mut induced = within.map(|cost| cost.cost.induced_cpu.as_secs_f64());
    let from = induced.next().unwrap_or(0.0);
    induced.next_back().map_or(0.0, |to| to - from)
}

/// Returns the time by the clock of the workload's progress.
fn now() -> anyhow::Result<Nanos> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.into())
}

pub(super) fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_shrinks_with_the_number_of_pairs() {
        let (mean, error) = mean_and_error(&[1.0, 3.0, 1.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-9 && (error - (4.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-9);
    }
}
