//! Text in columns.

use std::io::{self, Write};

/// Where a column's text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows of text, as wide as needed.
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "a field for every column");
        self.rows.push(row);
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let heads: Vec<String> = self
            .columns
            .iter()
            .map(|(head, _)| (*head).into())
            .collect();
        let width = |column: usize| {
            let rows = self.rows.iter().map(|row| row[column].chars().count());
            rows.max().unwrap_or(0).max(heads[column].chars().count())
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for (index, (field, width)) in row.iter().zip(&widths).enumerate() {
                if index > 0 {
                    line += "  ";
                }
                let padding = " ".repeat(width - field.chars().count());
                let (before, after) = match self.columns[index].1 {
                    Align::Left => ("", padding.as_str()),
                    Align::Right => (padding.as_str(), ""),
                };
                line.extend([before, field.as_str(), after]);
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// One line of eight heights, for values over time; as many characters as there are values.
pub(super) fn sparkline(values: &[Option<u64>]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().flatten().max().copied().unwrap_or(0).max(1);
    let height = |value: u64| (value as f64 / max as f64 * 7.0).round() as usize;
    let values = values.iter();
    values
        .map(|value| value.map_or(' ', |value| HEIGHTS[height(value).min(7)]))
        .collect()
}
