//! Idle times that ended: pages that were accessed after a time without access, by that time.
//!
//! They show what a page-out would cost without one: if memory had been paged out once it was idle for a time `T`,
//! just the pages whose idleness ended after `T` would have been read back.

use crate::address::Nanos;

/// Number of classes: below 1 s, then each twice as long; the last has no end.
const CLASSES: usize = 16;

/// Numbers of pages by the idle time that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleEnds {
    pages: [u32; CLASSES],
}

impl IdleEnds {
    /// Counts a page that was accessed after it was idle for `idle_for`.
    pub fn add(&mut self, idle_for: Nanos) {
        let class = &mut self.pages[class_of(idle_for)];
        *class = class.saturating_add(1);
    }

    /// Returns the number of pages that were idle for `least` or longer. Within a class, idle times count as spread
    /// evenly.
    pub fn after(&self, least: Nanos) -> f64 {
        let class = class_of(least);
        let (from, to) = (start_of(class), start_of(class + 1));
        let part = to.since(least).0 as f64 / to.since(from).0 as f64;
        let longer = self.pages[class + 1..].iter();
        let longer: f64 = longer.map(|pages| f64::from(*pages)).sum();
        longer + part * f64::from(self.pages[class])
    }
}

fn class_of(idle_for: Nanos) -> usize {
    let seconds = idle_for.0 / 1_000_000_000;
    let class = seconds.checked_ilog2().map_or(0, |log| log as usize + 1);
    class.min(CLASSES - 1)
}

fn start_of(class: usize) -> Nanos {
    match class {
        0 => Nanos(0),
        class => Nanos(1_000_000_000 << (class - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_from_an_idle_time_on() {
        let mut ends = IdleEnds::default();
        for seconds in [0, 1, 5, 5, 9, 100_000] {
            ends.add(Nanos(seconds * 1_000_000_000));
        }
        let after = |ms: u64| ends.after(Nanos::from_millis(ms));
        assert_eq!((after(0), after(1000), after(4000)), (6.0, 5.0, 4.0));
        assert_eq!((after(6000), after(8000), after(16_000)), (3.0, 2.0, 1.0));
    }
}
