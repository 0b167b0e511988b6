//! Plain tables, with columns as wide as their cells.

use std::fmt;

pub(super) struct Table {
    title: String,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(title: impl Into<String>, head: &[&'static str]) -> Self {
        Self {
            title: title.into(),
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "a cell for each column");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.head[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        writeln!(f, "{}", self.title)?;
        let head = self.head.iter().map(ToString::to_string).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let line: Vec<String> = std::iter::zip(row, &widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            writeln!(f, "  {}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}
