//! Messages on standard error beside results: errors, warnings and notes, as lines that begin with `isotherm: `. If the
//! journal reads standard error, each line begins with its priority, as in sd-daemon(3).

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use isotherm_record::printable_lines;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Options of the messages on standard error.
#[derive(clap::Args)]
pub(crate) struct Verbosity {
    /// Write more to standard error: what is watched and done, and how
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,

    /// Write only errors to standard error
    #[arg(short, long, global = true)]
    quiet: bool,
}

pub(crate) fn start(verbosity: &Verbosity) {
    let level = match (verbosity.quiet, verbosity.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, false) => LevelFilter::INFO,
        (_, true) => LevelFilter::DEBUG,
    };
    let lines = Lines {
        has_priorities: is_journal(),
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        // A failed write to standard error cannot be reported.
        .log_internal_errors(false)
        .event_format(lines)
        .with_writer(io::stderr)
        .init();
}

pub(crate) fn is_quiet() -> bool {
    LevelFilter::current() <= LevelFilter::ERROR
}

/// Returns whether progress can be drawn, and is wanted.
pub(crate) fn draws_progress() -> bool {
    !is_quiet() && crate::out::draws_on(&io::stderr())
}

/// Returns whether standard error is the journal: systemd gives its device and inode.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    let metadata = stderr.and_then(|stderr| File::from(stderr).metadata());
    metadata.is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

struct Lines {
    has_priorities: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.has_priorities {
            write!(writer, "<{}>", priority(*event.metadata().level()))?;
        }
        writer.write_str("isotherm: ")?;
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", printable_lines(&text))
    }
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
