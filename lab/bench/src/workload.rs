//! A running `isotherm workload`, and its speed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use isotherm_engine::Nanos;
use isotherm_workload::truth::{self, Episode};
use serde_json::Value;

use super::BenchContext;
use super::child::Guarded;

/// Populating 16 GiB takes half a minute if the hypervisor must find the memory first.
const READY_LIMIT: Duration = Duration::from_mins(5);

/// The workload's process.
pub(super) struct Workload {
    child: Guarded,
    truth: PathBuf,
    /// Total accesses and their time: about ten times a second.
    progress: Arc<Mutex<Vec<(Nanos, u64)>>>,
}

impl Workload {
    /// Starts `config`, to run until stopped, and waits until its memory is populated.
    pub(super) fn start(context: &BenchContext, config: &Path) -> anyhow::Result<Self> {
        let truth = context.scratch("truth.jsonl");
        // A reader must not read the last run's file instead.
        let _ = std::fs::remove_file(&truth);
        let mut command = Command::new(&context.isotherm);
        command
            .args(["workload", "--json", "--repeat", "0", "--truth"])
            .args([&truth, config])
            .stdout(Stdio::piped());
        let mut child = Guarded::spawn(context, &mut command)?;
        let stdout = child.stdout().context("standard output is a pipe")?;
        let progress = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&progress);
        // The thread ends with the child, whose end closes the pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(point) = point(&line) {
                    notes
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(point);
                }
            }
        });
        let mut workload = Self {
            child,
            truth,
            progress,
        };
        let end = Instant::now() + READY_LIMIT;
        while workload.points().is_empty() {
            if Instant::now() > end {
                bail!(
                    "the workload was not ready after {} s",
                    READY_LIMIT.as_secs()
                );
            }
            workload.child.check_running()?;
            context.sleep(Duration::from_millis(50))?;
        }
        Ok(workload)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn check_running(&mut self) -> anyhow::Result<()> {
        self.child.check_running()
    }

    /// Returns the accesses made between two moments, the later of which is now.
    pub(super) fn operations(
        &self,
        context: &BenchContext,
        from: Nanos,
        to: Nanos,
    ) -> anyhow::Result<f64> {
        // The point after `to` is at most two intervals away.
        context.sleep(Duration::from_millis(250))?;
        let points = self.points();
        let (Some(before), Some(after)) = (at(&points, from), at(&points, to)) else {
            bail!("the workload did not tell its progress over the window");
        };
        Ok(after - before)
    }

    /// Returns the accesses per second between each two of `moments`, all of which are at least a second ago.
    pub(super) fn rates(&self, moments: &[Nanos]) -> anyhow::Result<Vec<f64>> {
        let points = self.points();
        let pairs = moments.iter().zip(moments.iter().skip(1));
        let rate = |(&from, &to): (&Nanos, &Nanos)| {
            let operations = at(&points, to)? - at(&points, from)?;
            Some(operations / to.since(from).as_secs_f64())
        };
        pairs
            .map(|pair| rate(pair).context("the workload did not tell its progress"))
            .collect()
    }

    /// Returns the truth so far.
    pub(super) fn episodes(&self) -> anyhow::Result<Vec<Episode>> {
        let file = std::fs::File::open(&self.truth).context("the workload wrote no truth")?;
        Ok(truth::read(BufReader::new(file))?)
    }

    fn points(&self) -> Vec<(Nanos, u64)> {
        let points = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        points.clone()
    }
}

/// Parses the progress in a line of the workload's output.
fn point(line: &str) -> Option<(Nanos, u64)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let operations = match line["event"].as_str()? {
        "progress" => &line["operations"],
        "phase" => &line["operations_total"],
        _ => return None,
    };
    Some((Nanos(line["time_ns"].as_u64()?), operations.as_u64()?))
}

/// Returns the accesses made by `time`, interpolated between two points.
fn at(points: &[(Nanos, u64)], time: Nanos) -> Option<f64> {
    let after = points.partition_point(|point| point.0 < time);
    let (t1, n1) = *points.get(after)?;
    let (t0, n0) = *points.get(after.checked_sub(1)?)?;
    let share = (time - t0).as_secs_f64() / (t1 - t0).as_secs_f64();
    Some(n0 as f64 + (n1 as f64 - n0 as f64) * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_between_its_points() {
        let points = [(Nanos(100), 10), (Nanos(200), 30)];
        assert_eq!(at(&points, Nanos(150)), Some(20.0));
        assert_eq!(at(&points, Nanos(200)), Some(30.0));
        assert_eq!(at(&points, Nanos(50)), None);
        assert_eq!(at(&points, Nanos(201)), None);
    }

    #[test]
    fn lines_without_progress_are_passed_over() {
        assert_eq!(
            point(r#"{"event":"progress","time_ns":7,"operations":5}"#),
            Some((Nanos(7), 5))
        );
        assert_eq!(
            point(r#"{"event":"phase","time_ns":8,"operations_total":9}"#),
            Some((Nanos(8), 9))
        );
        assert_eq!(point(r#"{"event":"ready","time_ns":8}"#), None);
        assert_eq!(point("{"), None);
    }
}
