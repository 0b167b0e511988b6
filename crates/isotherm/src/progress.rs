//! Progress of long work: a bar on a terminal; elsewhere a line on standard error every 10 s.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::ops::Deref;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, format_time};
use tracing::info;

use crate::log::{draws_progress, is_quiet};

const LINE_EVERY: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(500);
/// Reading that takes longer than this shows progress.
const PATIENCE: Duration = Duration::from_millis(500);

/// Unit of positions.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    /// Any unit; shown as a share of the length.
    Percent,
    /// Things of about the same length.
    Count(&'static str),
    /// Things of different lengths: the time left does not follow from their number.
    Steps(&'static str),
    /// No unit: the message alone is shown.
    Unknown,
}

/// Progress of one piece of work, until it is dropped. Positions and messages are those of the bar, hidden or not.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Ends the thread that writes lines when it is dropped.
    _lines: Option<Sender<()>>,
}

impl Progress {
    pub(crate) fn new(length: Option<u64>, unit: Unit) -> Self {
        if draws_progress() {
            let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(&unit.template());
            bar.set_style(style.expect("a template of ours"));
            bar.enable_steady_tick(TICK);
            return Self { bar, _lines: None };
        }
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        let lines = (!is_quiet()).then(|| {
            let (end, ended) = mpsc::channel();
            let bar = bar.clone();
            thread::spawn(move || {
                while ended.recv_timeout(LINE_EVERY) == Err(RecvTimeoutError::Timeout)
                    && !bar.is_finished()
                {
                    info!("{}", unit.line(&bar));
                }
            });
            end
        });
        Self { bar, _lines: lines }
    }

    pub(crate) fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            _lines: None,
        }
    }
}

impl Deref for Progress {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Unit {
    fn template(self) -> String {
        let position = match self {
            Self::Bytes => "{bytes} of {total_bytes}, {eta} left",
            Self::Percent => "{percent} %, {eta} left",
            Self::Count(of) => &format!("{{pos}} of {{len}} {of}, {{eta}} left"),
            Self::Steps(of) => &format!("{{pos}} of {{len}} {of}"),
            Self::Unknown => return "[{elapsed_precise}] {spinner} {msg}".to_owned(),
        };
        format!("[{{elapsed_precise}}] {{bar:24.cyan/blue}} {position}  {{msg}}")
    }

    fn line(self, bar: &ProgressBar) -> String {
        let (position, length) = (bar.position(), bar.length().unwrap_or(0));
        let mut line = match self {
            Self::Bytes => format!("{} of {}", format_bytes(position), format_bytes(length)),
            Self::Percent => format!("{} %", 100 * position.min(length) / length.max(1)),
            Self::Count(of) | Self::Steps(of) => format!("{position} of {length} {of}"),
            Self::Unknown => format!("after {} s", bar.elapsed().as_secs()),
        };
        let has_estimate = matches!(self, Self::Bytes | Self::Percent | Self::Count(_));
        if has_estimate && (1..length).contains(&position) {
            let left = bar.elapsed().as_secs_f64() / position as f64 * (length - position) as f64;
            let _ = write!(line, ", about {} left", whole_seconds(left));
        }
        let message = bar.message();
        if !message.is_empty() {
            let _ = write!(line, "; {message}");
        }
        line
    }
}

/// Formats a time in whole seconds, at least one.
pub(crate) fn whole_seconds(seconds: f64) -> String {
    format_time(Nanos((seconds.round().max(1.0) * 1e9) as u64))
}

/// Input that shows how far it has been read, if that takes long.
pub(crate) struct Watched {
    input: Box<dyn Read>,
    length: Option<u64>,
    read: u64,
    started: Instant,
    progress: Option<Progress>,
}

impl Watched {
    /// Wraps `input`; `length` is its number of bytes, if it is known.
    pub(crate) fn new(input: Box<dyn Read>, length: Option<u64>) -> Self {
        Self {
            input,
            length,
            read: 0,
            started: Instant::now(),
            progress: None,
        }
    }

    fn show(&mut self, length: u64) {
        if self.progress.is_none() && self.started.elapsed() >= PATIENCE {
            self.progress = Some(Progress::new(Some(length), Unit::Bytes));
        }
        if let Some(progress) = &self.progress {
            progress.set_position(self.read);
        }
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.read += n as u64;
        if n == 0 {
            self.progress = None;
            self.length = None;
        } else if let Some(length) = self.length {
            self.show(length);
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let check = |unit: Unit, position: u64, message: &'static str, wanted: &str| {
            let bar = ProgressBar::with_draw_target(Some(200), ProgressDrawTarget::hidden())
                .with_elapsed(Duration::from_secs(30))
                .with_message(message)
                .with_position(position);
            assert_eq!(unit.line(&bar), wanted);
        };
        check(Unit::Percent, 50, "", "25 %, about 1 min 30 s left");
        let settings = Unit::Count("settings");
        check(settings, 0, "", "0 of 200 settings");
        check(settings, 200, "how sure", "200 of 200 settings; how sure");
        check(Unit::Steps("runs"), 50, "", "50 of 200 runs");
        check(Unit::Unknown, 0, "exact scans", "after 30 s; exact scans");
    }
}
