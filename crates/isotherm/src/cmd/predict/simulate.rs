//! `isotherm simulate`: runs the engine on a simulated machine, and records that as a live run does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use isotherm_config::{Request, SessionSpec, TargetSpec};
use isotherm_engine::Nanos;
use isotherm_engine::calibration::Calibration;
use isotherm_record::Reader;
use isotherm_session::simulated::{
    Bounded, ProgramPrediction, Replay, Scenario, SimulatedSession, read_scenario, read_trace,
};
use isotherm_tune::{EachSecond, Estimate, NR_REPLAYS_BOUNDED, Replays};

use crate::flags::{FarArgs, GuardArgs, MonitorArgs, SchemeArgs, acting, contexts_of};
use crate::log::is_quiet;
use crate::progress::{Progress, Unit};
use isotherm_engine::units::{SECOND, format_time, parse_time};
use tracing::warn;

/// Try schemes on a simulated machine: terabytes, deterministic, no privilege.
///
/// The scenario describes the machine and its programs; a trace (`record --pages`) replays a real program. Monitors,
/// schemes and the guard are those of live runs. Results are predictions from measured costs: see
/// docs/concepts/simulator.md.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  isotherm record --pages --duration 2m -o app.isotherm --pid 1234
  isotherm simulate --trace app.isotherm --preset prcl          # predicts savings and slowdown
  isotherm simulate --trace app.isotherm --preset prcl --no-guard --against live.isotherm
  isotherm simulate scenario.yaml --scheme '4K max 0 0 30s max pageout' -o sim.isotherm
  isotherm simulate scenario.yaml -c kdamonds.yaml --json
Then: isotherm report heatmap sim.isotherm

A scenario (experiments/scenarios/ holds more):
  machine: {cpus: 4, nodes: [{size: 8 GiB}], swap: {zram: 4 GiB}, thp: madvise}
  duration: 60s
  processes:
  - name: server
    mappings:
    - {name: heap, size: 2 GiB, access: [{pattern: uniform, hot: 10%, rate: 1000000}]}")]
pub(crate) struct Args {
    /// Scenario (YAML or JSON): the machine and its programs
    #[arg(value_name = "SCENARIO")]
    scenario: Option<PathBuf>,

    /// Replay the program of this record (made by `record --pages`), instead of a scenario or beside it
    #[arg(long, value_name = "RECORD")]
    trace: Option<PathBuf>,

    /// Compute with these costs of acting, measured by `isotherm calibrate` [default: those in the trace]
    #[arg(long, value_name = "FILE", requires = "trace")]
    costs: Option<PathBuf>,

    /// Simulate this time [default: the scenario's duration, or until all processes have ended]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Nanos>,

    /// Watch physical memory instead of processes, by regions
    #[arg(long)]
    physical: bool,

    /// Write the record of the simulated run to this file, as `run` does
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Compare the prediction with this record of a live run (`run -o`)
    #[arg(long, value_name = "RECORD")]
    against: Option<PathBuf>,

    #[command(flatten)]
    result: crate::out::ResultArgs,

    #[command(flatten)]
    far: FarArgs,

    #[command(flatten)]
    schemes: SchemeArgs,

    #[command(flatten)]
    guard: GuardArgs,

    #[command(flatten)]
    how: MonitorArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.scenario.is_none() || args.far.is_none(),
        "--far is for a trace by itself; a scenario says what nodes its machine has"
    );
    ensure!(
        args.scenario.is_some() || args.trace.is_some(),
        "nothing to simulate; name a scenario's file, or a record with --trace"
    );
    let (scenario, traced) = scenario(args)?;
    let end = scenario.end(args.duration)?;
    let expected_s = scenario.expected_end(args.duration).0.div_ceil(SECOND.0);
    let spec = session(args)?;
    let mut session = SimulatedSession::start(&spec, scenario, end)?;
    let mut writer = match &args.output {
        Some(path) => {
            let header = session.header(crate::out::command_line());
            Some((crate::out::record(path, &header)?, path))
        }
        None => None,
    };
    let nr_replays = traced.as_ref().map_or(1, |_| 1 + NR_REPLAYS_BOUNDED);
    let progress = Arc::new(Progress::new(Some(expected_s * nr_replays), Unit::Percent));
    let mut items = Vec::new();
    loop {
        let goes_on = session.step(&mut items);
        for item in items.drain(..) {
            if let Some((writer, path)) = &mut writer {
                let written = writer.write(&item);
                written.with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        progress.set_position((session.now().0 / SECOND.0).min(expected_s));
        progress.set_message(format!("{} simulated", format_time(session.now())));
        if !goes_on {
            break;
        }
    }
    if let Some((writer, path)) = writer {
        let finished = writer.finish();
        finished.with_context(|| format!("cannot finish {}", path.display()))?;
    }
    let mut report = session.report();
    if let Some(replay) = traced {
        progress.set_message("computing the bounds");
        report.prediction = Some(predict(&spec, replay, &progress)?);
    }
    drop(progress);
    if let Some(needed) = report.needed() {
        warn!(
            "{} simulated are too short to tell what is saved in the long run; record {} to answer this",
            format_time(end.min(Nanos(expected_s * SECOND.0))),
            format_time(needed)
        );
    }
    if let Some(path) = &args.against {
        let cannot = || format!("cannot compare with {}", path.display());
        let live = Reader::open(crate::input::open(path)?.bytes).with_context(cannot)?;
        report.compare(live).with_context(cannot)?;
    }
    if args.result.is_json() {
        println!("{}", crate::out::json(&report)?);
    } else if !is_quiet() {
        print!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the scenario; with the traced program, if nothing else runs and all of the trace is replayed.
fn scenario(args: &Args) -> anyhow::Result<(Scenario, Option<Replay>)> {
    let mut traced = None;
    let mut scenario = match &args.scenario {
        Some(path) => read_scenario(path)?,
        None => Scenario::default(),
    };
    if let Some(path) = &args.trace {
        let mut replay = read_trace(path)?;
        if let Some(path) = &args.costs {
            replay.set_costs(read_costs(path)?);
        }
        args.far.add_to(&mut replay);
        if args.scenario.is_none() {
            scenario.machine = std::mem::take(&mut replay.machine);
        }
        if args.scenario.is_none() && args.duration.is_none() {
            traced = Some(Replay {
                machine: scenario.machine.clone(),
                ..replay.clone()
            });
        }
        scenario.replay(replay);
    }
    for note in &scenario.notes {
        warn!("{note}");
    }
    scenario.machine.seed = args.how.seed;
    Ok((scenario, traced))
}

/// Predicts the result for the traced program, with its uncertainty.
fn predict(
    spec: &SessionSpec,
    replay: Replay,
    progress: &Arc<Progress>,
) -> anyhow::Result<ProgramPrediction> {
    let mut watching = spec.clone();
    for context in &mut watching.contexts {
        context.acting = None;
    }
    let progress = Arc::clone(progress);
    let each_second = EachSecond::new(move || {
        progress.inc(1);
        true
    });
    let replays = Replays::new(&watching, replay, each_second)?;
    let predicted = replays.map(|replays| replays.bounded(spec)).transpose()?;
    let predicted = predicted
        .flatten()
        .context("the simulation was stopped without a request")?;
    let bounded = |of: Estimate, unit: f64| Bounded {
        value: of.value * unit,
        low: of.least() * unit,
        high: of.most() * unit,
    };
    Ok(ProgramPrediction {
        saved_percent: bounded(predicted.saved_share, 100.0),
        steady_saved_percent: predicted.steady_share.map(|share| 100.0 * share),
        slowdown_percent: bounded(predicted.slowdown, 100.0),
        acting_cpu_seconds: bounded(predicted.acting_cpu_seconds, 1.0),
    })
}

fn read_costs(path: &Path) -> anyhow::Result<Calibration> {
    let cannot = || format!("cannot read costs from {}", path.display());
    let text = std::fs::read_to_string(path).with_context(cannot)?;
    let other = || {
        let name = path.display();
        format!("{name} is not what `isotherm calibrate -o` writes")
    };
    serde_json::from_str(&text).with_context(other)
}

fn session(args: &Args) -> anyhow::Result<SessionSpec> {
    let contexts = contexts_of(args.schemes.config.as_deref())?;
    let request = Request {
        targets: args.physical.then(TargetSpec::all_physical),
        monitoring: args.how.monitoring(),
        seed: args.how.seed,
        acting: acting(&args.schemes, &args.guard),
        ..Request::default()
    };
    // An empty list means all processes of the scenario.
    let processes = TargetSpec::named(Vec::new());
    Ok(request.act_or_watch(&contexts, Some(processes))?)
}
