//! Reports as text: the tables of DAMON's evaluation, and the text around them.

use std::fmt::Write;

use super::summary_rows;
use crate::metric::METRICS;
use crate::suite::Suite;

/// Returns the whole report, for a terminal or a log.
pub fn tables(suite: &Suite) -> String {
    let mut text = format!("{}\n\n", suite.name);
    for remark in super::remarks(suite) {
        text += &remark;
        text.push('\n');
    }
    for words in summary_rows::summary(suite) {
        let _ = write!(text, "\n\n{}\n{}\n\n", words.title, words.note);
        let mut rows = vec![words.head];
        rows.extend(words.rows);
        text += &columns(&rows);
    }
    for (metric, about) in METRICS.iter().enumerate() {
        let table = suite.table(metric);
        if table.has_values() {
            let _ = write!(
                text,
                "\n\n{} in {}\n\n{}",
                about.name,
                table.unit,
                table.text()
            );
        }
    }
    text
}

/// Returns fields in columns, left-aligned, two spaces apart.
fn columns(rows: &[Vec<String>]) -> String {
    let nr = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..nr)
        .map(|column| {
            let fields = rows.iter().map(|row| row[column].chars().count());
            fields.max().unwrap_or(0) + 2
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let fields = row.iter().zip(&widths);
        let mut line = String::new();
        for (field, &width) in fields {
            let _ = write!(line, "{field:<width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
