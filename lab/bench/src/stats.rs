//! Medians and their spread, as cells of tables.

use isotherm_engine::statistics::ValueSummary;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_the_median_and_the_spread() {
        for (values, text) in [
            (&[][..], "-"),
            (&[f64::NAN], "-"),
            (&[1.0], "1.0"),
            (&[3.0, 1.0, 2.0], "2.0 [1.0..3.0]"),
            (&[1.0, 2.0], "1.5 [1.0..2.0]"),
        ] {
            assert_eq!(cell(values, 1), text);
        }
    }
}
