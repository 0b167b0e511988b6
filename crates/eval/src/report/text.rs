//! Reports as text: the tables of DAMON's evaluation, and the text around them.

use std::fmt::Write;

use isotherm_report::render::table::{Align, Table};

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
        let heads = words.head.iter().map(|head| (head.as_str(), Align::Left));
        let mut table = Table::new(&heads.collect::<Vec<_>>());
        for row in words.rows {
            table.row(row);
        }
        text += &table.text();
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
