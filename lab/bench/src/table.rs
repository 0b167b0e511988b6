//! Tables on the terminal; medians and means with their spread, as cells.

use std::fmt;

use isotherm_engine::statistics::{Interval, ValueSummary};

/// A table under a title.
pub(super) struct Table {
    title: String,
    table: isotherm_render::table::Table,
}

impl Table {
    /// Creates a table. The cells of its `head` are between bars: `a | b`.
    pub(super) fn new(title: impl Into<String>, head: &'static str) -> Self {
        Self {
            title: title.into(),
            table: isotherm_render::table::Table::of(
                &head.replace(" | ", "|"),
                <[Vec<String>; 0]>::default(),
            ),
        }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.table.row(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let text = self.table.text();
        text.lines().try_for_each(|line| writeln!(f, "  {line}"))
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
