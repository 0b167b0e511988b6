//! Numbers beside published ones as text and CSV: first the summaries, then cell by cell.

use std::fmt::Write as _;

use isotherm_report::render::csv_text;
use isotherm_report::render::table::{Align, Table};
use isotherm_sim::published::{Difference, PublishedComparison, Summary};

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
            let _ = write!(text, "\n{}", summary_table(&of.summaries).text());
        }
        for (title, table) in cell_tables(&of.comparisons) {
            let _ = write!(text, "\n{title}\n{}", table.text());
        }
        let rows = rows(&of.comparisons);
        for (title, is_published) in [
            ("Beside the published numbers", true),
            ("Of which no number was published", false),
        ] {
            let of_it = rows
                .iter()
                .filter(|row| row.published.is_some() == is_published);
            let mut table = row_table();
            of_it.clone().for_each(|row| table.row(fields(row)));
            if of_it.count() > 0 {
                let _ = write!(text, "\n{title}\n{}", table.text());
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

pub(super) const SUMMARY_HEAD: [&str; 11] = [
    "experiment",
    "configuration",
    "of",
    "published",
    "simulated",
    "mean error",
    "of no change",
    "worst",
    "zeros",
    "not modelled",
    "is",
];

fn summary_table(summaries: &[Summary]) -> Table {
    let mut columns = SUMMARY_HEAD.map(|head| (head, Align::Left));
    for right in [3, 4, 5, 6, 8, 9] {
        columns[right].1 = Align::Right;
    }
    let mut table = Table::new(&columns);
    for summary in summaries {
        table.row(summary_fields(summary));
    }
    table
}

/// Returns the fields of a summary, for people: means over the cells, and their mean absolute difference.
pub(super) fn summary_fields(of: &Summary) -> Vec<String> {
    vec![
        of.experiment.into(),
        of.configuration.into(),
        format!("{}, {}", of.metric, of.unit),
        number(of.published_mean),
        number(of.simulated_mean),
        number(of.mean_error),
        of.mean_error_of_no_change
            .map_or_else(|| "-".into(), number),
        format!("{:+.1} {}", of.worst_error, of.worst_case),
        format!("{} of {}", of.zeros, of.cells),
        of.not_modelled.to_string(),
        of.role.name().into(),
    ]
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

/// Returns the published value, the simulated value, and the difference.
fn cell_fields(cell: &PublishedComparison) -> [String; 3] {
    let difference = cell.difference().map(|difference| match difference {
        Difference::Percent(percent) => format!("{percent:+.1}%"),
        Difference::Points(points) => format!("{points:+.1}"),
    });
    [
        cell.published.map_or_else(|| "-".into(), number),
        cell.simulated
            .map_or_else(|| cell.role.name().to_owned(), number),
        difference.unwrap_or_else(|| "-".into()),
    ]
}

pub(super) const HEAD: [&str; 9] = [
    "experiment",
    "configuration",
    "case",
    "metric",
    "unit",
    "simulated",
    "published",
    "difference",
    "is",
];

fn row_table() -> Table {
    let mut columns = HEAD.map(|head| (head, Align::Left));
    for column in &mut columns[5..8] {
        column.1 = Align::Right;
    }
    Table::new(&columns)
}

/// Returns the fields of a comparison, for people.
pub(super) fn fields(comparison: &PublishedComparison) -> Vec<String> {
    vec![
        comparison.experiment.into(),
        comparison.configuration.into(),
        comparison.case.clone(),
        comparison.metric.clone(),
        comparison.unit.into(),
        comparison.simulated.map_or_else(|| "-".into(), number),
        comparison.published.map_or_else(|| "-".into(), number),
        match comparison.difference() {
            None => "-".into(),
            Some(Difference::Percent(percent)) => format!("{percent:+.1} %"),
            Some(Difference::Points(points)) => format!("{points:+.1} points"),
        },
        comparison.role.name().into(),
    ]
}

/// Formats a number with its significant digits.
pub(super) fn number(value: f64) -> String {
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

/// Returns all numbers as CSV.
pub(super) fn csv(comparisons: &[PublishedComparison]) -> String {
    let rows = comparisons.iter().map(|comparison| {
        let mut fields = fields(comparison);
        fields[5] = plain(comparison.simulated);
        fields[6] = plain(comparison.published);
        fields[7] = plain(comparison.difference().map(|difference| match difference {
            Difference::Percent(value) | Difference::Points(value) => value,
        }));
        fields
    });
    let head = HEAD.map(str::to_owned).to_vec();
    csv_text(std::iter::once(head).chain(rows))
}

/// Returns the summaries as CSV.
pub(super) fn summary_csv(summaries: &[Summary]) -> String {
    let head = [
        "experiment",
        "configuration",
        "metric",
        "unit",
        "is",
        "cells",
        "published_mean",
        "simulated_mean",
        "mean_error",
        "mean_error_of_no_change",
        "worst_case",
        "worst_error",
        "zeros",
        "not_modelled",
    ];
    let rows = summaries.iter().map(|of| {
        vec![
            of.experiment.to_owned(),
            of.configuration.to_owned(),
            of.metric.clone(),
            of.unit.to_owned(),
            of.role.name().to_owned(),
            of.cells.to_string(),
            of.published_mean.to_string(),
            of.simulated_mean.to_string(),
            of.mean_error.to_string(),
            plain(of.mean_error_of_no_change),
            of.worst_case.clone(),
            of.worst_error.to_string(),
            of.zeros.to_string(),
            of.not_modelled.to_string(),
        ]
    });
    csv_text(std::iter::once(head.map(str::to_owned).to_vec()).chain(rows))
}

#[cfg(test)]
mod tests {
    use isotherm_sim::published::{Role, summaries};

    use super::*;

    fn comparison(
        case: &str,
        simulated: Option<f64>,
        published: Option<f64>,
    ) -> PublishedComparison {
        PublishedComparison {
            experiment: "driver",
            configuration: "proactive",
            case: case.into(),
            metric: "mean".into(),
            unit: "us",
            simulated,
            published,
            role: simulated.map_or(Role::NotModelled, |_| Role::Predicted),
        }
    }

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
        assert!(
            lines[0].contains("3.50          4     -12.5 %  predicted"),
            "{text}"
        );
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
        assert!(
            text.contains("program 3          4  not modelled        -"),
            "{text}"
        );
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
