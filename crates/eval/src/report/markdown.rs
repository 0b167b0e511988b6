//! Markdown, for documents and issues.

use std::fmt::Write;

use crate::metric::METRICS;
use crate::suite::Suite;
use crate::table::Table;

/// The whole report.
pub fn document(suite: &Suite) -> String {
    let mut text = format!("# {}\n\n", suite.name);
    for remark in super::remarks(suite) {
        let _ = writeln!(text, "- {}", escape(&remark));
    }
    text += "\n## Over the suite\n\nOverheads over the first configuration.\n\n";
    text += &table(&super::CONCLUSION_HEAD, &super::conclusions(suite));
    for metric in super::MAIN {
        let values = suite.table(metric);
        let _ = write!(
            text,
            "\n## {} ({})\n\n",
            METRICS[metric].name, METRICS[metric].unit
        );
        text += &of_table(&values);
        let incomplete = values.incomplete();
        if !incomplete.is_empty() {
            let _ = write!(
                text,
                "\nTotal and average leave out {}.\n",
                incomplete.join(", ")
            );
        }
    }
    let scores = scores(suite);
    text += "\n## DAMOOS score\n\nMore is better; -1000 where the workload is slower by more than 20 %.\n\n";
    let mut head = vec!["workload"];
    head.extend(suite.configurations.iter().skip(1).map(String::as_str));
    text += &table(&head, &scores);
    let beside = super::beside(suite);
    if !beside.is_empty() {
        text += "\n## Beside published numbers\n\nOverheads in percent.\n\n";
        let rows: Vec<Vec<String>> = beside
            .into_iter()
            .map(|row| {
                vec![
                    row.workload,
                    row.metric.into(),
                    row.configuration,
                    format!("{:.2}", row.ours),
                    format!("{:.2}", row.theirs),
                    row.source.into(),
                ]
            })
            .collect();
        text += &table(
            &[
                "workload",
                "metric",
                "configuration",
                "ours",
                "published",
                "by",
            ],
            &rows,
        );
    }
    text
}

/// DAMOOS's score of each configuration but the first, by workload.
pub(super) fn scores(suite: &Suite) -> Vec<Vec<String>> {
    let row = |(workload, name): (usize, &String)| {
        let mut row = vec![name.clone()];
        row.extend((1..suite.configurations.len()).map(|column| {
            let score = suite.score(workload, column);
            score.map_or_else(|| "-".into(), |score| format!("{score:.2}"))
        }));
        row
    };
    suite.workloads.iter().enumerate().map(row).collect()
}

fn of_table(values: &Table) -> String {
    let mut head = vec!["workload"];
    head.extend(values.configurations.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = values.all_rows().iter().map(fields).collect();
    table(&head, &rows)
}

/// `102.5 (2.50 %)`
pub(super) fn fields(row: &crate::table::Row) -> Vec<String> {
    let mut fields = vec![row.name.clone()];
    for (index, (value, overhead)) in row.cells.iter().enumerate() {
        let value = value.map_or_else(|| "-".into(), |value| format!("{value:.3}"));
        fields.push(match overhead {
            Some(percent) if index > 0 => format!("{value} ({percent:+.2} %)"),
            _ => value,
        });
    }
    fields
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |fields: Vec<String>| format!("| {} |\n", fields.join(" | "));
    let mut text = line(head.iter().map(|field| escape(field)).collect());
    let rules: Vec<&str> = (0..head.len())
        .map(|i| if i == 0 { "---" } else { "---:" })
        .collect();
    let _ = writeln!(text, "|{}|", rules.join("|"));
    for row in rows {
        text += &line(row.iter().map(|field| escape(field)).collect());
    }
    text
}

/// What would end a cell or a line.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('\n', " ")
        .replace('<', "&lt;")
}
