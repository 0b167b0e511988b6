//! Text in columns.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr as _;

/// The alignment of a column's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left-aligned text.
    Left,
    /// Right-aligned text.
    Right,
}

/// Rows of text with columns of the width that they need on a terminal.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these heads.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(head, align)| ((*head).into(), *align));
        Self {
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    /// Creates a table of rows. `|` separates the heads; a column whose head ends in `>` is right-aligned.
    pub fn of(heads: &str, rows: impl IntoIterator<Item = impl Into<Vec<String>>>) -> Self {
        let columns = heads.split('|').map(|head| match head.strip_suffix('>') {
            Some(head) => (head, Align::Right),
            None => (head, Align::Left),
        });
        let mut table = Self::new(&columns.collect::<Vec<_>>());
        for row in rows {
            table.row(row.into());
        }
        table
    }

    /// Adds a row: a field for every column.
    pub fn row(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "a field for every column");
        self.rows.push(row);
    }

    /// Writes the heads and the rows, a line each.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let heads: Vec<String> = self.columns.iter().map(|(head, _)| head.clone()).collect();
        let width = |column: usize| {
            let rows = self.rows.iter().map(|row| width_of(&row[column]));
            rows.max().unwrap_or(0).max(width_of(&heads[column]))
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for (index, (field, width)) in row.iter().zip(&widths).enumerate() {
                if index > 0 {
                    line += "  ";
                }
                let padding = " ".repeat(width - width_of(field));
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

    /// Formats the table as a part of a page.
    pub fn html(&self, title: &str, note: &str) -> String {
        let heads: Vec<&str> = self.columns.iter().map(|(head, _)| head.as_str()).collect();
        crate::page::table(title, note, &heads, &self.rows)
    }

    /// Formats the table as text.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        self.write(&mut text).expect("memory takes everything");
        String::from_utf8(text).expect("made of text")
    }
}

fn width_of(text: &str) -> usize {
    // Nearly all fields are ASCII, and long records have millions of them.
    if text.is_ascii() {
        text.len()
    } else {
        text.width()
    }
}

/// Escapes characters that would end a cell or a line of Markdown, or begin HTML in it.
pub fn escape_markdown(text: &str) -> String {
    text.replace(char::is_control, " ")
        .replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns() {
        let mut table = Table::new(&[("NAME", Align::Left), ("BYTES", Align::Right)]);
        table.row(vec!["数据库".into(), "1".into()]);
        table.row(vec!["redis".into(), "20".into()]);
        let wanted = "NAME    BYTES\n数据库      1\nredis      20\n";
        assert_eq!(table.text(), wanted);
    }
}
