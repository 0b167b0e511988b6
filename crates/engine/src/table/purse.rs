//! What may be spent: a token bucket that fills with a share of one CPU and pays measured cost.

use crate::address::Nanos;
use crate::port::Cost;

/// Clearing a whole block costs about as much as this many clusters: one flush each, but 512
/// entries at 0.09 us instead of 16 (a cluster costs 7 to 19 us while the target runs).
pub(super) const UNITS_PER_ARM: f64 = 3.0;
/// A wake-up, and what comes with it, costs as much as ten clears (8.4 ms a second for 35 of them and 75 clears,
/// by perf and strace), so units are spent in batches: in batches of 12 two thirds of the budget went for that. A batch is at most this
/// large, and this dear unless it is as small as it may be: while units seem dear, nobody is to wait for long.
const BATCH_UNITS: std::ops::RangeInclusive<f64> = 12.0..=40.0;
const BATCH_NS: f64 = 1_500_000.0;

/// How much time's share may be saved up, in seconds: a quiet spell pays for a burst.
const SAVED_SECONDS: f64 = 3.0;
/// At most this share of one CPU is spent within a tick's time, whatever was saved, or one batch: a burst
/// must not be felt either.
const BURST_SHARE: f64 = 0.05;
const FIRST_GUESS_NS: f64 = 10_000.0;

#[derive(Debug)]
pub(super) struct Purse {
    share: f64,
    balance_ns: f64,
    ns_per_unit: f64,
    spent_units: f64,
    /// Something else than units was paid for since the last tick.
    other_work: bool,
    last: Nanos,
    last_cost: Option<f64>,
}

impl Purse {
    pub(super) fn new(share: f64, now: Nanos) -> Self {
        Self {
            share,
            balance_ns: share * SAVED_SECONDS * 1e9,
            ns_per_unit: FIRST_GUESS_NS,
            spent_units: 0.0,
            other_work: false,
            last: now,
            last_cost: None,
        }
    }

    /// The cost until the next tick is not for units alone: it does not tell what these cost.
    pub(super) fn note_other_work(&mut self) {
        self.other_work = true;
    }

    /// How long it takes until a batch can be paid for.
    pub(super) fn wait_for_batch(&self) -> Nanos {
        let lacking = self.batch() * self.ns_per_unit - self.balance_ns;
        Nanos((lacking / self.share).max(0.0) as u64)
    }

    /// The least number of units that are spent at once.
    fn batch(&self) -> f64 {
        (BATCH_NS / self.ns_per_unit).clamp(*BATCH_UNITS.start(), *BATCH_UNITS.end())
    }

    /// How many units (cleared clusters) may be spent in this tick.
    pub(super) fn allow(&mut self, now: Nanos, cost: &Cost) -> f64 {
        let elapsed = now.since(self.last).0 as f64;
        self.last = now;
        let total = (cost.monitor_cpu.0 + cost.induced_cpu.0) as f64;
        // What was used up before the first tick (loading the program) is the price of starting.
        let paid = total - self.last_cost.replace(total).unwrap_or(total);
        let most = self.share * SAVED_SECONDS * 1e9;
        self.balance_ns = (self.balance_ns + elapsed * self.share - paid).clamp(-most, most);
        if self.spent_units >= 8.0 && !std::mem::take(&mut self.other_work) {
            let seen = (paid / self.spent_units).clamp(500.0, 200_000.0);
            self.ns_per_unit += (seen - self.ns_per_unit) * 0.1;
        }
        self.other_work = false;
        self.spent_units = 0.0;
        let burst = elapsed.max(1e6) * BURST_SHARE.max(self.share);
        let most = (burst / self.ns_per_unit).max(self.batch());
        let units = (self.balance_ns / self.ns_per_unit).min(most);
        if units < self.batch() { 0.0 } else { units }
    }

    /// Says how many units the plan uses.
    pub(super) fn spend(&mut self, units: f64) {
        self.spent_units = units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends all that is allowed every 20 ms, a unit and each time at these costs, and tells `then` the time and
    /// the units. Yields the share of a CPU that was spent.
    fn spend(times: u64, unit_ns: f64, each_ns: f64, mut then: impl FnMut(Nanos, f64)) -> f64 {
        let mut purse = Purse::new(0.01, Nanos(0));
        let (mut cpu, mut now) = (0.0, Nanos(0));
        for _ in 0..times {
            now = now + Nanos::from_millis(20);
            let cost = Cost {
                monitor_cpu: Nanos(cpu as u64),
                ..Cost::default()
            };
            let units = purse.allow(now, &cost).floor();
            purse.spend(units);
            cpu += units * unit_ns + each_ns;
            then(now, units);
        }
        cpu / now.0 as f64
    }

    #[test]
    fn whatever_units_cost_a_batch_comes_in_time() {
        for cost in 1..400 {
            let unit = f64::from(cost) * 1_000.0 / 3.0;
            let mut last = Nanos(0);
            spend(500, unit, 0.0, |now, units| {
                if units > 0.0 {
                    last = now;
                }
                let waited = now.since(last);
                assert!(waited < Nanos::from_millis(6_000), "{unit} ns: {waited:?}");
            });
        }
    }

    #[test]
    fn over_time_no_more_than_the_share_is_spent() {
        let share = spend(5000, 17_000.0, 5_000.0, |_, _| {});
        assert!(share > 0.008 && share < 0.0105, "{share}");
    }
}
