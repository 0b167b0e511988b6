//! `isotherm eval`: runs an experiment and reports the results.

mod progress;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use isotherm_eval::runner::{self, Completion, RunEvent, RunnerSpec};
use isotherm_eval::{Entry, Experiment, Suite, estimate_s, journal, plan, report, with_tuning};

use crate::log::is_quiet;
use progress::Progress;
use tracing::info;

/// Run an experiment: workloads under configurations, repeated; and compare them.
///
/// Each finished run is kept, so the same command goes on after an interruption. What it changes on the
/// machine (huge pages, zram swap) is undone at the end, also on failure and Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm eval experiments/quick.toml              # a first look, five minutes
  isotherm eval --dry-run experiments/shipped.toml  # what would run here, how long
  isotherm eval experiments/compaction.toml --set SIZE=8GiB --dry-run
  isotherm eval mine.toml -o results --configuration orig,prcl
  isotherm eval mine.toml -o results --report       # write the reports anew
  isotherm eval mine.toml -o results --summary      # tables in Markdown")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// Run the experiment of this file
    experiment: PathBuf,
    /// Write the journal and the reports into this folder [default: eval-NAME here]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Run only these workloads [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Run only these configurations, and the first, which the others are compared to [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    configuration: Vec<String>,
    /// Repeat this many times [default: as the experiment says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Set a parameter of the experiment to another value; repeat for more
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Run again what has changed in the experiment since
    #[arg(long)]
    force: bool,
    /// Print what would run, how long it would take, and what cannot and why; run nothing
    #[arg(long, visible_alias = "check", conflicts_with_all = ["report", "summary"])]
    dry_run: bool,
    /// Write the reports of what has run; run nothing
    #[arg(long, conflicts_with = "summary")]
    report: bool,
    /// Print what has run as Markdown tables, the worst cases first; run nothing
    #[arg(long)]
    summary: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let experiment = load(args)?;
    let folder = match &args.output {
        Some(folder) => folder.clone(),
        None => PathBuf::from(format!("eval-{}", experiment.name)),
    };
    let skipped = runner::skips(&experiment);
    if args.dry_run {
        check(&experiment, &skipped);
        return Ok(ExitCode::SUCCESS);
    }
    let path = folder.join(runner::JOURNAL);
    let entries = read(&path)?;
    if args.report || args.summary {
        ensure!(!entries.is_empty(), "{} holds no results", path.display());
    }
    if args.summary {
        let suite = Suite::gather(&experiment, &entries, skipped);
        print!("{}", report::markdown_summary(&suite));
        return Ok(ExitCode::SUCCESS);
    }
    if args.report {
        return write_reports(&folder, &experiment, &entries, skipped);
    }
    refuse_changes(args, &path, &experiment, &entries)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let outcome = run_all(args, &folder, &experiment, &entries, &skipped);
    // Results are reported even if a run failed.
    let entries = read(&path)?;
    let reported = write_reports(&folder, &experiment, &entries, skipped)?;
    Ok(outcome?.unwrap_or(reported))
}

pub(in crate::cmd) fn read_experiment(path: &Path) -> anyhow::Result<Experiment> {
    let name = path.display();
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read the experiment {name}"))?;
    let experiment =
        Experiment::parse(&text).map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    if let Some(size) = &experiment.zram {
        isotherm_engine::units::parse_bytes(size)
            .with_context(|| format!("{name}: zram = \"{size}\""))?;
    }
    Ok(experiment)
}

fn load(args: &Args) -> anyhow::Result<Experiment> {
    let path = args.experiment.display();
    let mut experiment = read_experiment(&args.experiment)?;
    read_schemes(&mut experiment, &args.experiment)?;
    set_parameters(&mut experiment, &args.set)?;
    for workload in &experiment.workloads {
        let name = &workload.name;
        let memory = workload.memory_bytes(&experiment.parameters);
        memory.map_err(|why| anyhow::anyhow!("{path}: workload '{name}': {why}"))?;
    }
    experiment.repeats = args.repeats.unwrap_or(experiment.repeats);
    let workloads = experiment.workloads.iter().map(|w| w.name.as_str());
    ensure_known(&args.workload, workloads, "workload")?;
    let configurations = experiment.configurations.iter().map(|c| c.name.as_str());
    ensure_known(&args.configuration, configurations, "configuration")?;
    let is_wanted = |wanted: &[String], name: &String| wanted.is_empty() || wanted.contains(name);
    let workloads = &mut experiment.workloads;
    workloads.retain(|w| is_wanted(&args.workload, &w.name));
    let configurations = &mut experiment.configurations;
    let first = configurations[0].name.clone();
    configurations.retain(|c| c.name == first || is_wanted(&args.configuration, &c.name));
    Ok(experiment)
}

/// Reads the files of schemes that are tuned: their content is a part of the experiment.
fn read_schemes(experiment: &mut Experiment, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    for configuration in &mut experiment.configurations {
        let name = &configuration.name;
        let Some(tune) = &mut configuration.tune else {
            continue;
        };
        if let Some(config) = &tune.config {
            let path = folder.join(config);
            let text = fs::read_to_string(&path).with_context(|| {
                format!("configuration '{name}': cannot read {}", path.display())
            })?;
            tune.config_text = Some(text);
        }
    }
    Ok(())
}

fn set_parameters(experiment: &mut Experiment, set: &[String]) -> anyhow::Result<()> {
    for pair in set {
        let (name, value) = pair
            .split_once('=')
            .with_context(|| format!("--set {pair}: give NAME=VALUE, such as SIZE=8GiB"))?;
        let known: Vec<&str> = experiment.parameters.keys().map(String::as_str).collect();
        ensure!(
            known.contains(&name),
            "the experiment has no parameter '{name}'; it has {}",
            if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            }
        );
        let parameters = &mut experiment.parameters;
        parameters.insert(name.to_owned(), value.to_owned());
    }
    Ok(())
}

fn ensure_known<'a>(
    wanted: &[String],
    known: impl Iterator<Item = &'a str>,
    what: &str,
) -> anyhow::Result<()> {
    let known: Vec<&str> = known.collect();
    for name in wanted {
        ensure!(
            known.contains(&name.as_str()),
            "the experiment has no {what} '{name}'; it has {}",
            known.join(", ")
        );
    }
    Ok(())
}

fn check(experiment: &Experiment, skipped: &[(String, String)]) {
    let workloads = experiment.workloads.iter().map(|of| of.name.as_str());
    let configurations = experiment.configurations.iter();
    let configurations = configurations.map(|of| of.name.as_str());
    println!(
        "{}: {} runs: {} x {} x {} repeats",
        experiment.name,
        plan(experiment).len(),
        workloads.collect::<Vec<_>>().join(", "),
        configurations.collect::<Vec<_>>().join(", "),
        experiment.repeats
    );
    for (name, value) in &experiment.parameters {
        println!("{name}={value}    (another by --set {name}=...)");
    }
    let runs = runner::possible_runs(experiment, skipped);
    let nr = runs.len();
    let runs = with_tuning(runs);
    let tuned = match runs.len() - nr {
        0 => String::new(),
        nr => format!(", and {nr} recordings to tune by"),
    };
    match estimate_s(experiment, &runs) {
        Some(seconds) => println!(
            "about {:.1} min for the {nr} runs that can be made here{tuned}",
            seconds / 60.0,
        ),
        None => println!("no estimate of the time: not every workload has `expected_s`"),
    }
    for (what, why) in skipped {
        println!("SKIP {what}: {why}");
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    match fs::read_to_string(path) {
        Ok(text) => journal::read(&text).map_err(|error| {
            anyhow::anyhow!(
                "{}, {error}; it was not written by this command, or is damaged",
                path.display()
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Fails if the experiment has changed since: its results must not be mixed unnoticed.
fn refuse_changes(
    args: &Args,
    path: &Path,
    experiment: &Experiment,
    entries: &[Entry],
) -> anyhow::Result<()> {
    let planned = plan(experiment);
    let changed = entries.iter().find_map(|entry| match entry {
        Entry::Run(run) => planned.iter().any(|p| p.differs_from(run)).then_some(run),
        Entry::Machine(_) | Entry::Tuned(_) => None,
    });
    match changed {
        Some(run) if !args.force => bail!(
            "{} has been run with other settings of '{}' or '{}'; name another folder with -o, or \
             run anew what has changed with --force",
            path.display(),
            run.workload,
            run.configuration
        ),
        _ => Ok(()),
    }
}

/// Makes the runs that are not finished. Returns a code if the user asked to stop.
fn run_all(
    args: &Args,
    folder: &Path,
    experiment: &Experiment,
    entries: &[Entry],
    skipped: &[(String, String)],
) -> anyhow::Result<Option<ExitCode>> {
    let stop = crate::stop::by_signals()?;
    let isotherm = std::env::current_exe().context("cannot find the isotherm that is running")?;
    let spec = RunnerSpec {
        experiment,
        path: &args.experiment,
        output: folder,
        isotherm: &isotherm,
        stop: &stop,
    };
    let mut progress = Progress::new(experiment);
    let mut on_event = |event: RunEvent<'_>| match event {
        RunEvent::Planned(runs) => progress.plan(runs),
        RunEvent::Began(run) => progress.begin(&run.title()),
        RunEvent::Ended(run, outcome) => {
            progress.advance(run);
            progress.tell(&run.title(), outcome);
        }
        RunEvent::Searching(run, tried) => progress.search(&run.title(), tried),
        RunEvent::Tuned(run, found) => {
            progress.advance(run);
            progress.tell_tuned(&run.title(), found);
        }
        RunEvent::Warning(text) => progress.warn(text),
    };
    let completion = runner::run_all(&spec, entries, skipped, &mut on_event);
    progress.finish();
    Ok(match completion? {
        Completion::Finished => None,
        Completion::Stopped(title) => {
            info!("stopped; the same command goes on with {title}");
            Some(ExitCode::from(130))
        }
    })
}

/// Writes every report; prints their paths, and the tables. Fails if nothing was measured at all.
fn write_reports(
    folder: &Path,
    experiment: &Experiment,
    entries: &[Entry],
    skipped: Vec<(String, String)>,
) -> anyhow::Result<ExitCode> {
    let nr_skipped = skipped.len();
    let suite = Suite::gather(experiment, entries, skipped);
    let text = report::text(&suite);
    let mut files = vec![
        ("runs.csv", report::runs_csv(&suite)),
        ("summary.csv", report::summary_csv(&suite)),
        ("tables.txt", text.clone()),
        ("report.md", report::markdown(&suite)),
        ("report.html", report::html(&suite)),
    ];
    if !suite.predicted.is_empty() {
        files.push(("tuned.csv", report::tuned_csv(&suite)));
    }
    for (name, content) in &files {
        crate::whole_file::write(&folder.join(name), content)?;
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    if !is_quiet() {
        print!("{text}");
        eprintln!(
            "\n{} runs measured, {} failed, {nr_skipped} skipped; {}: {}",
            suite.runs().count(),
            suite.failed.len(),
            folder.display(),
            names.join(", ")
        );
    }
    let is_well = suite.failed.is_empty() && suite.runs().next().is_some();
    Ok(ExitCode::from(u8::from(!is_well)))
}
