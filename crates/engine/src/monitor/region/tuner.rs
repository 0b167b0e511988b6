//! Tuning of intervals towards a ratio of observed accesses.
//!
//! Problem: with a sampling interval too short for a workload nearly every page looks cold, with one too long nearly
//! every page looks hot. Either way a snapshot has no information, and the right value differs from program to program.
//!
//! Approach: DAMON's intervals goal (`kdamond_tune_intervals` in `mm/damon/core.c`): observe about 4 % of all accesses
//! that could be observed. Every few aggregations the score is computed: the observed share over the wanted one. If it
//! is below 1, both intervals are stretched by `2 - score` (up to twofold). If it is above 1, they are shrunk by `1.5 -
//! score / 2` (at most by half). All numbers are integers in basis points (per 10,000), as in the kernel.
//!
//! Limits: the score is taken from one interval only, so the intervals vary with a bursty program.

use super::regions::Region;
use crate::address::Nanos;
use crate::attributes::IntervalsGoal;

const ONE_BP: u64 = 10_000;

/// Counts aggregations until the next tuning.
#[derive(Clone, Debug)]
pub(crate) struct Tuner {
    goal: IntervalsGoal,
    aggregations: u32,
}

impl Tuner {
    pub(crate) fn new(goal: IntervalsGoal) -> Self {
        Self {
            goal,
            aggregations: 0,
        }
    }

    /// Counts an aggregation at its end, and returns the new sampling interval.
    pub(crate) fn next<'a>(
        &mut self,
        sample: Nanos,
        regions: impl Iterator<Item = &'a Region>,
        nr_accesses_max: u32,
    ) -> Nanos {
        self.aggregations += 1;
        if self.aggregations < self.goal.aggregations {
            return sample;
        }
        self.aggregations = 0;
        let factor_bp = adaptation_bp(score_bp(regions, nr_accesses_max, self.goal.access_bp));
        let tuned = (u128::from(sample.0) * u128::from(factor_bp) / u128::from(ONE_BP)) as u64;
        Nanos(tuned).clamp(self.goal.min_sample_interval, self.goal.max_sample_interval)
    }
}

/// Returns observed accesses over wanted ones, by bytes. Unknown regions count on neither side.
fn score_bp<'a>(
    regions: impl Iterator<Item = &'a Region>,
    nr_accesses_max: u32,
    goal_bp: u32,
) -> u64 {
    let (mut observed, mut most) = (0_u128, 0_u128);
    for region in regions.filter(|region| region.known) {
        let size = u128::from(region.range.len());
        observed += size * u128::from(region.nr_accesses);
        most += size * u128::from(nr_accesses_max);
    }
    let wanted = (most * u128::from(goal_bp) / u128::from(ONE_BP)).max(1);
    u64::try_from(observed * u128::from(ONE_BP) / wanted).unwrap_or(u64::MAX)
}

/// Returns the factor for the intervals.
fn adaptation_bp(score_bp: u64) -> u64 {
    if score_bp <= ONE_BP {
        2 * ONE_BP - score_bp
    } else {
        // Shrinking costs CPU time and gains little: never by more than half at once.
        let next = (2 * ONE_BP).saturating_sub(score_bp);
        ONE_BP / 2 + next / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_regions::regions_of;

    fn check(regions: &str, sample_ms: u64, wanted_ms: f64) {
        let mut tuner = Tuner::new(IntervalsGoal {
            aggregations: 2,
            ..IntervalsGoal::default()
        });
        let regions = regions_of(regions);
        let sample = Nanos::from_millis(sample_ms);
        let first = tuner.next(sample, regions.iter(), 20);
        assert_eq!(first, sample, "it waits for 2 aggregations");
        let tuned = tuner.next(sample, regions.iter(), 20);
        let difference_ms = tuned.as_secs_f64() * 1e3 - wanted_ms;
        assert!(difference_ms.abs() < 1e-6, "{tuned:?} from {regions:?}");
    }

    #[test]
    fn intervals_follow_the_observed_ratio() {
        // 4 % of 20 checks are 0.8 accesses on average.
        check("[0,1)=0 [1,5)=1", 100, 100.0);
        check("[0,5)=0", 100, 200.0);
        check("[0,10)=0 [10,15)=1 [15,20)=0", 100, 168.75);
        check("[0,5)=20", 100, 50.0);
        check("[0,1)=1 [1,6)=1", 100, 87.5);
        check("[0,2)=? [2,3)=0 [3,7)=1", 100, 100.0);
    }

    #[test]
    fn intervals_stay_in_their_bounds() {
        check("[0,5)=20", 6, 5.0);
        check("[0,5)=0", 9_000, 10_000.0);
    }
}
