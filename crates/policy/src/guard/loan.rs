//! Loans: time that targets may lose to acting that pays it back.
//!
//! Problem: the accounts count what acting costs, and never what it gains. A huge page costs its target some
//! milliseconds once, and saves page walks for as long as the target runs. On busy processors, 1 % of a second makes
//! two or three huge pages, so that a program gets its gain after many minutes.
//!
//! Approach: a trial measures the gain of a few huge pages (`apply/trial.rs`). A block may become a huge page on a loan
//! if it pays its cost back twice in as much time as the targets have lived: of what has lasted for a time, half lasts
//! as long again (Gott, *Implications of the Copernican principle for our future prospects*, Nature 363, 1993). A
//! command that just began gets no loan. No block gets one that pays back after more than a tenth of the limit's period.
//! A loan is spent slowly: targets lose at most [`LOAN_BURST`] times the allowed share in a second.
//!
//! Limits: a gain allows no other loss. It is the target's.

use super::Guard;
use isotherm_engine::address::Nanos;

/// Most that targets may lose in a second to acting that pays back, in multiples of the limit: 20 % at 1 %.
pub(super) const LOAN_BURST: f64 = 20.0;
/// Loss for a huge page that is assumed at first, in seconds, and the number of pages that this assumption is worth.
const COST_PRIOR: (f64, f64) = (0.002, 8.0);
/// Number of huge pages after which the loss of one counts half.
const HALVES_AFTER: f64 = 256.0;
/// Times that a huge page must pay back.
const MARGIN: f64 = 2.0;

#[derive(Clone, Debug, Default)]
pub(super) struct Loan {
    /// Time that was lent and not spent yet.
    left_ns: f64,
    /// Time that may be spent in this second.
    tokens_ns: f64,
    /// Loss and number of the huge pages that were made lately.
    made: (f64, f64),
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
        let debt = self.tokens_ns.min(0.0);
        self.tokens_ns = debt + (LOAN_BURST * share).min(0.5) * elapsed.clamp(0.0, 1.0) * 1e9;
    }

    /// Returns the time that may be spent now, in nanoseconds.
    pub(super) fn available_ns(&self) -> f64 {
        self.left_ns.min(self.tokens_ns).max(0.0)
    }

    /// Charges the time that targets lost while `blocks` became huge pages.
    pub(super) fn charge(&mut self, lost: Nanos, blocks: u64) {
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
    /// Returns whether a huge page that saves its target `gain` seconds a second may be made on a loan.
    pub fn pays_back(&self, gain: f64) -> bool {
        let lived = self.lived().min(Nanos(self.limits.period().0 / 10));
        self.limits.max_slowdown.is_some() && self.loan.pays_back(gain, lived)
    }

    /// Returns whether the targets have lived long enough for a trial with `blocks` huge pages: these cost no more than
    /// the allowed share of that time. Without a limit on the slowdown no trial is needed.
    pub fn allows_trial(&self, blocks: usize) -> bool {
        let share = self.limits.max_slowdown;
        share.is_some_and(|share| self.loan.cost_s(blocks) <= share * self.lived().as_secs_f64())
    }

    fn lived(&self) -> Nanos {
        let (before, started) = self.lived;
        before + self.last.map_or(Nanos(0), |last| last.since(started))
    }

    /// Lends the time that it takes to make `blocks` huge pages that pay back.
    pub fn lend(&mut self, blocks: usize) {
        self.loan.lend(blocks);
    }

    /// Returns the time that targets may lose now to huge pages that pay back, in nanoseconds.
    pub fn available_loan_ns(&self) -> f64 {
        self.loan.available_ns()
    }

    /// Charges the time that targets lost to `blocks` huge pages on a loan.
    pub fn charge_loan(&mut self, lost: Nanos, blocks: u64) {
        self.loan.charge(lost, blocks);
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
    fn dear_blocks_get_none_and_a_second_bounds_what_is_lost() {
        let mut loan = Loan::default();
        loan.lend(125);
        assert!(loan.available_ns() < 1.0, "not before the first second");
        loan.refill(1.0, 0.01);
        assert!((loan.available_ns() - 200e6).abs() < 1.0, "of each second");
        loan.charge(Nanos::from_millis(250), 50);
        assert!(loan.available_ns() < 1.0);
        loan.refill(1.0, 0.01);
        assert!(loan.available_ns() < 1.0, "nothing of the loan is left");
        let minute = Nanos::from_millis(60_000);
        assert!(loan.pays_back(200e-6, minute));
        loan.charge(Nanos::from_millis(50_000), 500);
        assert!(!loan.pays_back(200e-6, minute));
    }
}
