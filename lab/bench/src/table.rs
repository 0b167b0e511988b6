//! Plain tables, with columns as wide as their cells; medians and means with their spread, as cells.

use std::fmt;

use isotherm_engine::statistics::{Interval, ValueSummary};

pub(super) struct Table {
    title: String,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table. The cells of its `head` are between bars: `a | b`.
    pub(super) fn new(title: impl Into<String>, head: &'static str) -> Self {
        Self {
            title: title.into(),
            head: head.split(" | ").collect(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "a cell for each column");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.head[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        writeln!(f, "{}", self.title)?;
        let head = self.head.iter().map(ToString::to_string).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let line: Vec<String> = std::iter::zip(row, &widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            writeln!(f, "  {}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Formats the median of the finite values, with the least and greatest of several; `-` if nothing could be measured.
pub(super) fn cell(values: &[f64], digits: usize) -> String {
    let measured = values.iter().copied().filter(|value| value.is_finite());
    let Some(all) = ValueSummary::of(measured) else {
        return "-".into();
    };
    let text = |value: f64| format!("{value:.digits$}");
    match all.n {
        1 => text(all.median),
        _ => format!(
            "{} [{}..{}]",
            text(all.median),
            text(all.min),
            text(all.max)
        ),
    }
}

/// Formats a value; `-` if it is not known.
pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// Formats the mean of the finite values with half of its 95 % interval; `-` if nothing could be measured.
pub(super) fn mean_cell(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let measured = values.into_iter().filter(|value| value.is_finite());
    let Some(interval) = Interval::of(measured) else {
        return "-".into();
    };
    let half = interval.half_width;
    let half = half.map_or_else(String::new, |half| format!(" ± {half:.digits$}"));
    format!("{:.digits$}{half}", interval.mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_the_median_or_the_mean_and_the_spread() {
        for (values, median, mean) in [
            (&[][..], "-", "-"),
            (&[1.0], "1.0", "1.0"),
            (&[3.0, 1.0, 2.0], "2.0 [1.0..3.0]", "2.0 ± 2.5"),
            (&[1.0, 2.0], "1.5 [1.0..2.0]", "1.5 ± 6.4"),
        ] {
            assert_eq!(cell(values, 1), median);
            assert_eq!(mean_cell(values.iter().copied(), 1), mean);
        }
        assert_eq!(cell(&[f64::NAN], 1), "-");
        assert_eq!(mean_cell([f64::NAN], 1), "-");
    }
}
