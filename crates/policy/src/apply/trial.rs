//! Trials: whether huge pages pay back for a target, by its own speed before and after a few of them.
//!
//! Problem: what a huge page saves depends on the program. A page walk delays a program that follows pointers by its
//! full length, and one with independent accesses hardly at all. Rates of page walks alone do not show that, and
//! virtual machines have no counters of instructions.
//!
//! Approach: the rate of page walks of memory that stays in small pages is a clock of the program's speed: if the
//! program runs faster, it walks to that memory more often. So a few blocks, the controls, are kept small, and their
//! walks are measured ([`Platform::page_walks`](super::Platform::page_walks)). Then a sixteenth of the candidates becomes
//! huge, on a loan, and the controls are measured again. If the lower bound of the gain pays back, all candidates get a
//! loan. If only the upper bound does, the trial is repeated with twice as many huge pages, once the target has run long
//! enough to allow the cost. If the upper bound is a loss, no further block is made huge. A result holds for ten minutes.
//!
//! Limits: a program that changes its behavior meanwhile gets a wrong result until the next trial. Huge pages leave more
//! room in the TLB for the controls, which therefore show a little less than the gain.

use std::collections::BTreeSet;

use isotherm_engine::address::Nanos;
use isotherm_engine::statistics::mean_and_error;

use crate::guard::Guard;

/// Blocks whose page walks are the clock.
const CONTROLS: usize = 32;
/// Least number of candidates for a trial: fewer become huge without one.
const CANDIDATES_MIN: usize = 2 * CONTROLS;
/// Part of the candidates that a trial makes huge, and bounds of their number.
const PART_MADE: usize = 16;
const MADE: (usize, usize) = (16, 512);
/// Number of plans that measure the controls before, and after. The mean of a plan is one value: speed varies more
/// between plans than within one.
const PLANS: usize = 8;
const MEASURED_PER_PLAN: usize = 6;
/// Student's t, 95 %, for [`PLANS`] values before and as many after.
const ERRORS: f64 = 2.1;
/// Least rate of walks of a control, a second: at 100 ns each, 64 such blocks lose 0.6 % of a CPU.
const WALKS_MIN: f64 = 1_000.0;
/// Blocks that get a loan with each plan.
const LENT_PER_PLAN: usize = 64;
/// Time for which the result of a trial holds.
const HOLDS: Nanos = Nanos::from_millis(600_000);
/// Time after which a trial ends without a result.
const LASTS_MAX: Nanos = Nanos::from_millis(120_000);
/// Time after which a trial continues with the blocks that are huge by then.
const MAKING_MAX: Nanos = Nanos::from_millis(30_000);

/// Trial of one target.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    /// Time of the first plan for the target.
    first: Option<Nanos>,
    began: Nanos,
    controls: Vec<u64>,
    before: Vec<f64>,
    after: Vec<f64>,
    /// Blocks that the trial makes huge, and the time by which they should be.
    made: BTreeSet<u64>,
    making_until: Nanos,
    /// Number of huge pages that schemes had made before.
    nr_huge_before: usize,
    /// Result and its time; `None` while a trial goes on.
    result: Option<(Gain, Nanos)>,
    /// Last result with huge pages.
    gain: Option<Gain>,
    /// Number of huge pages, and the time at which it last grew.
    grown: (usize, Nanos),
    nr_plans: usize,
}

/// Purpose of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    Gain,
    Trial,
}

/// Gain in speed that a trial measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Gain {
    /// Gain of the trial's huge pages: lower bound, mean and upper bound.
    pub(super) speed: [f64; 3],
    /// Number of these.
    pub(super) blocks: usize,
}

impl Gain {
    /// Returns the share of time that one huge page saves, by the bound with this index.
    fn of_block(&self, bound: usize) -> f64 {
        if self.blocks == 0 {
            return 0.0;
        }
        let speed = self.speed[bound].max(0.0);
        (1.0 - 1.0 / (1.0 + speed)) / self.blocks as f64
    }
}

/// Blocks that a plan may make huge.
pub(super) enum Verdict {
    /// Every candidate, within the usual limits.
    Usual,
    /// No candidate for now: the controls are being measured, or huge pages harm.
    Nothing,
    /// These blocks, on a loan: for the trial, or as it has shown that they pay back.
    Loan(BTreeSet<u64>, Purpose),
}

impl Trial {
    /// Returns whether it measures, or makes huge pages for that.
    pub(super) fn is_going_on(&self) -> bool {
        !self.controls.is_empty() && self.result.is_none()
    }

    /// Continues the trial with `candidates`, the best first; schemes have made the blocks of `huge`. A new trial begins
    /// only if it `may_begin`. `walks` measures the mean page walks a second of blocks, if that is possible.
    pub(super) fn go_on<E>(
        &mut self,
        (now, guard): (Nanos, &Guard),
        (candidates, may_begin): (&[u64], bool),
        huge: &BTreeSet<u64>,
        mut walks: impl FnMut(&[u64]) -> Result<Option<f64>, E>,
    ) -> Result<Verdict, E> {
        let first = *self.first.get_or_insert(now);
        self.nr_plans += 1;
        if huge.len() != self.grown.0 || self.result.is_none() {
            self.grown = (huge.len(), now);
        }
        if self.result.is_some_and(|(_, at)| now.since(at) >= HOLDS) {
            self.begin_anew();
        } else if self.is_going_on() && now.since(self.began) >= LASTS_MAX {
            self.result = Some((Gain::default(), now));
        }
        if let Some((gain, _)) = self.result
            && let Some(verdict) = self.conclude((now, guard), gain, (candidates, huge), first)
        {
            return Ok(verdict);
        }
        let nr = (candidates.len() / PART_MADE).clamp(MADE.0, MADE.1);
        if self.controls.is_empty() {
            let is_enough = candidates.len() >= CANDIDATES_MIN;
            if !may_begin || !is_enough || !guard.allows_trial(nr, first) {
                return Ok(Verdict::Usual);
            }
            let step = candidates.len() / CONTROLS;
            self.controls = candidates
                .iter()
                .copied()
                .step_by(step)
                .take(CONTROLS)
                .collect();
            (self.nr_huge_before, self.began) = (huge.len(), now);
        }
        if self.before.len() < PLANS {
            if !measure(&self.controls, &mut self.before, &mut walks)? {
                self.result = Some((Gain::default(), now));
            } else if self.before.len() >= PLANS {
                self.begin_making(now, candidates, nr);
            }
            return Ok(Verdict::Nothing);
        }
        let is_left = |block: &&u64| self.made.contains(*block) && !huge.contains(*block);
        let mut left = candidates.iter().filter(is_left).copied().peekable();
        if left.peek().is_some() && now < self.making_until && self.after.is_empty() {
            return Ok(Verdict::Loan(
                left.take(LENT_PER_PLAN).collect(),
                Purpose::Trial,
            ));
        }
        if !measure(&self.controls, &mut self.after, &mut walks)? {
            self.result = Some((Gain::default(), now));
        } else if self.after.len() >= PLANS {
            let speed = gain(&self.before, &self.after);
            let blocks = huge.len().saturating_sub(self.nr_huge_before);
            let gain = Gain { speed, blocks };
            self.result = Some((gain, now));
            self.gain = Some(gain).filter(|gain| gain.blocks > 0);
        }
        Ok(Verdict::Nothing)
    }

    /// Returns the verdict by a result; `None` if a larger trial follows.
    fn conclude(
        &mut self,
        (now, guard): (Nanos, &Guard),
        gain: Gain,
        (candidates, huge): (&[u64], &BTreeSet<u64>),
        first: Nanos,
    ) -> Option<Verdict> {
        let is_stuck = now.since(self.grown.1) >= MAKING_MAX;
        if guard.pays_back(gain.of_block(0), first) && !is_stuck {
            // Blocks that cannot be made huge must not keep out all others.
            let from = self.nr_plans * LENT_PER_PLAN % candidates.len().max(1);
            let turn = candidates[from..].iter().chain(&candidates[..from]);
            let lent = turn.take(LENT_PER_PLAN).copied().collect();
            return Some(Verdict::Loan(lent, Purpose::Gain));
        } else if gain.blocks > 0 && gain.speed[2] < 0.0 {
            return Some(Verdict::Nothing);
        }
        let nr_more = self.made.len().min(candidates.len() / 2);
        let may_pay = nr_more > 0 && guard.pays_back(gain.of_block(2), first);
        if !may_pay || !guard.allows_trial(self.made.len() + nr_more, first) {
            return Some(Verdict::Usual);
        }
        // Controls that became huge meanwhile measure nothing.
        if self.controls.iter().any(|control| huge.contains(control)) {
            self.begin_anew();
            return Some(Verdict::Usual);
        }
        (self.result, self.began) = (None, now);
        self.after.clear();
        self.begin_making(now, candidates, nr_more);
        None
    }

    fn begin_anew(&mut self) {
        *self = Self {
            first: self.first,
            gain: self.gain,
            ..Self::default()
        };
    }

    /// Selects `nr` further candidates to make huge, none of them a control.
    fn begin_making(&mut self, now: Nanos, candidates: &[u64], nr: usize) {
        let others = candidates
            .iter()
            .filter(|block| !self.controls.contains(block));
        self.made.extend(others.take(nr));
        self.making_until = now + MAKING_MAX;
    }

    /// Returns the gain that was measured last.
    pub(super) fn gain(&self) -> Option<Gain> {
        self.gain
    }
}

/// Measures the walks of the controls a few times. Returns whether these are enough for a result.
fn measure<E>(
    controls: &[u64],
    into: &mut Vec<f64>,
    walks: &mut impl FnMut(&[u64]) -> Result<Option<f64>, E>,
) -> Result<bool, E> {
    let mut sum = 0.0;
    for _ in 0..MEASURED_PER_PLAN {
        let Some(walks) = walks(controls)? else {
            return Ok(false);
        };
        sum += walks;
    }
    let mean = sum / MEASURED_PER_PLAN as f64;
    into.push(mean);
    Ok(mean >= WALKS_MIN)
}

/// Returns the gain from one set of rates to another: lower bound, mean and upper bound.
fn gain(before: &[f64], after: &[f64]) -> [f64; 3] {
    let relative = |rates: &[f64]| {
        let (mean, error) = mean_and_error(rates).unwrap_or_default();
        (mean, error / mean.max(f64::MIN_POSITIVE))
    };
    let (old, new) = (relative(before), relative(after));
    let gain = new.0 / old.0.max(f64::MIN_POSITIVE) - 1.0;
    let error = ERRORS * (1.0 + gain) * libm::hypot(new.1, old.1);
    [gain - error, gain, gain + error]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::guard::{GuardLimits, GuardSignals, Pools};

    /// Returns the blocks of 512 that are huge in the end. As all of them become huge, the speed grows by `factor`. It
    /// is higher and lower by `noise` in turns. The target has lived for `lived_s` at the start.
    fn huge_of(factor: f64, noise: f64, lived_s: u64) -> usize {
        let mut guard = Guard::new(GuardLimits::of_slowdown(0.01));
        guard.grant(Nanos(0), Nanos::from_millis(1000 * lived_s));
        let (mut trial, mut huge) = (Trial::default(), BTreeSet::new());
        for half_second in 1..240_u32 {
            let now = Nanos::from_millis(500 * u64::from(half_second));
            guard.observe(now, GuardSignals::default(), Pools::processes(1 << 30));
            let small: Vec<u64> = (0..512).filter(|block| !huge.contains(block)).collect();
            // Time per access falls in proportion.
            let saved = huge.len() as f64 / 512.0 * (1.0 - 1.0 / factor);
            let noise = if half_second % 2 == 0 { noise } else { -noise };
            let walks = 20_000.0 * (1.0 + noise) / (1.0 - saved);
            let measure = |_: &[u64]| Ok::<_, Infallible>(Some(walks));
            let small = (small.as_slice(), true);
            if let Ok(Verdict::Loan(blocks, _)) = trial.go_on((now, &guard), small, &huge, measure)
            {
                huge.extend(blocks);
            }
        }
        huge.len()
    }

    #[test]
    fn huge_pages_that_pay_back_get_a_loan_and_others_do_not() {
        assert_eq!(huge_of(1.8, 0.005, 60), 512);
        assert_eq!(huge_of(0.9, 0.005, 60), 32, "they harm");
        assert_eq!(huge_of(1.0, 0.005, 60), 128, "until that is known");
        assert_eq!(huge_of(1.8, 0.05, 60), 512, "a larger trial shows it");
        assert!(huge_of(1.0, 0.05, 60) < 512, "the controls stay");
    }

    #[test]
    fn a_program_that_began_just_now_gets_its_loan_later() {
        assert_eq!(huge_of(1.8, 0.005, 0), 512);
        // 32 huge pages take 64 ms: 1 % of 6.4 s.
        assert!(!Guard::default().allows_trial(32, Nanos(0)));
    }
}
