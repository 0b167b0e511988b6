//! Output of reports: its destination, format and style.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::TypedValueParser;
use isotherm_render::colour::Palette;
use isotherm_report::{Render, ReportFormat, Style, render};

use crate::flags::one_of_these;
use crate::out::draws_on;
use crate::whole_file::WholeFile;

/// The destination of a report. A file appears as a whole once it is finished, or not at all.
pub(super) enum Sink {
    Standard(BufWriter<StdoutLock<'static>>),
    File(BufWriter<WholeFile>, PathBuf),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(out) => out.write(bytes),
            Self::File(out, _) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(out) => out.flush(),
            Self::File(out, _) => out.flush(),
        }
    }
}

impl Sink {
    /// Flushes the output and renames the file to its name.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        pipe_may_close(self.flush())?;
        let Self::File(file, path) = self else {
            return Ok(());
        };
        // What is left in the buffer is for a pipe that was closed.
        let (file, _) = file.into_parts();
        file.keep()
            .with_context(|| format!("cannot write the report {}", path.display()))
    }
}

/// Options that every report takes.
#[derive(clap::Args)]
pub(super) struct OutputArgs {
    /// Write this format [default: text, or what the output file's name ends in].
    #[arg(long, value_parser = format_name())]
    format: Option<ReportFormat>,
    /// Write JSON: short for --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write to this file; `-` is standard output [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write sizes in bytes and durations in nanoseconds, without units.
    #[arg(long, visible_alias = "bytes")]
    raw: bool,
    /// Colour text.
    #[arg(long, value_enum, default_value_t = ColourArg::Auto)]
    color: ColourArg,
}

/// Parses the name of a format.
fn format_name() -> impl TypedValueParser<Value = ReportFormat> {
    let formats = ReportFormat::ALL.iter();
    one_of_these(formats.map(|(name, _, format)| (*name, "", format)))
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ColourArg {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

impl OutputArgs {
    /// Returns the format that is asked for, or that of the file's name.
    pub(super) fn format(&self) -> anyhow::Result<ReportFormat> {
        let json = self.json.then_some(ReportFormat::Json);
        if let Some(format) = self.format.or(json) {
            return Ok(format);
        }
        let extension = self.file().and_then(Path::extension);
        let Some(extension) = extension.and_then(|extension| extension.to_str()) else {
            return Ok(ReportFormat::default());
        };
        let mut all = ReportFormat::ALL.iter();
        let found = all.find(|(_, extensions, _)| extensions.contains(&extension));
        found.map(|(.., format)| *format).with_context(|| {
            let names: Vec<&str> = ReportFormat::ALL.iter().map(|(name, ..)| *name).collect();
            let names = names.join(", ");
            format!("cannot tell a format from the extension .{extension}; say --format with one of {names}")
        })
    }

    /// Returns the style of text for the destination.
    pub(super) fn style(&self, over_time: bool) -> Style {
        let to_terminal = self.file().is_none() && io::stdout().is_terminal();
        let is_set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let no_colour = is_set("NO_COLOR") || !draws_on(&io::stdout());
        let coloured = match self.color {
            ColourArg::Always => true,
            ColourArg::Never => false,
            ColourArg::Auto => to_terminal && !no_colour,
        };
        let depth = std::env::var("COLORTERM").unwrap_or_default();
        let palette = match (coloured, depth.as_str()) {
            (false, _) => Palette::Plain,
            (true, "truecolor" | "24bit") => Palette::TrueColour,
            (true, _) => Palette::Colours256,
        };
        Style {
            raw: self.raw,
            palette,
            width: terminal_size(to_terminal).0,
            over_time,
        }
    }

    /// Returns the number of terminal lines that a report may fill.
    pub(super) fn height(&self) -> usize {
        terminal_size(self.file().is_none() && io::stdout().is_terminal()).1
    }

    pub(super) fn open(&self) -> anyhow::Result<Sink> {
        let Some(path) = self.file() else {
            return Ok(Sink::Standard(BufWriter::new(io::stdout().lock())));
        };
        let file = WholeFile::create(path)
            .with_context(|| format!("cannot create the report {}", path.display()))?;
        Ok(Sink::File(BufWriter::new(file), path.to_owned()))
    }

    /// Returns the file to write to, unless it is standard output.
    fn file(&self) -> Option<&Path> {
        self.output
            .as_deref()
            .filter(|path| path.as_os_str() != "-")
    }

    /// Returns the file whose name determines the format, if no option does.
    pub(super) fn file_without_format(&self) -> Option<&Path> {
        self.file().filter(|_| self.format.is_none() && !self.json)
    }

    pub(super) fn write(&self, report: &impl Render, style: &Style) -> anyhow::Result<()> {
        let format = self.format()?;
        let mut out = self.open()?;
        pipe_may_close(render::write(report, format, style, &mut out))?;
        out.finish()
    }
}

/// Ignores a closed pipe: a reader that has read enough (`| head`) is no failure.
pub(super) fn pipe_may_close(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write the report"),
    }
}

/// Returns characters and lines; without a terminal, a size that a log or a narrow terminal shows well.
fn terminal_size(to_terminal: bool) -> (usize, usize) {
    let size = to_terminal.then(crossterm::terminal::size);
    match size {
        Some(Ok((width, height))) if width >= 40 && height >= 12 => (width.into(), height.into()),
        _ => (100, 40),
    }
}
