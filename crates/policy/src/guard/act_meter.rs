//! Meter of acting: the CPU time that schemes may take from other threads, the time of each step, and the cost of a
//! step for the targets.
//!
//! It serves this machine, where time and CPUs are measured, and simulated ones, where they are computed.
//!
//! Problem: paging out costs 1 to 5 ms of CPU a MiB, nearly all of it compression in the kernel. On an idle processor
//! that is free; on a busy one it is taken from the threads that run there.
//!
//! Approach: a token bucket in CPU time. It fills at `share` of one CPU, up to the amount of one second. Acting is
//! measured, and charged by the part that was not free: `1 - min(1, idle CPUs)`. Idle CPUs are the mean number that had
//! nothing to do *while nothing was acted on*. They are divided by the number of CPUs that the last step acted on.
//!
//! Limits: idle time is a mean over some 200 ms, so a burst of work that begins while schemes act is seen one step
//! late. An unreadable value counts as busy.

use serde::{Deserialize, Serialize};

use super::Guard;
use isotherm_engine::address::Nanos;

/// Longest time that acting may take between two observations.
pub const STEP: Nanos = Nanos::from_millis(50);

/// Time for which tokens are saved up, in seconds.
const BURST_S: f64 = 1.0;
/// Time between two steps of acting, in which other threads run and idle CPUs are measured.
const BETWEEN_STEPS: Nanos = Nanos::from_millis(20);
/// Least time of a step: a shorter one achieves little for its fixed cost. The next step then comes after [`PAUSE`].
const LITTLE: Nanos = Nanos::from_millis(2);
const PAUSE: Nanos = Nanos::from_millis(200);

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

/// Time that a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// For acting without a loan.
    pub usual: Nanos,
    /// For huge pages on a loan; `None`: there is no loan.
    pub on_loan: Option<Nanos>,
}

impl StepTime {
    /// Returns a time without a loan.
    pub const fn usual(usual: Nanos) -> Self {
        let on_loan = None;
        Self { usual, on_loan }
    }
}

/// The part of a step that was done on a loan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OnLoan {
    /// Share of the step's time, 0 to 1.
    pub share: f64,
    /// Huge pages made.
    pub blocks: u64,
    /// Whether they were made for a trial.
    pub is_trial: bool,
}

/// The budget of acting, and the share of acting's time that the targets lose.
#[derive(Clone, Debug)]
pub struct ActMeter {
    share: Option<f64>,
    tokens_ns: f64,
    refilled: Option<Nanos>,
    idle_cpus: Option<f64>,
    spent: Nanos,
    charged: Nanos,
    /// Targets' part of the CPU time in use: they lose this part of the CPU time that acting takes from others.
    target_share: f64,
    /// Share of acting's time that targets have lost lately to its interrupts.
    interrupting: f64,
    /// CPUs that the last step acted on.
    width: f64,
    next_step: Nanos,
}

impl ActMeter {
    /// Returns a meter that lets acting take `share` of one CPU while none is idle; `None`: no limit.
    pub fn new(share: Option<f64>) -> Self {
        Self {
            share,
            tokens_ns: 0.0,
            refilled: None,
            idle_cpus: None,
            spent: Nanos(0),
            charged: Nanos(0),
            target_share: 1.0,
            interrupting: 0.0,
            width: 1.0,
            next_step: Nanos(0),
        }
    }

    /// Returns the budget's state.
    pub fn status(&self) -> ActBudgetStatus {
        ActBudgetStatus {
            share: self.share,
            spent: self.spent,
            charged: self.charged,
            idle_cpus: self.idle_cpus,
            is_exhausted: self.available_by_budget() == Nanos(0),
        }
    }

    /// Changes the budget while running.
    pub fn set_share(&mut self, share: Option<f64>) {
        self.share = share;
    }

    /// Sets the targets' share of the CPU time in use, 0 to 1.
    pub fn set_target_share(&mut self, share: f64) {
        self.target_share = share;
    }

    /// Returns when an unfinished plan continues.
    pub fn next_step(&self) -> Nanos {
        self.next_step
    }

    /// Begins a step, with the CPUs that were idle since the last one (`None`: unknown). Returns how long the step may
    /// take.
    pub fn begin(&mut self, now: Nanos, idle_cpus: Option<f64>, guard: &Guard) -> StepTime {
        self.refill(now, idle_cpus);
        let usual = self.available(guard);
        let on_loan = available_time(guard.available_loan_ns(), self.lost_share());
        let is_little = usual.max(on_loan) < LITTLE;
        self.next_step = now + if is_little { PAUSE } else { BETWEEN_STEPS };
        let on_loan = Some(on_loan);
        StepTime { usual, on_loan }
    }

    /// Returns the share of acting's time that targets lose.
    fn lost_share(&self) -> f64 {
        let taken = self.width * self.taken_share() * self.target_share;
        taken.min(1.0).max(self.interrupting)
    }

    /// Returns how long a step may take now, by the budget and by what targets may still lose.
    fn available(&self, guard: &Guard) -> Nanos {
        let taken = self.lost_share();
        let by_loss = guard.available_loss_ns();
        let by_loss = by_loss.map_or(STEP, |ns| available_time(ns, taken));
        self.available_by_budget().min(by_loss)
    }

    /// Returns whether a step would be too short to achieve anything.
    pub fn is_used_up(&self, guard: &Guard) -> bool {
        self.available(guard) < LITTLE
    }

    /// Ends a step that took `cpu` of CPU time, and during which targets lost `interrupted` of theirs. `lasted` is its
    /// elapsed time: the most that a target can lose, on any number of processors. The part on a loan takes no tokens,
    /// as loans have their own limit.
    pub fn end(
        &mut self,
        now: Nanos,
        (cpu, lasted): (Nanos, Nanos),
        interrupted: Nanos,
        (loan, guard): (OnLoan, &mut Guard),
    ) {
        // A short step shows mostly the work of other threads.
        if lasted >= LITTLE {
            self.width = (cpu.0 as f64 / lasted.0 as f64).max(1.0);
        }
        let taken = self.charge(cpu, loan.share);
        let taken = taken.min(lasted).0 as f64 * self.target_share;
        let interrupted = interrupted.min(cpu).0 as f64;
        // The larger of the two counts: both happen at once, on the CPU that acting took and on those that it
        // interrupted.
        let lost = taken.max(interrupted);
        guard.charge_loss(now, Nanos((lost * (1.0 - loan.share)) as u64));
        if loan.share > 0.0 {
            guard.charge_loan(now, Nanos((lost * loan.share) as u64), loan);
        }
        let share = interrupted / (cpu.min(lasted).0 as f64).max(1.0);
        self.interrupting += (share - self.interrupting) / 2.0;
    }

    /// Charges CPU time of another process that acted, while `idle_cpus` CPUs were idle.
    pub fn others_acted(
        &mut self,
        now: Nanos,
        cpu: Nanos,
        idle_cpus: Option<f64>,
        guard: &mut Guard,
    ) {
        self.refill(now, idle_cpus);
        let taken = self.charge(cpu, 0.0).0 as f64 * self.target_share;
        guard.charge_loss(now, Nanos(taken as u64));
    }

    /// Returns the CPU time that other processes may take for acting in the next second; `None`: no limit.
    pub fn time_per_s(&self, guard: &Guard) -> Option<Nanos> {
        let of_busy = self.taken_share();
        let of_targets = of_busy * self.target_share;
        let by_budget = self.share.map(|share| share * 1e9 / of_busy);
        let by_loss = guard.available_loss_ns().map(|ns| ns.max(0.0) / of_targets);
        // Without a limit, the quotient exceeds a second or is not finite.
        let least = [by_budget, by_loss].into_iter().flatten();
        let least = least.filter(|ns| ns.is_finite() && *ns < 1e9);
        least.reduce(f64::min).map(|ns| Nanos(ns as u64))
    }

    /// Adds the tokens of the time since the last call, in which `idle_cpus` CPUs were idle (while nothing was acted
    /// on).
    fn refill(&mut self, now: Nanos, idle_cpus: Option<f64>) {
        self.idle_cpus = idle_cpus;
        let before = self.refilled.replace(now).unwrap_or(now);
        let Some(share) = self.share else { return };
        let most = share * BURST_S * 1e9;
        let elapsed = now.since(before);
        self.tokens_ns = (self.tokens_ns + share * elapsed.0 as f64).min(most);
    }

    /// Returns the part of acting's CPU time that other threads wanted, 0 to 1.
    fn taken_share(&self) -> f64 {
        1.0 - (self.idle_cpus.unwrap_or(0.0) / self.width).clamp(0.0, 1.0)
    }

    /// Charges `cpu` of acting, a share of it on a loan. Returns the part that was taken from others.
    fn charge(&mut self, cpu: Nanos, share_on_loan: f64) -> Nanos {
        let taken = cpu.0 as f64 * self.taken_share();
        self.spent = self.spent + cpu;
        self.charged = self.charged + Nanos(taken as u64);
        self.tokens_ns -= taken * (1.0 - share_on_loan);
        Nanos(taken as u64)
    }

    /// Returns how long acting may take now by the budget: at most [`STEP`].
    fn available_by_budget(&self) -> Nanos {
        match self.share {
            None => STEP,
            Some(_) => available_time(self.tokens_ns / self.width, self.taken_share()),
        }
    }
}

/// Returns how long acting may take, at most [`STEP`], if it may take `ns` from others and takes `taken_share` of its
/// time from them.
fn available_time(ns: f64, taken_share: f64) -> Nanos {
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
        let mut budget = ActMeter::new(Some(share));
        for tick in 0..seconds * 20 {
            budget.refill(ms(tick * 50), idle_cpus);
            budget.charge(budget.available_by_budget(), 0.0);
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
        let mut budget = ActMeter::new(Some(0.1));
        budget.refill(ms(0), Some(0.0));
        assert_eq!(budget.available_by_budget(), Nanos(0));
        budget.refill(ms(3_600_000), Some(0.0));
        assert_eq!(budget.available_by_budget(), STEP);
        // Twice the amount of one second.
        budget.charge(ms(200), 0.0);
        budget.refill(ms(3_600_900), Some(0.0));
        assert!(budget.status().is_exhausted);
        budget.refill(ms(3_601_100), Some(0.0));
        assert_eq!(budget.available_by_budget(), ms(10));
    }

    #[test]
    fn without_a_budget_only_steps_are_bounded() {
        let mut budget = ActMeter::new(None);
        budget.charge(ms(100_000), 0.0);
        assert_eq!(budget.available_by_budget(), STEP);
    }
}
