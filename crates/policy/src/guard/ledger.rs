//! The ledger: losses of the targets, against the losses that are allowed.
//!
//! There are two accounts, one since the start and one of the last ten minutes. Each is granted `max_slowdown` of the
//! time that passes, and charged with every loss. An overdraft must be paid back, by time passing without acting. Ten
//! quiet minutes are not spent at once: the second account forgets them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

/// Period of the second account.
const WINDOW: Nanos = Nanos::from_millis(600_000);
/// Resolution in which the second account forgets.
const SLOT: Nanos = Nanos::from_millis(10_000);

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
    since_start: Account,
    slots: VecDeque<(Nanos, Account)>,
}

impl Ledger {
    /// Adds the loss `allowed` and the time `lost` until `now`.
    pub fn add(&mut self, now: Nanos, allowed: Nanos, lost: Nanos) {
        self.since_start.add(allowed, lost);
        let is_old = |(start, _): &mut (Nanos, Account)| now.since(*start) > WINDOW;
        while self.slots.pop_front_if(is_old).is_some() {}
        match self.slots.back_mut() {
            Some((start, account)) if now.since(*start) < SLOT => account.add(allowed, lost),
            _ => self.slots.push_back((now, Account { lost, allowed })),
        }
    }

    /// Returns the account since the start.
    pub fn since_start(&self) -> Account {
        self.since_start
    }

    /// Returns the account of the last ten minutes.
    pub fn recent(&self) -> Account {
        let mut sum = Account::default();
        for (_, account) in &self.slots {
            sum.add(account.allowed, account.lost);
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
        let mut ledger = Ledger::default();
        for n in 0..7200 {
            ledger.add(second(n), Nanos::from_millis(10), Nanos(0));
        }
        assert!(ledger.since_start().available_ns() > 71e9);
        let available = ledger.available_ns();
        assert!((5.8e9..6.2e9).contains(&available), "{available}");
    }
}
