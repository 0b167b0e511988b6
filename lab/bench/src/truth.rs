//! Are the monitor's results for an interval true of that interval?
//!
//! Each program of a family that is drawn from a seed (`isotherm_workload::family`) runs as a process of its own. It is
//! recorded in each mode in turn. Every snapshot is then compared with the touches that the program logged for that
//! snapshot's own interval. Only the rule by which programs are drawn is fixed, so there is nothing to tune to.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use isotherm_engine::Nanos;
use isotherm_workload::family::verdict::{Verdict, settled, verdict};
use isotherm_workload::family::{Case, Ready, TouchJournal};
use isotherm_workload::run::now;
use serde::Serialize;
use serde_json::json;

use super::child::Guarded;
use super::recording::{Recorded, Recording};
use super::{BenchContext, BenchOutcome, Mode, machine};
use program::Running;
use score::Score;

mod agree;
pub(crate) mod program;
pub(super) mod programs;
mod real;
mod replay;
mod score;

/// Time for a program to populate its memory.
const READY_LIMIT: Duration = Duration::from_mins(2);
const RSS_INTERVAL: Duration = Duration::from_millis(100);

/// Options of this bench.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "truth")]
pub(super) struct Options {
    /// truth, tune: the seed that the programs are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// truth, tune: how many programs are drawn
    #[arg(long, value_name = "K")]
    pub(super) cases: Option<u64>,
    /// truth: only these of the programs, by number
    #[arg(long, value_name = "N", value_delimiter = ',')]
    case: Vec<u64>,
    /// truth: budgets of the default monitor
    #[arg(
        long,
        value_name = "SHARE",
        value_delimiter = ',',
        default_value = "1%"
    )]
    budgets: Vec<String>,
    /// truth: these real programs, or all; without --cases nothing else
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) programs: Vec<String>,
    /// truth: replay what each drawn program did in the simulated machine, too
    #[arg(long)]
    simulate: bool,
    /// truth: replay this record of `record --pages` in the simulated machine; without --cases nothing else
    #[arg(long, value_name = "RECORD")]
    replay: Option<PathBuf>,
}

impl Options {
    /// Returns the numbers of the drawn programs: `usual` programs, unless an option says which or how many.
    pub(super) fn numbers(&self, usual: u64) -> Vec<u64> {
        if self.case.is_empty() {
            (0..self.cases.unwrap_or(usual)).collect()
        } else {
            self.case.clone()
        }
    }
}

#[derive(Serialize)]
struct Run {
    mode: String,
    score: Score,
    cpu_claimed_percent: Option<f64>,
    cpu_claimed_induced_percent: Option<f64>,
    cpu_measured_percent: f64,
    recorder_rss_bytes: u64,
    verdicts: Vec<Verdict>,
}

impl Run {
    fn of(mode: String, recorded: &Recorded, verdicts: Vec<Verdict>, rss: &Rss) -> Self {
        let percent = |share: Option<f64>| share.map(|share| share * 100.0);
        Self {
            mode,
            score: Score::of(&verdicts, rss),
            cpu_claimed_percent: percent(recorded.cpu_claimed),
            cpu_claimed_induced_percent: percent(recorded.cpu_claimed_induced),
            cpu_measured_percent: recorded.cpu_measured * 100.0,
            recorder_rss_bytes: recorded.rss_max,
            verdicts,
        }
    }
}

#[derive(Serialize)]
struct Watched {
    case: Case,
    ready: Ready,
    /// Touches of each hot page in a second, as they happened.
    touches_per_second: f64,
    runs: Vec<Run>,
    failures: Vec<String>,
}

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let options = &context.truth;
    let modes = modes(context)?;
    let asked = options.cases.is_some() || !options.case.is_empty();
    // Everything runs if no option selects a part.
    let nothing = options.programs.is_empty() && options.replay.is_none();
    let (cases, programs) = match (asked, nothing) {
        (false, true) => (true, vec!["all".to_owned()]),
        (asked, _) => (asked, options.programs.clone()),
    };
    let watched = if cases {
        family(context, &modes)?
    } else {
        Vec::new()
    };
    let replayed = match &options.replay {
        None => Vec::new(),
        Some(trace) => {
            let runs = replay::run(context, trace, &modes, &[])?;
            println!("{}\n{}", score::LEGEND, score::head());
            for run in &runs {
                println!("{}", score::run_line("", run));
            }
            runs
        }
    };
    let (compared, skipped) = real::run(context, &programs, &modes)?;
    let mut tables = Vec::new();
    if cases {
        tables.push(score::summary(&watched));
    }
    if !programs.is_empty() {
        tables.push(real::table(&compared));
    }
    Ok(BenchOutcome::Done(
        tables,
        json!({
            "seed": options.seed,
            "cases": watched,
            "replayed": replayed,
            "programs": compared,
            "skipped": skipped,
        }),
    ))
}

fn family(context: &BenchContext, modes: &[Mode]) -> Result<Vec<Watched>> {
    let options = &context.truth;
    let mut watched = Vec::new();
    println!("{}", score::LEGEND);
    println!("{}", score::head());
    for number in options.numbers(12) {
        let one = watch_case(context, options.seed, number, modes)
            .with_context(|| format!("case {number} of seed {}", options.seed))?;
        for line in score::lines(&one) {
            println!("{line}");
        }
        watched.push(one);
    }
    Ok(watched)
}

/// Returns the default monitor at each budget, and DAMON's rules.
fn modes(context: &BenchContext) -> Result<Vec<Mode>> {
    if !context.modes.is_empty() {
        return Ok(context.modes.clone());
    }
    let budgets = &context.truth.budgets;
    let budgets = budgets
        .iter()
        .map(|share| format!("{share}=--cpu-budget {share}"));
    budgets
        .chain(["faithful=--faithful".to_owned()])
        .map(|mode| Mode::parse(&mode))
        .collect()
}

fn watch_case(context: &BenchContext, seed: u64, number: u64, modes: &[Mode]) -> Result<Watched> {
    let available = machine::meminfo("MemAvailable:").unwrap_or(0);
    let mut program = Running::start(context, seed, number, available / 4)?;
    let ready = program.ready.clone();
    let (mut taken, mut failures) = (Vec::new(), Vec::new());
    for mode in modes {
        program.child.check_running()?;
        match record(context, mode, program.child.id()) {
            Ok((recorded, rss)) => taken.push((mode, recorded, rss)),
            Err(error) if context.stop.load(Ordering::Relaxed) => return Err(error),
            Err(error) => failures.push(format!("{}: {error:#}", mode.name)),
        }
    }
    // Its last touch is later than the last snapshot.
    context.sleep(Duration::from_millis(100))?;
    let journal = program.finish()?;
    let mut runs: Vec<Run> = taken
        .iter()
        .map(|(mode, recorded, rss)| score_run(&journal, mode, recorded, rss))
        .collect();
    let first = taken.first().map(|(_, recorded, _)| &recorded.snapshots);
    if let (true, Some([first, .., last])) = (context.truth.simulate, first.map(Vec::as_slice)) {
        let moves = journal.moves();
        let moves: Vec<Nanos> = moves.iter().map(|at| at.since(first.start)).collect();
        let replayed = replay::write(context, &journal, first.start, last.end)
            .and_then(|trace| replay::run(context, &trace, modes, &moves));
        match replayed {
            Ok(replayed) => runs.extend(replayed),
            Err(error) => failures.push(format!("simulated: {error:#}")),
        }
    }
    Ok(Watched {
        case: ready.case,
        ready,
        touches_per_second: journal.rate(),
        runs,
        failures,
    })
}

/// Resident bytes of a process, over time.
type Rss = Vec<(Nanos, u64)>;

/// Records a process and samples its resident memory meanwhile.
fn record(context: &BenchContext, mode: &Mode, pid: u32) -> Result<(Recorded, Rss)> {
    let done = AtomicBool::new(false);
    let rss: Mutex<Rss> = Mutex::default();
    let duration = context.asked_duration.unwrap_or(Duration::from_secs(15));
    let recorded = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if let Some(bytes) = resident(pid) {
                    let mut rss = rss.lock().unwrap_or_else(PoisonError::into_inner);
                    rss.push((now(), bytes));
                }
                std::thread::sleep(RSS_INTERVAL);
            }
        });
        let recorded = Recording::start(context, mode, pid, duration)
            .and_then(|recording| recording.finish(context));
        done.store(true, Ordering::Relaxed);
        recorded
    })?;
    Ok((
        recorded,
        rss.into_inner().unwrap_or_else(PoisonError::into_inner),
    ))
}

fn resident(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * isotherm_engine::PAGE_SIZE)
}

fn score_run(journal: &TouchJournal, mode: &Mode, recorded: &Recorded, rss: &Rss) -> Run {
    let moves = journal.moves();
    let verdicts: Vec<Verdict> = settled(&recorded.snapshots, &moves)
        .filter(|s| journal.covers(s.start, s.end))
        .map(|s| verdict(journal, s))
        .collect();
    Run::of(mode.name.clone(), recorded, verdicts, rss)
}
