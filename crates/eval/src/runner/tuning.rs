//! Configurations that are tuned: each workload is recorded once without schemes, `isotherm tune` finds the setting,
//! and the runs are made under that setting.
//!
//! `tune` is a child, as a user would start it: an error in a trace fails this workload's runs and nothing else. All
//! files stay in the output folder, `CONFIGURATION/WORKLOAD` with `.isotherm` (the trace), `.yaml` (the setting) and
//! `.json` (the output of `tune`). The journal holds everything that runs need. After an interruption, an evaluation
//! finds the trace and the settings that were tried.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use isotherm_tune::fnv::{FNV_START, fnv};

use super::group::{Group, quoted};
use super::measure::Stopped;
use super::{Bench, RunEvent, machine};
use crate::plan::fingerprint;
use crate::tuned::TunedSetting;
use crate::{
    Entry, PlannedRun, RunConfiguration, RunEntry, RunResult, TUNING, TuneOptions, TunedEntry,
};

const POLL: Duration = Duration::from_millis(250);
/// Arguments of the `isotherm` that records a workload, without the file.
const RECORD: &str = "record --pages {targets}";

#[derive(Default)]
pub(super) struct Tunings {
    recorded: Vec<RunEntry>,
    tuned: Vec<TunedEntry>,
    /// Reasons of failed tuning, by workload and configuration. The next evaluation tries again.
    failed: BTreeMap<(String, String), String>,
}

impl Tunings {
    pub(super) fn of(entries: &[Entry]) -> Self {
        let mut tunings = Self::default();
        for entry in entries {
            match entry {
                Entry::Run(run) if run.repeat == TUNING => tunings.recorded.push((**run).clone()),
                Entry::Tuned(tuned) => tunings.tuned.push((**tuned).clone()),
                Entry::Run(_) | Entry::Machine(_) => {}
            }
        }
        tunings
    }

    /// Records and tunes a workload; where that fails, its runs fail. Returns `false` if it was asked to stop. Fails if
    /// the result cannot be written to the journal.
    pub(super) fn tune(
        &mut self,
        bench: &mut Bench<'_>,
        run: &PlannedRun<'_>,
        note: &mut dyn FnMut(&Entry) -> anyhow::Result<()>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<bool> {
        let found = self.find(bench, run, note, on_event);
        match found {
            Ok(entry) => {
                note(&Entry::Tuned(Box::new(entry.clone())))?;
                on_event(RunEvent::Tuned(run, Ok(&entry)));
                self.tuned.push(entry);
            }
            Err(error) if bench.measuring.is_stop(&error) => return Ok(false),
            Err(error) => {
                let why = format!("{error:#}");
                on_event(RunEvent::Tuned(run, Err(&why)));
                self.failed.insert(key(run), why);
            }
        }
        Ok(true)
    }

    fn find(
        &mut self,
        bench: &mut Bench<'_>,
        run: &PlannedRun<'_>,
        note: &mut dyn FnMut(&Entry) -> anyhow::Result<()>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<TunedEntry> {
        let files = Files::of(bench, run)?;
        let rss_kib = self
            .record(bench, run, &files, note, on_event)
            .map_err(|error| in_words(error, "it cannot be recorded"))?;
        let found = search(bench, run, &files, rss_kib, on_event);
        found.map_err(|error| {
            if !error.is::<Stopped>() {
                // The trace may be at fault: the next evaluation records anew.
                let trace = files.path("isotherm");
                fs::rename(&trace, files.path("isotherm.failed")).ok();
            }
            in_words(error, "it cannot be tuned")
        })
    }

    /// Records the workload, unless a recording exists. Returns its mean resident memory during the recording, KiB.
    fn record(
        &mut self,
        bench: &mut Bench<'_>,
        run: &PlannedRun<'_>,
        files: &Files,
        note: &mut dyn FnMut(&Entry) -> anyhow::Result<()>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> anyhow::Result<f64> {
        let mut configuration = RunConfiguration {
            isotherm: Some(RECORD.to_owned()),
            tune: None,
            ..run.configuration.clone()
        };
        // Neither the trace's path nor the objective changes a trace.
        let experiment = bench.measuring.spec.experiment;
        let fingerprint = fingerprint(experiment, run.workload, &configuration);
        let trace = files.path("isotherm");
        let is_it = |known: &&RunEntry| {
            (&known.workload, &known.configuration) == (&run.workload.name, &run.configuration.name)
                && known.fingerprint == fingerprint
        };
        let known = self.recorded.iter().rev().find(is_it);
        if let Some(rss_kib) = known.and_then(|known| rss_kib(&known.outcome).ok())
            && trace.exists()
        {
            return Ok(rss_kib);
        }
        let new = files.path("isotherm.new");
        // The file is left by an evaluation that was killed; its recorder may still write to it.
        fs::remove_file(&new).ok();
        configuration.isotherm = Some(format!("{RECORD} -o {}", quoted(&new)?));
        let recording = PlannedRun {
            workload: run.workload,
            configuration: &configuration,
            repeat: TUNING,
            fingerprint,
        };
        let entry = bench.run(&recording, on_event).ok_or(Stopped)?;
        let rss_kib = rss_kib(&entry.outcome)?;
        fs::rename(&new, &trace).with_context(|| format!("cannot keep {}", trace.display()))?;
        note(&Entry::Run(Box::new(entry.clone())))?;
        self.recorded.push(entry);
        bench.cool_down();
        Ok(rss_kib)
    }

    /// Makes a run, under its tuned setting if its configuration is tuned. Returns `None` if it was asked to stop.
    pub(super) fn run(
        &self,
        bench: &mut Bench<'_>,
        run: &PlannedRun<'_>,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> Option<RunEntry> {
        let Some(request) = &run.configuration.tune else {
            return bench.run(run, on_event);
        };
        match self.configuration(bench, run, request) {
            Ok(configuration) => {
                let run = PlannedRun {
                    configuration: &configuration,
                    ..run.clone()
                };
                bench.run(&run, on_event)
            }
            Err(error) => {
                let outcome = RunResult::Failed(format!("{error:#}"));
                Some(run.entry(machine::now_s(), outcome, None))
            }
        }
    }

    /// Returns the configuration of a run: the setting that was found, or no schemes if there is none.
    fn configuration(
        &self,
        bench: &Bench<'_>,
        run: &PlannedRun<'_>,
        request: &TuneOptions,
    ) -> anyhow::Result<RunConfiguration> {
        if let Some(why) = self.failed.get(&key(run)) {
            bail!("{why}");
        }
        let tuned = self.tuned.iter().rev().find(|entry| entry.is_for(run));
        let tuned = tuned.context("it has not been tuned")?;
        let files = Files::of(bench, run)?;
        let trace = files.path("isotherm");
        ensure!(
            !trace.exists() || digest(&trace)? == tuned.trace,
            "{} is another trace than the one that the setting was found by; remove it, or name another folder with -o",
            trace.display()
        );
        let arguments = (tuned.setting.as_ref())
            .map(|setting| arguments(&files, setting, request))
            .transpose()?;
        Ok(RunConfiguration {
            isotherm: arguments,
            tune: None,
            ..run.configuration.clone()
        })
    }
}

/// Returns the arguments of the `isotherm` beside the workload, under the guard that replays had. Writes the setting's
/// file anew if it is missing or differs.
fn arguments(
    files: &Files,
    setting: &TunedSetting,
    request: &TuneOptions,
) -> anyhow::Result<String> {
    let path = files.path("yaml");
    if fs::read_to_string(&path).ok().as_ref() != Some(&setting.schemes) {
        write(&path, &setting.schemes)?;
    }
    let mut arguments = format!("run -c {} {{targets}}", quoted(&path)?);
    let flags = [
        (!setting.is_guarded, " --no-guard"),
        (request.faithful, " --faithful"),
    ];
    arguments.extend(flags.iter().filter(|flag| flag.0).map(|flag| flag.1));
    Ok(arguments)
}

fn search(
    bench: &Bench<'_>,
    run: &PlannedRun<'_>,
    files: &Files,
    rss_kib: f64,
    on_event: &mut dyn FnMut(RunEvent<'_>),
) -> anyhow::Result<TunedEntry> {
    let trace = files.path("isotherm");
    let trace_digest = digest(&trace)?;
    // Another trace or other options have another file.
    let journal = files.path(&format!("{}-{trace_digest}.journal", run.fingerprint));
    let lock = locked(&journal, bench)?;
    let schemes = files.path("yaml");
    fs::remove_file(&schemes).ok();
    let folder = tempfile::tempdir().context("cannot make a folder for the search")?;
    let mut command = Command::new(bench.measuring.spec.isotherm);
    command.args(["tune", "--json", "--quiet"]).arg(&trace);
    if let Some(request) = &run.configuration.tune {
        command.args(request.options());
        if let Some(config) = &request.config {
            let path = bench.measuring.experiment_folder.join(config);
            command.arg("-c").arg(path);
        }
    }
    command.arg("-o").arg(&schemes);
    command.arg("--resume").arg(&journal);
    // The child keeps the lock as long as it lives, even if this process is killed.
    command.stdin(Stdio::from(
        lock.try_clone().context("cannot share a lock")?,
    ));
    let mut group = Group::start("tune", &mut command, folder.path())?;
    while !group.has_ended() {
        on_event(RunEvent::Searching(run, nr_tried(&journal)));
        bench.measuring.sleep(POLL)?;
    }
    let status = group.end()?;
    // Exit status 1: no setting is within the limit.
    if !matches!(status.code(), Some(0 | 1)) {
        fs::remove_file(&journal).ok();
        bail!("{}", group.last_words(status));
    }
    let json = group.output();
    let found = fs::read_to_string(&schemes).unwrap_or_default();
    let entry = TunedEntry::read(run, &json, &found, rss_kib).with_context(|| {
        format!(
            "cannot read what it found ({})",
            group.last_words(status).trim()
        )
    })?;
    ensure!(
        entry.setting.is_none() || !found.is_empty(),
        "it left no setting in {}",
        schemes.display()
    );
    write(&files.path("json"), &json)?;
    fs::remove_file(&journal).ok();
    Ok(TunedEntry {
        time_s: machine::now_s(),
        trace: trace_digest,
        ..entry
    })
}

/// Start of the paths of a workload's files under a configuration.
struct Files(PathBuf);

impl Files {
    fn of(bench: &Bench<'_>, run: &PlannedRun<'_>) -> anyhow::Result<Self> {
        // The path is absolute, since commands run in folders of their own.
        let output = bench.measuring.spec.output;
        let output = output
            .canonicalize()
            .with_context(|| format!("cannot find {}", output.display()))?;
        let start = output
            .join(&run.configuration.name)
            .join(&run.workload.name);
        let folder = start.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(start))
    }

    fn path(&self, end: &str) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".");
        path.push(end);
        path.into()
    }
}

fn key(run: &PlannedRun<'_>) -> (String, String) {
    (run.workload.name.clone(), run.configuration.name.clone())
}

/// Adds context to an error; [`Stopped`] is returned as it is.
fn in_words(error: anyhow::Error, what: &'static str) -> anyhow::Error {
    if error.is::<Stopped>() {
        error
    } else {
        error.context(what)
    }
}

fn rss_kib(outcome: &RunResult) -> anyhow::Result<f64> {
    match outcome {
        RunResult::Measured(measured) => Ok(measured.rss_kib),
        RunResult::Failed(why) => bail!("{why}"),
    }
}

/// Opens and locks the search's journal. The search of an evaluation that was killed may still run and hold the lock.
fn locked(path: &Path, bench: &Bench<'_>) -> anyhow::Result<File> {
    let cannot = || format!("cannot write {}", path.display());
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(path);
    let file = file.with_context(cannot)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => bench.measuring.sleep(POLL)?,
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
        }
    }
}

/// Returns the number of settings in a search's journal: a line each, after the first.
fn nr_tried(journal: &Path) -> usize {
    let lines = File::open(journal).map(|file| BufReader::new(file).lines().count());
    lines.map_or(0, |lines| lines.saturating_sub(1))
}

/// Returns the digest of a file: a protection against oversight.
fn digest(path: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let mut reader = BufReader::new(File::open(path).with_context(cannot)?);
    let mut hash = FNV_START;
    loop {
        let bytes = reader.fill_buf().with_context(cannot)?;
        if bytes.is_empty() {
            return Ok(format!("{hash:016x}"));
        }
        hash = fnv(hash, bytes);
        let length = bytes.len();
        reader.consume(length);
    }
}

/// Writes all of a file, or leaves it as it was.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_workloads_lie_in_folders_as_they_are_named() {
        let files = Files("/out/tuned/redis/hot_tenth".into());
        let path = files.path("isotherm.new");
        assert_eq!(path, Path::new("/out/tuned/redis/hot_tenth.isotherm.new"));
    }
}
