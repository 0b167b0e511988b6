//! The ledger: losses of the targets, against the losses that are allowed.
//!
//! There are two accounts, one since the start and one of the last period: ten minutes by default. Each is granted
//! `max_slowdown` of the time that passes, and charged with every loss. An overdraft must be paid back, by time passing
//! without acting. A quiet day is not spent at once: the second account forgets it.
//!
//! The time before the start counts as well, in which targets ran and lost nothing. A target that has run for a
//! period may thus lose at once what a target that begins now may lose in a period. The second account forgets that
//! time as it would have forgotten losses in it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

/// Number of parts of the period in which the second account forgets.
const SLOTS: u64 = 60;

/// One account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Account {
    /// Time that targets have lost.
    pub lost: Nanos,
    /// Time that they were allowed to lose.
    pub allowed: Nanos,
}

impl Account {
    /// Returns the time that may still be lost, in nanoseconds; below zero it is a debt.
    pub fn available_ns(self) -> f64 {
        self.allowed.0 as f64 - self.lost.0 as f64
    }

    fn add(&mut self, allowed: Nanos, lost: Nanos) {
        self.allowed = self.allowed + allowed;
        self.lost = self.lost + lost;
    }
}

/// Both accounts.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    period: Nanos,
    since_start: Account,
    slots: VecDeque<(Nanos, Account)>,
    /// Loss that was allowed in the time before the start, at most in one period, and the length of that time.
    before: (Nanos, Nanos),
    started: Option<Nanos>,
    now: Nanos,
}

impl Ledger {
    /// Returns empty accounts, the second of which is about the last `period`.
    pub fn over(period: Nanos) -> Self {
        Self {
            period,
            ..Self::default()
        }
    }

    /// Changes the period of the second account.
    pub fn set_period(&mut self, period: Nanos) {
        self.period = period;
    }

    /// Grants the loss of the time `lived` before `now`, of which `share` may be lost.
    pub fn grant(&mut self, now: Nanos, lived: Nanos, share: f64) {
        let lived = lived.min(self.period);
        let allowed = Nanos((lived.0 as f64 * share) as u64);
        self.since_start.add(allowed, Nanos(0));
        (self.before, self.started) = ((allowed, lived), Some(now));
    }

    /// Adds the loss `allowed` and the time `lost` until `now`.
    pub fn add(&mut self, now: Nanos, allowed: Nanos, lost: Nanos) {
        self.now = now;
        self.since_start.add(allowed, lost);
        let is_old = |(start, _): &mut (Nanos, Account)| now.since(*start) > self.period;
        while self.slots.pop_front_if(is_old).is_some() {}
        match self.slots.back_mut() {
            Some((start, account)) if now.since(*start).0 < self.period.0 / SLOTS => {
                account.add(allowed, lost);
            }
            _ => self.slots.push_back((now, Account { lost, allowed })),
        }
    }

    /// Returns the account since the start.
    pub fn since_start(&self) -> Account {
        self.since_start
    }

    /// Returns the account of the last period.
    pub fn recent(&self) -> Account {
        let mut sum = Account::default();
        for (_, account) in &self.slots {
            sum.add(account.allowed, account.lost);
        }
        if let Some(started) = self.started {
            // The part of the time before the start that is less than a period ago.
            let (allowed, lived) = self.before;
            let left = self.period.since(self.now.since(started)).min(lived);
            let part = left.0 as f64 / lived.0.max(1) as f64;
            sum.add(Nanos((allowed.0 as f64 * part) as u64), Nanos(0));
        }
        sum
    }

    /// Returns the time that may still be lost by both accounts, in nanoseconds; below zero it is a debt.
    pub fn available_ns(&self) -> f64 {
        let since_start = self.since_start.available_ns();
        since_start.min(self.recent().available_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pictures::second;

    #[test]
    fn quiet_hours_are_not_spent_at_once() {
        let mut ledger = Ledger::over(super::super::SLOWDOWN_OVER);
        for n in 0..7200 {
            ledger.add(second(n), Nanos::from_millis(10), Nanos(0));
        }
        assert!(ledger.since_start().available_ns() > 71e9);
        let available = ledger.available_ns();
        assert!((5.8e9..6.2e9).contains(&available), "{available}");
    }

    #[test]
    fn the_time_before_counts_and_is_forgotten_as_it_passes() {
        let mut ledger = Ledger::over(super::super::SLOWDOWN_OVER);
        ledger.grant(second(0), Nanos::from_millis(3_600_000), 0.01);
        let ten_ms = Nanos::from_millis(10);
        for n in 0..6000 {
            // Whatever may be lost is lost at once.
            let lost = Nanos(ledger.available_ns().max(0.0) as u64);
            ledger.add(second(n), ten_ms, lost);
            let lost = ledger.recent().lost.as_secs_f64();
            assert!(lost <= 6.2, "{lost} in ten minutes to {n}");
        }
        let total = ledger.since_start().lost.as_secs_f64();
        assert!((60.0..61.0).contains(&total), "{total}");
        let mut young = Ledger::over(super::super::SLOWDOWN_OVER);
        young.grant(second(0), Nanos::from_millis(30_000), 0.01);
        assert!((young.available_ns() - 300e6).abs() < 1e6);
    }
}
