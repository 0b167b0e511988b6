//! Reports as Markdown, for documents and issues.

use std::fmt::Write;

use super::summary_rows;
use super::text_table::TextTable;
use crate::suite::Suite;

/// Returns the whole report.
pub fn document(suite: &Suite) -> String {
    let mut text = format!("# {}\n\n", suite.name);
    for remark in super::remarks(suite) {
        let _ = writeln!(text, "- {}", escape(&remark));
    }
    text += &summary(suite);
    for metric in super::MAIN {
        text += &section(&summary_rows::detail(suite, metric));
    }
    text
}

/// Returns the tables to paste into a document: the worst cases, then the rest.
pub fn summary(suite: &Suite) -> String {
    summary_rows::summary(suite).iter().map(section).collect()
}

fn section(words: &TextTable) -> String {
    let mut text = format!("\n## {}\n\n", escape(words.title));
    if !words.note.is_empty() {
        let _ = write!(text, "{}\n\n", escape(&words.note));
    }
    text + &table(&words.head, &words.rows)
}

fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |fields: &[String]| {
        let fields: Vec<String> = fields.iter().map(|field| escape(field)).collect();
        format!("| {} |\n", fields.join(" | "))
    };
    let mut text = line(head);
    let rules: Vec<&str> = (0..head.len())
        .map(|i| if i == 0 { "---" } else { "---:" })
        .collect();
    let _ = writeln!(text, "|{}|", rules.join("|"));
    for row in rows {
        text += &line(row);
    }
    text
}

/// Escapes characters that would end a cell or a line.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('\n', " ")
        .replace('<', "&lt;")
}
