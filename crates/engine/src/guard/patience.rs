//! How much longer than schemes ask memory must be idle, where what they took comes back.
//!
//! Problem: what a page costs is the same whenever it is paged out and comes back; what it saves is the time that it
//! stays away. Where a program reads all of its memory, some of it more often than the rest, that time is about as long as
//! it has been idle (the longer a page was idle the longer it will be). So a guard that allows to lose so much a second
//! buys most with the oldest pages, and is wasted on those that schemes just begin to ask for.
//!
//! Approach: the least age of what may be paged out is what the scheme says, times a factor: 1 at first, doubled where
//! waits for memory that came back take most of what may be lost, and halved again where they take little of it. A
//! [target](super::Flows) of whose memory a part came back lately needs to be older by the square of what stayed away.

use crate::address::Nanos;

/// Waits and what is allowed count half after so long.
const HALVE_AFTER: f64 = 5.0;
/// More than this is not told apart: one long wait is forgotten as soon as a short one.
const WAITED_MOST: f64 = 2.0;
/// Above this share of what is allowed it is too much: acting takes the rest.
const MUCH: f64 = 0.75;
/// Below this there is room for younger memory.
const LITTLE: f64 = 0.25;
/// Until what was taken of another age shows in what comes back.
const RAISE_EVERY: Nanos = Nanos::from_millis(20_000);
const LOWER_EVERY: Nanos = Nanos::from_millis(60_000);
/// Of a scheme of 5 s: five minutes.
const MOST: u32 = 6;

/// The factor, and what it follows from.
#[derive(Clone, Debug, Default)]
pub(super) struct Patience {
    /// Its logarithm.
    exponent: u32,
    changed: Nanos,
    allowed: f64,
    waited: f64,
}

impl Patience {
    /// In the second until `now` so much might be lost, and so long was waited.
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

    /// By which least ages are multiplied.
    pub(super) fn factor(&self) -> u32 {
        1 << self.exponent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Nanos {
        Nanos(n * 1_000_000_000)
    }

    /// From a second on to another, with so many ms of wait in each, of 10 that are allowed.
    fn run(patience: &mut Patience, from: u64, to: u64, waited_ms: u64) -> u32 {
        for n in from..to {
            let (allowed, waited) = (Nanos::from_millis(10), Nanos::from_millis(waited_ms));
            patience.observe(second(n), 1.0, allowed, waited);
        }
        patience.factor()
    }

    #[test]
    fn it_grows_while_much_comes_back_and_shrinks_when_little_does() {
        let mut patience = Patience::default();
        assert_eq!(run(&mut patience, 0, 60, 2), 1, "that is little");
        assert_eq!(run(&mut patience, 60, 75, 30), 2, "at once");
        assert_eq!(run(&mut patience, 75, 95, 30), 4, "and 20 s later again");
        assert_eq!(run(&mut patience, 95, 110, 5), 8, "that was not over yet");
        let same = run(&mut patience, 110, 155, 5);
        assert_eq!(same, 8, "neither much nor little");
        assert_eq!(run(&mut patience, 155, 170, 0), 4);
        assert_eq!(run(&mut patience, 170, 300, 0), 1);
        assert_eq!(run(&mut patience, 300, 1000, 1000), 64, "at most");
    }
}
