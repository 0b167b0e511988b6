//! One run: the workload's steps, the Isotherm beside it, and the measurements.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use thiserror::Error;

use super::cgroup::Cgroup;
use super::group::Group;
use super::sample::{Root, Sampler};
use super::{RunEvent, RunnerSpec};
use crate::parameters::Parameters;
use crate::{PlannedRun, RunMeasurements, Workload};

const POLL: Duration = Duration::from_millis(5);
/// Delay before Isotherm attaches to a shell. By then the shell has become the program, whose exec replaces the memory.
const ATTACH_AFTER: Duration = Duration::from_millis(250);
/// Time for Isotherm's first scan before a client of a server begins.
const SETTLE: Duration = Duration::from_millis(500);
/// Time limit for Isotherm to write its summary.
const MONITOR_END: Duration = Duration::from_secs(15);

#[derive(Debug, Error)]
#[error("stopped")]
pub(super) struct Stopped;

pub(super) struct Measuring<'a> {
    pub(super) spec: RunnerSpec<'a>,
    time_limit: Duration,
    /// Folder of the experiment's file and the files that come with it.
    pub(super) experiment_folder: PathBuf,
}

struct Place<'a> {
    folder: &'a Path,
    cgroup: Option<&'a Cgroup>,
    variables: &'a Parameters,
}

impl<'a> Measuring<'a> {
    pub(super) fn new(spec: RunnerSpec<'a>) -> anyhow::Result<Self> {
        let cannot = || format!("cannot find {}", spec.path.display());
        let path = spec.path.canonicalize().with_context(cannot)?;
        Ok(Self {
            spec,
            time_limit: Duration::from_secs(spec.experiment.time_limit_s),
            experiment_folder: path.parent().unwrap_or(Path::new("/")).to_owned(),
        })
    }

    /// Whether an error comes of a request to stop.
    pub(super) fn is_stop(&self, error: &anyhow::Error) -> bool {
        error.is::<Stopped>() || self.spec.stop.load(Ordering::Relaxed)
    }

    /// Makes a run. On failure, its commands' output is kept in the output folder.
    pub(super) fn run(
        &self,
        run: &PlannedRun<'_>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<(RunMeasurements, Option<Value>)> {
        let folder = tempfile::Builder::new().prefix("isotherm-eval-").tempdir();
        let folder = folder.context("cannot make a folder for the run")?;
        // Servers may run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let result = self.run_in(run, folder.path());
        if let Err(error) = &result
            && !error.is::<Stopped>()
        {
            let kept = self.keep_output(run, &folder);
            if let Err(error) = kept {
                on_event(RunEvent::Warning(&format!("{error:#}")));
            }
        }
        result
    }

    fn run_in(
        &self,
        run: &PlannedRun<'_>,
        folder: &Path,
    ) -> anyhow::Result<(RunMeasurements, Option<Value>)> {
        let workload = run.workload;
        let cgroup = workload.cgroup.then(Cgroup::create).transpose()?;
        let place = Place {
            folder,
            cgroup: cgroup.as_ref(),
            variables: &run.configuration.variables,
        };
        if let Some(setup) = &workload.setup {
            self.step("setup", setup, &place)?;
        }
        let mut server = match &workload.serve {
            Some(line) => Some(self.spawn("serve", line, &place)?),
            None => None,
        };
        if let Some(warmup) = &workload.warmup {
            self.step("warmup", warmup, &place)?;
        }
        let mut monitor = None;
        let arguments = run.configuration.isotherm.as_deref();
        if let (Some(arguments), Some(server)) = (arguments, &server) {
            monitor = Some(self.attach(arguments, server.pid(), &place)?);
            self.sleep(SETTLE)?;
        }
        let mut client = self.spawn("run", &workload.run, &place)?;
        let root = server.as_ref().map_or(client.pid(), Group::pid);
        let mut sampler = Sampler::start(match place.cgroup {
            Some(cgroup) => Root::Cgroup(cgroup),
            None => Root::Process(root),
        });
        let begun = Instant::now();
        while !client.has_ended() {
            self.sleep(POLL)?;
            sampler.tick();
            if monitor.is_none() && begun.elapsed() >= ATTACH_AFTER {
                monitor = arguments
                    .map(|a| self.attach(a, root, &place))
                    .transpose()?;
            }
            ensure!(
                begun.elapsed() < self.time_limit,
                "it took longer than the time limit of {} s",
                self.time_limit.as_secs()
            );
            check_running(&mut server, &mut monitor)?;
        }
        let measured = sampler.finish();
        let status = client.end()?;
        ensure!(status.success(), "{}", client.last_words(status));
        let mut measured = measured.with_context(|| {
            format!(
                "it ended after {:.1} s, too soon to be sampled at 1 Hz",
                begun.elapsed().as_secs_f64()
            )
        })?;
        ensure!(
            arguments.is_none() || monitor.is_some(),
            "it ended before Isotherm was attached"
        );
        let summary = monitor
            .map(|monitor| end_monitor(monitor, &|| self.sleep(POLL)))
            .transpose()?;
        note_monitor(&mut measured, summary.as_ref());
        measured.throughput = throughput(workload, &client, folder)?;
        measured.measures = measures(workload, &client)?;
        drop((client, server));
        cgroup.as_ref().map_or(Ok(()), Cgroup::end)?;
        Ok((measured, summary))
    }

    fn step(&self, name: &str, line: &str, place: &Place<'_>) -> anyhow::Result<()> {
        let mut group = self.spawn(name, line, place)?;
        let begun = Instant::now();
        while !group.has_ended() {
            self.sleep(POLL)?;
            ensure!(
                begun.elapsed() < self.time_limit,
                "`{name}` took longer than the time limit of {} s",
                self.time_limit.as_secs()
            );
        }
        let status = group.end()?;
        ensure!(status.success(), "{}", group.last_words(status));
        Ok(())
    }

    /// Starts a command that belongs to the workload.
    fn spawn(&self, name: &str, line: &str, place: &Place<'_>) -> anyhow::Result<Group> {
        let line = match place.cgroup {
            Some(_) => format!("echo $$ >\"$CGROUP/cgroup.procs\" || exit 1\n{line}"),
            None => line.to_owned(),
        };
        self.spawn_beside(name, &line, place)
    }

    /// Starts a command that does not belong to the workload.
    fn spawn_beside(&self, name: &str, line: &str, place: &Place<'_>) -> anyhow::Result<Group> {
        let own = [&self.spec.experiment.parameters, place.variables];
        let mut variables: Vec<(&str, &Path)> = { own.into_iter().flatten() }
            .map(|(name, value)| (name.as_str(), Path::new(value)))
            .collect();
        variables.extend([
            ("ISOTHERM", self.spec.isotherm),
            ("EXPERIMENT", self.experiment_folder.as_path()),
            ("DIR", place.folder),
        ]);
        variables.extend(place.cgroup.map(|cgroup| ("CGROUP", cgroup.path())));
        Group::spawn(name, line, place.folder, &variables)
    }

    fn attach(&self, arguments: &str, pid: u32, place: &Place<'_>) -> anyhow::Result<Group> {
        let targets = match place.cgroup {
            Some(_) => "--cgroup \"$CGROUP\"".to_owned(),
            None => format!("--pid {pid} --children"),
        };
        let arguments = arguments
            .replace("{targets}", &targets)
            .replace("{cgroup}", "\"$CGROUP\"")
            .replace("{dir}", "\"$DIR\"");
        let line = format!("exec \"$ISOTHERM\" {arguments} --json --quiet");
        self.spawn_beside("isotherm", &line, place)
    }

    /// Sleeps, and fails soon if it is asked to stop meanwhile.
    pub(super) fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_millis(100);
        let until = Instant::now() + time;
        loop {
            if self.spec.stop.load(Ordering::Relaxed) {
                return Err(Stopped.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(STEP));
        }
    }

    fn keep_output(&self, run: &PlannedRun<'_>, folder: &TempDir) -> anyhow::Result<()> {
        let name = format!(
            "{}.{}.{}",
            run.workload.name, run.configuration.name, run.repeat
        );
        let kept = self.spec.output.join("failed").join(name.replace('/', "_"));
        let keep = || -> std::io::Result<()> {
            fs::create_dir_all(&kept)?;
            for step in ["setup", "serve", "warmup", "run", "isotherm"] {
                for end in ["out", "err"] {
                    let file = format!("{step}.{end}");
                    let from = folder.path().join(&file);
                    if from.exists() {
                        fs::copy(from, kept.join(file))?;
                    }
                }
            }
            Ok(())
        };
        keep().with_context(|| {
            format!(
                "cannot keep what the failed run printed in {}",
                kept.display()
            )
        })
    }
}

/// Asks Isotherm to end, and reads its summary. `poll` waits a moment, or fails to cancel the wait.
pub(super) fn end_monitor(
    mut monitor: Group,
    poll: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Value> {
    monitor.interrupt();
    let limit = Instant::now() + MONITOR_END;
    while !monitor.has_ended() && Instant::now() < limit {
        poll()?;
    }
    let status = monitor.end()?;
    ensure!(status.success(), "{}", monitor.last_words(status));
    summary(&monitor.output())
}

/// Copies the costs of the Isotherm beside a run from its summary.
fn note_monitor(measured: &mut RunMeasurements, summary: Option<&Value>) {
    let Some(summary) = summary else { return };
    let number = |key: &str| summary.get(key).and_then(Value::as_f64);
    measured.monitor_cpu_percent = number("monitor_cpu_percent");
    measured.induced_cpu_percent = number("induced_cpu_percent_estimated");
    measured.monitor_rss_kib = number("monitor_peak_rss_bytes").map(|bytes| bytes / 1024.0);
    measured.acting_cpu_s = number("acting_cpu_seconds");
    measured.guard_lost_s = number("guard_lost_seconds");
    measured.guard_stops = summary.get("guard_stops").and_then(Value::as_u64);
}

/// Reads the summary of the Isotherm beside a run: all output of `record` and `run`; the last event of `compact`, with
/// the others' names.
fn summary(output: &str) -> anyhow::Result<Value> {
    const CANNOT: &str = "cannot read isotherm's summary";
    let whole = serde_json::from_str(output);
    let last = output.lines().last().unwrap_or_default();
    let mut summary: Value = whole
        .or_else(|_| serde_json::from_str(last))
        .context(CANNOT)?;
    if summary.get("event").and_then(Value::as_str) == Some("end") {
        let seconds = |value: &Value| value.as_f64().map(|ns| ns / 1e9);
        let rounds = seconds(&summary["rounds"]["cpu_ns"]).context(CANNOT)?;
        let own = seconds(&summary["own_cpu_ns"]).context(CANNOT)?;
        summary["acting_cpu_seconds"] = (rounds + own).into();
    }
    Ok(summary)
}

fn measures(
    workload: &Workload,
    client: &Group,
) -> anyhow::Result<std::collections::BTreeMap<String, f64>> {
    let output = client.output();
    let measures = workload.measures.iter().map(|measure| {
        let value = measure.value_in(&output).with_context(|| {
            format!(
                "nothing that it printed matches its measure `{}` ({})",
                measure.name, measure.output
            )
        })?;
        Ok((measure.name.clone(), value))
    });
    measures.collect()
}

fn check_running(server: &mut Option<Group>, monitor: &mut Option<Group>) -> anyhow::Result<()> {
    if let Some(server) = server.as_mut().filter(|server| server.has_ended()) {
        let status = server.end()?;
        bail!("{}", server.last_words(status));
    }
    if let Some(monitor) = monitor.as_mut().filter(|monitor| monitor.has_ended()) {
        let status = monitor.end()?;
        // Its target may just have ended; the caller sees that next.
        ensure!(status.success(), "{}", monitor.last_words(status));
    }
    Ok(())
}

fn throughput(workload: &Workload, client: &Group, folder: &Path) -> anyhow::Result<Option<f64>> {
    if let Some(file) = &workload.progress_file {
        let path = folder.join(file);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("it left no throughput in {}", path.display()))?;
        let value = crate::experiment::number(&text)
            .with_context(|| format!("'{}' in {} is no throughput", text.trim(), path.display()))?;
        return Ok(Some(value));
    }
    let Some(regex) = &workload.progress else {
        return Ok(None);
    };
    let value = workload.throughput_in(&client.output());
    Ok(Some(value.with_context(|| {
        format!("nothing that it printed matches its `progress` ({regex})")
    })?))
}
