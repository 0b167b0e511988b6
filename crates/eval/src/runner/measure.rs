//! One run: the workload's steps, the Isotherm beside it, and what was measured meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use thiserror::Error;

use super::group::Group;
use super::machine;
use super::sample::Sampler;
use super::{RunEvent, RunnerSpec};
use crate::{Experiment, Measured, PlannedRun, Workload};

const POLL: Duration = Duration::from_millis(5);
/// A shell has become the program by then; attached to earlier, its memory would go away at the exec.
const ATTACH_AFTER: Duration = Duration::from_millis(250);
/// For Isotherm to take its first look before a client of a server begins.
const SETTLE: Duration = Duration::from_millis(500);
/// For Isotherm to write its summary.
const MONITOR_END: Duration = Duration::from_secs(15);

/// It was asked to stop.
#[derive(Debug, Error)]
#[error("stopped")]
pub(super) struct Stopped;

/// What of the experiment cannot run here, and why: workloads and configurations by name.
pub fn skips(experiment: &Experiment) -> Vec<(String, String)> {
    let mut skips = Vec::new();
    for workload in &experiment.workloads {
        let missing: Vec<&str> = workload
            .requires
            .iter()
            .map(String::as_str)
            .filter(|program| !is_installed(program))
            .collect();
        if !missing.is_empty() {
            let why = format!("not installed: {}", missing.join(", "));
            skips.push((workload.name.clone(), why));
        }
    }
    let attaches = experiment
        .configurations
        .iter()
        .any(|c| c.isotherm.is_some());
    let lacks = attaches
        .then(isotherm_linux::host::can_record)
        .and_then(Result::err);
    for configuration in &experiment.configurations {
        let sets_thp = configuration
            .thp
            .is_some_and(|thp| machine::thp_now().is_ok_and(|now| now != thp.word()));
        let why = match &lacks {
            Some(why) if configuration.isotherm.is_some() => why.clone(),
            _ if sets_thp && !machine::can_set_thp() => {
                "transparent huge pages cannot be set; are you root?".into()
            }
            _ => continue,
        };
        skips.push((configuration.name.clone(), why));
    }
    skips
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps PostgreSQL's server out of the PATH, and some daemons where only root looks.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|folder| {
        let file = fs::metadata(folder.join(program));
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

/// How runs are made.
pub(super) struct Measuring<'a> {
    time_limit: Duration,
    isotherm: &'a Path,
    /// Where the experiment's file lies, and what comes with it.
    experiment_folder: PathBuf,
    output: &'a Path,
    stop: &'a AtomicBool,
}

impl<'a> Measuring<'a> {
    pub(super) fn new(spec: &RunnerSpec<'a>) -> anyhow::Result<Self> {
        let path = spec
            .path
            .canonicalize()
            .with_context(|| format!("cannot find {}", spec.path.display()))?;
        Ok(Self {
            time_limit: Duration::from_secs(spec.experiment.time_limit_s),
            isotherm: spec.isotherm,
            experiment_folder: path.parent().unwrap_or(Path::new("/")).to_owned(),
            output: spec.output,
            stop: spec.stop,
        })
    }

    /// Makes a run. On failure, what its commands printed is kept in the output folder.
    pub(super) fn run(
        &self,
        run: &PlannedRun<'_>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<(Measured, Option<Value>)> {
        let folder = tempfile::Builder::new()
            .prefix("isotherm-eval-")
            .tempdir()
            .context("cannot make a folder for the run")?;
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
    ) -> anyhow::Result<(Measured, Option<Value>)> {
        let workload = run.workload;
        if let Some(setup) = &workload.setup {
            self.step("setup", setup, folder)?;
        }
        let mut server = match &workload.serve {
            Some(line) => Some(self.spawn("serve", line, folder)?),
            None => None,
        };
        if let Some(warmup) = &workload.warmup {
            self.step("warmup", warmup, folder)?;
        }
        let mut monitor = None;
        let arguments = run.configuration.isotherm.as_deref();
        if let (Some(arguments), Some(server)) = (arguments, &server) {
            monitor = Some(self.attach(arguments, server.pid(), folder)?);
            self.sleep(SETTLE)?;
        }
        let mut client = self.spawn("run", &workload.run, folder)?;
        let root = server.as_ref().map_or(client.pid(), Group::pid);
        let mut sampler = Sampler::start(root);
        let begun = Instant::now();
        while !client.has_ended() {
            self.sleep(POLL)?;
            sampler.tick();
            if monitor.is_none() && begun.elapsed() >= ATTACH_AFTER {
                monitor = arguments
                    .map(|a| self.attach(a, root, folder))
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
            .map(|monitor| self.end_monitor(monitor))
            .transpose()?;
        if let Some(summary) = &summary {
            let number = |key: &str| summary.get(key).and_then(Value::as_f64);
            measured.monitor_cpu_percent = number("monitor_cpu_percent");
            measured.induced_cpu_percent = number("induced_cpu_percent_estimated");
            measured.monitor_rss_kib = number("monitor_peak_rss_bytes").map(|bytes| bytes / 1024.0);
            measured.acting_cpu_s = number("acting_cpu_seconds");
            measured.guard_stops = summary.get("guard_stops").and_then(Value::as_u64);
        }
        measured.throughput = throughput(workload, &client, folder)?;
        Ok((measured, summary))
    }

    /// Runs a command to its end.
    fn step(&self, name: &str, line: &str, folder: &Path) -> anyhow::Result<()> {
        let mut group = self.spawn(name, line, folder)?;
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

    fn spawn(&self, name: &str, line: &str, folder: &Path) -> anyhow::Result<Group> {
        let variables = [
            ("ISOTHERM", self.isotherm),
            ("EXPERIMENT", self.experiment_folder.as_path()),
            ("DIR", folder),
        ];
        Group::spawn(name, line, folder, &variables)
    }

    fn attach(&self, arguments: &str, pid: u32, folder: &Path) -> anyhow::Result<Group> {
        let arguments = arguments
            .replace("{targets}", &format!("--pid {pid} --children"))
            .replace("{dir}", "\"$DIR\"");
        self.spawn(
            "isotherm",
            &format!("exec \"$ISOTHERM\" {arguments} --json --quiet"),
            folder,
        )
    }

    /// Asks Isotherm to end, and reads its summary.
    fn end_monitor(&self, mut monitor: Group) -> anyhow::Result<Value> {
        monitor.interrupt();
        let limit = Instant::now() + MONITOR_END;
        while !monitor.has_ended() && Instant::now() < limit {
            self.sleep(POLL)?;
        }
        let status = monitor.end()?;
        ensure!(status.success(), "{}", monitor.last_words(status));
        serde_json::from_str(&monitor.output()).context("cannot read isotherm's summary")
    }

    /// Fails, soon, if it is asked to stop meanwhile.
    pub(super) fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_millis(100);
        let until = Instant::now() + time;
        loop {
            if self.stop.load(Ordering::Relaxed) {
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
        let kept = self.output.join("failed").join(name.replace('/', "_"));
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

fn check_running(server: &mut Option<Group>, monitor: &mut Option<Group>) -> anyhow::Result<()> {
    if let Some(server) = server.as_mut().filter(|server| server.has_ended()) {
        let status = server.end()?;
        bail!("{}", server.last_words(status));
    }
    if let Some(monitor) = monitor.as_mut().filter(|monitor| monitor.has_ended()) {
        let status = monitor.end()?;
        // Its target may just have ended, which is seen next.
        ensure!(status.success(), "{}", monitor.last_words(status));
    }
    Ok(())
}

/// What the workload said that it did in a second.
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
