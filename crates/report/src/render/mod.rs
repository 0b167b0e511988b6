//! The output forms of reports: text for a terminal or a log, tables, JSON, SVG, and self-contained HTML pages.
//!
//! A report implements [`Render`] once for each format; [`write()`] picks one. The module computes only positions on a
//! page.

mod access;
mod actions;
mod ethp_curve;
mod first_touch;
mod footprint;
mod fragmentation;
mod heatmap;
mod heatmap_scale;
mod heatmap_svg;
mod idle;
mod machine;
mod over_time;
pub mod page;
mod reclaim_curve;
mod summary;
mod wss;

use first_touch::flame;

use std::io::{self, Write};

use crate::table::Tabulate;

pub use crate::formats::{ReportFormat, Style};
pub use access::AccessWriter;
pub use actions::reason;

/// A finished report that can be shown.
pub trait Render: serde::Serialize + Tabulate {
    /// Writes the report as text.
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()>;
    /// Returns the report as SVG.
    fn svg(&self) -> String;
    /// Returns the report as an HTML page, up to its closing tags.
    fn html(&self) -> String;
}

/// Writes a report in the given format.
pub fn write<R: Render>(
    report: &R,
    format: ReportFormat,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        ReportFormat::Text => report.text(style, out),
        ReportFormat::Table(format) => {
            format.head::<R>(out)?;
            format.rows(report, style, out)
        }
        ReportFormat::Svg => out.write_all(report.svg().as_bytes()),
        ReportFormat::Html => write!(out, "{}{}", report.html(), isotherm_render::page::END),
        ReportFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)
        }
    }
}

fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
