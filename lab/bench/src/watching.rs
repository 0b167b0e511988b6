//! The cost of watching for a program: its speed, and its CPU time for the same work, in turns without and with a
//! recorder.
//!
//! Separate runs differ by more than this cost (other guests, the placement of memory). Neighbouring turns of the same
//! run differ much less. So each turn with the recorder is compared with the mean of the turns before and after it.
//!
//! One recorder is stopped and continued every second. It must catch up when it continues, so its cost here is, if
//! anything, too high. Sampling of page faults does not stop with the recorder, so `--stacks` is compared with
//! recorders of their own, without and with it. The first burst of samples, the most expensive, is in each such turn.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, ensure};
use isotherm_engine::Nanos;
use isotherm_engine::statistics::median;
use isotherm_record::CostSample;
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::{Value, json};

use super::child::process_cpu;
use super::meter::{Rate, Speed, now};
use super::recording::{Recording, costs};
use super::subject::{Subject, Which};
use super::table::{Table, cell, mean_cell, number};
use super::{BenchContext, BenchOutcome, Mode};

/// Length of a turn of a recorder that is stopped and continued.
const TURN: Duration = Duration::from_secs(1);
/// Length of a turn that has a recorder of its own, unless an option gives it.
const RECORDING: Duration = Duration::from_secs(5);
/// Pairs of such turns for each of the repeats.
const RECORDINGS: u32 = 10;
/// Time for a log's last line, which is written some time after its moment.
const LOGGED: Duration = Duration::from_millis(250);

struct Variant {
    name: &'static str,
    which: Which,
    /// It runs also if it is not named.
    is_usual: bool,
    modes: &'static [&'static str],
    /// One recorder is stopped and continued, once it has known the program for this number of seconds. Without it each
    /// turn has a recorder of its own, with the mode's flags or without.
    stopped_after_s: Option<u64>,
}

const VARIANTS: [Variant; 10] = [
    // Reads that each wait for the one before, random accesses of a dense and of a scattered part, sequential accesses.
    pattern("chain_2g"),
    pattern("static_1g"),
    pattern("scattered_4g"),
    pattern("zigzag"),
    Variant {
        modes: &["default=", "faithful=--faithful", "pages=--pages"],
        which: Which::Real("redis"),
        ..pattern("redis")
    },
    Variant {
        name: "cached-files",
        which: Which::CachedFiles,
        is_usual: false,
        modes: &["all=--all"],
        // Until the recorder has seen all of memory several times.
        stopped_after_s: Some(60),
    },
    faults("map", &["map"]),
    faults("heap", &["heap"]),
    // Many short processes.
    faults(
        "cc",
        &["run", "cc", "-O1", "-c", "-o", "/dev/null", "unit.c"],
    ),
    faults("python", &["run", "python3", "-c", PYTHON]),
];

const PYTHON: &str =
    "table = {i: str(i) * 3 for i in range(200000)}; rows = [[i, i + 1] for i in range(200000)]";

const fn pattern(name: &'static str) -> Variant {
    Variant {
        name,
        which: Which::Pattern(name),
        is_usual: true,
        modes: &["default=", "physical=--physical"],
        stopped_after_s: Some(10),
    }
}

const fn faults(name: &'static str, arguments: &'static [&'static str]) -> Variant {
    Variant {
        name,
        which: Which::Faults(arguments),
        is_usual: false,
        modes: &["stacks=--stacks"],
        stopped_after_s: None,
    }
}

#[derive(Serialize)]
struct Loss {
    program: &'static str,
    mode: String,
    /// Units of work per second, and CPU time of a unit, in the turns without the recorder.
    per_second: Vec<f64>,
    cpu_us: Vec<f64>,
    slower_percent: Vec<f64>,
    more_cpu_percent: Vec<f64>,
    recorder_cpu_percent: f64,
    /// Time that the recorder says it took from the program, as a share of the turns in which it ran.
    reported_percent: Option<f64>,
}

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let (mut losses, mut failures) = (Vec::new(), Vec::new());
    let (mut files, mut tables) = (Vec::new(), Vec::new());
    for variant in VARIANTS {
        let is_wanted = context.is_selected(variant.name);
        if !is_wanted || (context.only.is_empty() && !variant.is_usual) {
            continue;
        }
        if let Some(lacks) = variant.which.lacks() {
            println!("SKIP {}: {lacks}", variant.name);
            continue;
        }
        for mode in context.modes_or(variant.modes)? {
            match measure(context, &variant, &mode) {
                Ok((loss, of_files)) => {
                    losses.push(loss);
                    if let Some((table, data)) = of_files {
                        tables.push(table);
                        files.extend(data);
                    }
                }
                // A mode that fails must not hide the others' numbers.
                Err(error) => {
                    context.sleep(Duration::ZERO)?;
                    let failure = format!("{}, {}: {error:#}", variant.name, mode.name);
                    println!("FAILED {failure}");
                    failures.push(failure);
                }
            }
        }
    }
    if losses.is_empty() && failures.is_empty() {
        return Ok(BenchOutcome::Skip("no program could be run".into()));
    }
    ensure!(!losses.is_empty(), "nothing could be measured");
    tables.insert(0, table(&losses));
    Ok(BenchOutcome::Done(
        tables,
        json!({ "losses": losses, "failures": failures, "files": files }),
    ))
}

fn table(losses: &[Loss]) -> Table {
    let mut table = Table::new(
        "turns with the recorder against those before and after: medians of pairs [least..most], means ± 95 %",
        "program | recording | pairs | units/s | CPU us/unit | loss % | mean | CPU/unit +% | mean | \
         recorder CPU % | reported %",
    );
    for loss in losses {
        table.row(vec![
            loss.program.to_owned(),
            loss.mode.clone(),
            loss.slower_percent.len().to_string(),
            middle(&loss.per_second, 0),
            middle(&loss.cpu_us, 3),
            cell(&loss.slower_percent, 2),
            mean_cell(loss.slower_percent.iter().copied(), 2),
            cell(&loss.more_cpu_percent, 2),
            mean_cell(loss.more_cpu_percent.iter().copied(), 2),
            format!("{:.2}", loss.recorder_cpu_percent),
            middle(loss.reported_percent.as_slice(), 2),
        ]);
    }
    table
}

fn middle(values: &[f64], digits: usize) -> String {
    number(median(values.to_vec()), digits)
}

/// Turns without and with the recorder, of which the first and the last are without.
struct Turns {
    windows: Vec<(f64, f64)>,
    recorder_cpu_percent: f64,
    reported_percent: Option<f64>,
    record: std::path::PathBuf,
}

type FilesTable = (Table, Vec<Value>);

fn measure(
    context: &BenchContext,
    variant: &Variant,
    mode: &Mode,
) -> Result<(Loss, Option<FilesTable>)> {
    println!("{}, {}", variant.name, mode.name);
    let mut subject = variant.which.start(context)?;
    let speed = Speed::of(subject.meter.clone(), Some(subject.group.pid));
    let turns = match variant.stopped_after_s {
        Some(after) => stopped(context, &subject, mode, Duration::from_secs(after))?,
        None => restarted(context, &mut subject, mode)?,
    };
    subject.group.check_running()?;
    context.sleep(LOGGED)?;
    let rates = speed.within(&turns.windows);
    let files = subject.files.as_ref();
    let files = files.map(|files| files.compare(context, &turns.record));
    let without = rates.iter().step_by(2).flatten();
    let loss = Loss {
        program: variant.name,
        mode: mode.name.clone(),
        per_second: without.clone().map(|rate| rate.mean).collect(),
        cpu_us: finite(without.map(|rate| rate.cpu_s * 1e6)),
        slower_percent: changes(&rates, |rate| rate.mean, -100.0),
        more_cpu_percent: changes(&rates, |rate| rate.cpu_s, 100.0),
        recorder_cpu_percent: turns.recorder_cpu_percent,
        reported_percent: turns.reported_percent,
    };
    Ok((loss, files.transpose()?))
}

fn finite(values: impl Iterator<Item = f64>) -> Vec<f64> {
    values.filter(|value| value.is_finite()).collect()
}

/// Returns the change of each turn with the recorder against the mean of those before and after it, times `scale`.
fn changes(rates: &[Option<Rate>], of: fn(&Rate) -> f64, scale: f64) -> Vec<f64> {
    let pairs = rates.windows(3).step_by(2).filter_map(|turns| {
        let [before, with, after] = turns else {
            return None;
        };
        let without = f64::midpoint(of(before.as_ref()?), of(after.as_ref()?));
        Some(scale * (of(with.as_ref()?) / without - 1.0))
    });
    finite(pairs)
}

fn stopped(
    context: &BenchContext,
    subject: &Subject,
    mode: &Mode,
    after: Duration,
) -> Result<Turns> {
    let pairs = (context.duration.as_secs() * u64::from(context.repeats) / 2).max(2) as u32;
    // It runs for some time at the end, too, in which it sees what it has missed.
    let time = after * 2 + TURN * (2 * pairs + 2);
    let mut recording = Recording::start(context, mode, subject.group.pid, time)?;
    context.sleep(after)?;
    let cpu = process_cpu(recording.id())?;
    let mut windows = Vec::new();
    for turn in 0..=2 * pairs {
        recording.signal(if turn % 2 == 0 {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        })?;
        let from = now();
        context.sleep(TURN)?;
        windows.push((from, now()));
    }
    let cpu = process_cpu(recording.id())?.saturating_sub(cpu);
    recording.signal(Signal::SIGCONT)?;
    let (record, _) = recording.end(context)?;
    let running = (TURN * pairs).as_secs_f64();
    let runs = after..after + TURN * (2 * pairs + 1);
    Ok(Turns {
        windows,
        recorder_cpu_percent: 100.0 * cpu.as_secs_f64() / running,
        reported_percent: Some(100.0 * induced_within(&costs(&record)?, &runs) / running),
        record,
    })
}

/// Starts a recorder for each turn, without and with the flags of the mode.
fn restarted(context: &BenchContext, subject: &mut Subject, mode: &Mode) -> Result<Turns> {
    let length = context.asked_duration.unwrap_or(RECORDING);
    let children = ["--children".to_owned()];
    let arms = [&children[..0], mode.flags.as_slice()].map(|flags| Mode {
        name: mode.name.clone(),
        flags: [&children[..], flags].concat(),
    });
    let (mut windows, mut shares) = (Vec::new(), Vec::new());
    let mut record = context.scratch.path().to_owned();
    for turn in 0..=2 * RECORDINGS * context.repeats {
        subject.group.check_running()?;
        let at = turn as usize % arms.len();
        let from = now();
        let recording = Recording::start(context, &arms[at], subject.group.pid, length)?;
        let (path, share) = recording.end(context)?;
        windows.push((from, now()));
        record = path;
        if at == 1 {
            shares.push(share);
        }
    }
    Ok(Turns {
        windows,
        recorder_cpu_percent: 100.0 * median(shares).unwrap_or(f64::NAN),
        reported_percent: None,
        record,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_compared_with_those_before_and_after_it() {
        let rates = [100.0, 98.0, 96.0, 97.0, 100.0].map(|mean| {
            Some(Rate {
                mean,
                error: 0.0,
                cpu_s: f64::NAN,
            })
        });
        let losses = changes(&rates, |rate| rate.mean, -100.0);
        assert!(losses[0].abs() < 1e-9 && (losses[1] - 100.0 / 98.0).abs() < 1e-9);
        assert_eq!(losses.len(), 2);
        assert!(changes(&rates, |rate| rate.cpu_s, 100.0).is_empty());
        let gap = [rates[0], None, rates[2]];
        assert!(changes(&gap, |rate| rate.mean, -100.0).is_empty());
    }
}
