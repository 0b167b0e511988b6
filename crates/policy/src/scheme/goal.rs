//! Tuning of a quota towards its goals.
//!
//! Approach: DAMON's feedback loop (`damon_feed_loop_next_input` and `damos_goal_tune_esz_bp_*` in `mm/damon/core.c`).
//! The score is the highest of `current / target` over all goals, in ten-thousandths: the one that makes the scheme
//! least aggressive. `consist` changes the quota in proportion to the deviation, from one byte on. `temporal` gives the
//! full quota until the score reaches 10,000, then none.
//!
//! Limits: `consist` at most doubles the quota in a window. From one byte it thus takes twelve windows to a page and
//! thirty to a gigabyte.
//!
//! Differences from the kernel: it reads an unreadable metric as zero, which raises the quota. It takes the first
//! pressure reading for pressure since the system started. Here the quota is not raised while a goal is unknown (known
//! ones may lower it), and a first pressure reading only starts the difference. The kernel takes the quota of a reached
//! `temporal` goal, 0, for no quota at all. Here 0 allows no memory, as its documentation says.

use serde::{Deserialize, Serialize};

use super::facts::{SystemFacts, ten_thousandths};
use super::quota::{GoalMetric, Quota, Tuner};

/// The score of a goal that is just reached.
const REACHED: u64 = 10_000;
/// Least quota, in ten-thousandths of a byte; below it a proportion could become zero for good.
const INPUT_MIN: u64 = 10_000;

/// State of a goal in the last window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GoalState {
    /// Measured value, in the metric's unit; `None`: it could not be measured, and does not tune.
    pub current: Option<u64>,
    /// Measured value in ten-thousandths of the desired one.
    pub score_bp: Option<u64>,
    /// The pressure counter at the last reading.
    #[serde(skip)]
    pub(super) last_psi_total_us: Option<u64>,
}

/// Returns the next quota in ten-thousandths of a byte, after `last`. Updates `states`, one for each goal.
pub(super) fn tune(
    quota: &Quota,
    scheme: usize,
    facts: &SystemFacts,
    states: &mut Vec<GoalState>,
    last: u64,
) -> u64 {
    states.resize(quota.goals.len(), GoalState::default());
    let mut highest = 0;
    let mut all_known = true;
    for (goal, state) in quota.goals.iter().zip(states) {
        let value = facts.value(goal, scheme);
        state.current = if goal.metric == GoalMetric::SomeMemPsiUs {
            let last = std::mem::replace(&mut state.last_psi_total_us, value);
            let change = |(now, last): (u64, u64)| now.saturating_sub(last);
            value.zip(last).map(change)
        } else {
            value
        };
        let score = |current| ten_thousandths(current, goal.target_value.max(1));
        state.score_bp = state.current.map(score);
        all_known &= state.score_bp.is_some();
        highest = highest.max(state.score_bp.unwrap_or(0));
    }
    let next = match quota.tuner {
        Tuner::Consist => next_input(last.max(INPUT_MIN), highest),
        Tuner::Temporal if highest >= REACHED => 0,
        Tuner::Temporal if quota.bytes > 0 => quota.bytes.saturating_mul(10_000),
        Tuner::Temporal => u64::MAX,
    };
    if all_known { next } else { next.min(last) }
}

/// Returns `last`, changed in proportion to the difference between `score` and 10,000.
fn next_input(last: u64, score: u64) -> u64 {
    if score >= 2 * REACHED {
        return INPUT_MIN;
    }
    let compensation =
        (u128::from(last) * u128::from(score.abs_diff(REACHED)) / u128::from(REACHED)) as u64;
    if score > REACHED {
        (last - compensation).max(INPUT_MIN)
    } else {
        last.saturating_add(compensation)
    }
}

#[cfg(test)]
mod tests {
    use super::next_input;

    fn check(last: u64, score: u64, wanted: u64) {
        assert_eq!(next_input(last, score), wanted, "{last} at {score}");
    }

    #[test]
    fn the_quota_changes_in_proportion_to_what_is_missing() {
        // From mm/damon/tests/core-kunit.h (damon_test_feed_loop_next_input): it rises below the
        // goal, the more the farther away, and falls above it.
        check(900_000, 10_000, 900_000);
        check(900_000, 200, 1_782_000);
        check(900_000, 2_000, 1_620_000);
        check(900_000, 15_000, 450_000);
        check(900_000, 18_000, 180_000);
        check(900_000, 20_000, 10_000);
        check(900_000, u64::MAX, 10_000);
        check(10_000, 15_000, 10_000);
        check(u64::MAX, 0, u64::MAX);
        check(u64::MAX, 15_000, u64::MAX / 2 + 1);
    }
}
