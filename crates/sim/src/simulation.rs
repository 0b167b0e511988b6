//! A machine, and Isotherm on it: monitors, schemes and guards, each the engine's own, step by step.
//!
//! `isotherm run` does this in its loop with clocks and system calls; here time is simulated. The monitors' loops and
//! the execution of plans are the same code ([`isotherm_engine::drive`]).

mod acting;
mod targets;
mod world;

use isotherm_engine::drive::MonitorLoop;
use isotherm_engine::table::TableAttributes;
use isotherm_engine::{
    AddressRange, Attributes, AttributesError, BudgetShares, Cost, CpuLedger, Intervals, Nanos,
    Snapshot, TargetId,
};
use isotherm_policy::guard::{GuardLimits, GuardStatus};
use isotherm_policy::scheme::SchemeError;
use isotherm_policy::scheme::huge::WasteStatus;
use isotherm_policy::{Operation, Outcome, Scheme, SchemeEngine};

use crate::kcompactd::Round;
use crate::machine::{ProbeState, SimMachine, SimProbe, SimProcess, SimProcessSpec, Use};
use acting::Acting;
use targets::Targets;

pub use world::Followed;

/// Interval at which memory use is reported and the guards observe the machine.
const PERIOD: Nanos = Nanos::from_millis(1_000);

/// Monitor of a context.
#[derive(Clone, Debug)]
pub enum Watch {
    /// The table monitor, of all processes.
    Tables(TableAttributes),
    /// The region monitor, of all processes.
    Regions(Attributes),
    /// The region monitor, of the physical memory of one node or of all.
    Physical(Attributes, Option<u32>),
}

/// Monitor, schemes and limits of a context.
#[derive(Clone, Debug)]
pub struct SimContextSpec {
    /// Its name, if there are several contexts.
    pub name: Option<String>,
    /// Its monitor.
    pub watch: Watch,
    /// The only monitored addresses; empty: all.
    pub limits: Vec<AddressRange>,
    /// Its schemes.
    pub schemes: Vec<Scheme>,
    /// Limits on what its schemes may cost.
    pub guard: GuardLimits,
    /// Share of one CPU that acting may take where none is idle; `None`: any share.
    pub act_budget: Option<f64>,
    /// Whether it executes nothing.
    pub dry_run: bool,
}

impl SimContextSpec {
    /// Returns a context without limits on addresses or on its schemes.
    pub fn new(watch: Watch, schemes: Vec<Scheme>) -> Self {
        Self {
            name: None,
            watch,
            limits: Vec::new(),
            schemes,
            guard: GuardLimits::default(),
            act_budget: None,
            dry_run: false,
        }
    }
}

/// Why a context cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// Its intervals or regions are invalid.
    #[error(transparent)]
    Attributes(#[from] AttributesError),
    /// Its schemes are invalid.
    #[error(transparent)]
    Schemes(#[from] SchemeError),
}

/// An event to report.
#[derive(Clone, Debug)]
pub enum Event {
    /// A context has a new target: a process, or physical memory.
    Started {
        /// Its number: each context counts a process that it monitors as a target of its own.
        target: TargetId,
        /// The context's place.
        context: usize,
        /// The process's name, or `physical`.
        name: String,
        /// Its mappings: name, range and use.
        mappings: Vec<(String, AddressRange, Use)>,
    },
    /// A target has ended.
    Ended {
        /// Its number.
        target: TargetId,
        /// Whether it was killed for want of memory.
        was_killed: bool,
    },
    /// A monitor's snapshot.
    Snapshot(Snapshot),
    /// A context's schemes have acted.
    Acted {
        /// The context's place.
        context: usize,
        /// Whether nothing was executed, and the operations are those that would have been.
        is_dry_run: bool,
        /// Operations that were tried.
        done: Vec<Operation>,
        /// Outcome of each operation.
        outcomes: Vec<Outcome>,
    },
    /// A guard has changed its state.
    Guard {
        /// The context's place.
        context: usize,
        /// Its status now.
        status: GuardStatus,
    },
    /// A round of a node's compaction thread has ended.
    Compacted(Round),
    /// A second has passed: memory use and costs can be read.
    Second,
}

/// The target that stands for physical memory.
const PHYSICAL: TargetId = TargetId(0);

struct Watcher {
    monitor: MonitorLoop,
    followed: Followed,
    probe: ProbeState,
    acting: Acting,
    is_physical: bool,
    /// Time of the next wake-up, on the monitors' clock.
    wake_at: Nanos,
}

impl Watcher {
    fn new(spec: SimContextSpec, machine: &SimMachine) -> Result<Self, ContextError> {
        let is_physical = matches!(spec.watch, Watch::Physical(..));
        let acting = Acting::new(&spec)?;
        let (mut monitor, followed) = match spec.watch {
            Watch::Tables(attributes) => (
                MonitorLoop::tables(attributes, BudgetShares::PROCESSES, machine.now()),
                Followed::processes(spec.limits),
            ),
            Watch::Regions(attributes) => (
                MonitorLoop::regions(attributes)?,
                Followed::processes(spec.limits),
            ),
            Watch::Physical(attributes, node) => {
                let nodes = match node {
                    Some(node) => vec![node],
                    None => (0..machine.spec().nodes.len() as u32).collect(),
                };
                let ranges = nodes.into_iter().map(|node| machine.physical_range(node));
                let ranges = AddressRange::union(ranges);
                (
                    MonitorLoop::regions(attributes)?,
                    Followed::physical(AddressRange::within(ranges, &spec.limits)),
                )
            }
        };
        if !spec.schemes.is_empty() {
            monitor.tell_idle_pages(spec.guard.page_ages());
        }
        Ok(Self {
            monitor,
            followed,
            probe: ProbeState::new(is_physical),
            acting,
            is_physical,
            wake_at: Nanos(0),
        })
    }
}

/// A machine on which Isotherm runs.
pub struct Simulation {
    machine: SimMachine,
    contexts: Vec<Watcher>,
    /// Processes still to start, the last first.
    starts: Vec<(Nanos, SimProcessSpec)>,
    end: Nanos,
    next_second: Nanos,
    /// Time until which the thread that monitors and acts is busy with acting.
    busy_until: Nanos,
    targets: Targets,
}

impl Simulation {
    /// Creates a simulation of Isotherm in these contexts on `machine`. Each of `starts` starts at its time. The
    /// simulation ends at `end`, or once all processes have ended.
    pub fn new(
        machine: SimMachine,
        mut starts: Vec<(Nanos, SimProcessSpec)>,
        contexts: Vec<SimContextSpec>,
        end: Nanos,
    ) -> Result<Self, ContextError> {
        // The last of the list starts next; of those with the same time, the first that was named.
        starts.reverse();
        starts.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let contexts = contexts
            .into_iter()
            .map(|spec| Watcher::new(spec, &machine));
        let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
        let is_physical: Vec<bool> = contexts.iter().map(|context| context.is_physical).collect();
        Ok(Self {
            targets: Targets::new(&is_physical),
            contexts,
            machine,
            starts,
            end,
            next_second: Nanos(0),
            busy_until: Nanos(0),
        })
    }

    /// The machine.
    pub fn machine(&self) -> &SimMachine {
        &self.machine
    }

    /// The number of contexts.
    pub fn nr_contexts(&self) -> usize {
        self.contexts.len()
    }

    /// The targets that stand for a process, one in each context that monitors processes.
    pub fn targets_of(&self, process: usize) -> impl Iterator<Item = TargetId> + '_ {
        self.targets.of(process)
    }

    /// The cost of monitoring in a context.
    pub fn cost(&self, context: usize) -> Cost {
        self.contexts[context].probe.cost
    }

    /// The intervals in force in a context, and the number of samples without a result.
    pub fn watching(&self, context: usize) -> (Intervals, u64) {
        let monitor = &self.contexts[context].monitor;
        (monitor.intervals(), monitor.nr_unknown())
    }

    /// A context's schemes.
    pub fn schemes(&self, context: usize) -> &SchemeEngine {
        self.contexts[context].acting.context.schemes()
    }

    /// A context's guard.
    pub fn guard(&self, context: usize) -> GuardStatus {
        self.contexts[context].acting.context.guard().status()
    }

    /// Sets the share of the targets' memory that huge pages of a context's schemes may waste; `None`: any.
    pub fn set_max_waste(&mut self, context: usize, max_waste: Option<f64>) {
        let acting = &mut self.contexts[context].acting;
        acting.context.set_max_waste(max_waste);
    }

    /// State of the huge pages that a context has made under a bound on their waste.
    pub fn waste(&self, context: usize) -> Option<WasteStatus> {
        self.contexts[context].acting.context.waste()
    }

    /// Advances to the next event, and appends what there is to report. Returns whether there is more.
    pub fn step(&mut self, events: &mut Vec<Event>) -> bool {
        let now = self.machine.now();
        while self.starts.last().is_some_and(|(at, _)| *at <= now) {
            self.machine
                .start(self.starts.pop().expect("there is one").1);
        }
        let first_new = events.len();
        self.targets.tell(&self.machine, events);
        self.forget_ended(&events[first_new..]);
        events.extend(self.machine.take_rounds().into_iter().map(Event::Compacted));
        let is_running = |process: &SimProcess| process.is_running();
        let nobody_left =
            self.starts.is_empty() && !self.machine.processes().iter().any(is_running);
        if now >= self.end || nobody_left {
            return false;
        }
        if now >= self.next_second {
            self.next_second = now + PERIOD;
            events.push(Event::Second);
            self.observe(events);
        }
        let clock = shifted(now, self.machine.clock_error());
        for at in 0..self.contexts.len() {
            if now < self.busy_until {
                break;
            }
            let context = &self.contexts[at];
            if context.wake_at <= clock {
                self.wake(at, clock, events);
            } else if context.acting.goes_on_at().is_some_and(|at| at <= clock) {
                self.act(at, clock, &[], events);
            }
        }
        let next = self.next_wake();
        // A clock that has jumped back must not make time stand still.
        self.machine.advance(next.max(now + Nanos::from_millis(1)));
        true
    }

    fn next_wake(&self) -> Nanos {
        let contexts = self.contexts.iter();
        let wakes = contexts.map(|context| match context.acting.goes_on_at() {
            Some(at) => at.min(context.wake_at),
            None => context.wake_at,
        });
        let wakes = wakes.map(|wake| shifted(wake, -self.machine.clock_error()));
        // One thread monitors and acts.
        let wakes = wakes.map(|wake| wake.max(self.busy_until));
        let others = [self.next_second, self.end];
        let starts = self.starts.last().map(|(at, _)| *at);
        let all = wakes.chain(others).chain(starts);
        all.min().unwrap_or(self.end)
    }

    fn forget_ended(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Ended { target, .. } = event
                && let Some((at, local)) = self.targets.given.context(*target)
                && let Some(context) = self.contexts.get_mut(at)
            {
                context.acting.forget(local);
            }
        }
    }

    fn observe(&mut self, events: &mut Vec<Event>) {
        for (at, context) in self.contexts.iter_mut().enumerate() {
            if context.acting.observe(&self.machine) {
                events.push(Event::Guard {
                    context: at,
                    status: context.acting.context.guard().status(),
                });
            }
        }
    }

    /// Lets a context's monitor do what is due, and its schemes act on the snapshots.
    fn wake(&mut self, at: usize, clock: Nanos, events: &mut Vec<Event>) {
        let context = &mut self.contexts[at];
        let mut snapshots = Vec::new();
        let mut probe = SimProbe {
            machine: &mut self.machine,
            state: &mut context.probe,
        };
        let (monitor, followed) = (&mut context.monitor, &mut context.followed);
        let cpu = CpuLedger::default();
        let Ok(next) = monitor.step(clock, cpu, &mut probe, followed, &mut snapshots);
        let next = next.unwrap_or(self.end);
        context.wake_at = next.max(clock + Nanos(1));
        if snapshots.is_empty() {
            return;
        }
        events.extend(self.targets.seen(at, &snapshots));
        self.act(at, clock, &snapshots, events);
    }

    fn act(&mut self, at: usize, clock: Nanos, snapshots: &[Snapshot], events: &mut Vec<Event>) {
        let context = &mut self.contexts[at];
        let (machine, monitor) = (&mut self.machine, &mut context.monitor);
        let step = context.acting.step(machine, monitor, clock, snapshots);
        self.busy_until = self.machine.now() + step.took;
        if !step.done.is_empty() {
            events.push(Event::Acted {
                context: at,
                is_dry_run: context.acting.context.is_dry_run(),
                done: step.done,
                outcomes: step.outcomes,
            });
        }
    }
}

fn shifted(time: Nanos, by: i64) -> Nanos {
    Nanos(time.0.saturating_add_signed(by))
}
