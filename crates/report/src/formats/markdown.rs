//! Tables of GitHub-flavoured Markdown, for issues and documents: sizes and durations have units.

use isotherm_engine::Nanos;
use isotherm_render::table::escape_markdown;

use super::{Style, TableFormat};
use crate::rows::{Column, ColumnValue};

pub(super) static MARKDOWN: TableFormat = TableFormat {
    head: |columns, out| {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        writeln!(
            out,
            "| {} |\n|{}",
            names.join(" | "),
            "---|".repeat(names.len())
        )
    },
    rows: |columns, rows, style, out| {
        let mut written = Ok(());
        rows(&mut |row| {
            if written.is_ok() {
                let cells = columns.iter().zip(row);
                let cells: Vec<String> = cells.map(|(of, value)| cell(of, *value, style)).collect();
                written = writeln!(out, "| {} |", cells.join(" | "));
            }
        });
        written
    },
};

/// Formats a value by the unit in its column's name. Names may have any characters.
fn cell(column: &Column, value: ColumnValue<'_>, style: &Style) -> String {
    match value {
        ColumnValue::U64(bytes) if column.name.ends_with("bytes") => style.bytes(bytes),
        ColumnValue::U64(time) if column.name.ends_with("_ns") => style.duration(Nanos(time)),
        _ => escape_markdown(&column.field(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{ColumnType, column, nullable};

    #[test]
    fn values_have_units_and_names_stay_in_their_cells() {
        let columns = [
            column("mapping", ColumnType::Name, ""),
            nullable("resident_bytes", ColumnType::U64, ""),
            column("age_ns", ColumnType::U64, ""),
        ];
        let mut out = Vec::new();
        (MARKDOWN.head)(&columns, &mut out).expect("memory");
        let row = [
            ColumnValue::Name("a|b\nc"),
            ColumnValue::U64(3 << 20),
            ColumnValue::U64(5_000_000_000),
        ];
        let rows = |push: &mut dyn FnMut(&[ColumnValue<'_>])| {
            push(&row);
            push(&[row[0], ColumnValue::Null, row[2]]);
        };
        (MARKDOWN.rows)(&columns, &rows, &Style::default(), &mut out).expect("memory");
        let wanted = "| mapping | resident_bytes | age_ns |\n|---|---|---|\n\
                      | a\\|b c | 3 MiB | 5 s |\n| a\\|b c |  | 5 s |\n";
        assert_eq!(String::from_utf8(out).expect("text"), wanted);
    }
}
