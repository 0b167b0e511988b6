//! Access patterns: closed ranges of size, access frequency and age.

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;
use isotherm_engine::snapshot::RegionSnapshot;

/// Closed interval from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bounds<T> {
    pub min: T,
    pub max: T,
}

impl<T> Bounds<T> {
    /// Returns the interval from `min` to `max`.
    pub const fn new(min: T, max: T) -> Self {
        Self { min, max }
    }
}

impl<T: PartialOrd> Bounds<T> {
    /// Returns whether `value` lies within.
    pub fn contains(&self, value: &T) -> bool {
        self.min <= *value && *value <= self.max
    }
}

/// Access frequency of memory. The meaning of a number of samples depends on the user's intervals; a share means the
/// same for all intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Frequency {
    /// Accesses seen per aggregation interval (`nr_accesses`).
    Samples(u32),
    /// Share of the checks in which it was accessed, in per cent: 0 to 100.
    Percent(f64),
}

impl Frequency {
    /// Returns the accesses per aggregation interval of `nr_samples` checks.
    pub fn samples(self, nr_samples: u32) -> f64 {
        match self {
            Self::Samples(samples) => f64::from(samples),
            // In this order 55 % of 20 are 11, not a little more.
            Self::Percent(percent) => percent * f64::from(nr_samples) / 100.0,
        }
    }
}

/// Time for which memory has been accessed about as often as now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Age {
    /// Number of aggregation intervals.
    Intervals(u32),
    Time(Nanos),
}

/// Access pattern of the regions that a scheme is about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessPattern {
    /// Size in bytes.
    pub size: Bounds<u64>,
    /// Access frequency.
    pub nr_accesses: Bounds<Frequency>,
    pub age: Bounds<Age>,
}

impl AccessPattern {
    /// All memory with a known access state.
    pub const ANY: Self = Self {
        size: Bounds::new(0, u64::MAX),
        nr_accesses: Bounds::new(Frequency::Samples(0), Frequency::Samples(u32::MAX)),
        age: Bounds::new(Age::Intervals(0), Age::Intervals(u32::MAX)),
    };

    /// Returns whether a region matches, in a snapshot whose regions were checked `nr_samples` times. A region with an
    /// unknown access state does not match: unknown is not cold.
    pub fn matches(&self, region: &RegionSnapshot, nr_samples: u32) -> bool {
        self.for_samples(nr_samples).matches(region)
    }

    /// Returns the pattern for snapshots whose regions were checked `nr_samples` times: quicker to compare.
    pub(super) fn for_samples(&self, nr_samples: u32) -> PatternForSamples {
        let Bounds { min, max } = self.nr_accesses;
        let (intervals_min, time_min) = match self.age.min {
            Age::Intervals(intervals) => (intervals, Nanos(0)),
            Age::Time(time) => (0, time),
        };
        let (intervals_max, time_max) = match self.age.max {
            Age::Intervals(intervals) => (intervals, Nanos(u64::MAX)),
            Age::Time(time) => (u32::MAX, time),
        };
        PatternForSamples {
            size: self.size,
            nr_accesses: Bounds::new(min.samples(nr_samples), max.samples(nr_samples)),
            intervals: Bounds::new(intervals_min, intervals_max),
            time: Bounds::new(time_min, time_max),
        }
    }
}

/// An [`AccessPattern`] in the numbers of one snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatternForSamples {
    size: Bounds<u64>,
    nr_accesses: Bounds<f64>,
    intervals: Bounds<u32>,
    time: Bounds<Nanos>,
}

impl PatternForSamples {
    /// Returns the least and the greatest age of the pattern, in snapshots over `interval`.
    pub(super) fn ages(&self, interval: Nanos) -> (Nanos, Nanos) {
        let time = |intervals: u32| match intervals {
            u32::MAX => Nanos(u64::MAX),
            _ => Nanos(interval.0.saturating_mul(intervals.into())),
        };
        let (min, max) = (time(self.intervals.min), time(self.intervals.max));
        (self.time.min.max(min), self.time.max.min(max))
    }

    /// Multiplies the least age by `factor`; a least age in time counts as one second at least.
    #[must_use]
    pub(super) fn older_by(mut self, factor: u32) -> Self {
        if factor > 1 && self.intervals.min == 0 {
            let least = self.time.min.0.max(1_000_000_000);
            self.time.min = Nanos(least.saturating_mul(factor.into()));
        }
        self.intervals.min = self.intervals.min.saturating_mul(factor);
        self
    }

    #[must_use]
    pub(super) fn at_least(mut self, age: Nanos) -> Self {
        self.time.min = self.time.min.max(age);
        self
    }

    pub(super) fn has_size(&self, bytes: u64) -> bool {
        self.size.contains(&bytes)
    }

    pub(super) fn matches(&self, region: &RegionSnapshot) -> bool {
        region
            .nr_accesses
            .is_some_and(|nr| self.nr_accesses.contains(&f64::from(nr)))
            && self.intervals.contains(&region.age)
            && self.time.contains(&region.age_ns)
            && self.size.contains(&region.range.len())
    }
}
