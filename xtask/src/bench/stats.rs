//! Medians and their spread.

use std::fmt;

use isotherm_workload::accuracy::median;
use serde::Serialize;

/// A few measurements of the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) count: usize,
}

impl Summary {
    /// `None` of nothing.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values.to_vec())?,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            count: values.len(),
        })
    }
}

/// `median [min..max]`, with the formatter's precision.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$}", self.median)?;
        if self.count > 1 {
            write!(f, " [{:.digits$}..{:.digits$}]", self.min, self.max)?;
        }
        Ok(())
    }
}

/// A cell of a table: the summary, or `-` where nothing could be measured.
pub(super) fn cell(values: &[f64], digits: usize) -> String {
    Summary::of(values).map_or_else(|| "-".into(), |summary| format!("{summary:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_the_median_and_the_spread() {
        for (values, text) in [
            (&[][..], "-"),
            (&[1.0], "1.0"),
            (&[3.0, 1.0, 2.0], "2.0 [1.0..3.0]"),
            (&[1.0, 2.0], "1.5 [1.0..2.0]"),
        ] {
            assert_eq!(cell(values, 1), text);
        }
    }
}
