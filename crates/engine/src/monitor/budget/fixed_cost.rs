//! Computes the length of the next interval from its fixed cost, which does not depend on the clears.
//!
//! Problem: the CPU time reported by the kernel is sometimes far more than was used. On a shared virtual machine one
//! interval took 0.9 s while others took some milliseconds (most likely, the host had taken the processor away). Taken
//! literally, that stretched the interval to a minute without any result. Five of some 54 recordings had such an
//! outlier (experiments/results/shipped).
//!
//! The first interval, too, costs more than the next ones: the kernel runs our programs for the first time, memory is
//! allocated, all pages are new. It took 13 to 35 ms before 2 to 7 on redis, memcached, PostgreSQL, SQLite and a JVM of
//! up to 900 MiB. Taken literally, it made the second interval 4 s long, and schemes of 5 s began to act after 7.
//!
//! Approach: the median of the last three costs is used, and the lower of the first two. A first one alone counts as a
//! [`FIRST_SHARE`]th, and makes the interval at most [`FIRST_MOST`] times longer. A higher cost takes effect at once,
//! since the budget is a ceiling; a lower one takes effect by half each time.
//!
//! Limits: two outliers in three intervals are believed until two normal values follow.

use crate::address::Nanos;

/// Largest factor by which the first measurement may lengthen the interval.
const FIRST_MOST: u64 = 10;

/// Divisor of a first measurement, which mostly consists of one-time work: 5 to 8 times the next one.
const FIRST_SHARE: u64 = 6;

#[derive(Debug, Default)]
pub(crate) struct FixedCost {
    last_ns: [f64; 3],
    nr: usize,
}

impl FixedCost {
    pub(crate) fn add(&mut self, ns: f64) {
        self.last_ns[self.nr % 3] = ns;
        self.nr += 1;
    }

    /// Returns the interval after one of `interval`, such that costs stay within `share` of one CPU.
    pub(crate) fn next_interval(&self, interval: Nanos, share: f64) -> Nanos {
        let needed = Nanos((self.ns() / share) as u64);
        if self.nr == 1 {
            Nanos(needed.0 / FIRST_SHARE).min(Nanos(interval.0 * FIRST_MOST))
        } else if needed > interval {
            needed
        } else {
            Nanos(u64::midpoint(interval.0, needed.0))
        }
    }

    fn ns(&self) -> f64 {
        let [a, b, c] = self.last_ns;
        match self.nr {
            0 => 0.0,
            1 => a,
            2 => a.min(b),
            _ => a.min(b).max(a.max(b).min(c)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Nanos = Nanos::from_millis(400);

    /// Returns the intervals after each of these costs, in milliseconds, with half a per cent of a CPU.
    fn intervals(costs_ms: &[f64]) -> Vec<u64> {
        let (mut cost, mut interval) = (FixedCost::default(), FIRST);
        let next = |ms: &f64| {
            cost.add(ms * 1e6);
            interval = cost.next_interval(interval, 0.005);
            interval.0 / 1_000_000
        };
        costs_ms.iter().map(next).collect()
    }

    #[test]
    fn what_all_intervals_cost_is_heeded_by_the_second() {
        assert_eq!(intervals(&[85.0, 85.0, 85.0]), [2833, 17_000, 17_000]);
        assert_eq!(intervals(&[2.0, 85.0, 85.0]), [66, 400, 17_000]);
    }

    #[test]
    fn one_outlier_blinds_nobody() {
        assert_eq!(intervals(&[900.0, 2.0, 2.0, 2.0]), [4000, 2200, 1300, 850]);
        assert_eq!(intervals(&[2.0, 2.0, 900.0, 2.0]), [66, 400, 400, 400]);
    }

    #[test]
    fn a_first_one_is_mostly_of_what_is_done_once() {
        assert_eq!(intervals(&[30.0, 5.0, 5.0, 5.0]), [1000; 4]);
    }

    #[test]
    fn what_is_cheaper_is_believed_by_half_each_time() {
        let costs = [40.0, 40.0, 40.0, 10.0, 10.0, 10.0];
        assert_eq!(intervals(&costs), [1333, 8000, 8000, 8000, 5000, 3500]);
    }
}
