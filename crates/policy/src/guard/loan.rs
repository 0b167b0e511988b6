//! Loans: time that targets may lose to acting that pays it back.
//!
//! Problem: the accounts count what acting costs, and never what it gains. A huge page costs its target some
//! milliseconds once, and saves page walks for as long as the target runs. On busy processors, 1 % of a second makes
//! two or three huge pages, so that a program gets its gain after many minutes.
//!
//! Approach: a trial measures the gain of a few huge pages (`apply/trial.rs`). A block may become a huge page on a loan
//! if it pays its cost back twice in as much time as the targets have lived: half of all programs that have run for a time
//! run for as long again (Gott, *Implications of the Copernican principle for our future prospects*, Nature 363, 1993). A
//! command that just began gets no loan. No block gets one that pays back after more than a tenth of the limit's period.
//! A loan is spent slowly: targets lose at most [`LOAN_BURST`] times the allowed share in a second.
//!
//! Limits: a gain does not raise the limit of other losses.

use super::{Guard, OnLoan};
use isotherm_engine::address::Nanos;

/// Greatest loss on a loan in a second, in multiples of the allowed share: 20 % at 1 %, 50 % at most.
pub(super) const LOAN_BURST: f64 = 20.0;
/// Prior of the loss for a huge page, in seconds, and the number of pages that it weighs.
const COST_PRIOR: (f64, f64) = (0.002, 8.0);
/// Number of huge pages after which the loss of one counts half.
const HALVES_AFTER: f64 = 256.0;
/// Time after the start in which targets are first seen that ran before.
const FIRST: Nanos = Nanos::from_millis(5_000);
/// Seconds after which it counts half.
const HALVES_IN_S: f64 = 300.0;
/// Multiple of its cost that a huge page must gain.
const MARGIN: f64 = 2.0;

#[derive(Clone, Debug, Default)]
pub(super) struct Loan {
    /// Time that was lent and not spent yet.
    left_ns: f64,
    /// Time that may be spent in this second.
    tokens_ns: f64,
    /// Loss and number of the huge pages that were made lately.
    made: (f64, f64),
    /// Loss by trials, in seconds.
    tried_s: f64,
}

impl Loan {
    /// Returns the loss for `blocks` huge pages, in seconds.
    pub(super) fn cost_s(&self, blocks: usize) -> f64 {
        let (lost, made) = self.made;
        (lost + COST_PRIOR.0 * COST_PRIOR.1) / (made + COST_PRIOR.1) * blocks as f64
    }

    /// Returns whether a huge page that saves `gain` seconds a second pays back [`MARGIN`] times in `horizon`.
    pub(super) fn pays_back(&self, gain: f64, horizon: Nanos) -> bool {
        MARGIN * self.cost_s(1) <= gain * horizon.as_secs_f64()
    }

    /// Lends the time for `blocks` huge pages, instead of what was lent before.
    pub(super) fn lend(&mut self, blocks: usize) {
        self.left_ns = self.cost_s(blocks) * 1e9;
    }

    /// Adds what may be spent in the `elapsed` seconds, at a limit of `share`.
    pub(super) fn refill(&mut self, elapsed: f64, share: f64) {
        // A few expensive pages must not end all loans.
        let kept = libm::pow(0.5, elapsed / HALVES_IN_S);
        self.made = (self.made.0 * kept, self.made.1 * kept);
        let debt = self.tokens_ns.min(0.0);
        self.tokens_ns = debt + (LOAN_BURST * share).min(0.5) * elapsed.clamp(0.0, 1.0) * 1e9;
    }

    /// Returns the time that may be spent now, in nanoseconds.
    pub(super) fn available_ns(&self) -> f64 {
        self.left_ns.min(self.tokens_ns).max(0.0)
    }

    /// Charges the time that targets lost while `loan.blocks` became huge pages.
    pub(super) fn charge(&mut self, lost: Nanos, loan: OnLoan) {
        let blocks = loan.blocks;
        if loan.is_trial {
            self.tried_s += lost.as_secs_f64();
        }
        self.left_ns -= lost.0 as f64;
        self.tokens_ns -= lost.0 as f64;
        let weight = libm::pow(0.5, blocks as f64 / HALVES_AFTER);
        let (old_lost, old_made) = self.made;
        self.made = (
            old_lost * weight + lost.as_secs_f64(),
            old_made * weight + blocks as f64,
        );
    }
}

impl Guard {
    /// Returns whether a huge page that saves `gain` seconds a second may be made on a loan, for a target that was first
    /// seen at `first`.
    pub fn pays_back(&self, gain: f64, first: Nanos) -> bool {
        let lived = self.lived(first).min(Nanos(self.limits.period().0 / 10));
        self.limits.max_slowdown.is_some() && self.loan.pays_back(gain, lived)
    }

    /// Returns whether the target has run long enough for a trial with `blocks` huge pages: all trials cost no more than
    /// the allowed share of that time. Without a limit on the slowdown no trial is needed.
    pub fn allows_trial(&self, blocks: usize, first: Nanos) -> bool {
        let cost = self.loan.tried_s + self.loan.cost_s(blocks);
        let share = self.limits.max_slowdown;
        share.is_some_and(|share| cost <= share * self.lived(first).as_secs_f64())
    }

    /// Returns the run time of a target that was first seen at `first`. Those of the first seconds ran before.
    fn lived(&self, first: Nanos) -> Nanos {
        let (before, started) = self.lived;
        let since = |time| self.last.map_or(Nanos(0), |last| last.since(time));
        if first.since(started) < FIRST {
            before + since(started)
        } else {
            since(first)
        }
    }

    /// Lends the time that it takes to make `blocks` huge pages, instead of what was lent before.
    pub fn lend(&mut self, blocks: usize) {
        self.loan.lend(blocks);
    }

    /// Returns the time that targets may lose now to huge pages on a loan, in nanoseconds.
    pub fn available_loan_ns(&self) -> f64 {
        self.loan.available_ns()
    }

    /// Charges the time that targets lost on a loan. The accounts are charged with trials.
    pub fn charge_loan(&mut self, now: Nanos, lost: Nanos, loan: OnLoan) {
        self.loan.charge(lost, loan);
        if loan.is_trial {
            self.charge_loss(now, lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_get_a_loan_that_pays_back_while_the_target_lives() {
        let loan = Loan::default();
        let pays =
            |gain_us: f64, s: u64| loan.pays_back(gain_us / 1e6, Nanos::from_millis(1000 * s));
        // 2 ms are paid back twice in 8 s.
        assert!(pays(500.0, 8));
        assert!(!pays(500.0, 7));
        assert!(!pays(500.0, 0), "it began just now");
        assert!(!pays(0.0, 86_400));
    }

    #[test]
    fn expensive_blocks_get_no_loan_and_the_loss_of_a_second_is_bounded() {
        let mut loan = Loan::default();
        let made = |blocks| OnLoan {
            share: 1.0,
            blocks,
            is_trial: false,
        };
        loan.lend(125);
        assert!(loan.available_ns() < 1.0, "not before the first second");
        loan.refill(1.0, 0.01);
        assert!((loan.available_ns() - 200e6).abs() < 1.0, "of each second");
        loan.charge(Nanos::from_millis(250), made(50));
        assert!(loan.available_ns() < 1.0);
        loan.refill(1.0, 0.01);
        assert!(loan.available_ns() < 1.0, "nothing of the loan is left");
        let minute = Nanos::from_millis(60_000);
        assert!(loan.pays_back(200e-6, minute));
        loan.charge(Nanos::from_millis(50_000), made(500));
        assert!(!loan.pays_back(200e-6, minute));
    }
}
