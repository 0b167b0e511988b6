//! Numbers beside published ones as text and CSV: first the summaries, then cell by cell.

use std::fmt::Write as _;

use crate::published::{Difference, PublishedComparison, Summary};
use isotherm_render::csv_text;
use isotherm_render::table::{Align, Table};

use super::Reproduction;

/// Number of configurations side by side that 100 columns hold.
const BESIDE: usize = 3;

/// Returns the results of experiments as text.
pub fn text(all: &[Reproduction]) -> String {
    let mut text = String::new();
    for of in all {
        let _ = writeln!(text, "{}, simulated at its published size", of.title);
        text.extend(of.notes.iter().map(|note| format!("- {note}\n")));
        if !of.summaries.is_empty() {
            let _ = write!(text, "\n{}", table(&SUMMARY, &of.summaries).text());
        }
        for (title, table) in cell_tables(&of.comparisons) {
            let _ = write!(text, "\n{title}\n{}", table.text());
        }
        let rows = rows(&of.comparisons);
        for (title, is_published) in [
            ("Beside the published numbers", true),
            ("Of which no number was published", false),
        ] {
            let of_it = rows.iter().copied();
            let of_it = of_it.filter(|row| row.published.is_some() == is_published);
            let of_it: Vec<&PublishedComparison> = of_it.collect();
            if !of_it.is_empty() {
                let _ = write!(text, "\n{title}\n{}", table(&COMPARISON, of_it).text());
            }
        }
        text.push('\n');
    }
    text
}

/// Returns the comparisons that are not in a table of cells by case and configuration.
pub(super) fn rows(comparisons: &[PublishedComparison]) -> Vec<&PublishedComparison> {
    let is_row = |row: &&PublishedComparison| !is_cell(comparisons, row);
    comparisons.iter().filter(is_row).collect()
}

/// Whether a number is one of several that differ by their case only, which are shown as one column.
fn is_cell(all: &[PublishedComparison], row: &PublishedComparison) -> bool {
    let key = |row: &PublishedComparison| (row.experiment, row.configuration, row.metric.clone());
    let wanted = key(row);
    let same = all.iter().filter(|other| key(other) == wanted);
    same.filter(|other| other.published.is_some()).count() > MANY_CASES
}

/// Maximum number of cases that are shown as rows; more make a table.
const MANY_CASES: usize = 5;

/// A column: its head, its alignment, and the text of a cell.
pub(super) type TextColumn<R> = (&'static str, Align, fn(&R) -> String);

/// Columns of a summary, for people: means over the cells, and their mean absolute difference.
pub(super) const SUMMARY: [TextColumn<Summary>; 11] = [
    ("experiment", Align::Left, |of| of.experiment.into()),
    ("configuration", Align::Left, |of| of.configuration.into()),
    ("of", Align::Left, |of| {
        format!("{}, {}", of.metric, of.unit)
    }),
    ("published", Align::Right, |of| number(of.published_mean)),
    ("simulated", Align::Right, |of| number(of.simulated_mean)),
    ("mean error", Align::Right, |of| number(of.mean_error)),
    ("of no change", Align::Right, |of| {
        or_dash(of.mean_error_of_no_change)
    }),
    ("worst", Align::Left, |of| {
        format!("{:+.1} {}", of.worst_error, of.worst_case)
    }),
    ("zeros", Align::Right, |of| {
        format!("{} of {}", of.zeros, of.cells)
    }),
    ("not modelled", Align::Right, |of| {
        of.not_modelled.to_string()
    }),
    ("is", Align::Left, |of| of.role.name().into()),
];

pub(super) fn table<'a, R: 'a>(
    columns: &[TextColumn<R>],
    rows: impl IntoIterator<Item = &'a R>,
) -> Table {
    let heads = columns.iter().map(|(head, align, _)| (*head, *align));
    let mut table = Table::new(&heads.collect::<Vec<_>>());
    for row in rows {
        table.row(columns.iter().map(|(.., cell)| cell(row)).collect());
    }
    table
}

/// Returns tables of cells: of each experiment and metric, cases down and some configurations across, as published,
/// simulated, and the difference.
pub(super) fn cell_tables(comparisons: &[PublishedComparison]) -> Vec<(String, Table)> {
    let cells = comparisons.iter().filter(|row| is_cell(comparisons, row));
    let mut groups: Vec<((&str, &str), Vec<&PublishedComparison>)> = Vec::new();
    for cell in cells {
        let key = (cell.experiment, cell.metric.as_str());
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, cells)) => cells.push(cell),
            None => groups.push((key, vec![cell])),
        }
    }
    let mut tables = Vec::new();
    for ((experiment, metric), cells) in groups {
        let mut names: Vec<(&'static str, &'static str)> = Vec::new();
        for cell in &cells {
            let name = (cell.configuration, cell.unit);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        for names in names.chunks(BESIDE) {
            let heads = names.iter().map(|(name, unit)| format!("{name} ({unit})"));
            let heads: Vec<String> = heads.collect();
            let title = format!(
                "{experiment}, {metric}: {}; each published, simulated, difference",
                heads.join("; ")
            );
            tables.push((title, cell_table(&cells, names)));
        }
    }
    tables
}

fn cell_table(cells: &[&PublishedComparison], names: &[(&'static str, &'static str)]) -> Table {
    let mut columns = vec![("case", Align::Left)];
    for (name, _) in names {
        columns.extend([
            (*name, Align::Right),
            ("sim.", Align::Right),
            ("diff.", Align::Right),
        ]);
    }
    let mut table = Table::new(&columns);
    let mut cases: Vec<&str> = Vec::new();
    for cell in cells {
        if !cases.contains(&cell.case.as_str()) {
            cases.push(&cell.case);
        }
    }
    for case in cases {
        let mut row = vec![case.to_owned()];
        for (name, _) in names {
            let is_it =
                |cell: &&&PublishedComparison| cell.case == case && cell.configuration == *name;
            row.extend(match cells.iter().find(is_it) {
                Some(cell) => cell_fields(cell),
                None => std::array::from_fn(|_| "-".to_owned()),
            });
        }
        table.row(row);
    }
    table
}

fn cell_fields(cell: &PublishedComparison) -> [String; 3] {
    let difference = cell.difference().map(|difference| match difference {
        Difference::Percent(percent) => format!("{percent:+.1}%"),
        Difference::Points(points) => format!("{points:+.1}"),
    });
    [
        or_dash(cell.published),
        cell.simulated
            .map_or_else(|| cell.role.name().to_owned(), number),
        difference.unwrap_or_else(|| "-".into()),
    ]
}

pub(super) const COMPARISON: [TextColumn<PublishedComparison>; 9] = [
    ("experiment", Align::Left, |of| of.experiment.into()),
    ("configuration", Align::Left, |of| of.configuration.into()),
    ("case", Align::Left, |of| of.case.clone()),
    ("metric", Align::Left, |of| of.metric.clone()),
    ("unit", Align::Left, |of| of.unit.into()),
    ("simulated", Align::Right, |of| or_dash(of.simulated)),
    ("published", Align::Right, |of| or_dash(of.published)),
    ("difference", Align::Right, |of| match of.difference() {
        None => "-".into(),
        Some(Difference::Percent(percent)) => format!("{percent:+.1} %"),
        Some(Difference::Points(points)) => format!("{points:+.1} points"),
    }),
    ("is", Align::Left, |of| of.role.name().into()),
];

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

/// Formats a number with its significant digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 || v.fract().abs() < 1e-9 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

fn plain(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

pub(super) fn csv(comparisons: &[PublishedComparison]) -> String {
    let rows = comparisons.iter().map(|comparison| {
        let mut fields = COMPARISON.map(|(.., cell)| cell(comparison));
        fields[5] = plain(comparison.simulated);
        fields[6] = plain(comparison.published);
        fields[7] = plain(comparison.difference().map(|difference| match difference {
            Difference::Percent(value) | Difference::Points(value) => value,
        }));
        fields
    });
    let head = COMPARISON.map(|(head, ..)| head.to_owned());
    csv_text(std::iter::once(head).chain(rows))
}

type SummaryColumn = (&'static str, fn(&Summary) -> String);

const SUMMARY_CSV: [SummaryColumn; 14] = [
    ("experiment", |of| of.experiment.into()),
    ("configuration", |of| of.configuration.into()),
    ("metric", |of| of.metric.clone()),
    ("unit", |of| of.unit.into()),
    ("is", |of| of.role.name().into()),
    ("cells", |of| of.cells.to_string()),
    ("published_mean", |of| of.published_mean.to_string()),
    ("simulated_mean", |of| of.simulated_mean.to_string()),
    ("mean_error", |of| of.mean_error.to_string()),
    ("mean_error_of_no_change", |of| {
        plain(of.mean_error_of_no_change)
    }),
    ("worst_case", |of| of.worst_case.clone()),
    ("worst_error", |of| of.worst_error.to_string()),
    ("zeros", |of| of.zeros.to_string()),
    ("not_modelled", |of| of.not_modelled.to_string()),
];

pub(super) fn summary_csv(summaries: &[Summary]) -> String {
    let head = SUMMARY_CSV.map(|(head, _)| head.to_owned());
    let rows = summaries
        .iter()
        .map(|of| SUMMARY_CSV.map(|(_, cell)| cell(of)));
    csv_text(std::iter::once(head).chain(rows))
}

#[cfg(test)]
mod tests {
    use crate::published::summaries;
    use crate::published::tests::comparison;

    use super::*;

    fn of(comparisons: Vec<PublishedComparison>) -> String {
        text(&[Reproduction {
            title: "Something",
            summaries: summaries(&comparisons),
            comparisons,
            notes: vec!["A note.".into()],
            files: Vec::new(),
        }])
    }

    #[test]
    fn what_was_published_comes_before_what_was_not() {
        let text = of(vec![
            comparison("20", Some(21_746.41), None),
            comparison("0", Some(3.5), Some(4.0)),
        ]);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("mean")).collect();
        assert!(lines[0].contains("3.50          4     -12.5 %  predicted"));
        assert!(lines[1].contains("21746          -           -"), "{text}");
        assert!(text.contains("- A note."), "{text}");
    }

    #[test]
    fn many_cases_are_a_table_below_what_they_come_to() {
        let cases = (0..6).map(|i| {
            let simulated = (i != 3).then_some(if i == 5 { 0.0 } else { f64::from(i) });
            comparison(&format!("program {i}"), simulated, Some(4.0))
        });
        let text = of(cases.collect());
        let summary = "driver      proactive      mean, us          4       1.40        2.60             -  -4.0 program 5  2 of 5             1  predicted";
        assert!(text.contains(summary), "{text}");
        assert!(text.find(summary) < text.find("program 0  "), "{text}");
        assert!(text.contains("program 3          4  not modelled        -"));
        assert!(!text.contains("Beside the published"), "{text}");
    }

    #[test]
    fn csv_has_plain_numbers() {
        let text = csv(&[
            comparison("20", Some(1.25), None),
            comparison("", None, Some(2.0)),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "driver,proactive,20,mean,us,1.25,,,predicted");
        assert_eq!(lines[2], "driver,proactive,,mean,us,,2,,not modelled");
    }
}
