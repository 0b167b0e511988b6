//! `isotherm tune --live`: runs of the program itself confirm or correct what replays predict.

use std::ffi::OsString;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use isotherm_config::ProcessSpec;
use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, format_time, parse_time};
use isotherm_eval::runner::{
    self, ProgramRuns, ProgramSpec, RunEvent, RunnerSpec, ServiceRuns, WindowSpec,
};
use isotherm_eval::{Experiment, Workload};
use isotherm_linux::{host, swap};
use isotherm_policy::scheme::Action;
use isotherm_session::pids;
use isotherm_session::simulated::read_trace;
use isotherm_tune::{
    Journal, Live, LiveEvent, LiveRun, LiveRuns, Objective, Search, TuningPlan, run_live,
    trace_facts,
};
use tracing::{info, warn};

use super::Args;
use crate::cmd::eval::read_experiment;
use crate::whole_file::{beside, is_special};

/// Length of a window of a service, unless an option or its record gives it.
const WINDOW: Duration = Duration::from_secs(30);
/// Shorter windows measure nothing useful.
const WINDOW_MIN: Duration = Duration::from_secs(2);

/// The program to run.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "live_runs", multiple = true)]
#[command(next_help_heading = "Live runs")]
pub(super) struct LiveArgs {
    /// Confirm by runs of the program itself: of the command after `--`, of --eval or of --pid
    #[arg(long)]
    live: bool,

    /// Make at most this number of runs with schemes, and one more without: before, between and after them
    #[arg(long, value_name = "N", requires = "live", default_value_t = NonZero::new(5).expect("not zero"))]
    runs: NonZero<u32>,

    /// Run a workload of this experiment (docs/results/evaluation.md), with its swap and settings
    #[arg(long, value_name = "EXPERIMENT", requires = "live", conflicts_with_all = ["pid", "command"])]
    eval: Option<PathBuf>,

    /// Run this workload of the experiment [default: its only one]
    #[arg(long, value_name = "NAME", requires = "eval")]
    workload: Option<String>,

    /// Tune this running process, by id or name, in windows of time; needs --progress-cmd
    #[arg(long, value_name = "PID|NAME", requires_all = ["live", "progress_cmd"], conflicts_with = "command")]
    pid: Option<ProcessSpec>,

    /// Measure the process' progress by this command, which prints a number that counts up, such as requests served
    #[arg(long, value_name = "COMMAND", requires = "pid")]
    progress_cmd: Option<String>,

    /// Let each window last for this time [default: as long as RECORD, else 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "pid")]
    window: Option<Nanos>,

    /// Take work done in a second from the output of a command that runs for a fixed time: the last match of this
    /// regular expression
    #[arg(long, value_name = "REGEX", requires = "command")]
    throughput: Option<String>,

    /// Run this program, several times
    #[arg(last = true, value_name = "COMMAND", requires = "live")]
    command: Vec<OsString>,
}

impl LiveArgs {
    pub(super) fn is_wanted(&self) -> bool {
        self.live
    }

    /// Returns the subject of the live runs as text; results of another subject are not reused.
    pub(super) fn subject(&self) -> String {
        if !self.live {
            return String::new();
        }
        let programs = (&self.eval, &self.workload, &self.command, &self.throughput);
        let service = (&self.pid, &self.progress_cmd, self.window);
        format!("{programs:?} {service:?}")
    }
}

/// Tunes by a record, which is made if it does not exist, and by live runs.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    super::check_outputs(args)?;
    let request = super::request(args)?;
    let plan = request.plan(request.objective()?.max_slowdown())?;
    host::can_record().map_err(|why| anyhow!("cannot run it under schemes: {why}"))?;
    let folder = tempfile::Builder::new()
        .prefix("isotherm-tune-")
        .tempdir()
        .context("cannot make a folder for the runs")?;
    let isotherm = std::env::current_exe().context("cannot find the isotherm that is running")?;
    let stop = crate::stop::by_signals()?;
    let spec = Spec {
        args,
        plan: &plan,
        folder: folder.path(),
        isotherm: &isotherm,
        stop: &stop,
    };
    let tuned = spec.tune_what_is_named();
    if tuned.is_err() && folder.path().join("failed").exists() {
        // The output of a failed run stays where its error says.
        let _ = folder.keep();
    }
    tuned
}

/// The inputs that all kinds of live runs need.
struct Spec<'a> {
    args: &'a Args,
    plan: &'a TuningPlan,
    folder: &'a Path,
    isotherm: &'a Path,
    stop: &'a Arc<AtomicBool>,
}

impl Spec<'_> {
    fn tune_what_is_named(&self) -> anyhow::Result<ExitCode> {
        let live = &self.args.live;
        match (&live.eval, &live.pid) {
            (Some(path), _) => {
                let experiment = read_experiment(path)?;
                let workload = workload_of(&experiment, live.workload.as_deref(), path)?;
                self.tune_program(&experiment, path, workload)
            }
            (None, Some(process)) => self.tune_service(pid_of(process)?),
            (None, None) => {
                ensure!(
                    !live.command.is_empty(),
                    "what is to be run? Name a command after --, an experiment (--eval FILE) or a process (--pid N \
                     --progress-cmd COMMAND)"
                );
                let here = std::env::current_dir().context("cannot tell the working directory")?;
                let line = shell_line(&live.command, &here)?;
                let experiment = Experiment::of_command(line, live.throughput.clone())?;
                self.tune_program(&experiment, &here, &experiment.workloads[0])
            }
        }
    }

    fn tune_program(
        &self,
        experiment: &Experiment,
        path: &Path,
        workload: &Workload,
    ) -> anyhow::Result<ExitCode> {
        let mut on_event = |event: RunEvent<'_>| {
            if let RunEvent::Warning(text) = event {
                warn!("{text}");
            }
        };
        let spec = ProgramSpec {
            runner: RunnerSpec {
                experiment,
                path,
                output: self.folder,
                isotherm: self.isotherm,
                stop: self.stop,
            },
            workload,
            base: &experiment.configurations[0],
            plan: self.plan,
        };
        let mut runs = ProgramRuns::prepare(spec, &mut on_event)?;
        let tuned = self.tune(&mut runs);
        runs.finish();
        tuned
    }

    fn tune_service(&self, pid: u32) -> anyhow::Result<ExitCode> {
        let live = &self.args.live;
        let of_record = || -> Option<Nanos> {
            let path = self.args.record.as_ref().filter(|path| path.exists())?;
            let replay = read_trace(path).ok()?;
            Some(trace_facts(&replay).ok()?.0.duration)
        };
        let window = live.window.or_else(of_record);
        let length = window.map_or(WINDOW, |window| Duration::from_nanos(window.0));
        ensure!(
            length >= WINDOW_MIN,
            "a window must last two seconds or more; --window 30s, for instance"
        );
        let mut runs = ServiceRuns {
            window: WindowSpec {
                pid,
                length,
                progress_command: live.progress_cmd.as_deref().unwrap_or_default(),
                isotherm: self.isotherm,
                folder: self.folder,
                stop: self.stop,
            },
            plan: self.plan,
        };
        runs.check()?;
        self.tune(&mut runs)
    }

    fn tune(&self, runs: &mut dyn LiveRuns) -> anyhow::Result<ExitCode> {
        self.ensure_swap()?;
        let Some(record) = self.record(runs)? else {
            info!("stopped before anything was tried");
            return Ok(ExitCode::from(130));
        };
        super::tune(self.args, &record, self.stop, Some(runs))
    }

    /// Fails without swap if a scheme pages out: such runs would show nothing.
    fn ensure_swap(&self) -> anyhow::Result<()> {
        let contexts = self.plan.contexts().iter();
        let mut schemes = contexts.flat_map(|context| &context.schemes);
        let pages_out = schemes.any(|scheme| scheme.action == Action::Pageout);
        ensure!(
            !pages_out || swap::facts().total > 0,
            "there is no swap, so nothing can be paged out; set it up first (`isotherm swap zram --size 4G`), and take \
             it away afterwards (`isotherm swap off`)"
        );
        Ok(())
    }

    /// Returns the trace: an existing one or a new one; `None` if the user stopped the recording. A new trace stays
    /// beside the output, so that an interrupted search can resume.
    fn record(&self, runs: &mut dyn LiveRuns) -> anyhow::Result<Option<PathBuf>> {
        let how = &self.args.how;
        let output = how.output.as_ref().filter(|path| !is_special(path));
        let path = match (&self.args.record, output) {
            (Some(record), _) if record.exists() => return Ok(Some(record.clone())),
            (Some(record), _) => record.clone(),
            (None, Some(output)) => {
                let path = beside(output, "isotherm");
                let journal = super::journal_path(self.args);
                if path.exists() && journal.is_some_and(|journal| journal.exists()) {
                    return Ok(Some(path));
                }
                path
            }
            (None, None) => self.folder.join("trace.isotherm"),
        };
        info!("a run that is recorded, for replays");
        let begun = Instant::now();
        if !runs.trace(&path)? {
            // Half a trace is of no value.
            let _ = fs::remove_file(&path);
            return Ok(None);
        }
        let took = Nanos(begun.elapsed().as_nanos() as u64);
        info!("recorded in {}: {}", format_time(took), path.display());
        Ok(Some(path))
    }
}

/// Returns the id of the one process that is named.
fn pid_of(process: &ProcessSpec) -> anyhow::Result<u32> {
    let found = pids(std::slice::from_ref(process), &mut Vec::new())?;
    match found[..] {
        [pid] => Ok(pid),
        _ => bail!(
            "{} processes are named '{process}' ({}); give the id of one",
            found.len(),
            found
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Formats a command as a line for a shell that starts in another directory.
fn shell_line(command: &[OsString], here: &Path) -> anyhow::Result<String> {
    let mut line = format!("cd {} && exec", runner::quoted(here)?);
    for word in command {
        line += " ";
        line += &runner::quoted(word)?;
    }
    Ok(line)
}

/// Returns the named workload, if it can run here.
fn workload_of<'a>(
    experiment: &'a Experiment,
    name: Option<&str>,
    path: &Path,
) -> anyhow::Result<&'a Workload> {
    let path = path.display();
    let names: Vec<&str> = { experiment.workloads.iter() }
        .map(|workload| workload.name.as_str())
        .collect();
    let names = names.join(", ");
    let found = match name {
        None if experiment.workloads.len() == 1 => experiment.workloads.first(),
        None => bail!("{path} has several workloads; choose one by --workload: {names}"),
        Some(name) => experiment.workloads.iter().find(|of| of.name == name),
    };
    let found = found.with_context(|| format!("{path} has no such workload; it has {names}"))?;
    match { runner::skips(experiment) }
        .iter()
        .find(|(what, _)| *what == found.name)
    {
        Some((_, why)) => bail!("{} cannot run here: {why}", found.name),
        None => Ok(found),
    }
}

pub(super) fn confirm(
    args: &Args,
    search: &mut Search,
    objective: Objective,
    makes: &mut dyn LiveRuns,
    journal: Option<&mut Journal>,
) -> anyhow::Result<Live> {
    let most = args.live.runs.get() as usize;
    let mut on_event = |event: LiveEvent<'_>| match event {
        LiveEvent::Begins(Some(settings), made) => {
            info!("live run {} of at most {most}: {settings}", made + 1);
        }
        LiveEvent::Begins(None, _) => info!("a live run without schemes"),
        LiveEvent::Ended(run) => info!("{}", words(run)),
        LiveEvent::JournalFailed(error) => {
            warn!("{error}; the runs go on, and cannot be gone on with after an interruption");
        }
    };
    run_live(search, objective, most, makes, journal, &mut on_event)
}

fn words(run: &LiveRun) -> String {
    let stops = match run.guard_stops {
        Some(nr) if nr > 0 => format!(", stopped by the guard {nr} times"),
        _ => String::new(),
    };
    let speed = if run.seconds_of_work < 1.0 {
        format!(
            ", {:.1} units of work a second",
            run.seconds_of_work.recip()
        )
    } else {
        String::new()
    };
    let resident = format_bytes(run.resident_mean_bytes as u64);
    format!("{:.1} s{speed}, {resident} resident{stops}", run.seconds)
}
