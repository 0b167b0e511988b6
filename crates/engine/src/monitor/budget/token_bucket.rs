//! A token bucket that fills with a share of one CPU and pays the measured cost.

use crate::address::Nanos;
use crate::port::Cost;

/// Largest balance, in seconds of the share: a quiet period pays for a burst.
const SAVED_SECONDS: f64 = 3.0;
/// Balance, in seconds of the share, beyond which other work may use it.
const SPARED_SECONDS: f64 = 2.0;
/// Factors on the slowness of other work: it rises with each charge that leaves a debt and does not reduce it, and falls
/// with each that leaves none.
const SLOWER: f64 = 1.1;
const FASTER: f64 = 0.97;
const SLOWNESS_MAX: f64 = 4.0;
/// Part of the share that clears always get.
const LEAST_OF_SHARE: f64 = 0.1;
/// Largest share of one CPU for clears at once, whatever was saved: a burst must not be noticeable either.
const BURST_SHARE: f64 = 0.05;

#[derive(Debug)]
pub(crate) struct TokenBucket {
    share: f64,
    balance_ns: f64,
    /// Factor by which the rates of all other work are reduced.
    pub(crate) slowness: f64,
    last: Nanos,
    last_cost: Option<f64>,
}

impl TokenBucket {
    pub(crate) fn new(share: f64, now: Nanos) -> Self {
        Self {
            share,
            balance_ns: share * SAVED_SECONDS * 1e9,
            slowness: 1.0,
            last: now,
            last_cost: None,
        }
    }

    /// Fills for the time that has passed and pays what was spent in it.
    pub(crate) fn charge(&mut self, now: Nanos, cost: &Cost) {
        let elapsed = now.since(self.last).0 as f64;
        self.last = now;
        let total = total_ns(cost);
        // CPU time before the first call (loading the program) is the cost of starting.
        let paid = total - self.last_cost.replace(total).unwrap_or(total);
        // If intervals are longer than that, the limit is the share of an interval.
        let most = self.share * (SAVED_SECONDS * 1e9).max(elapsed);
        let earned = elapsed * self.share;
        self.balance_ns = (self.balance_ns + earned - paid).clamp(-most, most);
        let factor = match self.balance_ns {
            debt if debt >= 0.0 => FASTER,
            // A debt is being paid back: more would slow the work beyond what the share demands.
            _ if paid < earned => 1.0,
            _ => SLOWER,
        };
        self.slowness = (self.slowness * factor).clamp(1.0, SLOWNESS_MAX);
    }

    /// Returns the balance beyond two seconds of the share, which clears do not need.
    pub(crate) fn spare(&self) -> Nanos {
        let kept = self.share * SPARED_SECONDS * 1e9;
        Nanos((self.balance_ns - kept).max(0.0) as u64)
    }

    /// Returns the CPU time that clears may take now, in nanoseconds, if they are planned every `interval`. A few are
    /// made even if other work has used the whole budget: without any, nothing would be learnt.
    pub(crate) fn allowance_ns(&self, interval: Nanos) -> f64 {
        let part = |share: f64| interval.0 as f64 * share;
        let least = part(self.share * LEAST_OF_SHARE);
        self.balance_ns
            .clamp(least, part(BURST_SHARE.max(self.share)))
    }
}

/// Returns the CPU time of the monitor and the CPU time that it takes from targets, in nanoseconds.
pub(crate) fn total_ns(cost: &Cost) -> f64 {
    (cost.monitor_cpu.0 + cost.induced_cpu.0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends the whole allowance every 400 ms, and `each_ns` more; returns the used share of a CPU.
    fn spend(times: u64, each_ns: f64) -> f64 {
        let mut bucket = TokenBucket::new(0.01, Nanos(0));
        let interval = Nanos::from_millis(400);
        let (mut cpu, mut now) = (0.0, Nanos(0));
        for _ in 0..times {
            now = now + interval;
            let cost = Cost {
                monitor_cpu: Nanos(cpu as u64),
                ..Cost::default()
            };
            bucket.charge(now, &cost);
            cpu += bucket.allowance_ns(interval) + each_ns;
        }
        cpu / now.0 as f64
    }

    #[test]
    fn over_time_no_more_than_the_share_is_spent() {
        let share = spend(1000, 1_500_000.0);
        assert!(share > 0.0095 && share < 0.0105, "{share}");
    }

    #[test]
    fn little_is_allowed_while_the_rest_costs_more_than_the_share() {
        // 1.25 % of a CPU, and a tenth of 1 %.
        let share = spend(1000, 5_000_000.0);
        assert!(share > 0.0133 && share < 0.0139, "{share}");
    }

    #[test]
    fn other_work_gets_slower_until_it_pays_its_debt_back() {
        let mut bucket = TokenBucket::new(0.01, Nanos(0));
        let mut total = Nanos(0);
        let mut charges = (1..).map(|second| Nanos(second * 1_000_000_000));
        let mut slowness = |spent_ms: u64| {
            total = total + Nanos::from_millis(spent_ms);
            let cost = Cost {
                monitor_cpu: total,
                ..Cost::default()
            };
            bucket.charge(charges.next().expect("no end"), &cost);
            (bucket.slowness * 100.0).round() as u32
        };
        assert_eq!([0, 100, 20].map(&mut slowness), [100, 110, 121]);
        assert_eq!([5; 5].map(&mut slowness), [121; 5], "30 ms are due");
        assert!([5; 3].map(&mut slowness)[2] < 121);
    }
}
