//! Medians and means with their spread, as cells of tables.

use isotherm_engine::statistics::{Interval, ValueSummary};

/// Formats the median of the finite values, with the least and greatest of several; `-` if nothing could be measured.
pub(super) fn cell(values: &[f64], digits: usize) -> String {
    let measured = values.iter().copied().filter(|value| value.is_finite());
    let Some(ValueSummary {
        n,
        median,
        min,
        max,
        ..
    }) = ValueSummary::of(measured)
    else {
        return "-".into();
    };
    match n {
        1 => format!("{median:.digits$}"),
        _ => format!("{median:.digits$} [{min:.digits$}..{max:.digits$}]"),
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
