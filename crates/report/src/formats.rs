//! Formats of a report's table. Each is a file below and a line in [`ReportFormat::ALL`].

use std::io::{self, Write};

use crate::rows::{Column, ColumnValue};
use crate::table::Tabulate;

mod csv;
mod markdown;
mod style;

pub use style::Style;

/// A format of tables.
#[derive(Debug)]
pub struct TableFormat {
    /// Writes the heading.
    head: fn(&[Column], &mut dyn Write) -> io::Result<()>,
    /// Writes rows.
    rows: fn(&[Column], Rows<'_>, &Style, &mut dyn Write) -> io::Result<()>,
}

impl PartialEq for TableFormat {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for TableFormat {}

/// Passes each row to a closure.
type Rows<'a> = &'a dyn Fn(&mut dyn FnMut(&[ColumnValue<'_>]));

impl TableFormat {
    /// Writes the heading of a report's table.
    pub fn head<T: Tabulate>(&self, out: &mut dyn Write) -> io::Result<()> {
        (self.head)(T::COLUMNS, out)
    }

    /// Writes the rows of a report's table.
    pub fn rows<T: Tabulate>(&self, of: &T, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let rows: Rows<'_> = &|push| {
            of.rows(&mut |row| {
                assert_eq!(row.len(), T::COLUMNS.len(), "a value for each column");
                push(row);
            });
        };
        (self.rows)(T::COLUMNS, rows, style, out)
    }
}

/// The output format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// Aligned text for people.
    #[default]
    Text,
    /// The report's documented value.
    Json,
    /// The report's table.
    Table(&'static TableFormat),
    /// A picture.
    Svg,
    /// A self-contained page.
    Html,
}

impl ReportFormat {
    /// A header row, then plain numbers (RFC 4180).
    pub const CSV: Self = Self::Table(&csv::CSV);

    /// Every format: its name, and the extensions of files that have it.
    pub const ALL: &[(&str, &[&str], Self)] = &[
        ("text", &["txt", "text", "log"], Self::Text),
        ("json", &["json"], Self::Json),
        ("csv", &["csv"], Self::CSV),
        ("markdown", &["md"], Self::Table(&markdown::MARKDOWN)),
        ("svg", &["svg"], Self::Svg),
        ("html", &["html", "htm"], Self::Html),
    ];
}
