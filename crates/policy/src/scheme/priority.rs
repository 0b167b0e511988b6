//! Priority of memory if a quota does not allow all of it.
//!
//! Approach: DAMON's (`damon_hot_score` in `mm/damon/ops-common.c`). A region's score, 0 to 99, is the weighted mean of
//! its access frequency and of the logarithm of its age; memory that is not accessed at all gets colder with age, other
//! memory hotter. In a histogram of bytes by score, the memory of the least score and all above it fills the quota.
//!
//! Limits: the weight of the size is accepted and ignored, as in the kernel. If both weights are zero, all memory is
//! equal.

use super::quota::Weights;
use super::{Action, Order};
use isotherm_engine::snapshot::RegionSnapshot;

/// Highest score.
pub const SCORE_MAX: u32 = 99;

const SUBSCORE_MAX: u64 = 100;
const AGE_IN_LOG_MAX: u64 = 32;

/// Returns how well this region suits `action`: 0 to [`SCORE_MAX`]. An unknown frequency counts as not accessed. Such a
/// region matches no pattern, so that its score is never used.
pub fn score(action: Action, region: &RegionSnapshot, nr_samples: u32, weights: Weights) -> u32 {
    match action.order() {
        Order::HotFirst => hotness(region, nr_samples, weights),
        Order::ColdFirst => SCORE_MAX - hotness(region, nr_samples, weights),
        Order::Equal => SCORE_MAX,
    }
}

fn hotness(region: &RegionSnapshot, nr_samples: u32, weights: Weights) -> u32 {
    let nr_accesses = f64::from(region.nr_accesses.unwrap_or(0.0));
    let share = nr_accesses * SUBSCORE_MAX as f64 / f64::from(nr_samples.max(1));
    let frequency = (share as u64).min(SUBSCORE_MAX);
    let age_in_log = (region.age_ns.0 / 1_000_000_000)
        .checked_ilog2()
        .map_or(0, |log| (u64::from(log) + 1).min(AGE_IN_LOG_MAX));
    let signed = if frequency == 0 {
        AGE_IN_LOG_MAX - age_in_log
    } else {
        AGE_IN_LOG_MAX + age_in_log
    };
    let age = signed * SUBSCORE_MAX / AGE_IN_LOG_MAX / 2;
    let by_frequency = u64::from(weights.nr_accesses_permil);
    let by_age = u64::from(weights.age_permil);
    let mean = (by_frequency * frequency + by_age * age) / (by_frequency + by_age).max(1);
    (mean * u64::from(SCORE_MAX) / SUBSCORE_MAX) as u32
}

/// Bytes by score.
pub(super) type Histogram = [u64; SCORE_MAX as usize + 1];

/// Returns the least score at which its memory and that of all higher scores fill `quota`; 0 if all memory together
/// does not fill it.
pub(super) fn least_that_fits(bytes: &Histogram, quota: u64) -> u32 {
    let mut sum = 0_u64;
    let fills = |bytes: &u64| {
        sum = sum.saturating_add(*bytes);
        sum >= quota
    };
    bytes.iter().rposition(fills).unwrap_or(0) as u32
}
