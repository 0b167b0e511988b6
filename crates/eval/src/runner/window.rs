//! Windows of a service that never ends: some seconds of it, with Isotherm beside it or without.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use isotherm_linux::process::Process;
use isotherm_session::read_progress;
use serde_json::Value;

use super::group::Group;
use super::measure::end_monitor;

const POLL: Duration = Duration::from_millis(20);
const SAMPLE: Duration = Duration::from_millis(250);

/// Input of the measurement of a process.
#[derive(Clone, Copy, Debug)]
pub struct WindowSpec<'a> {
    /// Id of the process.
    pub pid: u32,
    /// Length of a window.
    pub length: Duration,
    /// A shell command that prints a number which counts up, such as requests served; the last printed number counts.
    pub progress_command: &'a str,
    /// The `isotherm` executable to run beside it.
    pub isotherm: &'a Path,
    /// Folder for its output.
    pub folder: &'a Path,
    /// Flag that another thread or a signal handler sets to end soon.
    pub stop: &'a AtomicBool,
}

/// Measurements of a window.
#[derive(Clone, Debug)]
pub struct Window {
    /// Length of the window, seconds.
    pub seconds: f64,
    /// Growth of the progress command's number.
    pub progress: f64,
    /// Mean resident memory, bytes.
    pub resident_mean_bytes: f64,
    /// Summary of the Isotherm beside it.
    pub summary: Option<Value>,
}

impl Window {
    /// Returns a number of the summary.
    pub fn reported(&self, name: &str) -> Option<f64> {
        self.summary.as_ref()?.get(name)?.as_f64()
    }
}

impl WindowSpec<'_> {
    /// Measures a window, with an `isotherm` of these arguments beside it (in a shell, with `variables`). Returns
    /// `None` if it was asked to stop. Fails if the process has ended, if the progress command fails or its number does
    /// not grow, or if Isotherm fails.
    pub fn measure(
        &self,
        arguments: Option<&str>,
        variables: &[(&str, &Path)],
    ) -> anyhow::Result<Option<Window>> {
        let process = Process::open(self.pid)?;
        let mut monitor = match arguments {
            Some(arguments) => Some(self.attach(arguments, variables)?),
            None => None,
        };
        let from = read_progress(self.progress_command)?;
        let begun = Instant::now();
        let (mut nr_samples, mut sum) = (0.0_f64, 0.0);
        let mut next = begun;
        while begun.elapsed() < self.length {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if Instant::now() >= next {
                ensure!(process.is_alive(), "process {} has ended", self.pid);
                nr_samples += 1.0;
                sum += process.usage()?.rss as f64;
                next += SAMPLE;
            }
            if let Some(monitor) = monitor.as_mut().filter(|monitor| monitor.has_ended()) {
                let status = monitor.end()?;
                bail!("it ended too soon: {}", monitor.last_words(status));
            }
            std::thread::sleep(POLL);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let progress = read_progress(self.progress_command)? - from;
        ensure!(
            progress > 0.0,
            "what `{}` prints did not grow in {seconds:.0} s; it must count up while the service works",
            self.progress_command
        );
        let poll = || {
            std::thread::sleep(POLL);
            Ok(())
        };
        let summary = monitor.map(|monitor| end_monitor(monitor, &poll));
        let summary = summary
            .transpose()
            .context("of the Isotherm beside the service")?;
        Ok(Some(Window {
            seconds,
            progress,
            resident_mean_bytes: sum / nr_samples.max(1.0),
            summary,
        }))
    }

    fn attach(&self, arguments: &str, variables: &[(&str, &Path)]) -> anyhow::Result<Group> {
        let mut variables = variables.to_vec();
        variables.push(("ISOTHERM", self.isotherm));
        let line = format!(
            "exec \"$ISOTHERM\" {arguments} --pid {} --json --quiet",
            self.pid
        );
        Group::spawn("isotherm", &line, self.folder, &variables)
    }

    /// Reads in all memory that is in swap, so that the next window begins with it resident. Fails if the process has
    /// ended, or if this user may not access its memory.
    pub fn give_back(&self) -> anyhow::Result<()> {
        Process::open(self.pid)?.swap_in(|_| true)?;
        Ok(())
    }
}
