//! Makes an experiment's runs on this machine, one after the other, and writes the journal.
//!
//! Workloads are shell commands in process groups of their own. Isotherm runs beside them as a child, as a user would
//! start it. Changes to the machine (huge pages, zram swap) are undone at the end, on failure, and after a crash by the
//! next evaluation. Nothing here prints: [`RunEvent`]s report the progress.

mod cgroup;
mod group;
mod machine;
mod measure;
mod programs;
mod sample;
mod service;
mod settings;
mod skip;
mod tuning;
mod window;

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;

use crate::{
    Entry, Experiment, PlannedRun, RunEntry, RunResult, TunedEntry, journal, plan, with_tuning,
};
pub use group::quoted;
use machine::Machine;
use measure::Measuring;
pub use programs::{ProgramRuns, ProgramSpec};
pub use service::ServiceRuns;
pub use skip::skips;
use tuning::Tunings;
pub use window::{Window, WindowSpec};

/// Input of the runner.
#[derive(Clone, Copy, Debug)]
pub struct RunnerSpec<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Path of the experiment's file; its folder is `$EXPERIMENT` for commands.
    pub path: &'a Path,
    /// Folder for the journal (`results.jsonl`), the output of failed runs, and the results of recording and tuning.
    pub output: &'a Path,
    /// The `isotherm` executable to run beside workloads.
    pub isotherm: &'a Path,
    /// Flag that another thread or a signal handler sets to end soon.
    pub stop: &'a AtomicBool,
}

/// Progress of the runs.
#[derive(Clone, Copy, Debug)]
pub enum RunEvent<'a> {
    /// Planned runs that are not finished.
    Planned(&'a [PlannedRun<'a>]),
    /// A run begins.
    Began(&'a PlannedRun<'a>),
    /// A run has ended.
    Ended(&'a PlannedRun<'a>, &'a RunResult),
    /// A workload was recorded and is being tuned; the number of settings tried so far.
    Searching(&'a PlannedRun<'a>, usize),
    /// A workload has been tuned, or could not be tuned, with the reason.
    Tuned(&'a PlannedRun<'a>, Result<&'a TunedEntry, &'a str>),
    /// A warning for the user.
    Warning(&'a str),
}

/// The end of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// All runs have been made.
    Finished,
    /// The evaluation was asked to stop; the same evaluation continues with this run.
    Stopped(String),
}

/// Name of the journal in an output folder.
pub const JOURNAL: &str = "results.jsonl";

/// Returns the runs of an experiment that can be made here, without those of skipped workloads and configurations.
pub fn possible_runs<'a>(
    experiment: &'a Experiment,
    skipped: &[(String, String)],
) -> Vec<PlannedRun<'a>> {
    let mut runs = plan(experiment);
    runs.retain(|run| {
        let names = [&run.workload.name, &run.configuration.name];
        !skipped.iter().any(|(what, _)| names.contains(&what))
    });
    runs
}

/// Makes the possible runs that are not finished in `entries` of the journal, and appends them to it. Fails if the
/// journal cannot be written, or the machine cannot be set up. The failure of a run is its [`RunResult`].
pub fn run_all(
    spec: &RunnerSpec<'_>,
    entries: &[Entry],
    skipped: &[(String, String)],
    on_event: &mut dyn FnMut(RunEvent<'_>),
) -> anyhow::Result<Completion> {
    let mut runs = possible_runs(spec.experiment, skipped);
    runs.retain(|run| !run.is_finished(entries));
    // Workloads that are tuned already are not tuned again.
    let mut runs = with_tuning(runs);
    runs.retain(|run| !run.is_finished(entries));
    if runs.is_empty() {
        return Ok(Completion::Finished);
    }
    let mut journal = open_journal(&spec.output.join(JOURNAL))?;
    let mut bench = Bench::prepare(spec, on_event)?;
    let mut tunings = Tunings::of(entries);
    let completion = run_each((&mut bench, &mut tunings), &runs, &mut journal, on_event);
    bench.finish(on_event);
    completion
}

fn run_each(
    (bench, tunings): (&mut Bench<'_>, &mut Tunings),
    runs: &[PlannedRun<'_>],
    journal: &mut File,
    on_event: &mut dyn FnMut(RunEvent<'_>),
) -> anyhow::Result<Completion> {
    journal::append(journal, &Entry::Machine(bench.describe()))?;
    on_event(RunEvent::Planned(runs));
    for run in runs {
        on_event(RunEvent::Began(run));
        let mut note =
            |entry: &Entry| journal::append(journal, entry).context("cannot write the journal");
        if run.is_tuning() {
            let is_done = tunings.tune(bench, run, &mut note, on_event)?;
            if !is_done {
                return Ok(Completion::Stopped(run.title()));
            }
            bench.cool_down();
            continue;
        }
        let Some(entry) = tunings.run(bench, run, on_event) else {
            return Ok(Completion::Stopped(run.title()));
        };
        on_event(RunEvent::Ended(run, &entry.outcome));
        note(&Entry::Run(Box::new(entry)))?;
        bench.cool_down();
    }
    Ok(Completion::Finished)
}

/// The machine, prepared for an experiment's runs: any of them, one at a time. Its changes are undone when it is
/// dropped.
pub struct Bench<'a> {
    machine: Machine,
    measuring: Measuring<'a>,
}

impl<'a> Bench<'a> {
    /// Undoes the changes of a crashed evaluation, and sets up the experiment's requirements (swap). Fails if something
    /// cannot be set up, with the reason.
    pub fn prepare(
        spec: &RunnerSpec<'a>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<Self> {
        Ok(Self {
            measuring: Measuring::new(*spec)?,
            machine: Machine::prepare(spec.experiment, on_event)?,
        })
    }

    /// Returns a description of this machine, for a journal.
    pub fn describe(&self) -> journal::RunMachine {
        self.machine.describe()
    }

    /// Makes a run, of the experiment's plan or not. Returns `None` if it was asked to stop. The failure of a run is
    /// its outcome.
    pub fn run(
        &mut self,
        run: &PlannedRun<'_>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> Option<RunEntry> {
        let time_s = machine::now_s();
        let result = (self.machine)
            .set_up(self.measuring.spec.experiment, run.configuration)
            .and_then(|()| self.measuring.run(run, on_event));
        let (outcome, monitor) = match result {
            Ok((measured, monitor)) => (RunResult::Measured(Box::new(measured)), monitor),
            Err(error) if self.measuring.is_stop(&error) => return None,
            Err(error) => (RunResult::Failed(format!("{error:#}")), None),
        };
        Some(run.entry(time_s, outcome, monitor))
    }

    /// Waits until the after-effects of a run have settled, as long as the experiment says. The next run sees a signal
    /// during the wait.
    pub fn cool_down(&self) {
        let seconds = self.measuring.spec.experiment.cool_down_s;
        let _ = self.measuring.sleep(Duration::from_secs(seconds));
    }

    /// Undoes the changes, and reports those that cannot be undone.
    pub fn finish(mut self, on_event: &mut dyn FnMut(RunEvent<'_>)) {
        if let Err(error) = self.machine.restore() {
            on_event(RunEvent::Warning(&format!("{error:#}")));
        }
    }
}

/// Opens the journal to continue after its last complete line.
fn open_journal(path: &Path) -> anyhow::Result<File> {
    let open = || -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path)?;
        let text = fs::read_to_string(path)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64)?;
        }
        Ok(file)
    };
    open().with_context(|| format!("cannot write {}", path.display()))
}
