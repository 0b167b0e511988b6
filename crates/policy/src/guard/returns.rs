//! Predicted refaults: what would be read back if memory of an age were paged out.
//!
//! Problem: refaults show too late that memory was paged out too young, and each costs what it shows. A guard that
//! learns by them alone closes at the start of every run, and learns nothing from programs that it does not act on.
//!
//! Approach: the monitor counts pages by the idle time that an access ended ([`IdleEnds`]). The rate of those that were
//! idle for `T` or longer is the rate of refaults if all memory idle for `T` were out. A page-out is thus worth its
//! cost from the least `T` on whose rate fits into the allowed loss. The times tried grow by a factor of the square root
//! of two.
//!
//! An idle time has no rate of its own until the target was watched for four times as long: its rate counts as half of
//! the rate of half the idle time, or more. This is the law of many programs, in which few pages stay away for good.
//!
//! Limits: the past is a prediction. Pages that leave no swap entry (files, shared memory) are not counted when they
//! return. A page that was swapped out, freed and used anew counts.

use std::collections::BTreeMap;

use isotherm_engine::address::Nanos;
use isotherm_engine::monitor::idle_ends::IdleEnds;
use isotherm_engine::snapshot::{Snapshot, TargetId};

/// Half-life of the counts, in seconds.
const HALVE_AFTER: f64 = 30.0;
/// Number of idle times that are tried, from 1 s to 13 hours.
const AGES: usize = 32;

/// Pages a second by target and idle time.
#[derive(Clone, Debug, Default)]
pub struct Returns {
    targets: BTreeMap<TargetId, Rates>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    seconds: f64,
    /// Time for which the target has been watched.
    watched: Nanos,
    /// Pages whose idleness ended after at least 1 s, 1.4 s, 2 s and so on.
    pages: [f64; AGES],
}

impl Returns {
    /// Takes in the idle times that ended in a snapshot's interval.
    pub fn observe(&mut self, snapshot: &Snapshot, ends: &IdleEnds) {
        let seconds = snapshot.end.since(snapshot.start).as_secs_f64();
        let weight = libm::pow(0.5, seconds / HALVE_AFTER);
        let rates = self.targets.entry(snapshot.target).or_default();
        rates.watched = rates.watched + snapshot.end.since(snapshot.start);
        rates.seconds = rates.seconds * weight + seconds;
        for (age, pages) in rates.pages.iter_mut().enumerate() {
            *pages = *pages * weight + ends.after(seconds_of(age));
        }
    }

    /// Returns the longest time for which one of `targets` has been watched.
    pub fn watched(&self, targets: impl IntoIterator<Item = TargetId>) -> Nanos {
        let known = targets.into_iter().filter_map(|of| self.targets.get(&of));
        known.map(|rates| rates.watched).max().unwrap_or_default()
    }

    /// Returns the least idle time from which on memory of `targets` returns at no more than `pages_per_s`, all of them
    /// together. Returns `None` if nothing is known of any of them.
    pub fn least_age(
        &self,
        targets: impl IntoIterator<Item = TargetId>,
        pages_per_s: f64,
    ) -> Option<Nanos> {
        let known = targets.into_iter().filter_map(|of| self.targets.get(&of));
        let mut known: Vec<(&Rates, f64)> = known
            .filter(|rates| rates.seconds > 0.0)
            .map(|rates| (rates, 0.0))
            .collect();
        (!known.is_empty()).then_some(())?;
        for age in 0..AGES {
            let pages: f64 = known
                .iter_mut()
                .map(|(rates, shorter)| {
                    let mut pages = rates.pages[age] / rates.seconds;
                    if rates.watched.0 < 4 * seconds_of(age).0 {
                        pages = pages.max(*shorter / std::f64::consts::SQRT_2);
                    }
                    *shorter = pages;
                    pages
                })
                .sum();
            if pages <= pages_per_s {
                return Some(if age == 0 { Nanos(0) } else { seconds_of(age) });
            }
        }
        Some(seconds_of(AGES))
    }

    pub(super) fn nr_targets(&self) -> usize {
        self.targets.len()
    }

    /// Forgets a target that exited.
    pub fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }
}

fn seconds_of(age: usize) -> Nanos {
    Nanos((libm::exp2(age as f64 / 2.0) * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pictures::second;

    #[test]
    fn memory_that_returns_too_often_must_be_older() {
        const TARGET: TargetId = TargetId(3);
        let mut returns = Returns::default();
        let mut ends = IdleEnds::default();
        // Of 1,000 pages a second most were idle for 3 s, a tenth for 20 s, one for two minutes.
        (0..1800).for_each(|_| ends.add(Nanos::from_millis(3000)));
        (0..200).for_each(|_| ends.add(Nanos::from_millis(20_000)));
        (0..2).for_each(|_| ends.add(Nanos::from_millis(120_000)));
        for n in 0..300 {
            let times = (second(2 * n), second(2 * n + 2));
            let snapshot = Snapshot::new(TARGET, times, 0, Vec::new());
            returns.observe(&snapshot, &ends);
        }
        let of = |target, per_s| returns.least_age([target], per_s);
        let least = |per_s: f64| of(TARGET, per_s).expect("known").0 / 1_000_000_000;
        assert_eq!([least(2000.0), least(500.0), least(102.0)], [0, 4, 4]);
        assert_eq!([least(100.0), least(1.5), least(0.3)], [22, 32, 128]);
        assert_eq!(of(TargetId(0), 1.0), None, "unknown");
        returns.forget(TARGET);
        assert_eq!(returns.least_age([TARGET], 1.0), None);
    }
}
