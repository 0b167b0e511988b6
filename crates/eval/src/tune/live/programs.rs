//! Live runs of a program from its start to its end, as evaluations make them.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, anyhow, bail};
use isotherm_config::to_yaml;

use super::{LiveRun, LiveRuns};
use crate::runner::{Bench, RunEvent, RunnerSpec};
use crate::tune::{Plan, Settings};
use crate::{Configuration, Experiment, Measured, PlannedRun, RunResult, Workload};

/// What is run, and how.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSpec<'a> {
    /// Whose swap and limits hold.
    pub experiment: &'a Experiment,
    /// Its file, or one beside which commands find what they need.
    pub path: &'a Path,
    /// One of its workloads.
    pub workload: &'a Workload,
    /// Under what it runs without schemes: its `isotherm` is left out.
    pub base: &'a Configuration,
    /// What is tuned.
    pub plan: &'a Plan,
    /// Folder for configurations, and for what failed runs printed.
    pub folder: &'a Path,
    /// The `isotherm` to run beside it.
    pub isotherm: &'a Path,
    /// Set by somebody else: end soon.
    pub stop: &'a AtomicBool,
}

/// How a workload is traced: arguments of the `isotherm` beside it, which writes to `$TRACE`.
const TRACE_FLAGS: &str = "record --pages {targets} --output \"$TRACE\"";

/// Runs of a workload, one after the other.
pub struct ProgramRuns<'a> {
    spec: ProgramSpec<'a>,
    bench: Bench<'a>,
    on_event: &'a mut dyn FnMut(RunEvent<'_>),
    nr_made: u32,
}

impl std::fmt::Debug for ProgramRuns<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spec = &self.spec;
        f.debug_struct("ProgramRuns")
            .field("spec", spec)
            .finish_non_exhaustive()
    }
}

impl<'a> ProgramRuns<'a> {
    /// Sets up what the experiment needs; undone when it is dropped, or at its [end](Self::finish).
    ///
    /// # Errors
    /// What cannot be set up, and why.
    pub fn prepare(
        spec: ProgramSpec<'a>,
        on_event: &'a mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<Self> {
        let runner = RunnerSpec {
            experiment: spec.experiment,
            path: spec.path,
            output: spec.folder,
            isotherm: spec.isotherm,
            stop: spec.stop,
        };
        Ok(Self {
            bench: Bench::prepare(&runner, on_event)?,
            spec,
            on_event,
            nr_made: 0,
        })
    }

    /// Undoes what was changed, and tells what cannot be.
    pub fn finish(self) {
        self.bench.finish(self.on_event);
    }

    fn make(
        &mut self,
        name: &str,
        isotherm: Option<&str>,
        file: Option<(&str, &Path)>,
    ) -> anyhow::Result<Option<Measured>> {
        self.nr_made += 1;
        let mut configuration = Configuration {
            name: name.to_owned(),
            isotherm: isotherm.map(str::to_owned),
            ..self.spec.base.clone()
        };
        if let Some((variable, path)) = file {
            let path = std::path::absolute(path)?.into_os_string().into_string();
            let path = path.map_err(|path| anyhow!("{} is no UTF-8", path.display()))?;
            configuration.variables.insert(variable.to_owned(), path);
        }
        let run = PlannedRun {
            workload: self.spec.workload,
            configuration: &configuration,
            repeat: self.nr_made,
            fingerprint: String::new(),
        };
        let Some(entry) = self.bench.run(&run, self.on_event) else {
            return Ok(None);
        };
        self.bench.cool_down();
        match entry.outcome {
            RunResult::Measured(measured) => Ok(Some(*measured)),
            RunResult::Failed(why) => bail!(
                "the run {name} of {} failed: {why} (what it printed is in {})",
                self.spec.workload.name,
                self.spec.folder.join("failed").display()
            ),
        }
    }
}

impl LiveRuns for ProgramRuns<'_> {
    fn trace(&mut self, path: &Path) -> anyhow::Result<bool> {
        let made = self.make("trace", Some(TRACE_FLAGS), Some(("TRACE", path)))?;
        Ok(made.is_some())
    }

    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>> {
        let measured = match settings {
            Some(settings) => {
                let path = (self.spec.folder).join(format!("live-{}.yaml", self.nr_made));
                write_configuration(self.spec.plan, settings, &path)?;
                let flags = self.spec.plan.run_flags("$TUNED") + " {targets}";
                self.make("tuned", Some(&flags), Some(("TUNED", &path)))?
            }
            None => self.make("by-itself", None, None)?,
        };
        Ok(measured.map(|measured| LiveRun {
            settings: settings.map(Settings::key),
            seconds_of_work: measured.throughput.map_or(measured.runtime_s, f64::recip),
            resident_mean_bytes: measured.rss_kib * 1024.0,
            seconds: measured.runtime_s,
            acting_cpu_seconds: measured.acting_cpu_s,
            guard_stops: measured.guard_stops,
        }))
    }
}

/// Writes the configuration of these settings, as `isotherm run -c` reads it.
pub(super) fn write_configuration(
    plan: &Plan,
    settings: &Settings,
    path: &Path,
) -> anyhow::Result<()> {
    fs::write(path, to_yaml(&plan.configuration(settings)))
        .with_context(|| format!("cannot write {}", path.display()))
}
