//! Rows of text in columns: the first column left-aligned, the others right-aligned.

use std::fmt::Write as _;

/// Returns a line for each row, with two spaces between columns.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let _ = write!(text, "{:width$}", row[0], width = widths[0]);
        for (field, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {field:>width$}");
        }
        text.push('\n');
    }
    text
}
