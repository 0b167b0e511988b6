//! What is said on standard error beside results: errors, warnings, notes. In lines, `isotherm: ...`;
//! where the journal reads along, each with its priority before it, as sd-daemon(3) has it.

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

/// How much is said.
#[derive(clap::Args)]
pub(crate) struct Verbosity {
    /// Write more to standard error: what is watched and done, and how
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,

    /// Write only errors to standard error
    #[arg(short, long, global = true)]
    quiet: bool,
}

/// From here on events are told; a thing of the whole process.
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
        // Nobody is left to be told.
        .log_internal_errors(false)
        .event_format(lines)
        .with_writer(io::stderr)
        .init();
}

/// Whether the user wants to hear of nothing but errors.
pub(crate) fn is_quiet() -> bool {
    LevelFilter::current() <= LevelFilter::ERROR
}

/// Whether progress can be drawn, and is wanted.
pub(crate) fn draws_progress() -> bool {
    !is_quiet() && crate::out::draws_on(&io::stderr())
}

/// Whether standard error is the journal: systemd names its device and inode.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    let metadata = stderr.and_then(|stderr| File::from(stderr).metadata());
    metadata.is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// An event in a line.
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

/// That of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
