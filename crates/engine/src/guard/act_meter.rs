//! How long a step of acting may take, when the next one is due, and what a step costs the targets.
//!
//! The same on this machine, where time and CPUs are measured, and on a simulated one, where they are computed.

use super::{ActBudget, ActBudgetStatus, Guard, STEP, room_of};
use crate::address::Nanos;

/// Between two steps of acting others have their turn, and it is seen who has something to do.
const BETWEEN_STEPS: Nanos = Nanos::from_millis(20);
/// A step that has less time than this does little for what a step costs in any case; then it is waited until
/// more may be taken.
const LITTLE: Nanos = Nanos::from_millis(2);
const PAUSE: Nanos = Nanos::from_millis(200);

/// The budget of acting, and by what part acting slows the targets.
#[derive(Clone, Debug)]
pub struct ActMeter {
    budget: ActBudget,
    /// The part of the CPU time in use that is the targets': of what acting takes from others, they
    /// lose so much.
    target_share: f64,
    /// Share of acting's time that targets have lost lately, as it interrupted them.
    interrupting: f64,
    next_step: Nanos,
}

impl ActMeter {
    /// Acting may take `share` of one CPU where none is idle; `None`: as much as it wants.
    pub fn new(share: Option<f64>) -> Self {
        Self {
            budget: ActBudget::new(share),
            target_share: 1.0,
            interrupting: 0.0,
            next_step: Nanos(0),
        }
    }

    /// How the budget stands.
    pub fn status(&self) -> ActBudgetStatus {
        self.budget.status()
    }

    /// Changes the budget while running.
    pub fn set_share(&mut self, share: Option<f64>) {
        self.budget.set_share(share);
    }

    /// Targets have `share` of the CPU time in use, 0 to 1.
    pub fn set_target_share(&mut self, share: f64) {
        self.target_share = share;
    }

    /// When a plan that was not finished goes on.
    pub fn next_step(&self) -> Nanos {
        self.next_step
    }

    /// A step begins, and so many CPUs were idle since the last one (`None`: not known). Yields how long it may take.
    pub fn begin(&mut self, now: Nanos, idle_cpus: Option<f64>, guard: &Guard) -> Nanos {
        self.budget.refill(now, idle_cpus);
        let taken = self.budget.taken_share() * self.target_share;
        let taken = taken.max(self.interrupting);
        let room = guard.loss_room_ns();
        let room = room.map_or(STEP, |ns| room_of(ns, taken));
        let room = self.budget.room().min(room);
        self.next_step = now + if room < LITTLE { PAUSE } else { BETWEEN_STEPS };
        room
    }

    /// It is over, took so much CPU time, and targets lost `interrupted` of theirs meanwhile.
    pub fn end(&mut self, now: Nanos, cpu: Nanos, interrupted: Nanos, guard: &mut Guard) {
        let taken = self.budget.charge(cpu).0 as f64 * self.target_share;
        let interrupted = interrupted.min(cpu).0 as f64;
        // Both at once: while it took the one's processor, it interrupted the other.
        guard.taken(now, Nanos(taken.max(interrupted) as u64));
        let share = interrupted / (cpu.0 as f64).max(1.0);
        self.interrupting += (share - self.interrupting) / 2.0;
    }

    /// Somebody else acted, and took so much CPU time for it while so many CPUs were idle.
    pub fn others_acted(
        &mut self,
        now: Nanos,
        cpu: Nanos,
        idle_cpus: Option<f64>,
        guard: &mut Guard,
    ) {
        self.budget.refill(now, idle_cpus);
        let taken = self.budget.charge(cpu).0 as f64 * self.target_share;
        guard.taken(now, Nanos(taken as u64));
    }

    /// CPU time that others may take for acting in the next second; `None`: any.
    pub fn time_per_s(&self, guard: &Guard) -> Option<Nanos> {
        let of_busy = self.budget.taken_share();
        let of_targets = of_busy * self.target_share;
        let share = self.budget.status().share;
        let by_budget = share.map(|share| share * 1e9 / of_busy);
        let by_loss = guard.loss_room_ns().map(|room| room.max(0.0) / of_targets);
        // What has no limit comes to more than a second, or to nothing that could be divided by.
        let least = [by_budget, by_loss].into_iter().flatten();
        let least = least.filter(|ns| ns.is_finite() && *ns < 1e9);
        least.reduce(f64::min).map(|ns| Nanos(ns as u64))
    }
}
