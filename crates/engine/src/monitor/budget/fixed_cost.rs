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

    /// Checks the intervals after each of these costs, both in milliseconds, with half a per cent of a CPU.
    #[track_caller]
    fn check(costs_ms: &[f64], wanted: &[u64]) {
        let (mut cost, mut interval) = (FixedCost::default(), Nanos::from_millis(400));
        let next = |ms: &f64| {
            cost.add(ms * 1e6);
            interval = cost.next_interval(interval, 0.005);
            interval.0 / 1_000_000
        };
        let intervals: Vec<u64> = costs_ms.iter().map(next).collect();
        assert_eq!(intervals, wanted, "{costs_ms:?}");
    }

    #[test]
    fn intervals_follow_the_costs_but_no_outlier() {
        // What all intervals cost is heeded by the second.
        check(&[85.0, 85.0, 85.0], &[2833, 17_000, 17_000]);
        check(&[2.0, 85.0, 85.0], &[66, 400, 17_000]);
        // An outlier, as the first one and later.
        check(&[900.0, 2.0, 2.0, 2.0], &[4000, 2200, 1300, 850]);
        check(&[2.0, 2.0, 900.0, 2.0], &[66, 400, 400, 400]);
        // A first one is mostly of work that is done once.
        check(&[30.0, 5.0, 5.0, 5.0], &[1000; 4]);
        // A lower cost takes effect by half each time.
        let costs = [40.0, 40.0, 40.0, 10.0, 10.0, 10.0];
        check(&costs, &[1333, 8000, 8000, 8000, 5000, 3500]);
    }
}
