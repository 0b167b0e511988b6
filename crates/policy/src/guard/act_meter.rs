//! Meter of acting: the time of a step, the time of the next one, and the cost of a step for the targets.
//!
//! It serves this machine, where time and CPUs are measured, and simulated ones, where they are computed.

use super::budget::available_time;
use super::{ActBudget, ActBudgetStatus, Guard, STEP};
use isotherm_engine::address::Nanos;

/// Time between two steps of acting, in which other threads run and idle CPUs are measured.
const BETWEEN_STEPS: Nanos = Nanos::from_millis(20);
/// Least time of a step: a shorter one achieves little for its fixed cost. The next step then comes after [`PAUSE`].
const LITTLE: Nanos = Nanos::from_millis(2);
const PAUSE: Nanos = Nanos::from_millis(200);

/// The budget of acting, and the share of acting's time that the targets lose.
#[derive(Clone, Debug)]
pub struct ActMeter {
    budget: ActBudget,
    /// Targets' part of the CPU time in use: they lose this part of the CPU time that acting takes from others.
    target_share: f64,
    /// Share of acting's time that targets have lost lately to its interrupts.
    interrupting: f64,
    next_step: Nanos,
}

impl ActMeter {
    /// Returns a meter that lets acting take `share` of one CPU while none is idle; `None`: no limit.
    pub fn new(share: Option<f64>) -> Self {
        Self {
            budget: ActBudget::new(share),
            target_share: 1.0,
            interrupting: 0.0,
            next_step: Nanos(0),
        }
    }

    /// Returns the budget's state.
    pub fn status(&self) -> ActBudgetStatus {
        self.budget.status()
    }

    /// Changes the budget while running.
    pub fn set_share(&mut self, share: Option<f64>) {
        self.budget.set_share(share);
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
    pub fn begin(&mut self, now: Nanos, idle_cpus: Option<f64>, guard: &Guard) -> Nanos {
        self.budget.refill(now, idle_cpus);
        let available = self.available(guard);
        let is_little = available < LITTLE;
        self.next_step = now + if is_little { PAUSE } else { BETWEEN_STEPS };
        available
    }

    /// Returns how long a step may take now, by the budget and by what targets may still lose.
    fn available(&self, guard: &Guard) -> Nanos {
        let taken = self.budget.taken_share() * self.target_share;
        let taken = taken.max(self.interrupting);
        let by_loss = guard.available_loss_ns();
        let by_loss = by_loss.map_or(STEP, |ns| available_time(ns, taken));
        self.budget.available().min(by_loss)
    }

    /// Returns whether a step would be too short to achieve anything.
    pub fn is_used_up(&self, guard: &Guard) -> bool {
        self.available(guard) < LITTLE
    }

    /// Ends a step that took `cpu` of CPU time, and during which targets lost `interrupted` of theirs.
    pub fn end(&mut self, now: Nanos, cpu: Nanos, interrupted: Nanos, guard: &mut Guard) {
        let taken = self.budget.charge(cpu).0 as f64 * self.target_share;
        let interrupted = interrupted.min(cpu).0 as f64;
        // The larger of the two counts: both happen at once, on the CPU that acting took and on those that it
        // interrupted.
        guard.charge_loss(now, Nanos(taken.max(interrupted) as u64));
        let share = interrupted / (cpu.0 as f64).max(1.0);
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
        self.budget.refill(now, idle_cpus);
        let taken = self.budget.charge(cpu).0 as f64 * self.target_share;
        guard.charge_loss(now, Nanos(taken as u64));
    }

    /// Returns the CPU time that other processes may take for acting in the next second; `None`: no limit.
    pub fn time_per_s(&self, guard: &Guard) -> Option<Nanos> {
        let of_busy = self.budget.taken_share();
        let of_targets = of_busy * self.target_share;
        let share = self.budget.status().share;
        let by_budget = share.map(|share| share * 1e9 / of_busy);
        let by_loss = guard.available_loss_ns().map(|ns| ns.max(0.0) / of_targets);
        // Without a limit, the quotient exceeds a second or is not finite.
        let least = [by_budget, by_loss].into_iter().flatten();
        let least = least.filter(|ns| ns.is_finite() && *ns < 1e9);
        least.reduce(f64::min).map(|ns| Nanos(ns as u64))
    }
}
