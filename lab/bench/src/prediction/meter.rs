//! The progress of a program, by a counter that can be read from outside.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isotherm_engine::statistics::median;
use serde::Serialize;

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(100);
/// Length of the window of one rate.
const WINDOW: Duration = Duration::from_millis(500);
/// Bytes of a batch in a journal of the generated family, and the offset of the position in it.
const BATCH: u64 = 40;
const POSITION: u64 = 24;

/// A source of a program's progress.
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
}

impl Meter {
    fn read(&self) -> Option<f64> {
        match self {
            Self::BytesRead(pid) => number(&format!("/proc/{pid}/io"), "rchar:"),
            Self::Waits(pid) => number(&format!("/proc/{pid}/status"), "voluntary_ctxt_switches:"),
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
        }
    }
}

fn number(path: &str, name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Samples a meter continuously.
pub(super) struct Speed {
    seen: Arc<Mutex<Vec<(Instant, f64)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Progress per second over some time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Rate {
    pub(super) mean: f64,
    /// Standard error of the mean, by the spread of half seconds.
    pub(super) error: f64,
}

impl Speed {
    pub(super) fn of(meter: Meter) -> Self {
        let (seen, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let (all, end) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Some(value) = meter.read() {
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push((Instant::now(), value));
                }
                std::thread::sleep(EVERY);
            }
        });
        Self {
            seen,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns the rate between two moments; `None` if there are no samples.
    pub(super) fn between(&self, from: Instant, to: Instant) -> Option<Rate> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let within: Vec<(Instant, f64)> = { seen.iter().copied() }
            .filter(|(at, _)| (from..=to).contains(at))
            .collect();
        rate(&within)
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

fn rate(seen: &[(Instant, f64)]) -> Option<Rate> {
    let ((first, start), (last, end)) = (seen.first()?, seen.last()?);
    let seconds = last.duration_since(*first).as_secs_f64();
    (seconds > 0.0 && end > start).then_some(())?;
    let mut rates = Vec::new();
    let (mut since, mut then) = (*first, *start);
    for (at, value) in seen {
        let elapsed = at.duration_since(since);
        if elapsed >= WINDOW {
            rates.push((value - then) / elapsed.as_secs_f64());
            (since, then) = (*at, *value);
        }
    }
    let mean = (end - start) / seconds;
    // The spread is that around the median: a stall of the host for a second is not the program's.
    let middle = median(rates.clone())?;
    let off = median(rates.iter().map(|rate| (rate - middle).abs()).collect())?;
    let error = 1.4826 * off / (rates.len() as f64).sqrt();
    Some(Rate { mean, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_progress_has_a_rate_without_error() {
        let start = Instant::now();
        let seen: Vec<(Instant, f64)> = (0..50)
            .map(|i| (start + EVERY * i, f64::from(i) * 10.0))
            .collect();
        let rate = rate(&seen).expect("it gets on");
        assert!(
            (rate.mean - 100.0).abs() < 1e-6 && rate.error < 1e-6,
            "{rate:?}"
        );
        assert!(super::rate(&seen[..1]).is_none());
    }

    #[test]
    fn the_last_whole_number_counts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "ready\nrounds 12\nrounds 13\nrounds 1").expect("written");
        let meter = Meter::Said(file.path().to_owned());
        assert_eq!(meter.read(), Some(13.0));
    }
}
