//! The budget of acting: CPU time that schemes may take from other threads.
//!
//! Problem: paging out costs 1 to 5 ms of CPU a MiB, nearly all of it compression in the kernel. On an idle processor
//! that is free; on a busy one it is taken from the threads that run there.
//!
//! Approach: a token bucket in CPU time. It fills at `share` of one CPU, up to the amount of one second. Acting is
//! measured, and charged by the part that was not free: `1 - min(1, idle CPUs)`. Idle CPUs are the mean number that had
//! nothing to do *while nothing was acted on*. Acting is one thread, so one idle CPU is enough for it.
//!
//! Limits: idle time is a mean over some 200 ms, so a burst of work that begins while schemes act is seen one step
//! late. An unreadable value counts as busy.

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

/// Longest time that acting may take between two observations.
pub const STEP: Nanos = Nanos::from_millis(50);

/// Time for which tokens are saved up, in seconds.
const BURST_S: f64 = 1.0;

/// State of the budget of acting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActBudgetStatus {
    /// Share of one CPU that acting may take while none is idle; `None`: no limit.
    pub share: Option<f64>,
    /// CPU time that acting has taken.
    pub spent: Nanos,
    /// Part of that time that was taken from busy CPUs.
    pub charged: Nanos,
    /// Idle CPUs, as last measured; `None`: unknown, which counts as none.
    pub idle_cpus: Option<f64>,
    /// Whether it is used up for now.
    pub is_exhausted: bool,
}

/// The token bucket.
#[derive(Clone, Debug, Default)]
pub struct ActBudget {
    share: Option<f64>,
    tokens_ns: f64,
    last: Option<Nanos>,
    idle_cpus: Option<f64>,
    spent: Nanos,
    charged: Nanos,
}

impl ActBudget {
    /// Returns a budget of `share` of one CPU; `None`: no limit.
    pub fn new(share: Option<f64>) -> Self {
        Self {
            share,
            ..Self::default()
        }
    }

    /// Changes the share while running.
    pub fn set_share(&mut self, share: Option<f64>) {
        self.share = share;
    }

    /// Adds the tokens of the time since the last call, in which `idle_cpus` CPUs were idle (while nothing was acted
    /// on).
    pub fn refill(&mut self, now: Nanos, idle_cpus: Option<f64>) {
        self.idle_cpus = idle_cpus;
        let elapsed = self.last.map_or(Nanos(0), |last| now.since(last));
        self.last = Some(now);
        let Some(share) = self.share else { return };
        let most = share * BURST_S * 1e9;
        self.tokens_ns = (self.tokens_ns + share * elapsed.0 as f64).min(most);
    }

    /// Returns the part of acting's CPU time that other threads wanted, 0 to 1.
    pub fn taken_share(&self) -> f64 {
        1.0 - self.idle_cpus.unwrap_or(0.0).clamp(0.0, 1.0)
    }

    /// Charges `cpu` of acting. Returns the part that was taken from others.
    pub fn charge(&mut self, cpu: Nanos) -> Nanos {
        let taken = cpu.0 as f64 * self.taken_share();
        self.spent = self.spent + cpu;
        self.charged = self.charged + Nanos(taken as u64);
        self.tokens_ns -= taken;
        Nanos(taken as u64)
    }

    /// Returns how long acting may take now: at most [`STEP`].
    pub fn available(&self) -> Nanos {
        match self.share {
            None => STEP,
            Some(_) => available_time(self.tokens_ns, self.taken_share()),
        }
    }

    /// Returns the budget's state.
    pub fn status(&self) -> ActBudgetStatus {
        ActBudgetStatus {
            share: self.share,
            spent: self.spent,
            charged: self.charged,
            idle_cpus: self.idle_cpus,
            is_exhausted: self.available() == Nanos(0),
        }
    }
}

/// Returns how long acting may take, at most [`STEP`], if it may take `ns` from others and takes `taken_share` of its
/// time from them.
pub(super) fn available_time(ns: f64, taken_share: f64) -> Nanos {
    if taken_share <= 1e-3 {
        return STEP;
    }
    Nanos((ns / taken_share).max(0.0) as u64).min(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// Returns the CPU time that acting takes in `seconds` if it takes all that it may.
    fn taken_in(seconds: u64, share: f64, idle_cpus: Option<f64>) -> f64 {
        let mut budget = ActBudget::new(Some(share));
        for tick in 0..seconds * 20 {
            budget.refill(ms(tick * 50), idle_cpus);
            budget.charge(budget.available());
        }
        budget.status().spent.as_secs_f64()
    }

    #[test]
    fn busy_cpus_give_what_was_agreed_and_idle_ones_what_is_wanted() {
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.02 * wanted.max(1.0);
        assert!(near(taken_in(100, 0.05, Some(0.0)), 5.0));
        assert!(near(taken_in(100, 0.05, None), 5.0), "unknown is busy");
        assert!(near(taken_in(100, 0.05, Some(0.5)), 10.0));
        // A step in every 50 ms.
        assert!(near(taken_in(100, 0.05, Some(1.0)), 100.0));
        assert!(near(taken_in(100, 0.05, Some(7.5)), 100.0));
    }

    #[test]
    fn what_is_overdrawn_is_paid_back_and_little_is_saved_up() {
        let mut budget = ActBudget::new(Some(0.1));
        budget.refill(ms(0), Some(0.0));
        assert_eq!(budget.available(), Nanos(0));
        budget.refill(ms(3_600_000), Some(0.0));
        assert_eq!(budget.available(), STEP);
        // Twice the amount of one second.
        budget.charge(ms(200));
        budget.refill(ms(3_600_900), Some(0.0));
        assert!(budget.status().is_exhausted);
        budget.refill(ms(3_601_100), Some(0.0));
        assert_eq!(budget.available(), ms(10));
    }

    #[test]
    fn without_a_budget_only_steps_are_bounded() {
        let mut budget = ActBudget::new(None);
        budget.charge(ms(100_000));
        assert_eq!(budget.available(), STEP);
    }
}
