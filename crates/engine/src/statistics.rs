//! Medians and percentiles of a few values, for all crates.
//!
//! Series that are too long to keep use a weighted, bounded distribution instead (`isotherm-report`).

use serde::Serialize;

/// Returns the middle value, or the mean of the two middle ones; `None` if there are no values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&values)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2]))
}

/// Returns the least of sorted values that at least `percent` percent of them do not exceed (the nearest rank); `None`
/// if there are no values.
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: u32) -> Option<T> {
    let rank = (sorted.len() * percent as usize).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Summary of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValueSummary {
    /// Number of values.
    pub n: usize,
    /// Middle value, or mean of the two middle ones.
    pub median: f64,
    /// Arithmetic mean.
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

impl ValueSummary {
    /// Summarises values; `None` if there are none. Values that are not finite are a bug of the caller.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(values.iter().all(|v| v.is_finite()), "only numbers");
        values.sort_by(f64::total_cmp);
        Some(Self {
            n: values.len(),
            median: median_of_sorted(&values)?,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            min: *values.first()?,
            max: *values.last()?,
        })
    }

    /// Returns the difference between greatest and least, in percent of the median; `None` if the median is zero.
    pub fn spread_percent(&self) -> Option<f64> {
        (self.median.abs() > 0.0).then(|| 100.0 * (self.max - self.min) / self.median.abs())
    }
}

/// Returns the arithmetic mean of values and its standard error; `None` for fewer than two values.
pub fn mean_and_error(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let variance = squares / (n - 1) as f64;
    Some((mean, (variance / n as f64).sqrt()))
}

/// Mean of a few differences, and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Number of differences.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Half the width of Student's 95 % interval about the mean; `None` for a single value.
    pub half_width: Option<f64>,
}

impl Interval {
    /// Computes the interval of `values`; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        let mean = ValueSummary::of(values.iter().copied())?.mean;
        let half_width = mean_and_error(&values).map(|(_, error)| student_t(n - 1) * error);
        Some(Self {
            n,
            mean,
            half_width,
        })
    }

    /// Returns least and greatest; `None` for a single value, which contains no information on noise.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        let half = self.half_width?;
        Some((self.mean - half, self.mean + half))
    }

    /// Returns whether `value` may be the true mean; always true for a single difference.
    pub fn may_be(&self, value: f64) -> bool {
        self.bounds()
            .is_none_or(|(low, high)| low <= value && value <= high)
    }
}

/// Returns the 0.975 quantile of Student's distribution. Beyond ten degrees of freedom it returns that of ten, which is
/// at most 14 % too wide.
fn student_t(degrees: usize) -> f64 {
    const QUANTILES: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    QUANTILES[degrees.clamp(1, QUANTILES.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let check = |values: &[f64], wanted: f64, mean: f64| {
            let summary = ValueSummary::of(values.iter().copied()).expect("there are values");
            assert_eq!((summary.median, summary.mean), (wanted, mean), "{values:?}");
            assert_eq!(median(values.to_vec()), Some(wanted), "{values:?}");
        };
        check(&[3.0], 3.0, 3.0);
        check(&[9.0, 1.0, 2.0], 2.0, 4.0);
        check(&[4.0, 1.0, 2.0, 5.0], 3.0, 3.0);
        assert_eq!(ValueSummary::of([]), None);
        assert_eq!(median(Vec::new()), None);
        assert_eq!(median(vec![1.0, f64::INFINITY]), Some(f64::INFINITY));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        // A whole rank is not rounded up: 0.55 * 100 is 55.00000000000001 in floating point.
        let values: Vec<u32> = (1..=100).collect();
        for percent in 1..=100 {
            assert_eq!(nearest_rank(&values, percent), Some(percent));
        }
        let longer: Vec<u32> = (1..=200).collect();
        assert_eq!(nearest_rank(&longer, 99), Some(198));
        assert_eq!(nearest_rank(&[7], 5), Some(7));
        assert_eq!(nearest_rank::<u64>(&[], 50), None);
    }

    #[test]
    fn a_spread_is_relative() {
        let summary = ValueSummary::of([90.0, 100.0, 110.0]).expect("there are values");
        assert_eq!(summary.spread_percent(), Some(20.0));
        let zero = ValueSummary::of([0.0]).expect("a value");
        assert_eq!(zero.spread_percent(), None);
    }

    #[test]
    fn an_interval_is_as_wide_as_students() {
        let check = |values: &[f64], mean: f64, bounds: Option<(f64, f64)>, noise: bool| {
            let interval = Interval::of(values.iter().copied()).expect("there are values");
            let rounded = interval
                .bounds()
                .map(|(low, high)| ((low * 1e3).round() / 1e3, (high * 1e3).round() / 1e3));
            assert_eq!((interval.mean, rounded), (mean, bounds), "{values:?}");
            assert_eq!(interval.may_be(0.0), noise, "{values:?}");
        };
        check(&[5.0], 5.0, None, true);
        check(&[1.0, 2.0, 3.0], 2.0, Some((-0.484, 4.484)), true);
        check(&[9.0, 10.0, 11.0], 10.0, Some((7.516, 12.484)), false);
        assert_eq!(Interval::of([]), None);
    }
}
