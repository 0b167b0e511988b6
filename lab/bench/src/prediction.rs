//! Accuracy of the simulated machine: a program's trace is replayed under a scheme, and the program itself runs under
//! it.
//!
//! Two pairs share a trace (`record --pages`) and three live runs: with the guard, alone, and without a guard. Each of
//! these is another run of the same program, watched from the same moment of its life on. Their order changes from
//! program to program and round to round. Memory saved and the CPU time of acting are known exactly. The slowdown
//! compares two changes: that of the program's speed against the seconds before, and the same of a run alone in the
//! same part of its life. A program has phases, and this machine's speed varies, which one pair cannot distinguish from
//! a slowdown; so programs are judged by several pairs.

mod pair;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::child::Guarded;
use super::meter::{Rate, Speed, now};
use super::recording::trace;
use super::subject::{Subject, Which};
use super::table::{Table, cell, mean_cell};
use super::truth::programs::PROGRAMS;
use super::{BenchContext, BenchOutcome};
use pair::{
    ACTING_FACTOR, Bounded, Live, Pair, Predicted, SAVED_POINTS, SLOWDOWN_POINTS, is_slowdown_right,
};

/// Programs of the family, unless an option gives their number.
const DRAWN: u64 = 6;

/// Duration of a run, unless an option gives it.
const DURATION: Duration = Duration::from_secs(20);
/// Time from a program's start until it is watched; its speed is measured in the second part.
const WARM_UP: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(6);
const SLACK: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_hours(1);

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    if !std::path::Path::new("/sys/block/zram0").exists() {
        return Ok(BenchOutcome::Skip(
            "there is no zram, so nothing can be paged out".into(),
        ));
    }
    swap(context, &["zram", "--size", "4G"])?;
    let (pairs, skipped) = measure(context);
    swap(context, &["off"])?;
    Ok(BenchOutcome::Done(
        vec![by_program(&pairs), in_all(&pairs)],
        json!({ "pairs": pairs, "skipped": skipped }),
    ))
}

fn by_program(pairs: &[Pair]) -> Table {
    let mut table = Table::new(
        "prcl (5 s), live and as predicted from a trace: medians of pairs [least..most]; slowdowns: means ± 95 %",
        "program | guard | pairs | saved % | predicted | slowdown % | predicted | acting s | predicted",
    );
    for group in groups(pairs) {
        let of = |value: fn(&Pair) -> f64, digits| {
            let values: Vec<f64> = group.iter().map(|pair| value(pair)).collect();
            cell(&values, digits)
        };
        let slowdowns = group.iter().filter_map(|pair| pair.live.slowdown_percent);
        table.row(vec![
            group[0].program.clone(),
            if group[0].guard { "1 %" } else { "none" }.into(),
            group.len().to_string(),
            of(|p| p.live.saved_percent, 1),
            of(|p| p.predicted.saved_percent.value, 1),
            mean_cell(slowdowns, 1),
            of(|p| p.predicted.slowdown_percent.value, 1),
            of(|p| p.live.acting_cpu_s, 2),
            of(|p| p.predicted.acting_cpu_s.value, 2),
        ]);
    }
    table
}

fn groups(pairs: &[Pair]) -> Vec<Vec<&Pair>> {
    let mut sorted: Vec<&Pair> = pairs.iter().collect();
    sorted.sort_by(|a, b| (&a.program, !a.guard).cmp(&(&b.program, !b.guard)));
    let of_one = |a: &&Pair, b: &&Pair| (&a.program, a.guard) == (&b.program, b.guard);
    sorted.chunk_by(of_one).map(<[&Pair]>::to_vec).collect()
}

fn in_all(pairs: &[Pair]) -> Table {
    let mut table = Table::new(
        "predicted well: pairs, and of slowdowns programs",
        "what | with the guard | without",
    );
    let mut line = |what: String, judged: Vec<(bool, bool)>| {
        let of = |guard: bool| {
            let judged = { judged.iter() }.filter(|(is_guarded, _)| *is_guarded == guard);
            let right = judged.clone().filter(|(_, is_right)| *is_right).count();
            format!("{right} of {}", judged.count())
        };
        table.row(vec![what, of(true), of(false)]);
    };
    let of_pairs = |is_right: fn(&Pair) -> bool| {
        let judged = pairs.iter().map(|pair| (pair.guard, is_right(pair)));
        judged.collect::<Vec<_>>()
    };
    line(
        format!("memory saved within {SAVED_POINTS} points or the interval"),
        of_pairs(Pair::is_saved_right),
    );
    line(
        "memory saved within the interval".into(),
        of_pairs(Pair::is_saved_within),
    );
    let groups = groups(pairs);
    let judged = groups
        .iter()
        .filter_map(|group| Some((group.first()?.guard, is_slowdown_right(group)?)));
    line(
        format!(
            "slowdown within {SLOWDOWN_POINTS} points or the interval, of where 95 % confidence has it"
        ),
        judged.collect(),
    );
    line(
        format!("acting's CPU time within a factor of {ACTING_FACTOR}"),
        of_pairs(Pair::is_acting_right),
    );
    line(
        "acting's CPU time within the interval".into(),
        of_pairs(Pair::is_acting_within),
    );
    table
}

/// Measures one pair of each program in turn, so that variations of this machine affect all programs.
fn measure(context: &BenchContext) -> (Vec<Pair>, Vec<String>) {
    let (mut pairs, mut skipped) = (Vec::new(), Vec::new());
    for round in 0..context.repeats {
        for (at, which) in programs(context).into_iter().enumerate() {
            let name = which.name(context);
            if let Some(lacks) = which.lacks() {
                if round == 0 {
                    println!("SKIP {name}: {lacks}");
                    skipped.push(format!("{name}: {lacks}"));
                }
                continue;
            }
            match one_pair(context, which, round as usize, at) {
                Ok(of_both) => pairs.extend(of_both),
                Err(error) => {
                    println!("FAILED {name}: {error:#}");
                    skipped.push(format!("{name}: {error:#}"));
                    // Results before a signal are valid.
                    if context.sleep(Duration::ZERO).is_err() {
                        return (pairs, skipped);
                    }
                }
            }
        }
    }
    (pairs, skipped)
}

fn programs(context: &BenchContext) -> Vec<Which> {
    let options = &context.truth;
    let is_wanted = |name: &str| {
        options.programs.is_empty() || options.programs.iter().any(|p| p == name || p == "all")
    };
    let real = PROGRAMS
        .into_iter()
        .filter(|program| is_wanted(program.name));
    let real = real.map(|program| Which::Real(program.name));
    let drawn = options.numbers(DRAWN).into_iter();
    real.chain(drawn.map(Which::Drawn)).collect()
}

/// The live runs: acted on with or without the guard, or not at all.
const ARMS: [Option<bool>; 3] = [None, Some(true), Some(false)];

/// Records the trace first, then makes the live runs, whose order varies. Replays follow all measurements, as
/// they keep all CPUs busy.
fn one_pair(context: &BenchContext, which: Which, round: usize, place: usize) -> Result<Vec<Pair>> {
    let duration = context.asked_duration.unwrap_or(DURATION);
    let program = which.name(context);
    let trace = record(context, which, duration)?;
    let mut alone = None;
    let mut under = Vec::new();
    for at in 0..ARMS.len() {
        let arm = ARMS[(round + place + at) % ARMS.len()];
        let (acting_cpu_s, rates) = live(context, which.start(context)?, arm, duration)?;
        match arm {
            None => alone = rates,
            Some(guard) => under.push((guard, acting_cpu_s, rates)),
        }
    }
    under.sort_by_key(|(guard, ..)| !guard);
    let mut pairs = Vec::new();
    for (guard, acting_cpu_s, rates) in under {
        let (saved_percent, predicted) = predict(context, &trace, guard)?;
        keep(context, &trace, &format!("{program}.{round}"), guard)?;
        let slowdown = alone.zip(rates).map(|(alone, rates)| loss(alone, rates));
        let pair = Pair {
            program: program.clone(),
            guard,
            live: Live {
                saved_percent,
                slowdown_percent: slowdown,
                acting_cpu_s,
                rates,
                rates_alone: alone,
            },
            predicted,
        };
        println!("{}", line(&pair));
        pairs.push(pair);
    }
    Ok(pairs)
}

fn record(context: &BenchContext, which: Which, duration: Duration) -> Result<PathBuf> {
    let mut subject = which.start(context)?;
    context.sleep(WARM_UP + ALONE)?;
    subject.group.check_running()?;
    trace(context, subject.group.pid, duration)
}

fn of_run(context: &BenchContext, name: &str, guard: bool) -> PathBuf {
    context.scratch(&format!("{}.{name}", guard_name(guard)))
}

fn guard_name(guard: bool) -> &'static str {
    if guard { "guard" } else { "none" }
}

/// Keeps the records of a pair, if --keep asks for that.
fn keep(context: &BenchContext, trace: &Path, program: &str, guard: bool) -> Result<()> {
    let Some(folder) = &context.keep else {
        return Ok(());
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let program = program.replace([' ', '/'], "-");
    let name = guard_name(guard);
    for (from, kept) in [
        (trace.to_owned(), "trace.isotherm".to_owned()),
        (
            of_run(context, "isotherm", guard),
            format!("{name}.isotherm"),
        ),
        (of_run(context, "json", guard), format!("{name}.json")),
    ] {
        let to = folder.join(format!("{program}.{kept}"));
        std::fs::copy(from, &to).with_context(|| format!("cannot keep {}", to.display()))?;
    }
    Ok(())
}

fn line(pair: &Pair) -> String {
    let mark = |is_right: bool| if is_right { "" } else { " (!)" };
    let bounds = |of: Bounded| match (of.low, of.high) {
        (Some(low), Some(high)) => format!("{:.2} [{low:.2}..{high:.2}]", of.value),
        _ => format!("{:.2}", of.value),
    };
    format!(
        "{}, guard {}: saved {:.1} %, predicted {}{}; slowdown {:.1} %, predicted {}; acting {:.2} s, predicted {}{}",
        pair.program,
        if pair.guard { "1 %" } else { "none" },
        pair.live.saved_percent,
        bounds(pair.predicted.saved_percent),
        mark(pair.is_saved_right()),
        pair.live.slowdown_percent.unwrap_or(f64::NAN),
        bounds(pair.predicted.slowdown_percent),
        pair.live.acting_cpu_s,
        bounds(pair.predicted.acting_cpu_s),
        mark(pair.is_acting_right()),
    )
}

/// Runs the program alone for some seconds, and then under an arm. Returns the CPU time of acting, and the program's
/// speed before and during it.
fn live(
    context: &BenchContext,
    mut subject: Subject,
    arm: Option<bool>,
    duration: Duration,
) -> Result<(f64, Option<[Rate; 2]>)> {
    let speed = Speed::of(subject.meter.clone(), None);
    context.sleep(WARM_UP)?;
    let began = now();
    context.sleep(ALONE)?;
    let from = now();
    let acting_cpu_s = match arm {
        None => {
            context.sleep(duration)?;
            0.0
        }
        Some(guard) => act(context, &subject, guard, duration)?,
    };
    // Acting takes a moment to begin and to end.
    let until = now().min(from + duration.as_secs_f64());
    subject.group.check_running()?;
    let rates = match speed.within(&[(began, from), (from, until)])[..] {
        [Some(before), Some(then)] => Some([before, then]),
        _ => None,
    };
    Ok((acting_cpu_s, rates))
}

/// Acts on a program; returns the CPU time of acting.
fn act(context: &BenchContext, subject: &Subject, guard: bool, duration: Duration) -> Result<f64> {
    let mut acting = Command::new(&context.isotherm);
    acting
        .args(["run", "-q", "--json", "--preset", "prcl"])
        .args(["--duration", &format!("{}s", duration.as_secs())])
        .args(no_guard(guard))
        .args(["--pid", &subject.group.pid.to_string(), "-o"])
        .arg(of_run(context, "isotherm", guard));
    let summary = Guarded::json(context, &mut acting, duration + SLACK)?;
    std::fs::write(of_run(context, "json", guard), format!("{summary:#}\n"))?;
    Ok(summary["acting_cpu_seconds"].as_f64().unwrap_or(0.0))
}

/// Returns how much longer the same work takes than in a run alone, in percent. Both runs are compared with the seconds
/// before them, as the machine's speed differs at their starts.
fn loss(alone: [Rate; 2], under: [Rate; 2]) -> f64 {
    let change = |[before, then]: [Rate; 2]| then.mean / before.mean;
    100.0 * (change(alone) / change(under) - 1.0)
}

fn no_guard(guard: bool) -> &'static [&'static str] {
    if guard { &[] } else { &["--no-guard"] }
}

/// Returns the saved memory by the live run's record, and the prediction by the trace.
fn predict(context: &BenchContext, trace: &Path, guard: bool) -> Result<(f64, Predicted)> {
    let mut simulate = Command::new(&context.isotherm);
    simulate
        .args(["simulate", "--json", "--preset", "prcl"])
        .args(no_guard(guard))
        .arg("--trace")
        .arg(trace)
        .arg("--against")
        .arg(of_run(context, "isotherm", guard));
    let report = Guarded::json(context, &mut simulate, LIMIT)?;
    let number = |value: &Value| value.as_f64().context("a number is missing in the report");
    let against = &report["against"];
    // A value has bounds if a trace is replayed several times.
    let bounded = |name: &str, or: &Value| {
        let of = Bounded::of(&report["prediction"][name]).or_else(|| Bounded::of(or));
        of.with_context(|| format!("{name} is missing in the report"))
    };
    let predicted = Predicted {
        saved_percent: bounded("saved_percent", &against["predicted_saved_percent"])?,
        slowdown_percent: bounded(
            "slowdown_percent",
            &report["processes"][0]["slowdown_percent"],
        )?,
        acting_cpu_s: bounded("acting_cpu_seconds", &report["acting_cpu_seconds"])?,
    };
    Ok((number(&against["live_saved_percent"])?, predicted))
}

fn swap(context: &BenchContext, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(&context.isotherm);
    command.arg("swap").args(arguments).stdout(Stdio::null());
    let status = command.status().context("cannot set swap up")?;
    ensure!(status.success(), "swap cannot be set up or undone here");
    Ok(())
}
