//! The limit that binds: why schemes do not act on more memory, or faster.

use serde::{Deserialize, Serialize};

use super::Context;
use crate::guard::{ActMeter, Pool};

isotherm_engine::named! {
    /// The limit that binds the schemes of a context now. Where several would, it is the first of this order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum BoundBy {
        /// Acting is paused.
        Paused = "paused",
        /// Watermarks deactivate every scheme.
        Watermarks = "watermarks",
        /// The goal is reached.
        Goal = "goal",
        /// The guard has stopped the schemes.
        Guard = "guard",
        /// The bytes that the guard allows for this second are used up.
        Rate = "rate",
        /// The CPU budget of acting is used up.
        CpuBudget = "cpu_budget",
        /// The time that targets may lose is used up.
        AllowedLoss = "allowed_loss",
        /// Acting goes on, in steps of at most 50 ms.
        Speed = "speed",
        /// The quota of a scheme is used up.
        Quota = "quota",
        /// All further memory that matches the schemes would be read back too soon.
        Returns = "returns",
        /// No further memory matches the schemes.
        Memory = "memory",
    }

    /// Returns its name in results.
    fn name;
    all ALL;
}

impl Context {
    /// Returns the limit that binds its schemes now; `meter` is that of its steps.
    pub fn bound_by(&self, meter: &ActMeter) -> BoundBy {
        if self.schemes.is_paused() {
            return BoundBy::Paused;
        }
        if self.schemes.is_idle() {
            return BoundBy::Watermarks;
        }
        if self.guard.has_reached_goal() {
            return BoundBy::Goal;
        }
        let is_pending = |pool: &Pool| !self.queues[*pool as usize].pending.is_empty();
        match Pool::ALL.into_iter().find(is_pending) {
            Some(pool) if self.guard.has_stopped(pool) => BoundBy::Guard,
            Some(pool) if self.guard.available(pool) == Some(0) => BoundBy::Rate,
            Some(_) if meter.status().is_exhausted => BoundBy::CpuBudget,
            Some(_) if meter.is_used_up(&self.guard) => BoundBy::AllowedLoss,
            Some(_) => BoundBy::Speed,
            None if self.schemes.has_used_up_quota() => BoundBy::Quota,
            None if self.schemes.withholds() => BoundBy::Returns,
            None => BoundBy::Memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::guard::{GuardLimits, GuardSignals, Pools};
    use crate::port::Operation;
    use crate::scheme::{AccessPattern, Action, Scheme};
    use isotherm_engine::address::{AddressRange, BLOCK_SIZE, Nanos};
    use isotherm_engine::snapshot::TargetId;

    use super::*;

    fn pending(limits: GuardLimits) -> Context {
        let scheme = Scheme::new(AccessPattern::ANY, Action::Pageout);
        let mut context = Context::new(vec![scheme], limits, false).expect("a valid scheme");
        let range = AddressRange::new(0, BLOCK_SIZE);
        let operation = Operation::on(Action::Pageout, TargetId(0), range);
        let queue = &mut context.queues[Pool::Processes as usize];
        queue.pending.push_back(operation);
        context
    }

    #[test]
    fn the_first_limit_of_the_order_binds() {
        let free = ActMeter::new(None);
        let mut context = pending(GuardLimits::default());
        assert_eq!(context.bound_by(&free), BoundBy::Speed);
        let none = ActMeter::new(Some(0.0));
        assert_eq!(context.bound_by(&none), BoundBy::CpuBudget);
        context.clear_pending();
        assert_eq!(context.bound_by(&free), BoundBy::Memory);
        context.set_paused(true);
        assert_eq!(context.bound_by(&free), BoundBy::Paused);
        context = pending(GuardLimits {
            max_refaults_per_s: Some(1.0),
            ..GuardLimits::default()
        });
        assert_eq!(context.bound_by(&free), BoundBy::Guard, "no signal yet");
        let signals = GuardSignals {
            refaults_per_s: Some(0.0),
            ..GuardSignals::default()
        };
        let guard = context.guard_mut();
        guard.observe(Nanos(1), signals, Pools::default());
        assert_eq!(context.bound_by(&free), BoundBy::Rate, "of no memory");
    }

    /// If no CPU is known to be idle, acting takes its time from the targets.
    #[test]
    fn a_loss_that_is_used_up_binds() {
        let mut context = pending(GuardLimits::of_slowdown(0.01));
        let signals = GuardSignals {
            slowdown: Some(0.0),
            waited: Some(Nanos(0)),
            ..GuardSignals::default()
        };
        let guard = context.guard_mut();
        guard.observe(Nanos(1), signals, Pools::processes(1 << 30));
        let allowed_ns = guard.available_loss_ns().expect("a limit");
        guard.charge_loss(Nanos(1), Nanos(allowed_ns as u64));
        let meter = ActMeter::new(None);
        assert_eq!(context.bound_by(&meter), BoundBy::AllowedLoss);
    }
}
