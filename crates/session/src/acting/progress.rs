//! The targets' own speed, measured by a command of the user's. It runs every second and prints a number that counts up
//! (requests served, for instance); the speed is the growth of this number.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use isotherm_engine::statistics::median;

/// Number of speeds that are measured as the normal speed before anything is acted on.
const BASELINE_SPEEDS: usize = 10;
/// Number of recent speeds whose median is the present speed.
const RECENT_SPEEDS: usize = 5;
/// Weight with which a speed changes the normal speed, while nothing is acted on.
const BASELINE_WEIGHT: f64 = 0.1;

/// The command, run in a thread of its own, and its results.
pub(super) struct Progress {
    values: Receiver<(Instant, f64)>,
    last: Option<(Instant, f64)>,
    speeds: Vec<f64>,
    /// The normal speed, once it is known.
    pub(super) baseline: Option<f64>,
}

impl Progress {
    /// Runs `command` once, to see that it works, and then every second.
    pub(super) fn start(command: &str) -> anyhow::Result<Self> {
        read(command)?;
        let (sender, values) = channel();
        let command = command.to_owned();
        std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || run(&command, &sender))
            .context("cannot start a thread")?;
        Ok(Self {
            values,
            last: None,
            speeds: Vec::new(),
            baseline: None,
        })
    }

    /// Returns the share of speed that is lost now. While `is_resting`, nothing is acted on, and the normal speed is
    /// updated.
    pub(super) fn slowdown(&mut self, is_resting: bool) -> Option<f64> {
        while let Ok((time, value)) = self.values.try_recv() {
            if let Some((before, from)) = self.last.replace((time, value)) {
                let seconds = time.duration_since(before).as_secs_f64().max(1e-3);
                self.add(((value - from) / seconds).max(0.0), is_resting);
            }
        }
        let baseline = self.baseline.filter(|baseline| *baseline > 0.0)?;
        let recent = &self.speeds[self.speeds.len().saturating_sub(RECENT_SPEEDS)..];
        Some((1.0 - median(recent.to_vec())? / baseline).max(0.0))
    }

    fn add(&mut self, speed: f64, is_resting: bool) {
        self.speeds.push(speed);
        match &mut self.baseline {
            None if self.speeds.len() >= BASELINE_SPEEDS => {
                self.baseline = median(self.speeds.clone());
            }
            Some(baseline) if is_resting => *baseline += (speed - *baseline) * BASELINE_WEIGHT,
            _ => {}
        }
        if self.speeds.len() > 10 * BASELINE_SPEEDS {
            self.speeds.drain(..BASELINE_SPEEDS);
        }
    }
}

fn run(command: &str, sender: &Sender<(Instant, f64)>) {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        // A single failure is ignored; the next second brings another result.
        if let Ok(value) = read(command)
            && sender.send((Instant::now(), value)).is_err()
        {
            return;
        }
    }
}

/// Returns the last number that a shell command prints: a program's progress, such as requests served.
///
/// # Errors
/// Fails if the command cannot be run, fails, or prints no number.
pub fn read(command: &str) -> anyhow::Result<f64> {
    let output = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .output()
        .context("cannot run sh")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "the progress command `{command}` failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .filter_map(|word| word.parse().ok())
        .next_back()
        .with_context(|| {
            format!(
                "the progress command `{command}` printed no number, but `{}`",
                text.trim()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_printed_counts() {
        assert_eq!(read("echo ops:12 total_commands:3456").ok(), Some(3456.0));
        let error = read("echo none").expect_err("no number");
        assert!(error.to_string().contains("printed no number"), "{error}");
        assert!(read("exit 3").is_err());
    }

    #[test]
    fn speed_is_held_against_what_was_normal() {
        let mut progress = Progress {
            values: channel().1,
            last: None,
            speeds: Vec::new(),
            baseline: None,
        };
        (0..10).for_each(|_| progress.add(100.0, true));
        assert_eq!(progress.slowdown(false), Some(0.0));
        (0..5).for_each(|_| progress.add(80.0, false));
        let slowdown = progress.slowdown(false).expect("known");
        assert!((slowdown - 0.2).abs() < 1e-9, "{slowdown}");
        (0..60).for_each(|_| progress.add(80.0, true));
        assert!(progress.slowdown(true).expect("known") < 0.01);
    }
}
