//! How reports look: text for a terminal or a log, CSV, JSON, SVG, and self-contained HTML pages.
//!
//! A report implements [`Render`] once for each format; [`write()`] picks one. Nothing here computes
//! anything but positions on a page.

mod access;
mod actions;
mod blame;
mod blame_diff;
pub mod colour;
mod ethp_curve;
mod flame;
mod footprint;
mod fragmentation;
mod heatmap;
mod heatmap_scale;
mod heatmap_svg;
mod idle;
mod machine;
mod machine_cache;
pub mod page;
mod plot;
mod reclaim_curve;
mod summary;
pub mod table;
mod treemap;
mod wss;

use std::io::{self, Write};

use isotherm_engine::{Nanos, units};

pub use access::AccessWriter;
pub use actions::reason;
pub use colour::Palette;
pub use plot::{LINES as SERIES_STYLES, open as open_svg};

/// What a report can be written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Aligned text for people.
    #[default]
    Text,
    /// The report's documented value.
    Json,
    /// A header row, then plain numbers.
    Csv,
    /// A picture.
    Svg,
    /// A page that needs nothing but itself.
    Html,
}

/// How text looks.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Bytes and nanoseconds as plain numbers.
    pub raw: bool,
    /// Colours that the terminal shows.
    pub palette: Palette,
    /// Characters to a line.
    pub width: usize,
    /// Series, besides their summary.
    pub over_time: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            raw: false,
            palette: Palette::Plain,
            width: 100,
            over_time: false,
        }
    }
}

impl Style {
    /// A size, for people or as it is.
    fn bytes(&self, bytes: u64) -> String {
        if self.raw {
            bytes.to_string()
        } else {
            units::format_bytes(bytes)
        }
    }

    /// A size that may not be known.
    fn maybe_bytes(&self, bytes: Option<u64>) -> String {
        bytes.map_or_else(|| "?".into(), |bytes| self.bytes(bytes))
    }

    /// A duration, for people or in nanoseconds.
    fn duration(&self, time: Nanos) -> String {
        if self.raw {
            time.0.to_string()
        } else {
            units::format_time(time)
        }
    }
}

/// Points of a score of 0 to 100: `87.5`, `90`.
fn score(points: f64) -> String {
    let text = format!("{points:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Writes rows of CSV (RFC 4180).
pub type CsvWriter<'a> = csv::Writer<&'a mut dyn Write>;

/// A finished report that can be shown.
pub trait Render: serde::Serialize {
    /// As text.
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()>;
    /// As CSV.
    fn csv(&self, out: &mut CsvWriter<'_>) -> io::Result<()>;
    /// As SVG.
    fn svg(&self) -> String;
    /// As an HTML page.
    fn html(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Writes a report.
pub fn write(
    report: &impl Render,
    format: Format,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Text => report.text(style, out),
        Format::Csv => {
            let mut rows = CsvWriter::from_writer(out);
            report.csv(&mut rows)?;
            rows.flush()
        }
        Format::Svg => out.write_all(report.svg().as_bytes()),
        Format::Html => report.html(out),
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)
        }
    }
}

/// Rows of text as CSV.
pub fn csv_text<F: AsRef<[u8]>>(
    rows: impl IntoIterator<Item = impl IntoIterator<Item = F>>,
) -> String {
    let mut text = csv::Writer::from_writer(Vec::new());
    for row in rows {
        text.write_record(row)
            .expect("memory takes rows of one length");
    }
    let bytes = text.into_inner().expect("memory takes everything");
    String::from_utf8(bytes).expect("made of text")
}

/// A value, or nothing.
fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
