//! Summaries of many values.

use isotherm_engine::statistics::nearest_rank;
use serde::Serialize;

/// Shares, in percent, at which published tables give percentiles.
pub const PERCENTS: [u32; 11] = [5, 10, 25, 30, 40, 50, 60, 75, 80, 90, 95];

/// Summary of some values, in their own unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Pairs of a percentage and its percentile, for each of [`PERCENTS`].
    pub percentiles: Vec<(u32, f64)>,
}

impl Distribution {
    /// Summarises `values`, in any order; without values all is zero.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        Self {
            count: values.len() as u64,
            min,
            max,
            mean,
            stddev: variance.sqrt(),
            percentiles: PERCENTS
                .into_iter()
                .filter_map(|p| Some((p, nearest_rank(&values, p)?)))
                .collect(),
        }
    }
}

/// Scrambles a number, so that results spread evenly (the finalizer of SplitMix64; Steele, Lea and Flood, 2014).
pub fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let distribution = Distribution::of((1..=100).rev().map(f64::from).collect());
        let facts = (distribution.min, distribution.max, distribution.mean);
        assert_eq!(facts, (1.0, 100.0, 50.5));
        let mut pairs = distribution.percentiles.iter();
        assert!(pairs.all(|(p, v)| (f64::from(*p) - *v).abs() < 1e-9));
        assert_eq!(Distribution::of(Vec::new()).count, 0);
    }
}
