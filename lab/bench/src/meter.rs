//! The progress of a program, by a counter that can be read from outside or by a log with times.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use isotherm_engine::statistics::median;
use serde::Serialize;
use serde_json::Value;

use super::child::process_cpu;
use super::machine::number;

const EVERY: Duration = Duration::from_millis(100);
/// Length of the window of one rate, in seconds.
const WINDOW_S: f64 = 0.5;
/// Bytes of a batch in a journal of the generated family, and the offset of the position in it.
const BATCH: u64 = 40;
const POSITION: u64 = 24;

#[derive(Clone, Debug)]
pub(super) enum Meter {
    /// Bytes that it has read from sockets or files.
    BytesRead(u32),
    /// Its voluntary waits: one for each request.
    Waits(u32),
    /// The last number in a file that it writes.
    Said(PathBuf),
    /// The journal of a program of the generated family.
    Journal(PathBuf),
    /// The output of `isotherm workload --json`.
    Accesses(PathBuf),
    /// The output of `experiments/workloads/faults.c`.
    Rounds(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Seconds since 1970.
    at: f64,
    progress: f64,
    /// CPU seconds of the program so far; not a number if they are not known.
    cpu_s: f64,
}

impl Meter {
    /// Returns the present value of a meter without a log.
    fn read(&self) -> Option<f64> {
        match self {
            Self::BytesRead(pid) => Some(number(&format!("/proc/{pid}/io"), "rchar:")? as f64),
            Self::Waits(pid) => {
                let status = format!("/proc/{pid}/status");
                Some(number(&status, "voluntary_ctxt_switches:")? as f64)
            }
            Self::Said(path) => {
                let mut file = File::open(path).ok()?;
                let end = file.seek(SeekFrom::End(0)).ok()?;
                file.seek(SeekFrom::Start(end.saturating_sub(100))).ok()?;
                let mut text = String::new();
                file.read_to_string(&mut text).ok()?;
                // The text behind the last line's end may be half of a number.
                let whole = text.rsplit_once('\n')?.0;
                whole.split_whitespace().last()?.parse().ok()
            }
            Self::Journal(path) => {
                let mut file = File::open(path).ok()?;
                let whole = file.metadata().ok()?.len() / BATCH;
                let at = whole.checked_sub(1)? * BATCH + POSITION;
                file.seek(SeekFrom::Start(at)).ok()?;
                let mut position = [0; 8];
                file.read_exact(&mut position).ok()?;
                Some(u64::from_le_bytes(position) as f64)
            }
            Self::Accesses(_) | Self::Rounds(_) => None,
        }
    }

    pub(super) fn log(&self) -> Option<Vec<Point>> {
        let (Self::Accesses(path) | Self::Rounds(path)) = self else {
            return None;
        };
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        if matches!(self, Self::Accesses(_)) {
            return Some(whole.lines().filter_map(accesses).collect());
        }
        let round = |line: &str| -> Option<(f64, f64)> {
            let (at, took) = line.split_once(' ')?;
            Some((at.parse().ok()?, took.parse().ok()?))
        };
        let (mut progress, mut cpu_s) = (0.0, 0.0);
        let points = whole.lines().filter_map(round).map(|(at, took)| {
            progress += 1.0;
            cpu_s += took;
            Point {
                at,
                progress,
                cpu_s,
            }
        });
        Some(points.collect())
    }
}

/// Parses the progress in a line of `isotherm workload --json`.
fn accesses(line: &str) -> Option<Point> {
    let line: Value = serde_json::from_str(line).ok()?;
    let operations = match line["event"].as_str()? {
        "progress" => &line["operations"],
        "phase" => &line["operations_total"],
        _ => return None,
    };
    Some(Point {
        at: line["time_ns"].as_f64()? / 1e9,
        progress: operations.as_f64()?,
        cpu_s: f64::NAN,
    })
}

/// Returns the seconds since 1970.
pub(super) fn now() -> f64 {
    isotherm_workload::run::now().as_secs_f64()
}

/// Samples a meter continuously, or reads its log.
pub(super) struct Speed {
    meter: Meter,
    seen: Arc<Mutex<Vec<Point>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Rate {
    pub(super) mean: f64,
    /// Standard error of the mean, by the spread of half seconds.
    pub(super) error: f64,
    /// CPU seconds of the program for each unit of progress; not a number if they are not known.
    #[serde(skip)]
    pub(super) cpu_s: f64,
}

impl Speed {
    /// Samples also the CPU time of process `pid`, if there is one.
    pub(super) fn of(meter: Meter, pid: Option<u32>) -> Self {
        let seen: Arc<Mutex<Vec<Point>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (all, end) = (Arc::clone(&seen), Arc::clone(&stop));
        let source = meter.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Some(progress) = source.read() {
                    let cpu = pid.and_then(|pid| process_cpu(pid).ok());
                    let point = Point {
                        at: now(),
                        progress,
                        cpu_s: cpu.map_or(f64::NAN, |cpu| cpu.as_secs_f64()),
                    };
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push(point);
                }
                std::thread::sleep(EVERY);
            }
        });
        Self {
            meter,
            seen,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns the rates between the two moments of each window; `None` if there are no samples.
    pub(super) fn within(&self, windows: &[(f64, f64)]) -> Vec<Option<Rate>> {
        let sampled = || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.clone()
        };
        let points = self.meter.log().unwrap_or_else(sampled);
        let one = |&(from, to): &(f64, f64)| {
            let first = points.partition_point(|point| point.at < from);
            let end = points.partition_point(|point| point.at <= to);
            rate(points.get(first..end)?)
        };
        windows.iter().map(one).collect()
    }
}

impl Drop for Speed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread only reads.
            let _ = thread.join();
        }
    }
}

fn rate(seen: &[Point]) -> Option<Rate> {
    let (first, last) = (seen.first()?, seen.last()?);
    let seconds = last.at - first.at;
    let done = last.progress - first.progress;
    (seconds > 0.0 && done > 0.0).then_some(())?;
    let mut rates = Vec::new();
    let mut since = first;
    for point in seen {
        let elapsed = point.at - since.at;
        if elapsed >= WINDOW_S {
            rates.push((point.progress - since.progress) / elapsed);
            since = point;
        }
    }
    // The spread is that around the median: a stall of the host for a second is not the program's.
    let middle = median(rates.clone())?;
    let off = median(rates.iter().map(|rate| (rate - middle).abs()).collect())?;
    Some(Rate {
        mean: done / seconds,
        error: 1.4826 * off / (rates.len() as f64).sqrt(),
        cpu_s: (last.cpu_s - first.cpu_s) / done,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_progress_has_a_rate_without_error() {
        let point = |i: i32| Point {
            at: 1e6 + f64::from(i) / 10.0,
            progress: f64::from(i) * 10.0,
            cpu_s: f64::from(i) / 20.0,
        };
        let seen: Vec<Point> = (0..50).map(point).collect();
        let rate = rate(&seen).expect("it gets on");
        let is_even = (rate.mean - 100.0).abs() < 1e-6 && rate.error < 1e-6;
        assert!(is_even, "{rate:?}");
        assert!((rate.cpu_s - 0.005).abs() < 1e-9);
        assert!(super::rate(&seen[..1]).is_none());
    }

    #[test]
    fn the_last_whole_number_counts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "ready\nrounds 12\nrounds 13\nrounds 1").expect("written");
        let meter = Meter::Said(file.path().to_owned());
        assert_eq!(meter.read(), Some(13.0));
        assert_eq!(meter.log(), None);
    }

    #[test]
    fn whole_lines_of_a_log_are_points() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let log = |text: &str, meter: fn(PathBuf) -> Meter| -> Vec<(f64, f64)> {
            std::fs::write(file.path(), text).expect("written");
            let points = meter(file.path().to_owned()).log().expect("a log");
            let points = points.iter().map(|point| (point.at, point.progress));
            points.collect()
        };
        let accesses = r#"{"event":"ready","time_ns":8}
{"event":"progress","time_ns":7e9,"operations":5}
{"event":"phase","time_ns":8e9,"operations_total":9}
{"event":"progress","time_ns":9e9,"#;
        assert_eq!(log(accesses, Meter::Accesses), [(7.0, 5.0), (8.0, 9.0)]);
        let rounds = "1.0 5.0\n2.5 1.0\n3.5 1";
        assert_eq!(log(rounds, Meter::Rounds), [(1.0, 1.0), (2.5, 2.0)]);
        assert!(log("", Meter::Rounds).is_empty());
    }
}
