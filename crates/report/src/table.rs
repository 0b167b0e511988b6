//! Tables of reports, declared once: CSV, Markdown and Arrow tables come from the same columns and rows.
//!
//! Durations are nanoseconds. Points in time are nanoseconds since the beginning of the record. Sizes and addresses are
//! bytes. The sum of all targets has no number: its `target` is null.

use arrow_array::RecordBatch;

use crate::rows::{Column, ColumnType, ColumnValue, Rows, nullable};

pub(crate) const TARGET: Column = nullable(
    "target",
    ColumnType::U32,
    "Number of the target; null: all of them.",
);
/// The number of a target; the sum of all targets has a word for it in CSV.
pub(crate) const TARGET_OR_TOTAL: Column = Column {
    absent: "total",
    about: "Number of the target; null, in CSV `total`: all of them.",
    ..TARGET
};

/// A report with a table.
pub trait Tabulate {
    /// The columns of the table.
    const COLUMNS: &'static [Column];

    /// Passes the rows to `push`, each with a value for every column.
    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>]));

    /// Returns the table in Arrow's form.
    fn table(&self) -> RecordBatch {
        let mut rows = Rows::new(Self::COLUMNS);
        self.rows(&mut |row| rows.push(row));
        rows.take()
    }
}
