//! Progress of an experiment and its remaining time, beside the bar and in each run's line.

use std::time::Instant;

use isotherm_eval::{Experiment, PlannedRun, RunResult, TunedEntry, estimate_s};

use crate::log::is_quiet;
use crate::progress::{self, Unit};
use isotherm_engine::units::format_bytes;
use tracing::warn;

pub(super) struct Progress<'a> {
    bar: progress::Progress,
    experiment: &'a Experiment,
    begun: Instant,
    nr: usize,
    nr_done: usize,
    /// Weights of all runs and of the finished ones: the seconds that they are expected to take, or one each.
    whole: f64,
    done: f64,
}

impl<'a> Progress<'a> {
    /// Creates hidden progress, which is drawn once the work is known.
    pub(super) fn new(experiment: &'a Experiment) -> Self {
        Self {
            bar: progress::Progress::hidden(),
            experiment,
            begun: Instant::now(),
            nr: 0,
            nr_done: 0,
            whole: 0.0,
            done: 0.0,
        }
    }

    pub(super) fn plan(&mut self, runs: &[PlannedRun<'_>]) {
        self.begun = Instant::now();
        self.nr = runs.len();
        self.whole = runs.iter().map(|run| self.weight(run)).sum();
        self.bar = progress::Progress::new(Some(runs.len() as u64), Unit::Steps("runs"));
    }

    pub(super) fn warn(&self, text: &str) {
        self.bar.suspend(|| warn!("{text}"));
    }

    pub(super) fn begin(&self, title: &str) {
        let left = self
            .left()
            .map_or_else(String::new, |left| format!(" ({left} left)"));
        self.bar.set_message(format!("{title}{left}"));
    }

    pub(super) fn search(&self, title: &str, tried: usize) {
        self.begin(&format!("{title}: {tried} settings tried"));
    }

    /// Prints the result of tuning, or the reason why there is none.
    pub(super) fn tell_tuned(&self, title: &str, found: Result<&TunedEntry, &str>) {
        match found {
            Err(why) => self.line(&format!("{title}: FAILED: {why}")),
            Ok(_) if is_quiet() => {}
            Ok(entry) => {
                let tried = entry.nr_tried;
                self.line(&format!("{title}: {tried} settings; {}", entry.why));
            }
        }
    }

    pub(super) fn tell(&self, title: &str, outcome: &RunResult) {
        let line = match outcome {
            RunResult::Failed(why) => format!("{title}: FAILED: {why}"),
            RunResult::Measured(_) if is_quiet() => return,
            RunResult::Measured(m) => format!(
                "{title}: {:.2} s, {} resident, {} major faults{}",
                m.runtime_s,
                format_bytes((m.rss_kib * 1024.0) as u64),
                m.pgmajfaults,
                m.throughput
                    .map_or_else(String::new, |t| format!(", {t:.0} a second"))
            ),
        };
        self.line(&line);
    }

    fn line(&self, line: &str) {
        let left = self
            .left()
            .map_or_else(String::new, |left| format!(", {left} left"));
        let at = self.nr_done;
        self.bar
            .suspend(|| eprintln!("[{at}/{}{left}] {line}", self.nr));
    }

    pub(super) fn advance(&mut self, run: &PlannedRun<'_>) {
        self.nr_done += 1;
        self.done += self.weight(run);
        self.bar.inc(1);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Formats the remaining time: at the pace so far, or before the first run has ended by the expected times.
    fn left(&self) -> Option<String> {
        let left = self.whole - self.done;
        let seconds = if self.nr_done > 0 {
            self.begun.elapsed().as_secs_f64() / self.done * left
        } else {
            self.expects_all().then_some(left)?
        };
        Some(format!("{:.0} min", (seconds / 60.0).ceil()))
    }

    fn expects_all(&self) -> bool {
        let mut workloads = self.experiment.workloads.iter();
        workloads.all(|workload| workload.expected_s.is_some())
    }

    fn weight(&self, run: &PlannedRun<'_>) -> f64 {
        estimate_s(self.experiment, std::slice::from_ref(run)).unwrap_or(1.0)
    }
}
