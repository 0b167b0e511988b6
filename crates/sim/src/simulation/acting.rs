//! Steps in which a context acts as far as guard and budget permit, and reports the cost to its guard.
//!
//! `isotherm_session::acting` does this with the kernel's clocks and counters; here they are the simulated machine's.

use std::collections::BTreeMap;

use isotherm_engine::drive::MonitorLoop;
use isotherm_engine::{AddressRange, Nanos, Snapshot, TargetId};
use isotherm_policy::Context;
use isotherm_policy::guard::{ActMeter, GuardSignals, Pools, StepTime, waited_share};
use isotherm_policy::scheme::SchemeError;
use isotherm_policy::{Operation, Outcome};

use super::world::SimulatedWorld;
use super::{SimContextSpec, Watch};
use crate::machine::{Rules, SimActuator, SimMachine, SimProcess, Use};

pub(super) struct Acting {
    pub(super) context: Context,
    meter: ActMeter,
    waits: Waits,
    /// Ranges that were refused as unreclaimable, disjoint and in address order.
    left_alone: BTreeMap<TargetId, Vec<AddressRange>>,
    is_physical: bool,
    spares_accessed: bool,
}

pub(super) struct Step {
    pub(super) done: Vec<Operation>,
    pub(super) outcomes: Vec<Outcome>,
    /// Time that it took, of the one thread that monitors and acts.
    pub(super) took: Nanos,
}

impl Acting {
    pub(super) fn new(spec: &SimContextSpec) -> Result<Self, SchemeError> {
        Ok(Self {
            context: Context::new(spec.schemes.clone(), spec.guard, spec.dry_run)?,
            meter: ActMeter::new(spec.act_budget),
            waits: Waits::default(),
            left_alone: BTreeMap::new(),
            is_physical: matches!(spec.watch, Watch::Physical(..)),
            spares_accessed: matches!(spec.watch, Watch::Tables(_)),
        })
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.context.forget(target);
        self.left_alone.remove(&target);
    }

    /// The time at which the pending part of a plan is due, on the monitors' clock.
    pub(super) fn goes_on_at(&self) -> Option<Nanos> {
        self.context.has_pending().then(|| self.meter.next_step())
    }

    /// Lets the guard observe the last second. Returns whether its state has changed.
    pub(super) fn observe(&mut self, machine: &SimMachine) -> bool {
        let (signals, share) = self.waits.look(machine, self.is_physical);
        self.meter.set_target_share(share);
        let resident = machine.processes().iter().map(SimProcess::rss).sum();
        let guard = self.context.guard_mut();
        guard.observe(machine.now(), signals, Pools::processes(resident))
    }

    /// Applies the schemes to `snapshots`, or executes the pending part of a plan.
    pub(super) fn step(
        &mut self,
        machine: &mut SimMachine,
        monitor: &mut MonitorLoop,
        clock: Nanos,
        snapshots: &[Snapshot],
    ) -> Step {
        // The kernel's DAMON acts at once, up to its quotas.
        let is_stepwise = machine.spec().rules == Rules::Isotherm;
        let idle_cpus = machine.idle_cpus();
        let room = self
            .meter
            .begin(clock, Some(idle_cpus), self.context.guard());
        let room = if is_stepwise {
            room
        } else {
            StepTime::usual(Nanos(u64::MAX))
        };
        let cpu_before = machine.stats().acting_cpu;
        let mut world = SimulatedWorld {
            actuator: SimActuator::new(machine, self.is_physical, self.spares_accessed),
            monitor,
            clock,
            left_alone: self.left_alone.clone(),
        };
        let Ok((done, outcomes)) = self.context.step(clock, snapshots, room, &mut world);
        let interrupted = world.actuator.take_interrupted();
        self.leave_alone(machine, &done);
        let cpu = machine.stats().acting_cpu.since(cpu_before);
        self.meter
            .end(clock, (cpu, cpu), interrupted, self.context.on_loan());
        let took = if is_stepwise {
            Nanos((cpu.0 as f64 * machine.contention) as u64)
        } else {
            Nanos(0)
        };
        Step {
            done,
            outcomes,
            took,
        }
    }

    /// Excludes unreclaimable ranges from schemes once they were tried, as a live run does.
    fn leave_alone(&mut self, machine: &SimMachine, done: &[Operation]) {
        if self.is_physical {
            return;
        }
        for operation in done
            .iter()
            .filter(|operation| operation.action.is_reclaim())
        {
            let kept = machine
                .mappings(operation.target)
                .filter_map(|(_, range, purpose)| {
                    let is_kept = matches!(purpose, Use::Unreclaimable(_));
                    operation.range.intersection(range).filter(|_| is_kept)
                });
            let mut kept = kept.peekable();
            if kept.peek().is_some() {
                let ranges = self.left_alone.entry(operation.target).or_default();
                *ranges = AddressRange::union(ranges.iter().copied().chain(kept));
            }
        }
    }
}

/// A process's counters at the guard's last observation.
#[derive(Clone, Copy, Default)]
struct Seen {
    faults: u64,
    cpu: Nanos,
    waited: f64,
}

/// Times that targets wait for memory that was taken from them.
#[derive(Default)]
struct Waits {
    looked: Option<Nanos>,
    seen: Vec<Seen>,
    used: f64,
}

impl Waits {
    /// Returns the guard's signals since the last call, and the targets' share of the CPU time in use.
    fn look(&mut self, machine: &SimMachine, is_physical: bool) -> (GuardSignals, f64) {
        let now = machine.now();
        let elapsed = self.looked.replace(now).map(|then| now.since(then));
        let processes = machine.processes();
        self.seen.resize(processes.len(), Seen::default());
        let cost = machine.spec().costs.refault_zram;
        let (mut faults, mut cpu, mut lost, mut longest) = (0, 0.0, 0.0, 0);
        for (process, seen) in processes.iter().zip(&mut self.seen) {
            let is = Seen {
                faults: process.major_faults,
                cpu: process.cpu(),
                waited: process.losses.refaults,
            };
            let was = std::mem::replace(seen, is);
            let returned = is.faults - was.faults;
            faults += returned;
            cpu += is.cpu.since(was.cpu).as_secs_f64();
            lost += is.waited - was.waited;
            longest = longest.max(returned * cost.0);
        }
        let used = machine.cpu_used();
        let in_use = used - std::mem::replace(&mut self.used, used);
        let share = if is_physical || in_use <= 0.0 {
            1.0
        } else {
            (cpu / in_use).clamp(0.0, 1.0)
        };
        let Some(seconds) = elapsed.map(Nanos::as_secs_f64).filter(|s| *s > 0.0) else {
            return (GuardSignals::default(), 1.0);
        };
        let signals = GuardSignals {
            slowdown: Some(waited_share(faults, cost, cpu, seconds)),
            refaults_per_s: Some(faults as f64 / seconds),
            psi: Some((lost / seconds).clamp(0.0, 1.0)),
            waited: Some(Nanos(longest)),
            refault_cost: Some(cost),
            ..GuardSignals::default()
        };
        (signals, share)
    }
}
