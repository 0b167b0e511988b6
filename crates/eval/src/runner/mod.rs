//! Makes an experiment's runs on this machine, one after the other, and writes the journal.
//!
//! Workloads are shell commands in process groups of their own; Isotherm runs beside them as a child,
//! as a user would start it. What is changed on the machine (huge pages, zram swap) is undone at the
//! end, on failure, and after a crash by the next evaluation. Nothing here prints: [`RunEvent`]s tell
//! how far it is.

mod cgroup;
mod group;
mod machine;
mod measure;
mod sample;
mod settings;
mod skip;
mod tuning;
mod window;

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::{
    Entry, Experiment, PlannedRun, RunEntry, RunResult, TunedEntry, journal, plan, with_tuning,
};
pub use group::quoted;
use machine::Machine;
use measure::{Measuring, Stopped};
pub use skip::skips;
use tuning::Tunings;
pub use window::{Window, WindowSpec};

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct RunnerSpec<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Its file: commands find what comes with it by `$EXPERIMENT`, its folder.
    pub path: &'a Path,
    /// Folder for the journal (`results.jsonl`), what failed runs printed, and what tuning recorded and found.
    pub output: &'a Path,
    /// The `isotherm` to run beside workloads.
    pub isotherm: &'a Path,
    /// Set by somebody else: end soon.
    pub stop: &'a AtomicBool,
}

/// What happens meanwhile.
#[derive(Clone, Copy, Debug)]
pub enum RunEvent<'a> {
    /// These runs are still to be made.
    Planned(&'a [PlannedRun<'a>]),
    /// A run begins.
    Began(&'a PlannedRun<'a>),
    /// It has ended.
    Ended(&'a PlannedRun<'a>, &'a RunResult),
    /// A workload was recorded; settings are tried, and so many have been.
    Searching(&'a PlannedRun<'a>, usize),
    /// It has been tuned, or could not be, and why.
    Tuned(&'a PlannedRun<'a>, Result<&'a TunedEntry, &'a str>),
    /// Something that the user should know.
    Warning(&'a str),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// All runs have been made.
    Finished,
    /// It was asked to stop; the same goes on with this run.
    Stopped(String),
}

/// The journal's file in an output folder.
pub const JOURNAL: &str = "results.jsonl";

/// The runs of an experiment that can be made here: those of which nothing is skipped.
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

/// Makes the runs that are possible and that `entries` of the journal do not hold as finished, and
/// appends them to it.
///
/// # Errors
/// The journal cannot be written, or the machine not be set up. That a run fails is its [`RunResult`].
pub fn run_all(
    spec: &RunnerSpec<'_>,
    entries: &[Entry],
    skipped: &[(String, String)],
    on_event: &mut dyn FnMut(RunEvent<'_>),
) -> anyhow::Result<Completion> {
    let mut runs = possible_runs(spec.experiment, skipped);
    runs.retain(|run| !run.is_finished(entries));
    // What is tuned already is found again.
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

/// The machine, prepared for an experiment's runs: any of them, one at a time. What was changed is undone when it is
/// dropped.
pub struct Bench<'a> {
    experiment: &'a Experiment,
    machine: Machine,
    measuring: Measuring<'a>,
    stop: &'a AtomicBool,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").finish_non_exhaustive()
    }
}

impl<'a> Bench<'a> {
    /// Undoes what a crashed evaluation left, and sets up what the experiment needs (swap).
    ///
    /// # Errors
    /// What cannot be set up, and why.
    pub fn prepare(
        spec: &RunnerSpec<'a>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<Self> {
        Ok(Self {
            experiment: spec.experiment,
            measuring: Measuring::new(spec)?,
            stop: spec.stop,
            machine: Machine::prepare(spec.experiment, on_event)?,
        })
    }

    /// This machine, for a journal.
    pub fn describe(&self) -> journal::Machine {
        self.machine.describe()
    }

    /// Makes a run, of the experiment's plan or not; `None` where it was asked to stop. That it fails is its outcome.
    pub fn run(
        &mut self,
        run: &PlannedRun<'_>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> Option<RunEntry> {
        let time_s = machine::now_s();
        let result = (self.machine)
            .set_up(self.experiment, run.configuration)
            .and_then(|()| self.measuring.run(run, on_event));
        let (outcome, monitor) = match result {
            Ok((measured, monitor)) => (RunResult::Measured(Box::new(measured)), monitor),
            Err(error) if error.is::<Stopped>() || self.stop.load(Ordering::Relaxed) => {
                return None;
            }
            Err(error) => (RunResult::Failed(format!("{error:#}")), None),
        };
        Some(RunEntry {
            workload: run.workload.name.clone(),
            configuration: run.configuration.name.clone(),
            repeat: run.repeat,
            fingerprint: run.fingerprint.clone(),
            time_s,
            outcome,
            monitor,
        })
    }

    /// Lets settle what a run left, for as long as the experiment says. A signal meanwhile is seen by the next run.
    pub fn cool_down(&self) {
        let _ = (self.measuring).sleep(Duration::from_secs(self.experiment.cool_down_s));
    }

    /// Undoes what was changed, and tells what cannot be.
    pub fn finish(mut self, on_event: &mut dyn FnMut(RunEvent<'_>)) {
        if let Err(error) = self.machine.restore() {
            on_event(RunEvent::Warning(&format!("{error:#}")));
        }
    }
}

/// Opens the journal to go on after its last whole line.
fn open_journal(path: &Path) -> anyhow::Result<File> {
    let open = || -> std::io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        let text = fs::read_to_string(path)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64)?;
        }
        Ok(file)
    };
    open().with_context(|| format!("cannot write {}", path.display()))
}
