//! Compares the settings that `tune --live` recommends, and the number of its runs, with an exhaustive live search and
//! the published methods. Run `live_regret EXPERIMENT WORKLOAD [REPEATS]` as root; `ISOTHERM` names the command to run.
//!
//! Each setting of a small space is run live, each run between two without schemes: that is the truth. Then every
//! method tunes on these runs, in the order in which they were made, as if it made them itself. All methods thus see
//! the same machine in the same states. A recommended setting is judged by the mean of all its runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, anyhow, bail, ensure};
use isotherm_config::{ConfigFormat, Request, load};
use isotherm_engine::units::SECOND;
use isotherm_eval::Experiment;
use isotherm_eval::runner::{ProgramRuns, ProgramSpec, RunEvent, RunnerSpec};
use isotherm_session::simulated::read_trace;
use isotherm_tune::{
    Estimate, Evaluate, LiveRun, LiveRuns, Objective, PlannedReplays, Prediction, PublishedMethod,
    Replays, Search, SearchPoint, Settings, Space, TraceTimes, TuningPlan, damoos_score, run,
    run_live, run_published, settle, trace_facts,
};

const PARAMS: [&str; 2] = ["age=1s,2s,3s,5s,8s,12s", "size=4K"];
/// DAMON's own tuning, by a goal.
const QUOTA_GOAL: &str = include_str!("../../../experiments/quota_goal.yaml");
/// Placeholder: these times limit nothing here.
const ANY_TRACE: TraceTimes = TraceTimes {
    duration: SECOND,
    interval: SECOND,
};
const MAX_SLOWDOWN: f64 = 0.02;
const LIVE_RUNS: usize = 5;
const SEED: u64 = 1;
const OBJECTIVES: [(&str, Objective); 2] = [
    ("DAMOOS' score", Objective::Damoos),
    (
        "least memory, at most 2 % slower",
        Objective::Memory {
            max_slowdown: MAX_SLOWDOWN,
        },
    ),
];

/// All live runs: those without schemes, and the run under a setting after each but the last of them.
struct Truth {
    bases: Vec<LiveRun>,
    under: Vec<(Settings, LiveRun)>,
}

#[derive(Clone, Copy, Debug)]
struct Came {
    saved: f64,
    slowdown: f64,
}

impl Truth {
    /// Runs all settings of `space` `repeats` times, in turns.
    fn measure(runs: &mut dyn LiveRuns, space: &Space, repeats: usize) -> anyhow::Result<Self> {
        let mut make = |settings: Option<&Settings>| -> anyhow::Result<LiveRun> {
            let made = runs.run(settings)?.context("stopped")?;
            let of = settings.map_or_else(|| "by itself".to_owned(), ToString::to_string);
            let (seconds, bytes) = (made.seconds_of_work, made.resident_mean_bytes / 1e6);
            eprintln!("{of}: {seconds:.3e} s for a unit of work, {bytes:.1} MB");
            Ok(made)
        };
        let mut truth = Self {
            bases: vec![make(None)?],
            under: Vec::new(),
        };
        for _ in 0..repeats {
            for number in 0..space.len() {
                let settings = space.settings(&space.point(number));
                let made = make(Some(&settings))?;
                truth.under.push((settings, made));
                truth.bases.push(make(None)?);
            }
        }
        Ok(truth)
    }

    /// Runs the scheme that tunes itself `repeats` times, also in turns.
    fn of_goal(
        spec: ProgramSpec<'_>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
        repeats: usize,
    ) -> anyhow::Result<Came> {
        let goal = load(QUOTA_GOAL, ConfigFormat::Detect).map_err(|found| anyhow!("{found:?}"))?;
        let plan = TuningPlan::new(goal.contexts, unguarded(), None)?;
        let space = Space::new(&["age=5s".to_owned()], plan.contexts(), ANY_TRACE)?;
        let mut runs = ProgramRuns::prepare(
            ProgramSpec {
                plan: &plan,
                ..spec
            },
            on_event,
        )?;
        let truth = Self::measure(&mut runs, &space, repeats)?;
        runs.finish();
        Ok(truth.mean(&space.settings(&space.point(0))))
    }

    /// Returns the results of a run against the runs before and after it.
    fn came(&self, at: usize) -> Came {
        let (before, after) = (&self.bases[at], &self.bases[at + 1]);
        let mean = |of: fn(&LiveRun) -> f64| f64::midpoint(of(before), of(after));
        let run = &self.under[at].1;
        Came {
            saved: 1.0 - run.resident_mean_bytes / mean(|run| run.resident_mean_bytes),
            slowdown: run.seconds_of_work / mean(|run| run.seconds_of_work) - 1.0,
        }
    }

    fn places<'a>(&'a self, settings: &'a Settings) -> impl Iterator<Item = usize> + 'a {
        let places = 0..self.under.len();
        places.filter(move |at| self.under[*at].0 == *settings)
    }

    fn mean(&self, settings: &Settings) -> Came {
        let all: Vec<Came> = self.places(settings).map(|at| self.came(at)).collect();
        let mean = |of: fn(&Came) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        Came {
            saved: mean(|came| came.saved),
            slowdown: mean(|came| came.slowdown),
        }
    }

    fn base_resident(&self) -> f64 {
        let sum: f64 = self.bases.iter().map(|run| run.resident_mean_bytes).sum();
        sum / self.bases.len() as f64
    }
}

/// Replays the runs for one method: each setting's first run first.
struct Again<'a> {
    truth: &'a Truth,
    asked: Mutex<BTreeMap<String, usize>>,
    /// Index of the next run without schemes.
    next_base: usize,
}

impl<'a> Again<'a> {
    fn new(truth: &'a Truth) -> Self {
        Self {
            truth,
            asked: Mutex::default(),
            next_base: 0,
        }
    }

    fn nr_runs(&self) -> usize {
        self.asked.lock().map_or(0, |asked| asked.values().sum())
    }

    fn place(&self, settings: &Settings) -> anyhow::Result<usize> {
        let places: Vec<usize> = self.truth.places(settings).collect();
        ensure!(!places.is_empty(), "{settings} was not run");
        let Ok(mut asked) = self.asked.lock() else {
            bail!("another thread failed");
        };
        let nr = asked.entry(settings.key()).or_default();
        *nr += 1;
        Ok(places[(*nr - 1) % places.len()])
    }
}

impl LiveRuns for Again<'_> {
    fn trace(&mut self, _path: &Path) -> anyhow::Result<bool> {
        bail!("there is a trace")
    }

    /// Returns a run under schemes with its results against its own neighbours, applied to the current neighbours.
    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>> {
        let bases = &self.truth.bases;
        let base = |at: usize| &bases[at % bases.len()];
        let Some(settings) = settings else {
            self.next_base += 1;
            return Ok(Some(base(self.next_base - 1).clone()));
        };
        let at = self.place(settings)?;
        let came = self.truth.came(at);
        let (before, after) = (base(self.next_base - 1), base(self.next_base));
        let mean = |of: fn(&LiveRun) -> f64| f64::midpoint(of(before), of(after));
        Ok(Some(LiveRun {
            seconds_of_work: (1.0 + came.slowdown) * mean(|run| run.seconds_of_work),
            resident_mean_bytes: (1.0 - came.saved) * mean(|run| run.resident_mean_bytes),
            ..self.truth.under[at].1.clone()
        }))
    }
}

impl Evaluate for Again<'_> {
    fn evaluate(&self, settings: &Settings) -> anyhow::Result<Option<Prediction>> {
        let came = self.truth.came(self.place(settings)?);
        Ok(Some(prediction(came, self.truth.base_resident())))
    }
}

fn prediction(came: Came, without: f64) -> Prediction {
    Prediction {
        resident_mean_bytes: without * (1.0 - came.saved),
        saved_mean_bytes: without * came.saved,
        saved_share: Estimate::new(came.saved),
        slowdown: Estimate::new(came.slowdown),
        ..Prediction::default()
    }
}

/// Returns the value of results under an objective: more is better, in points.
fn worth(objective: &Objective, came: Came, without: f64) -> f64 {
    match objective {
        Objective::Damoos => damoos_score(&prediction(came, without)),
        _ => 100.0 * came.saved,
    }
}

struct Tuner<'a> {
    space: &'a Space,
    plan: &'a TuningPlan,
    replays: &'a Replays,
    truth: &'a Truth,
    of_goal: Came,
    stop: &'a AtomicBool,
}

impl Tuner<'_> {
    fn search(&self, objective: Objective) -> Search {
        let (space, contexts) = (self.space.clone(), self.plan.contexts());
        Search::new(space, objective, 256, SEED, contexts)
    }

    fn replayed(&self, objective: Objective) -> anyhow::Result<Search> {
        let planned = PlannedReplays {
            replays: self.replays,
            plan: self.plan,
        };
        let mut search = self.search(objective);
        run(&mut search, &planned, None, 2, self.stop, &mut |_| {})?;
        settle(&mut search, &planned)?;
        Ok(search)
    }

    /// Returns the setting that each method recommends, and its number of runs.
    fn all(&self, objective: Objective) -> anyhow::Result<Vec<(String, usize, Option<Settings>)>> {
        let settings = |search: &Search, point: Option<&SearchPoint>| {
            point.map(|point| search.space().settings(point))
        };
        let mut all = Vec::new();
        let mut search = self.replayed(objective)?;
        let best = settings(&search, search.best().0);
        all.push(("replays alone".to_owned(), 0, best));
        for most in [1, 2, LIVE_RUNS] {
            let mut again = Again::new(self.truth);
            search = self.replayed(objective)?;
            let live = run_live(&mut search, objective, most, &mut again, None, &mut |_| {})?;
            let best = settings(&search, live.best(&search).0);
            all.push((format!("live, at most {most}"), again.nr_runs(), best));
        }
        for (name, method) in [
            ("DAMOOS' grid", PublishedMethod::DamoosGrid),
            ("DAMOOS' polynomial", PublishedMethod::DamoosPolyfit),
            ("swarm", PublishedMethod::Swarm),
        ] {
            let again = Again::new(self.truth);
            let mut search = self.search(Objective::Damoos);
            let start = self.space.point(0);
            let method = (method, SEED);
            run_published(method, &mut search, &again, None, start, &mut |_| {})?;
            let best = settings(&search, search.best().0);
            all.push((name.to_owned(), again.nr_runs(), best));
        }
        Ok(all)
    }

    fn tell(&self, name: &str, objective: Objective) -> anyhow::Result<()> {
        let without = self.truth.base_resident();
        let limit = objective.max_slowdown().unwrap_or(f64::INFINITY);
        let points =
            (0..self.space.len()).map(|number| self.space.settings(&self.space.point(number)));
        let came: Vec<(Settings, Came)> = points
            .map(|of| (of.clone(), self.truth.mean(&of)))
            .collect();
        let worths = came
            .iter()
            .map(|(_, came)| worth(&objective, *came, without));
        let (least, most) = worths.fold((0.0_f64, 0.0_f64), |(a, b), w| (a.min(w), b.max(w)));
        let within = came.iter().filter(|(_, came)| came.slowdown <= limit);
        let best = within
            .map(|(_, came)| worth(&objective, *came, without))
            .fold(0.0, f64::max);
        println!(
            "\n{name}: the best of {} settings, all run: {best:.1} of {least:.1}..{most:.1}",
            came.len()
        );
        println!(
            "{:<22} {:>5} {:>24} {:>8} {:>8} {:>8} {:>9}",
            "METHOD", "RUNS", "SETTING", "SAVED %", "SLOWER %", "WORTH", "REGRET %"
        );
        let nothing = Came {
            saved: 0.0,
            slowdown: 0.0,
        };
        let found = self.all(objective)?.into_iter();
        let found = found.map(|(method, nr, settings)| {
            let came = settings.as_ref().map_or(nothing, |of| self.truth.mean(of));
            let said = settings.map_or_else(|| "none".to_owned(), |of| of.to_string());
            (method, nr, said, came)
        });
        let of_goal = (
            "DAMON's quota goal".to_owned(),
            0,
            "PSI 10 ms/s".to_owned(),
            self.of_goal,
        );
        for (method, nr, said, came) in found.chain([of_goal]) {
            let worth = worth(&objective, came, without);
            let regret = 100.0 * (best - worth) / (most - least).max(1e-9);
            let broken = if came.slowdown > limit {
                "  beyond the limit"
            } else {
                ""
            };
            println!(
                "{method:<22} {nr:>5} {said:>24} {:>8.1} {:>8.2} {worth:>8.1} {regret:>9.1}{broken}",
                100.0 * came.saved,
                100.0 * came.slowdown
            );
        }
        Ok(())
    }
}

/// Returns a request without a guard: a guard would weaken the schemes, and the methods have to keep to the limit.
fn unguarded() -> Request {
    let mut request = Request::default();
    request.acting.no_guard = true;
    request
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(name)) = (args.next(), args.next()) else {
        bail!("live_regret EXPERIMENT WORKLOAD [REPEATS]");
    };
    let repeats = args.next().map_or(Ok(2), |text| text.parse())?;
    let isotherm =
        std::env::var("ISOTHERM").unwrap_or_else(|_| "target/release/isotherm".to_owned());
    let experiment = Experiment::parse(&std::fs::read_to_string(&path)?)?;
    let mut workloads = experiment.workloads.iter();
    let workload = workloads.find(|workload| workload.name == name);
    let workload = workload.with_context(|| format!("{path} has no workload {name}"))?;
    let mut request = unguarded();
    request.acting.presets = vec!["prcl".to_owned()];
    let plan = TuningPlan::new(Vec::new(), request, None)?;
    let folder = tempfile::tempdir()?;
    let stop = AtomicBool::new(false);
    let spec = ProgramSpec {
        runner: RunnerSpec {
            experiment: &experiment,
            path: Path::new(&path),
            output: folder.path(),
            isotherm: Path::new(&isotherm),
            stop: &stop,
        },
        workload,
        base: &experiment.configurations[0],
        plan: &plan,
    };
    let mut on_event = |event: RunEvent<'_>| {
        if let RunEvent::Warning(text) = event {
            eprintln!("{text}");
        }
    };
    let mut runs = ProgramRuns::prepare(spec, &mut on_event)?;
    let trace = folder.path().join("trace");
    ensure!(runs.trace(&trace)?, "stopped");
    let replay = read_trace(&trace)?;
    let (times, _) = trace_facts(&replay)?;
    let space = Space::new(&PARAMS.map(str::to_owned), plan.contexts(), times)?;
    let truth = Truth::measure(&mut runs, &space, repeats)?;
    runs.finish();
    let of_goal = Truth::of_goal(spec, &mut on_event, repeats)?;
    let replays = Replays::new(&plan.watching()?, replay, Arc::<AtomicBool>::default())?
        .context("stopped")?;
    let tuner = Tuner {
        space: &space,
        plan: &plan,
        replays: &replays,
        truth: &truth,
        of_goal,
        stop: &stop,
    };
    println!(
        "{name}: {} runs under schemes, {} without",
        truth.under.len(),
        truth.bases.len()
    );
    for (words, objective) in OBJECTIVES {
        tuner.tell(words, objective)?;
    }
    Ok(())
}
