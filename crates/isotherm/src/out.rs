//! Printing. The standard library's `println!` panics if standard output is closed or its disk is full. Here a closed
//! output ends the command quietly: the reader has read enough, as with `| head`. A full disk is an error with an exit
//! code. Notes go to standard error, and are lost without it.

use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::Context as _;
use isotherm_engine::calibration::Measured;
use isotherm_record::{Header, Writer};
use isotherm_session::Versioned;
use serde::Serialize;

/// The format in which a command prints its result.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct ResultArgs {
    /// Print the result in this format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ResultFormat,

    /// Print the result as JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ResultFormat {
    #[default]
    Text,
    Json,
}

impl ResultArgs {
    pub(crate) fn is_json(self) -> bool {
        self.json || self.format == ResultFormat::Json
    }

    /// Prints a result as JSON if that is wanted, else as text.
    pub(crate) fn print<T: Serialize>(
        self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.is_json() {
            println!("{}", json(result)?);
        } else {
            print!("{}", text(result));
        }
        Ok(())
    }
}

/// Formats a result as JSON of several lines.
pub(crate) fn json(result: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Versioned::new(result))
}

/// Formats a measurement: the median, and the least and the most; `?` if there is none.
pub(crate) fn spread(of: Option<Measured>, unit: f64, decimals: usize, word: &str) -> String {
    of.map_or("?".to_owned(), |of| {
        let [low, middle, high] = [of.min, of.median, of.max].map(|value| value / unit);
        format!("{middle:.decimals$}{word} ({low:.decimals$} to {high:.decimals$})")
    })
}

pub(crate) fn json_line(result: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Versioned::new(result))
}

/// Prints to standard output, for `print!` and `println!` of this crate.
pub(crate) fn print(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        drop(out);
        end(&error);
    }
}

/// Prints to standard error, for `eprintln!` of this crate.
pub(crate) fn note(text: Arguments<'_>) {
    // A failed write to standard error cannot be reported.
    let _ = io::stderr().lock().write_fmt(text);
}

fn end(error: &io::Error) -> ! {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("isotherm: cannot write to standard output: {error}");
    std::process::exit(2);
}

/// Returns whether a stream is a terminal that can be drawn on: one that can move the cursor.
pub(crate) fn draws_on(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns whether `error` means that the reader of standard output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        let by_json = cause.downcast_ref::<serde_json::Error>();
        let by_io = cause.downcast_ref::<io::Error>();
        by_io
            .map(io::Error::kind)
            .or_else(|| by_json?.io_error_kind())
    };
    error
        .chain()
        .any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}

/// Returns the command line as a record's header holds it.
pub(crate) fn command_line() -> Vec<String> {
    let arguments = std::env::args_os();
    arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect()
}

/// Begins the record at `path`, which replaces an older one.
pub(crate) fn record(path: &Path, header: &Header) -> anyhow::Result<Writer<File>> {
    let file = isotherm_session::record_file::create(path)?;
    Writer::create(file, header).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the schema of the JSON that [`json`] prints of a `T`.
#[cfg(test)]
pub(crate) fn schema<T: schemars::JsonSchema + 'static>() -> schemars::Schema {
    schemars::schema_for!(Versioned<'static, T>)
}
