//! How much of what went out comes back.

use std::collections::BTreeMap;

use crate::address::Nanos;
use crate::snapshot::TargetId;

/// What went out, and what came back of it, counts half after so long.
const HALVE_AFTER: f64 = 60.0;
/// Fewer pages than this tell little about others.
const LEAST: f64 = 256.0;

/// Pages that went out, and that came back, of late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flows {
    out: f64,
    back: f64,
    changed: Nanos,
}

impl Flows {
    /// So many pages more went out, and so many came back.
    pub fn add(&mut self, now: Nanos, out: u64, back: u64) {
        let weight = self.weight(now);
        self.out = self.out * weight + out as f64;
        self.back = self.back * weight + back as f64;
        self.changed = now;
    }

    /// The part that came back, 0 to 1; `None`: too little went out lately to tell.
    pub fn returned(&self, now: Nanos) -> Option<f64> {
        let is_known = self.out * self.weight(now) >= LEAST;
        is_known.then(|| (self.back / self.out).min(1.0))
    }

    /// Of what went out of each target lately, the part that came back; without those of which nothing did.
    pub fn returned_of(flows: &BTreeMap<TargetId, Self>, now: Nanos) -> BTreeMap<TargetId, f64> {
        let known = flows.iter();
        let known = known.filter_map(|(target, flows)| Some((*target, flows.returned(now)?)));
        known.filter(|(_, share)| *share > 0.0).collect()
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
        let mut flows = Flows::default();
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
