//! Medians and spreads of a few repeats. With three to ten repeats of what may have outliers a median
//! with its least and greatest says more than a mean with a deviation.

use serde::Serialize;

/// Some values in short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub n: usize,
    /// Middle one, or mean of the two middle ones.
    pub median: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Summary {
    /// `None` of no values. Values that are not numbers are our own mistake.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(values.iter().all(|v| v.is_finite()), "only numbers");
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let n = values.len();
        let median = f64::midpoint(values[(n - 1) / 2], values[n / 2]);
        Some(Self {
            n,
            median,
            mean: values.iter().sum::<f64>() / n as f64,
            min: first,
            max: last,
        })
    }

    /// Greatest less least, in percent of the median; `None` about zero.
    pub fn spread_percent(&self) -> Option<f64> {
        (self.median.abs() > 0.0).then(|| 100.0 * (self.max - self.min) / self.median.abs())
    }
}

/// How much more `value` is than `base`, in percent; `None` where `base` is zero.
pub fn overhead_percent(base: f64, value: f64) -> Option<f64> {
    (base.abs() > 0.0).then(|| 100.0 * (value / base - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let check = |values: &[f64], median: f64, mean: f64| {
            let summary = Summary::of(values.iter().copied()).expect("there are values");
            assert_eq!((summary.median, summary.mean), (median, mean), "{values:?}");
        };
        check(&[3.0], 3.0, 3.0);
        check(&[9.0, 1.0, 2.0], 2.0, 4.0);
        check(&[4.0, 1.0, 2.0, 5.0], 3.0, 3.0);
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn spread_and_overhead_are_relative() {
        let summary = Summary::of([90.0, 100.0, 110.0]).expect("there are values");
        assert_eq!(summary.spread_percent(), Some(20.0));
        assert_eq!(Summary::of([0.0]).and_then(|s| s.spread_percent()), None);
        assert_eq!(overhead_percent(50.0, 51.0).map(f64::round), Some(2.0));
        assert_eq!(overhead_percent(0.0, 1.0), None);
    }
}
