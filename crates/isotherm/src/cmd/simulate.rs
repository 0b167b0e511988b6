//! `isotherm simulate`: a machine that is not there, the engine on it, and the same record of it.

mod items;
mod scenario;
mod summary;
mod trace;
mod workload;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use isotherm_config::{ContextSpec, MonitorSpec, Request, SessionSpec, TargetSpec};
use isotherm_engine::Nanos;
use isotherm_record::{Header, Writer};
use isotherm_sim::machine::Machine;
use isotherm_sim::simulation::{ContextSpec as SimulatedContext, Simulation, Watch};

use crate::flags::{GuardArgs, MonitorArgs, SchemeArgs, acting, load};
use isotherm_engine::units::{format_time, parse_time};
use scenario::Scenario;
use summary::Summary;

/// Try schemes on a simulated machine: terabytes, deterministic, no privilege.
///
/// The scenario says what the machine is made of and what runs on it; a trace (`record --pages`)
/// replays what a real program did. Monitors, schemes and the guard are the live ones. What comes out
/// are predictions: docs/simulator.md says from which measured costs.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  isotherm record --pages --duration 2m -o app.isotherm --pid 1234
  isotherm simulate --trace app.isotherm --preset prcl          what would prcl save and cost it?
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
    /// The machine and what runs on it (YAML or JSON)
    #[arg(value_name = "SCENARIO")]
    scenario: Option<PathBuf>,

    /// Replay the program of this record, made by `record --pages`, instead of or beside a scenario's
    #[arg(long, value_name = "RECORD")]
    trace: Option<PathBuf>,

    /// How long to simulate [default: the scenario's, or until all processes have ended]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Nanos>,

    /// Watch physical memory, by regions
    #[arg(long)]
    physical: bool,

    /// Write what is seen and done to this file, as `run` does
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Compare the prediction with this record of a live run (`run -o`)
    #[arg(long, value_name = "RECORD")]
    against: Option<PathBuf>,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    result: crate::out::ResultArgs,

    #[command(flatten)]
    schemes: SchemeArgs,

    #[command(flatten)]
    guard: GuardArgs,

    #[command(flatten)]
    how: MonitorArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.scenario.is_some() || args.trace.is_some(),
        "nothing to simulate; name a scenario's file, or a record with --trace"
    );
    let scenario = scenario(args)?;
    let spec = session(args)?;
    let contexts = spec.contexts.iter().map(context);
    let contexts = contexts.collect::<anyhow::Result<Vec<_>>>()?;
    let names: Vec<Option<String>> = contexts.iter().map(|c| c.name.clone()).collect();
    let end = end(args, &scenario)?;
    let mut machine = Machine::new(scenario.machine.clone());
    machine.set_faults(scenario.faults.clone());
    let mut simulation = Simulation::new(machine, scenario.starts, contexts, end)?;
    let recording = items::Recording::new(names);
    let mut writer = match &args.output {
        Some(path) => Some((create(path, args, &simulation)?, path)),
        None => None,
    };
    let bar = progress_bar(args, end);
    let mut summary = Summary::default();
    let mut events = Vec::new();
    loop {
        let goes_on = simulation.step(&mut events);
        for event in events.drain(..) {
            summary.take(&event, &simulation);
            if let Some((writer, path)) = &mut writer {
                for item in recording.items(&event, &simulation) {
                    let written = writer.write(&item);
                    written.with_context(|| format!("cannot write {}", path.display()))?;
                }
            }
        }
        bar.set_position(simulation.machine().now().0 / 1_000_000);
        bar.set_message(format_time(simulation.machine().now()));
        if !goes_on {
            break;
        }
    }
    bar.finish_and_clear();
    if let Some((writer, path)) = writer {
        let finished = writer.finish().map_err(anyhow::Error::from);
        let flushed = finished.and_then(|mut file| Ok(file.flush()?));
        flushed.with_context(|| format!("cannot finish {}", path.display()))?;
    }
    let mut report = summary.report(&simulation);
    if let Some(path) = &args.against {
        report.compare(path)?;
    }
    if args.result.is_json() {
        println!("{}", crate::out::json(&report)?);
    } else if !args.quiet {
        print!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn scenario(args: &Args) -> anyhow::Result<Scenario> {
    let mut scenario = match &args.scenario {
        Some(path) => scenario::read(path)?,
        None => Scenario::default(),
    };
    if let Some(path) = &args.trace {
        let replay = trace::read(path)?;
        if args.scenario.is_none() {
            scenario.machine = replay.machine;
        }
        scenario.starts.push((Nanos(0), replay.process));
    }
    scenario.machine.seed = args.how.seed;
    Ok(scenario)
}

fn session(args: &Args) -> anyhow::Result<SessionSpec> {
    let configuration = args.schemes.config.as_deref().map(load).transpose()?;
    let contexts = configuration.map_or_else(Vec::new, |c| c.contexts);
    let request = Request {
        targets: args.physical.then_some(TargetSpec::Physical { node: None }),
        monitoring: args.how.monitoring(),
        seed: args.how.seed,
        acting: acting(&args.schemes, &args.guard),
        ..Request::default()
    };
    // All that run there.
    let processes = TargetSpec::Processes {
        processes: Vec::new(),
        children: false,
    };
    Ok(request.act_or_watch(&contexts, Some(processes))?)
}

/// What a context of the live machine is on a simulated one.
pub(super) fn context(spec: &ContextSpec) -> anyhow::Result<SimulatedContext> {
    let watch = match (&spec.monitor, &spec.targets) {
        (MonitorSpec::Regions(attributes), TargetSpec::Physical { node }) => {
            Watch::Physical(*attributes, *node)
        }
        (MonitorSpec::Tables(attributes), _) => Watch::Tables(*attributes),
        (MonitorSpec::Regions(attributes), _) => Watch::Regions(*attributes),
        (MonitorSpec::Pages(_), _) => bail!(
            "--pages is how real programs are recorded; simulated ones are watched by tables or \
             regions"
        ),
    };
    let acting = spec.acting.clone().unwrap_or_default();
    Ok(SimulatedContext {
        name: spec.name.clone(),
        watch,
        limits: spec.ranges.clone(),
        schemes: acting.schemes,
        guard: acting.limits,
        dry_run: acting.is_dry_run,
    })
}

fn end(args: &Args, scenario: &Scenario) -> anyhow::Result<Nanos> {
    if let Some(end) = args.duration.or(scenario.duration) {
        return Ok(end);
    }
    let endless = scenario
        .starts
        .iter()
        .find(|(_, process)| process.work.is_none());
    if let Some((_, process)) = endless {
        bail!(
            "process '{}' never ends: say how long to simulate, by --duration or by the scenario's \
             `duration`, or how much `work` it has to do",
            process.name
        );
    }
    // A process that gets nothing done any more must not keep us for ever.
    let work = scenario
        .starts
        .iter()
        .map(|(at, process)| *at + Nanos(process.work.unwrap_or_default().0.saturating_mul(100)));
    Ok(work.max().unwrap_or_default())
}

fn create(
    path: &Path,
    args: &Args,
    simulation: &Simulation,
) -> anyhow::Result<Writer<BufWriter<File>>> {
    let file = crate::record_file::create(path)?;
    let (intervals, _) = simulation.watching(0);
    let settings = [
        ("method", "simulated".to_owned()),
        ("seed", args.how.seed.to_string()),
    ];
    let header = Header {
        writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
        host: "simulated".to_owned(),
        kernel: "simulated".to_owned(),
        command: crate::out::command_line(),
        started: Nanos(0),
        operations: if args.physical { "paddr" } else { "vaddr" }.to_owned(),
        sample_interval: intervals.sample,
        aggregation_interval: intervals.aggregation,
        update_interval: intervals.update,
        settings: settings.map(|(key, value)| (key.to_owned(), value)).into(),
    };
    Writer::create(BufWriter::new(file), &header)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn progress_bar(args: &Args, end: Nanos) -> ProgressBar {
    if args.quiet || !crate::out::draws_on(&std::io::stderr()) {
        return ProgressBar::hidden();
    }
    let style = "[{elapsed_precise}] {bar:40.cyan/blue} {msg} simulated";
    let style = ProgressStyle::with_template(style).expect("a template of ours");
    ProgressBar::new(end.0 / 1_000_000).with_style(style)
}
