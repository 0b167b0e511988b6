//! Text: the tables of DAMON's evaluation, and what stands around them.

use std::fmt::Write;

use crate::metric::METRICS;
use crate::suite::Suite;

/// Everything, for a terminal or a log.
pub fn tables(suite: &Suite) -> String {
    let mut text = format!("{}\n\n", suite.name);
    for remark in super::remarks(suite) {
        text += &remark;
        text.push('\n');
    }
    for (metric, about) in METRICS.iter().enumerate() {
        let table = suite.table(metric);
        if table.has_values() {
            let _ = write!(
                text,
                "\n\n{} in {}\n\n{}",
                about.name,
                about.unit,
                table.text()
            );
        }
    }
    text += "\n\nOver the suite, against the first configuration\n\n";
    let mut rows = vec![super::CONCLUSION_HEAD.map(String::from).to_vec()];
    rows.extend(super::conclusions(suite));
    text += &columns(&rows);
    let beside = comparison(suite);
    if !beside.is_empty() {
        let _ = write!(
            text,
            "\n\nOverheads beside published ones, in percent\n\n{beside}"
        );
    }
    text
}

/// Overheads beside published ones; empty if no workload has a published name.
pub fn comparison(suite: &Suite) -> String {
    let beside = super::beside(suite);
    if beside.is_empty() {
        return String::new();
    }
    let head = [
        "workload",
        "metric",
        "configuration",
        "ours",
        "published",
        "by",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(beside.into_iter().map(|row| {
        vec![
            row.workload,
            row.metric.into(),
            row.configuration,
            format!("{:.2}", row.ours),
            format!("{:.2}", row.theirs),
            row.source.into(),
        ]
    }));
    columns(&rows)
}

/// Fields in columns, left-aligned, two spaces apart.
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
