//! Tables of text, written as text, Markdown and HTML.

use isotherm_render::table::escape_markdown;
use std::fmt::Write;

use isotherm_engine::statistics::Interval;
use isotherm_render::page;

pub(crate) struct TextTable {
    pub(crate) title: &'static str,
    pub(crate) note: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn text(&self) -> String {
        let rows = std::iter::once(&self.head).chain(&self.rows);
        let rows: Vec<&[String]> = rows.map(Vec::as_slice).collect();
        format!("{}\n{}\n\n{}", self.title, self.note, aligned(&rows, 2))
    }

    pub(crate) fn html(&self) -> String {
        let head: Vec<&str> = self.head.iter().map(String::as_str).collect();
        page::table(self.title, &self.note, &head, &self.rows)
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("\n## {}\n\n", escape_markdown(self.title));
        if !self.note.is_empty() {
            let _ = write!(text, "{}\n\n", escape_markdown(&self.note));
        }
        let line = |fields: &Vec<String>| {
            let fields: Vec<String> = fields.iter().map(|field| escape_markdown(field)).collect();
            format!("| {} |\n", fields.join(" | "))
        };
        text += &line(&self.head);
        let rules = "|---:".repeat(self.head.len().saturating_sub(1));
        let _ = writeln!(text, "|---{rules}|");
        text.extend(self.rows.iter().map(line));
        text
    }
}

/// Returns fields in left-aligned columns, `gap` spaces apart.
pub(crate) fn aligned(rows: &[&[String]], gap: usize) -> String {
    let width = |column: usize| {
        let fields = rows.iter().map(|row| row[column].chars().count());
        fields.max().unwrap_or(0) + gap
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, |row| row.len()))
        .map(width)
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (field, &width) in row.iter().zip(&widths) {
            let _ = write!(line, "{field:<width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats `+1.20 ± 3.40 %, within noise`.
pub(crate) fn overhead(interval: Option<Interval>) -> String {
    let Some(interval) = interval else {
        return "-".into();
    };
    let mean = interval.mean + 0.0;
    match interval.half_width {
        None => format!("{mean:+.1} %, one repeat"),
        Some(half) if interval.may_be(0.0) => format!("{mean:+.1} ± {half:.1} %, within noise"),
        Some(half) => format!("{mean:+.1} ± {half:.1} %"),
    }
}

pub(crate) fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:+.1} %", value + 0.0))
}

/// Returns the heads of columns, which `|` separates.
pub(crate) fn words(heads: &str) -> Vec<String> {
    heads.split('|').map(str::to_owned).collect()
}
