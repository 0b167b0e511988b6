//! A quantity over time, and its distribution, in bounded memory.

use std::collections::BTreeMap;

use isotherm_engine::Nanos;
use serde::Serialize;

/// Most bins a [`Series`] holds; between half of it and all of it once full.
const MAX_BINS: usize = 1024;
/// Width of the first bins.
const FIRST_WIDTH: Nanos = Nanos::from_millis(1);
/// Most different values a [`WeightedValues`] tells apart.
const MAX_VALUES: usize = 1 << 15;

/// One step of a [`Series`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// When the step begins, since the beginning of the record.
    pub time_ns: Nanos,
    /// Least value seen in it.
    pub min: u64,
    /// Mean over time.
    pub mean: u64,
    /// Greatest value seen in it.
    pub max: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    weight: f64,
    sum: f64,
    min: u64,
    max: u64,
}

impl Bin {
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

/// A quantity over time: bins of equal width that doubles whenever the record outgrows them.
#[derive(Clone, Debug)]
pub struct Series {
    width: Nanos,
    /// By number; what is empty is absent, as a short-lived target's mostly are.
    bins: BTreeMap<u64, Bin>,
    total: Bin,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            width: FIRST_WIDTH,
            bins: BTreeMap::new(),
            total: Bin::default(),
        }
    }
}

impl Series {
    /// The quantity was `value` at `time` (since the beginning) and for `weight` on.
    pub fn push(&mut self, time: Nanos, weight: Nanos, value: u64) {
        while time.0 / self.width.0 >= MAX_BINS as u64 {
            self.double();
        }
        let weight = weight.0.max(1) as f64;
        let bin = Bin {
            weight,
            sum: weight * value as f64,
            min: value,
            max: value,
        };
        let index = time.0 / self.width.0;
        self.bins.entry(index).or_default().merge(bin);
        self.total.merge(bin);
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.total.weight == 0.0
    }

    /// Least, mean (over time) and greatest value, if there is any.
    pub fn summary(&self) -> Option<(u64, u64, u64)> {
        (!self.is_empty()).then(|| (self.total.min, mean(&self.total), self.total.max))
    }

    /// The steps that hold something, in order.
    pub fn points(&self) -> Vec<Point> {
        let bins = self.bins.iter();
        bins.map(|(index, bin)| Point {
            time_ns: Nanos(index * self.width.0),
            min: bin.min,
            mean: mean(bin),
            max: bin.max,
        })
        .collect()
    }

    fn double(&mut self) {
        self.width = Nanos(self.width.0 * 2);
        let mut halves: BTreeMap<u64, Bin> = BTreeMap::new();
        for (index, bin) in &self.bins {
            halves.entry(index / 2).or_default().merge(*bin);
        }
        self.bins = halves;
    }
}

fn mean(bin: &Bin) -> u64 {
    (bin.sum / bin.weight).round() as u64
}

/// A value below which a share of the distribution lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Percentile {
    /// The share, 0 to 100.
    pub percent: f64,
    /// The value.
    pub value: u64,
}

/// Weighted values, to ask for percentiles: exact up to [`MAX_VALUES`] different values, then rounded
/// down to a power of two that is as small as the bound allows.
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
    /// Adds `value`, as often as `weight` says.
    pub fn push(&mut self, value: u64, weight: f64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        *self
            .weights
            .entry(value / self.step * self.step)
            .or_default() += weight;
        while self.weights.len() > MAX_VALUES {
            self.step *= 2;
            let mut rounded: BTreeMap<u64, f64> = BTreeMap::new();
            for (value, weight) in &self.weights {
                *rounded.entry(value / self.step * self.step).or_default() += weight;
            }
            self.weights = rounded;
        }
    }

    /// By how much a percentile may be too low; 0 when exact.
    pub fn resolution(&self) -> u64 {
        self.step - 1
    }

    /// The least value that at least `percent` of the weight does not exceed (the nearest rank), for
    /// each of `percents`; 0 is the minimum, 100 the maximum. Empty if nothing was pushed.
    pub fn percentiles(&self, percents: &[f64]) -> Vec<Percentile> {
        if self.weights.is_empty() {
            return Vec::new();
        }
        let total: f64 = self.weights.values().sum();
        let value_at = |percent: f64| {
            if percent <= 0.0 {
                return self.min;
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
        let value = |&percent: &f64| Percentile {
            percent,
            value: if percent >= 100.0 {
                self.max
            } else {
                value_at(percent)
            },
        };
        percents.iter().map(value).collect()
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
        let found: Vec<u64> = distribution
            .percentiles(percents)
            .iter()
            .map(|p| p.value)
            .collect();
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
            series.push(
                Nanos::from_millis(second * 1000),
                Nanos::from_millis(1000),
                value,
            );
        }
        let points = series.points();
        assert!(points.len() <= MAX_BINS && points.len() > MAX_BINS / 2);
        assert_eq!(points.iter().map(|p| p.max).max(), Some(1_000));
        assert_eq!(series.summary(), Some((0, 1, 1_000)));
    }
}
