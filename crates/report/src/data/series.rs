//! A quantity over time, and its distribution, in bounded memory.

use std::collections::BTreeMap;

use isotherm_engine::Nanos;
use serde::Serialize;

pub use isotherm_render::plot::Point;

/// The largest number of bins of a [`Series`]; a full one has between half of it and all of it.
const MAX_BINS: usize = 1024;
const FIRST_WIDTH: Nanos = Nanos::from_millis(1);
/// The largest number of different values in [`WeightedValues`].
const MAX_VALUES: usize = 1 << 15;

/// The mean of a quantity over time, and its extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeMean {
    weight: f64,
    sum: f64,
    min: u64,
    max: u64,
}

impl TimeMean {
    fn of(length: Nanos, value: u64) -> Self {
        let weight = length.0.max(1) as f64;
        Self {
            weight,
            sum: weight * value as f64,
            min: value,
            max: value,
        }
    }

    pub(crate) fn push(&mut self, length: Nanos, value: u64) {
        self.merge(Self::of(length, value));
    }

    pub(crate) fn mean(&self) -> u64 {
        (self.sum / self.weight).round() as u64
    }

    fn merge(&mut self, other: Self) {
        if self.weight == 0.0 {
            *self = other;
        } else if other.weight > 0.0 {
            self.weight += other.weight;
            self.sum += other.sum;
            self.min = self.min.min(other.min);
            self.max = self.max.max(other.max);
        }
    }
}

/// A quantity over time in bins of equal width, which doubles whenever the record outgrows them.
#[derive(Clone, Debug)]
pub struct Series {
    width: Nanos,
    /// Bins by number; empty bins are absent, like most bins of a short-lived target.
    bins: BTreeMap<u64, TimeMean>,
    total: TimeMean,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            width: FIRST_WIDTH,
            bins: BTreeMap::new(),
            total: TimeMean::default(),
        }
    }
}

impl Series {
    /// Adds `value` at `time` (since the beginning) for the duration `weight`.
    pub fn push(&mut self, time: Nanos, weight: Nanos, value: u64) {
        while time.0 / self.width.0 >= MAX_BINS as u64 {
            self.double();
        }
        let bin = TimeMean::of(weight, value);
        let index = time.0 / self.width.0;
        self.bins.entry(index).or_default().merge(bin);
        self.total.merge(bin);
    }

    /// Returns whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.total.weight == 0.0
    }

    /// Returns the lowest, the mean (over time) and the highest value, if there is any.
    pub fn summary(&self) -> Option<(u64, u64, u64)> {
        (!self.is_empty()).then(|| (self.total.min, self.total.mean(), self.total.max))
    }

    /// Returns the steps with values, in order.
    pub fn points(&self) -> Vec<Point> {
        let bins = self.bins.iter();
        bins.map(|(index, bin)| Point {
            time_ns: Nanos(index * self.width.0),
            min: bin.min,
            mean: bin.mean(),
            max: bin.max,
        })
        .collect()
    }

    fn double(&mut self) {
        self.width = Nanos(self.width.0 * 2);
        let mut halves: BTreeMap<u64, TimeMean> = BTreeMap::new();
        for (index, bin) in &self.bins {
            halves.entry(index / 2).or_default().merge(*bin);
        }
        self.bins = halves;
    }
}

/// A percentile of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Percentile {
    /// The share, 0 to 100.
    pub percent: f64,
    /// The value.
    pub value: u64,
}

/// Weighted values for percentiles. They are exact up to [`MAX_VALUES`] different values, then rounded down to the
/// smallest power of two within that bound.
#[derive(Clone, Debug)]
pub struct WeightedValues {
    weights: BTreeMap<u64, f64>,
    step: u64,
    max: u64,
    min: u64,
}

impl Default for WeightedValues {
    fn default() -> Self {
        Self {
            weights: BTreeMap::new(),
            step: 1,
            max: 0,
            min: u64::MAX,
        }
    }
}

impl WeightedValues {
    /// Adds `value` with a weight.
    pub fn push(&mut self, value: u64, weight: f64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        let rounded = self.weights.entry(value / self.step * self.step);
        *rounded.or_default() += weight;
        while self.weights.len() > MAX_VALUES {
            self.step *= 2;
            let mut rounded: BTreeMap<u64, f64> = BTreeMap::new();
            for (value, weight) in &self.weights {
                *rounded.entry(value / self.step * self.step).or_default() += weight;
            }
            self.weights = rounded;
        }
    }

    /// Returns the largest error of a percentile, which may be too low by this amount; 0 when exact.
    pub fn resolution(&self) -> u64 {
        self.step - 1
    }

    /// Returns the lowest value that at least `percent` of the weight does not exceed (the nearest rank), for each of
    /// `percents`. The percentile 0 is the minimum, 100 the maximum. The result is empty if nothing was pushed.
    pub fn percentiles(&self, percents: &[f64]) -> Vec<Percentile> {
        if self.weights.is_empty() {
            return Vec::new();
        }
        let total: f64 = self.weights.values().sum();
        let value_at = |percent: f64| {
            if percent <= 0.0 {
                return self.min;
            }
            if percent >= 100.0 {
                return self.max;
            }
            let wanted = total * percent / 100.0;
            let mut below = 0.0;
            let hit = self.weights.iter().find(|(_, weight)| {
                below += **weight;
                // Sums of many weights miss 100 % by rounding.
                below >= wanted * (1.0 - 1e-12)
            });
            hit.map_or(self.max, |(value, _)| *value)
                .clamp(self.min, self.max)
        };
        let percentile = |&percent: &f64| Percentile {
            percent,
            value: value_at(percent),
        };
        percents.iter().map(percentile).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_percentiles(values: &[u64], percents: &[f64], expected: &[u64]) {
        let mut distribution = WeightedValues::default();
        for &value in values {
            distribution.push(value, 1.0);
        }
        let found = distribution.percentiles(percents);
        let found: Vec<u64> = found.iter().map(|p| p.value).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let five = [0.0, 25.0, 50.0, 75.0, 100.0];
        check_percentiles(&[4, 1, 3, 2], &five, &[1, 1, 2, 3, 4]);
        check_percentiles(&[7], &five, &[7; 5]);
        check_percentiles(&[], &five, &[]);
    }

    #[test]
    fn a_large_distribution_stays_bounded_and_says_its_resolution() {
        let mut distribution = WeightedValues::default();
        for value in 0..200_000_u64 {
            distribution.push(value * 7, 1.0);
        }
        assert!(distribution.weights.len() <= MAX_VALUES);
        let resolution = distribution.resolution();
        assert!(resolution > 0 && resolution < 128, "{resolution}");
        let found = distribution.percentiles(&[0.0, 50.0, 100.0]);
        assert_eq!((found[0].value, found[2].value), (0, 199_999 * 7));
        assert!(found[1].value.abs_diff(100_000 * 7) <= resolution + 7);
    }

    #[test]
    fn a_series_doubles_its_bins_and_keeps_extremes() {
        let mut series = Series::default();
        for second in 0..5_000_u64 {
            let value = if second == 1234 { 1_000 } else { second % 2 };
            let time = Nanos::from_millis(second * 1000);
            series.push(time, Nanos::from_millis(1000), value);
        }
        let points = series.points();
        assert!(points.len() <= MAX_BINS && points.len() > MAX_BINS / 2);
        assert_eq!(points.iter().map(|p| p.max).max(), Some(1_000));
        assert_eq!(series.summary(), Some((0, 1, 1_000)));
    }
}
