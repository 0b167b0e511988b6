//! DAMON's monitoring attributes, by its names and with its defaults (`struct damon_attrs`,
//! `Documentation/admin-guide/mm/damon/usage.rst`).

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::address::Nanos;

/// Default share of one CPU that monitoring may take, the time that it takes from the targets included.
pub const CPU_BUDGET: f64 = 0.01;
/// Upper bound of checks per aggregation interval; it keeps every count well inside 32 bits.
const NR_SAMPLES_MAX: u64 = 1 << 16;
/// Upper bound of regions: at about 64 bytes each, they take 1 GiB.
const NR_REGIONS_MAX: u32 = 1 << 24;

/// Attributes of monitoring by regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attributes {
    /// Time between two checks.
    pub sample_interval: Nanos,
    /// Time over which checks are counted; then regions are merged, published and split.
    pub aggregation_interval: Nanos,
    /// Time between two reads of the targets' mappings.
    pub update_interval: Nanos,
    /// Divisor of the monitored bytes: no region grows beyond the quotient.
    pub min_nr_regions: u32,
    /// Upper bound of regions, all targets together: regions are not split beyond it.
    pub max_nr_regions: u32,
    /// Goal that tunes the intervals towards a ratio of observed accesses.
    pub intervals_goal: Option<IntervalsGoal>,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Attributes {
    /// Returns the number of checks in an aggregation interval.
    pub fn nr_samples(&self) -> u32 {
        (self.aggregation_interval.0 / self.sample_interval.0.max(1)).max(1) as u32
    }

    /// Checks whether an engine can work with these attributes.
    pub fn validate(&self) -> Result<(), AttributesError> {
        let intervals = [
            ("sampling", self.sample_interval),
            ("aggregation", self.aggregation_interval),
            ("update", self.update_interval),
        ];
        if let Some((which, _)) = intervals.iter().find(|(_, interval)| interval.0 == 0) {
            return Err(AttributesError::ZeroInterval { which });
        }
        if self.sample_interval > self.aggregation_interval {
            return Err(AttributesError::Backwards {
                sample_ns: self.sample_interval.0,
                aggregation_ns: self.aggregation_interval.0,
            });
        }
        if self.aggregation_interval.0 / self.sample_interval.0 > NR_SAMPLES_MAX {
            return Err(AttributesError::TooManySamples);
        }
        if self.min_nr_regions < 3
            || self.min_nr_regions > self.max_nr_regions
            || self.max_nr_regions > NR_REGIONS_MAX
        {
            return Err(AttributesError::RegionCounts {
                min: self.min_nr_regions,
                max: self.max_nr_regions,
            });
        }
        self.intervals_goal
            .map_or(Ok(()), |goal| goal.validate(self.sample_interval))
    }
}

impl Default for Attributes {
    /// Returns DAMON's defaults: 5 ms / 100 ms / 1 s, 10 to 1000 regions.
    fn default() -> Self {
        Self {
            sample_interval: Nanos::from_millis(5),
            aggregation_interval: Nanos::from_millis(100),
            update_interval: Nanos::from_millis(1000),
            min_nr_regions: 10,
            max_nr_regions: 1000,
            intervals_goal: None,
            seed: 1,
        }
    }
}

/// The ratio of observed accesses towards which the intervals are tuned (DAMON's `intervals_goal`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IntervalsGoal {
    /// Accesses to observe, per 10,000 of the possible ones.
    pub access_bp: u32,
    /// Aggregation intervals between two tunings.
    pub aggregations: u32,
    /// Least sampling interval.
    pub min_sample_interval: Nanos,
    /// Largest sampling interval.
    pub max_sample_interval: Nanos,
}

impl IntervalsGoal {
    fn validate(&self, sample_interval: Nanos) -> Result<(), AttributesError> {
        let bounds = self.min_sample_interval..=self.max_sample_interval;
        if self.access_bp == 0 || self.access_bp > 10_000 || self.aggregations == 0 {
            Err(AttributesError::Goal)
        } else if self.min_sample_interval.0 == 0 || !bounds.contains(&sample_interval) {
            Err(AttributesError::OutsideGoal {
                sample_ns: sample_interval.0,
                min_ns: self.min_sample_interval.0,
                max_ns: self.max_sample_interval.0,
            })
        } else {
            Ok(())
        }
    }
}

impl Default for IntervalsGoal {
    /// Returns damo's default: 4 % every 3 aggregations, between 5 ms and 10 s.
    fn default() -> Self {
        Self {
            access_bp: 400,
            aggregations: 3,
            min_sample_interval: Nanos::from_millis(5),
            max_sample_interval: Nanos::from_millis(10_000),
        }
    }
}

/// Reason why attributes were refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum AttributesError {
    #[error("the {which} interval is zero; give it at least a millisecond or so")]
    ZeroInterval { which: &'static str },
    #[error(
        "the sampling interval ({sample_ns} ns) is longer than the aggregation interval \
         ({aggregation_ns} ns); lengthen the latter"
    )]
    Backwards { sample_ns: u64, aggregation_ns: u64 },
    #[error("over 65,536 samples in an aggregation interval; lengthen the sampling interval")]
    TooManySamples,
    #[error(
        "cannot keep between {min} and {max} regions; the least must be 3 or more, and no more \
         than the most, which ends at 16,777,216"
    )]
    RegionCounts { min: u32, max: u32 },
    #[error(
        "an intervals goal needs an access ratio of 1 to 10,000 (per 10,000) and at least one \
         aggregation"
    )]
    Goal,
    #[error(
        "the sampling interval ({sample_ns} ns) lies outside the intervals goal's bounds \
         ({min_ns} to {max_ns} ns); move one of them"
    )]
    OutsideGoal {
        sample_ns: u64,
        min_ns: u64,
        max_ns: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Attributes), wanted: &str) {
        let mut attributes = Attributes::default();
        change(&mut attributes);
        let got = attributes.validate().map_err(|error| error.to_string());
        match got {
            Ok(()) => assert_eq!(wanted, "fine"),
            Err(message) => assert!(message.contains(wanted), "{message:?} lacks {wanted:?}"),
        }
    }

    #[test]
    fn attributes_are_refused_with_the_reason() {
        check(|_| (), "fine");
        let zero = "sampling interval is zero";
        check(|a| a.sample_interval = Nanos(0), zero);
        check(|a| a.sample_interval = Nanos::from_millis(200), "lengthen");
        check(|a| a.sample_interval = Nanos(1), "65,536");
        check(|a| a.min_nr_regions = 2, "between 2 and 1000");
        check(|a| a.max_nr_regions = 9, "between 10 and 9");
        let goal = |a: &mut Attributes| {
            a.sample_interval = Nanos::from_millis(1);
            a.intervals_goal = Some(IntervalsGoal::default());
        };
        check(goal, "outside");
    }
}
