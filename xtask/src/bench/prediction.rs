//! How near the simulated machine comes: a program's trace is replayed under a scheme, and the program
//! itself is run under it.
//!
//! A pair is a trace (`record --pages`) and three live runs, with the guard, by itself, and without a guard, each of
//! another run of the same program and watched from the same moment of its life on. Memory saved and what acting took are
//! known exactly. The slowdown is by how much more the program slows against the seconds before than it does by itself in
//! the same part of its life: a program has phases, and this machine has moods. Its error is told beside it.

mod meter;
mod subject;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::child::Guarded;
use super::stats::cell;
use super::table::Table;
use super::{BenchContext, BenchOutcome};
use meter::{Rate, Speed};
use subject::{Subject, Which};

/// How long a run is watched, unless it is said.
const DURATION: Duration = Duration::from_secs(20);
/// From a program's start on until it is watched; in the second part its speed is measured.
const WARM_UP: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(6);
/// Time that a child may take beyond what it was asked for.
const SLACK: Duration = Duration::from_secs(30);

/// Memory saved is foretold well within so many points, a slowdown within so many, and acting within such a factor.
const SAVED_POINTS: f64 = 5.0;
const SLOWDOWN_POINTS: f64 = 2.0;
const ACTING_FACTOR: f64 = 1.5;
/// Acting that takes less than this is not worth a factor.
const LITTLE_ACTING_S: f64 = 0.05;

#[derive(Serialize)]
struct Pair {
    program: String,
    guard: bool,
    live: Live,
    predicted: Predicted,
}

/// What came of it.
#[derive(Clone, Copy, Serialize)]
struct Live {
    saved_percent: f64,
    slowdown_percent: Option<f64>,
    /// Standard error of that.
    slowdown_error_points: Option<f64>,
    acting_cpu_s: f64,
}

/// What was foretold.
#[derive(Clone, Copy, Serialize)]
struct Predicted {
    saved_percent: Bounded,
    slowdown_percent: Bounded,
    acting_cpu_s: Bounded,
}

#[derive(Clone, Copy, Serialize)]
struct Bounded {
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
}

impl Bounded {
    fn of(value: &Value) -> Option<Self> {
        if let Some(value) = value.as_f64() {
            return Some(Self {
                value,
                low: None,
                high: None,
            });
        }
        Some(Self {
            value: value["value"].as_f64()?,
            low: value["low"].as_f64(),
            high: value["high"].as_f64(),
        })
    }

    fn holds(&self, value: f64, slack: f64) -> bool {
        let (low, high) = (
            self.low.unwrap_or(self.value),
            self.high.unwrap_or(self.value),
        );
        (low - slack..=high + slack).contains(&value)
    }
}

impl Pair {
    fn is_saved_right(&self) -> bool {
        let off = self.predicted.saved_percent.value - self.live.saved_percent;
        off.abs() <= SAVED_POINTS
            || self
                .predicted
                .saved_percent
                .holds(self.live.saved_percent, 0.0)
    }

    /// `None` where the program's speed cannot be told. What is measured counts to two of its standard errors.
    fn is_slowdown_right(&self) -> Option<bool> {
        let slowdown = self.live.slowdown_percent?;
        let slack = 2.0 * self.live.slowdown_error_points.unwrap_or(0.0);
        let predicted = self.predicted.slowdown_percent;
        let off = (predicted.value - slowdown).abs();
        Some(off <= SLOWDOWN_POINTS + slack || predicted.holds(slowdown, slack))
    }

    fn is_acting_right(&self) -> bool {
        let (live, predicted) = (self.live.acting_cpu_s, self.predicted.acting_cpu_s);
        if live.max(predicted.value) < LITTLE_ACTING_S {
            return true;
        }
        let factor = live.max(predicted.value) / live.min(predicted.value).max(1e-9);
        factor <= ACTING_FACTOR
    }
}

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if !context.named {
        return Ok(BenchOutcome::Skip(
            "it takes long; name it to run it".into(),
        ));
    }
    if !std::path::Path::new("/sys/block/zram0").exists() {
        return Ok(BenchOutcome::Skip(
            "there is no zram, so nothing can be paged out".into(),
        ));
    }
    swap(context, &["zram", "--size", "4G"])?;
    let measured = measure(context);
    swap(context, &["off"])?;
    let (pairs, skipped) = measured?;
    Ok(BenchOutcome::Done {
        tables: vec![by_program(&pairs), in_all(&pairs)],
        data: json!({ "pairs": pairs, "skipped": skipped }),
    })
}

fn by_program(pairs: &[Pair]) -> Table {
    let mut table = Table::new(
        "prcl (5 s), live and as foretold from a trace: medians of pairs [least..most]",
        &[
            "program",
            "guard",
            "pairs",
            "saved %",
            "foretold",
            "slowdown %",
            "foretold",
            "acting s",
            "foretold",
        ],
    );
    let mut sorted: Vec<&Pair> = pairs.iter().collect();
    sorted.sort_by(|a, b| (&a.program, !a.guard).cmp(&(&b.program, !b.guard)));
    for group in sorted.chunk_by(|a, b| (&a.program, a.guard) == (&b.program, b.guard)) {
        let of = |value: fn(&Pair) -> f64, digits| {
            let values: Vec<f64> = group.iter().map(|pair| value(pair)).collect();
            cell(&values, digits)
        };
        table.row(vec![
            group[0].program.clone(),
            if group[0].guard { "1 %" } else { "none" }.into(),
            group.len().to_string(),
            of(|p| p.live.saved_percent, 1),
            of(|p| p.predicted.saved_percent.value, 1),
            of(|p| p.live.slowdown_percent.unwrap_or(f64::NAN), 1),
            of(|p| p.predicted.slowdown_percent.value, 1),
            of(|p| p.live.acting_cpu_s, 2),
            of(|p| p.predicted.acting_cpu_s.value, 2),
        ]);
    }
    table
}

fn in_all(pairs: &[Pair]) -> Table {
    let mut table = Table::new(
        "pairs that were foretold well",
        &["what", "with the guard", "without", "of"],
    );
    let mut line = |what: String, is_right: &dyn Fn(&Pair) -> Option<bool>| {
        let of = |guard: bool| {
            let judged: Vec<bool> = { pairs.iter() }
                .filter(|pair| pair.guard == guard)
                .filter_map(is_right)
                .collect();
            (judged.iter().filter(|right| **right).count(), judged.len())
        };
        let (with, without) = (of(true), of(false));
        table.row(vec![
            what,
            with.0.to_string(),
            without.0.to_string(),
            format!("{} and {}", with.1, without.1),
        ]);
    };
    line(
        format!("saved memory within {SAVED_POINTS} points or the interval"),
        &|pair| Some(pair.is_saved_right()),
    );
    line(
        format!("slowdown within {SLOWDOWN_POINTS} points or the interval, to two standard errors"),
        &Pair::is_slowdown_right,
    );
    line(
        format!("acting's CPU time within a factor of {ACTING_FACTOR}"),
        &|pair| Some(pair.is_acting_right()),
    );
    table
}

/// Pair by pair of all programs in turn, so that this machine's moods are everybody's.
fn measure(context: &BenchContext) -> anyhow::Result<(Vec<Pair>, Vec<String>)> {
    let (mut pairs, mut skipped) = (Vec::new(), Vec::new());
    for round in 0..context.repeats {
        for which in Which::all(context) {
            let name = which.name(context);
            if let Some(lacks) = which.lacks() {
                if round == 0 {
                    println!("SKIP {name}: {lacks}");
                    skipped.push(format!("{name}: {lacks}"));
                }
                continue;
            }
            match one_pair(context, &which) {
                Ok(of_both) => pairs.extend(of_both),
                Err(error) => {
                    context.sleep(Duration::ZERO)?;
                    println!("FAILED {name}: {error:#}");
                    skipped.push(format!("{name}: {error:#}"));
                }
            }
        }
    }
    Ok((pairs, skipped))
}

fn one_pair(context: &BenchContext, which: &Which) -> anyhow::Result<Vec<Pair>> {
    let duration = context.asked_duration.unwrap_or(DURATION);
    let program = which.name(context);
    let trace = context.scratch("trace.isotherm");
    let mut subject = which.start(context)?;
    context.sleep(WARM_UP + ALONE)?;
    subject.check_running()?;
    let mut record = Command::new(&context.isotherm);
    record
        .args(["record", "--pages", "-q", "--max-stall", "1s"])
        .args(["--duration", &format!("{}s", duration.as_secs())])
        .args(["--pid", &subject.pid().to_string(), "-o"])
        .arg(&trace);
    Guarded::spawn(context, &mut record)?.finish(context, duration + SLACK)?;
    drop(subject);
    let mut pairs = Vec::new();
    let mut by_itself = None;
    for guard in [true, false] {
        let lives = live(context, which.start(context)?, duration, &|subject| {
            act(context, subject, guard, duration)
        });
        let (acting_cpu_s, under) = lives?;
        let (saved_percent, predicted) = predict(context, guard)?;
        keep(context, &program, guard)?;
        // Between the two.
        if guard {
            let wait = |_: &mut Subject| context.sleep(duration).map(|()| 0.0);
            by_itself = live(context, which.start(context)?, duration, &wait)?.1;
        }
        let slowdown = by_itself
            .zip(under)
            .map(|(alone, under)| loss(alone, under));
        let pair = Pair {
            program: program.clone(),
            guard,
            live: Live {
                saved_percent,
                slowdown_percent: slowdown.map(|(loss, _)| loss),
                slowdown_error_points: slowdown.map(|(_, error)| error),
                acting_cpu_s,
            },
            predicted,
        };
        println!("{}", line(&pair));
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Keeps the records of a pair, if they are to be.
fn keep(context: &BenchContext, program: &str, guard: bool) -> anyhow::Result<()> {
    let Some(folder) = &context.keep else {
        return Ok(());
    };
    let program = program.replace([' ', '/'], "-");
    let guard = if guard { "guard" } else { "none" };
    for (name, kept) in [
        ("trace.isotherm", format!("{program}.trace.isotherm")),
        ("live.isotherm", format!("{program}.{guard}.isotherm")),
        ("run.json", format!("{program}.{guard}.json")),
    ] {
        let to = folder.join(kept);
        std::fs::copy(context.scratch(name), &to)
            .with_context(|| format!("cannot keep {}", to.display()))?;
    }
    Ok(())
}

fn line(pair: &Pair) -> String {
    let mark = |is_right: Option<bool>| match is_right {
        Some(true) => "",
        Some(false) => " (!)",
        None => " (?)",
    };
    let bounds = |of: Bounded| match (of.low, of.high) {
        (Some(low), Some(high)) => format!("{:.2} [{low:.2}..{high:.2}]", of.value),
        _ => format!("{:.2}", of.value),
    };
    format!(
        "{}, guard {}: saved {:.1} %, foretold {}{}; slowdown {:.1} ± {:.1} %, foretold {}{}; acting {:.2} s, foretold {}{}",
        pair.program,
        if pair.guard { "1 %" } else { "none" },
        pair.live.saved_percent,
        bounds(pair.predicted.saved_percent),
        mark(Some(pair.is_saved_right())),
        pair.live.slowdown_percent.unwrap_or(f64::NAN),
        pair.live.slowdown_error_points.unwrap_or(f64::NAN),
        bounds(pair.predicted.slowdown_percent),
        mark(pair.is_slowdown_right()),
        pair.live.acting_cpu_s,
        bounds(pair.predicted.acting_cpu_s),
        mark(Some(pair.is_acting_right())),
    )
}

/// A run of the program, in which something happens after some seconds by itself: what that yields, and by how much faster
/// the program was then.
fn live(
    context: &BenchContext,
    mut subject: Subject,
    duration: Duration,
    happens: &dyn Fn(&mut Subject) -> anyhow::Result<f64>,
) -> anyhow::Result<(f64, Option<Rate>)> {
    let speed = Speed::of(subject.meter());
    context.sleep(WARM_UP)?;
    let began = Instant::now();
    context.sleep(ALONE)?;
    let from = Instant::now();
    let yielded = happens(&mut subject)?;
    // Who acts takes a moment to begin and to end.
    let until = Instant::now().min(from + duration);
    subject.check_running()?;
    let rates = speed.between(began, from).zip(speed.between(from, until));
    Ok((yielded, rates.map(|(before, then)| then.beside(before))))
}

/// Acts on a program; yields the CPU time that it took.
fn act(
    context: &BenchContext,
    subject: &Subject,
    guard: bool,
    duration: Duration,
) -> anyhow::Result<f64> {
    let summary = context.scratch("run.json");
    let mut acting = Command::new(&context.isotherm);
    acting
        .args(["run", "-q", "--json", "--preset", "prcl"])
        .args(["--duration", &format!("{}s", duration.as_secs())])
        .args(no_guard(guard))
        .args(["--pid", &subject.pid().to_string(), "-o"])
        .arg(context.scratch("live.isotherm"))
        .stdout(std::fs::File::create(&summary)?);
    Guarded::spawn(context, &mut acting)?.finish(context, duration + SLACK)?;
    let summary: Value = serde_json::from_slice(&std::fs::read(summary)?)?;
    Ok(summary["acting_cpu_seconds"].as_f64().unwrap_or(0.0))
}

/// How much longer the same work takes, in percent, and the error of that in points.
fn loss(alone: Rate, under: Rate) -> (f64, f64) {
    let longer = alone.beside(under);
    (100.0 * (longer.mean - 1.0), 100.0 * longer.error)
}

fn no_guard(guard: bool) -> &'static [&'static str] {
    if guard { &[] } else { &["--no-guard"] }
}

/// What the live run's record says of memory saved, and what the trace foretells.
fn predict(context: &BenchContext, guard: bool) -> anyhow::Result<(f64, Predicted)> {
    let mut simulate = Command::new(&context.isotherm);
    simulate
        .args(["simulate", "--json", "--preset", "prcl"])
        .args(no_guard(guard))
        .arg("--trace")
        .arg(context.scratch("trace.isotherm"))
        .arg("--against")
        .arg(context.scratch("live.isotherm"));
    let output = simulate
        .stderr(Stdio::inherit())
        .output()
        .context("cannot simulate")?;
    ensure!(output.status.success(), "the simulation failed");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let number = |value: &Value| value.as_f64().context("a number is missing in the report");
    let against = &report["against"];
    // Bounded where a trace is replayed several times.
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

fn swap(context: &BenchContext, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(&context.isotherm);
    command.arg("swap").args(arguments).stdout(Stdio::null());
    let status = command.status().context("cannot set swap up")?;
    ensure!(status.success(), "swap cannot be set up or undone here");
    Ok(())
}
