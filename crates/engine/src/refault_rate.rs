//! The share of pages paged out that is read back.

use crate::address::Nanos;

/// Half-life of both counts, in seconds.
const HALVE_AFTER: f64 = 60.0;
/// Least number of pages paged out that allows a statement about others.
const LEAST: f64 = 256.0;

/// Decaying counts of pages that were paged out and read back.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefaultRate {
    out: f64,
    back: f64,
    changed: Nanos,
}

impl RefaultRate {
    /// Adds `out` pages that were paged out, and `back` that were read back.
    pub fn add(&mut self, now: Nanos, out: u64, back: u64) {
        let weight = self.weight(now);
        self.out = self.out * weight + out as f64;
        self.back = self.back * weight + back as f64;
        self.changed = now;
    }

    /// Returns the part that was read back, 0 to 1; `None` if too little was paged out lately.
    pub fn returned(&self, now: Nanos) -> Option<f64> {
        let is_known = self.out * self.weight(now) >= LEAST;
        is_known.then(|| (self.back / self.out).min(1.0))
    }

    fn weight(&self, now: Nanos) -> f64 {
        libm::pow(0.5, now.since(self.changed).as_secs_f64() / HALVE_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_comes_back_is_of_late() {
        let second = |n: u64| Nanos(n * 1_000_000_000);
        let mut flows = RefaultRate::default();
        flows.add(second(1), 100, 100);
        assert_eq!(flows.returned(second(1)), None, "too little to tell");
        for n in 2..32 {
            flows.add(second(n), 200, 50);
        }
        let share = flows.returned(second(32)).expect("enough");
        assert!((0.25..0.28).contains(&share), "{share}");
        assert_eq!(flows.returned(second(3632)), None, "an hour later");
    }
}
