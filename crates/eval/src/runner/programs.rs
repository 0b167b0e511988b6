//! Live runs of a program from its start to its end, made as in evaluations.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use isotherm_config::to_yaml;
use isotherm_tune::{LiveRun, LiveRuns, Settings, TuningPlan};

use super::{Bench, RunEvent, RunnerSpec};
use crate::{PlannedRun, RunConfiguration, RunMeasurements, RunResult, Workload};

/// Input of the runs of a program.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSpec<'a> {
    /// Experiment whose swap and limits apply, and the folder for configurations and the output of failed runs.
    pub runner: RunnerSpec<'a>,
    /// Workload of the experiment.
    pub workload: &'a Workload,
    /// Configuration of the runs without schemes; its `isotherm` is ignored.
    pub base: &'a RunConfiguration,
    /// Schemes that are tuned.
    pub plan: &'a TuningPlan,
}

/// Arguments of the `isotherm` beside a traced workload, which writes to `$TRACE`.
const TRACE_FLAGS: &str = "record --pages {targets} --output \"$TRACE\"";

/// Runs of a workload, one after the other.
pub struct ProgramRuns<'a> {
    spec: ProgramSpec<'a>,
    bench: Bench<'a>,
    on_event: &'a mut dyn FnMut(RunEvent<'_>),
    nr_made: u32,
}

impl<'a> ProgramRuns<'a> {
    /// Sets up the experiment's requirements. They are undone when it is dropped, or at its [end](Self::finish). Fails
    /// if something cannot be set up, with the reason.
    pub fn prepare(
        spec: ProgramSpec<'a>,
        on_event: &'a mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<Self> {
        Ok(Self {
            bench: Bench::prepare(&spec.runner, on_event)?,
            spec,
            on_event,
            nr_made: 0,
        })
    }

    /// Undoes the changes, and reports those that cannot be undone.
    pub fn finish(self) {
        self.bench.finish(self.on_event);
    }

    fn make(
        &mut self,
        name: &str,
        isotherm: Option<&str>,
        file: Option<(&str, &Path)>,
    ) -> anyhow::Result<Option<RunMeasurements>> {
        self.nr_made += 1;
        let mut configuration = RunConfiguration {
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
                self.spec.runner.output.join("failed").display()
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
                let name = format!("live-{}.yaml", self.nr_made);
                let path = self.spec.runner.output.join(name);
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

pub(super) fn write_configuration(
    plan: &TuningPlan,
    settings: &Settings,
    path: &Path,
) -> anyhow::Result<()> {
    fs::write(path, to_yaml(&plan.configuration(settings)))
        .with_context(|| format!("cannot write {}", path.display()))
}
