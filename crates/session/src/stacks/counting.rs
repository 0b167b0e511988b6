//! Pauses in the counting of faults.
//!
//! Problem: a counted fault takes some 40 ns more, sampled or not (measured on Linux 6.18, docs/results/overhead.md). A
//! fault of a program that only touches new memory takes less than 2 us.
//!
//! Approach: a token bucket pays for counting. It holds enough tokens to count all faults of a program's start; a
//! lasting storm of faults is counted for a tenth of a second at a time. Samples after a pause represent the missed
//! faults as well.

use isotherm_engine::Nanos;

const FAULT_NS: f64 = 40.0;
/// Limit of saved tokens: a quarter of a million faults, a gigabyte of small pages.
const SAVED_NS_MAX: f64 = 10e6;
/// Tokens that are needed to resume counting.
const RESUME_NS: f64 = 1e6;

#[derive(Debug)]
pub(super) struct Counting {
    share: f64,
    saved_ns: f64,
    at: Nanos,
    is_on: bool,
    /// Rate while faults were last counted.
    faults_a_second: f64,
    /// Time at which counting was last paused.
    off_since: Nanos,
    pub(super) off: Nanos,
}

impl Counting {
    pub(super) fn new(share: f64, now: Nanos) -> Self {
        Self {
            share,
            saved_ns: SAVED_NS_MAX,
            at: now,
            is_on: true,
            faults_a_second: 0.0,
            off_since: now,
            off: Nanos(0),
        }
    }

    /// Takes the number of faults since the last call. Returns the new state of counting if it changes.
    pub(super) fn update(&mut self, now: Nanos, faults: u64) -> Option<bool> {
        let elapsed = now.since(self.at);
        self.at = now;
        let seconds = elapsed.0 as f64 / 1e9;
        self.saved_ns += self.share * elapsed.0 as f64 - FAULT_NS * faults as f64;
        self.saved_ns = self.saved_ns.min(SAVED_NS_MAX);
        if self.is_on {
            self.faults_a_second = faults as f64 / seconds.max(0.001);
        } else {
            self.off = self.off + elapsed;
        }
        let wanted = self.saved_ns > if self.is_on { 0.0 } else { RESUME_NS };
        if wanted == self.is_on {
            return None;
        }
        self.is_on = wanted;
        if !wanted {
            self.off_since = now;
        }
        Some(wanted)
    }

    /// Estimates the number of faults that were not counted in the pause that has just ended.
    pub(super) fn missed(&self, now: Nanos) -> u64 {
        let seconds = now.since(self.off_since).0 as f64 / 1e9;
        (self.faults_a_second * seconds) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the share of the time in which faults are counted, and the cost, at a given rate of faults.
    fn run(faults_a_second: u64, seconds: u64) -> (f64, f64) {
        let mut counting = Counting::new(0.0025, Nanos(0));
        let (mut is_on, mut counted) = (true, 0);
        let steps = seconds * 10;
        let mut on = 0;
        for step in 1..=steps {
            let faults = if is_on { faults_a_second / 10 } else { 0 };
            counted += faults;
            on += u64::from(is_on);
            let change = counting.update(Nanos::from_millis(step * 100), faults);
            is_on = change.unwrap_or(is_on);
        }
        let took = counted as f64 * FAULT_NS / 1e9 / seconds as f64;
        (on as f64 / steps as f64, took)
    }

    #[test]
    fn few_faults_are_all_counted_and_a_storm_for_its_share() {
        assert!(run(10_000, 60).0 > 0.99);
        let (on, took) = run(600_000, 60);
        assert!((0.05..0.15).contains(&on), "{on}");
        assert!(took < 0.0035, "{took}");
        // A program's start is counted from its first fault to its last.
        assert!(run(200_000, 1).0 > 0.99);
    }

    #[test]
    fn what_was_missed_is_about_what_comes_again() {
        let mut counting = Counting::new(0.0025, Nanos(0));
        let seconds = |n: u64| Nanos::from_millis(n * 1000);
        assert_eq!(counting.update(seconds(1), 600_000), Some(false));
        assert_eq!(counting.update(seconds(3), 0), None);
        let resumed = (4..200).find_map(|second| {
            let is_on = counting.update(seconds(second), 0)?;
            Some((is_on, counting.missed(seconds(second)), second))
        });
        let (is_on, missed, second) = resumed.expect("it goes on");
        assert!(is_on);
        assert_eq!(missed, 600_000 * (second - 1));
        assert_eq!(counting.off, seconds(second - 1));
    }
}
