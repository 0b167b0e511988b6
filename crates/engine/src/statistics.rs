//! Medians and percentiles of a few values, for everyone who counts.
//!
//! A series too long to keep has a weighted, bounded distribution instead (`isotherm-report`).

use serde::Serialize;

/// The middle value; the mean of the two middle ones. `None` of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&values)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2]))
}

/// The least of some sorted values that at least so many percent of them do not exceed (the nearest
/// rank). `None` of nothing.
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: u32) -> Option<T> {
    let rank = (sorted.len() * percent as usize).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Some values in short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub n: usize,
    /// Middle one, or mean of the two middle ones.
    pub median: f64,
    /// Arithmetic mean.
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

impl Summary {
    /// `None` of no values. Values that are not numbers are our own mistake.
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

    /// Greatest less least, in percent of the median; `None` about zero.
    pub fn spread_percent(&self) -> Option<f64> {
        (self.median.abs() > 0.0).then(|| 100.0 * (self.max - self.min) / self.median.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let check = |values: &[f64], wanted: f64, mean: f64| {
            let summary = Summary::of(values.iter().copied()).expect("there are values");
            assert_eq!((summary.median, summary.mean), (wanted, mean), "{values:?}");
            assert_eq!(median(values.to_vec()), Some(wanted), "{values:?}");
        };
        check(&[3.0], 3.0, 3.0);
        check(&[9.0, 1.0, 2.0], 2.0, 4.0);
        check(&[4.0, 1.0, 2.0, 5.0], 3.0, 3.0);
        assert_eq!(Summary::of([]), None);
        assert_eq!(median(Vec::new()), None);
        assert_eq!(median(vec![1.0, f64::INFINITY]), Some(f64::INFINITY));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<u64> = (1..=200).collect();
        for (percent, wanted) in [(5, 10), (50, 100), (99, 198)] {
            assert_eq!(nearest_rank(&values, percent), Some(wanted));
        }
        assert_eq!(nearest_rank(&[7], 5), Some(7));
        assert_eq!(nearest_rank::<u64>(&[], 50), None);
    }

    #[test]
    fn a_rank_that_is_whole_is_not_rounded_up() {
        // 0.55 * 100 is 55.00000000000001 in floating point.
        let values: Vec<u64> = (1..=100).collect();
        for percent in 1..=100 {
            assert_eq!(nearest_rank(&values, percent), Some(u64::from(percent)));
        }
    }

    #[test]
    fn a_spread_is_relative() {
        let summary = Summary::of([90.0, 100.0, 110.0]).expect("there are values");
        assert_eq!(summary.spread_percent(), Some(20.0));
        assert_eq!(Summary::of([0.0]).and_then(|s| s.spread_percent()), None);
    }
}
