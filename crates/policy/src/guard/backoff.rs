//! Back-off: the factor by which memory must be idle longer than schemes ask, when pages are read back.
//!
//! Problem: the cost of a page is the same whenever it is paged out and read back; its benefit is the time that it
//! stays away. If a program reads all of its memory, some of it more often than the rest, that time is about the page's
//! idle time: the longer a page was idle, the longer it will be. A guard that allows a fixed loss per second thus gains
//! most from the oldest pages. It wastes the loss on pages that schemes have just begun to ask for.
//!
//! Approach: the least age for a page-out is the scheme's, times a factor. The factor is 1 at first. It doubles if
//! waits for memory that was read back take most of the allowed loss, and halves if they take little of it.

use isotherm_engine::address::Nanos;

/// Half-life of the waits and of the allowed loss, in seconds.
const HALVE_AFTER: f64 = 5.0;
/// Cap on a wait, in multiples of the allowed loss: one long wait is forgotten as soon as a short one.
const WAITED_MOST: f64 = 2.0;
/// Share of the allowed loss above which waits are too long: acting takes the rest.
const MUCH: f64 = 0.75;
/// Share of the allowed loss below which younger memory may be paged out.
const LITTLE: f64 = 0.25;
/// Least time between two increases: until page-outs of another age show in the refaults.
const RAISE_EVERY: Nanos = Nanos::from_millis(20_000);
const LOWER_EVERY: Nanos = Nanos::from_millis(60_000);
/// Largest exponent. A scheme of 5 s then asks for five minutes.
const MOST: u32 = 6;

#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    /// Binary logarithm of the factor.
    exponent: u32,
    changed: Nanos,
    allowed: f64,
    waited: f64,
}

impl Backoff {
    /// Takes in the seconds `elapsed` until `now`, with the loss that was allowed and the time that was waited.
    pub(super) fn observe(&mut self, now: Nanos, elapsed: f64, allowed: Nanos, waited: Nanos) {
        let weight = libm::pow(0.5, elapsed / HALVE_AFTER);
        self.allowed = self.allowed * weight + allowed.0 as f64;
        let waited = (waited.0 as f64).min(WAITED_MOST * allowed.0 as f64);
        self.waited = self.waited * weight + waited;
        let share = self.waited / self.allowed.max(1.0);
        let since = now.since(self.changed);
        if share > MUCH && self.exponent < MOST && (self.exponent == 0 || since >= RAISE_EVERY) {
            self.exponent += 1;
            self.changed = now;
        } else if share < LITTLE && self.exponent > 0 && since >= LOWER_EVERY {
            self.exponent -= 1;
            self.changed = now;
        }
    }

    /// Returns the share of the allowed loss that predicted refaults may take, with the cost of acting on these pages
    /// again: less while waits exceed it, as no prediction knows memory that leaves no swap entry.
    pub(super) fn for_returns(&self) -> f64 {
        MUCH * ((MUCH * self.allowed).max(1.0) / self.waited.max(1.0)).min(1.0)
    }

    pub(super) fn factor(&self) -> u32 {
        1 << self.exponent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pictures::second;

    /// Observes the seconds from `from` to `to`, each with `waited_ms` of wait and 10 ms of allowed loss.
    fn run(backoff: &mut Backoff, from: u64, to: u64, waited_ms: u64) -> u32 {
        for n in from..to {
            let (allowed, waited) = (Nanos::from_millis(10), Nanos::from_millis(waited_ms));
            backoff.observe(second(n), 1.0, allowed, waited);
        }
        backoff.factor()
    }

    #[test]
    fn it_grows_while_much_comes_back_and_shrinks_when_little_does() {
        let mut backoff = Backoff::default();
        assert_eq!(run(&mut backoff, 0, 60, 2), 1, "that is little");
        assert_eq!(run(&mut backoff, 60, 75, 30), 2, "at once");
        assert_eq!(run(&mut backoff, 75, 95, 30), 4, "and 20 s later again");
        assert_eq!(run(&mut backoff, 95, 110, 5), 8, "that was not over yet");
        let same = run(&mut backoff, 110, 155, 5);
        assert_eq!(same, 8, "neither much nor little");
        assert_eq!(run(&mut backoff, 155, 170, 0), 4);
        assert_eq!(run(&mut backoff, 170, 300, 0), 1);
        assert_eq!(run(&mut backoff, 300, 1000, 1000), 64, "at most");
    }
}
