//! A machine, and Isotherm on it: monitors, schemes and guards, each the engine's own, step by step.
//!
//! What `isotherm run` does in its loop with clocks and system calls, this does with simulated time: the
//! monitors' loops and the carrying out of plans are the same code ([`isotherm_engine::drive`]).

mod acting;
mod targets;
mod world;

use isotherm_engine::drive::MonitorLoop;
use isotherm_engine::guard::{GuardLimits, GuardStatus};
use isotherm_engine::scheme::SchemeError;
use isotherm_engine::scheme::huge::WasteStatus;
use isotherm_engine::table::TableAttributes;
use isotherm_engine::{
    AddressRange, Attributes, AttributesError, Cost, Intervals, Nanos, Operation, Outcome, Scheme,
    SchemeEngine, Snapshot, TargetId,
};

use crate::kcompactd::Round;
use crate::machine::{Machine, ProbeState, Process, ProcessSpec, SimProbe, Use};
use acting::Acting;
use targets::Targets;
use world::Followed;

/// How often memory use is told and the guards look.
const PERIOD: Nanos = Nanos::from_millis(1_000);

/// How a context watches.
#[derive(Clone, Debug)]
pub enum Watch {
    /// All processes, by the table monitor.
    Tables(TableAttributes),
    /// All processes, by regions.
    Regions(Attributes),
    /// Physical memory, of one node or of all.
    Physical(Attributes, Option<u32>),
}

/// What a context watches and does.
#[derive(Clone, Debug)]
pub struct ContextSpec {
    /// Its name, where there are several.
    pub name: Option<String>,
    /// How it watches.
    pub watch: Watch,
    /// Only these addresses, if any.
    pub limits: Vec<AddressRange>,
    /// What it does.
    pub schemes: Vec<Scheme>,
    /// What that may cost.
    pub guard: GuardLimits,
    /// Share of one CPU that acting may take where none is idle; `None`: as much as it wants.
    pub act_budget: Option<f64>,
    /// Nothing is done.
    pub dry_run: bool,
}

/// Why a context cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// Its intervals or regions.
    #[error(transparent)]
    Attributes(#[from] AttributesError),
    /// Its schemes.
    #[error(transparent)]
    Schemes(#[from] SchemeError),
}

/// Something to tell.
#[derive(Clone, Debug)]
pub enum Event {
    /// A context has a new target: a process, or physical memory.
    Started {
        /// Its number: each context counts a process that it watches as a target of its own.
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
        /// It was killed for want of memory.
        was_killed: bool,
    },
    /// What a monitor saw.
    Snapshot(Snapshot),
    /// What a context's schemes did.
    Acted {
        /// The context's place.
        context: usize,
        /// Nothing was done: it is said what would have been.
        is_dry_run: bool,
        /// What was tried.
        done: Vec<Operation>,
        /// What came of each.
        outcomes: Vec<Outcome>,
    },
    /// A guard has changed its mind.
    Guard {
        /// The context's place.
        context: usize,
        /// How it stands.
        status: GuardStatus,
    },
    /// A round of a node's compaction thread has ended.
    Compacted(Round),
    /// A second has passed: memory use and costs can be read.
    Second,
}

/// Physical memory is one target.
const PHYSICAL: TargetId = TargetId(0);

/// A context on the machine.
struct Watcher {
    monitor: MonitorLoop,
    followed: Followed,
    probe: ProbeState,
    acting: Acting,
    is_physical: bool,
    /// On the monitors' clock.
    wake_at: Nanos,
}

impl Watcher {
    fn new(spec: ContextSpec, machine: &Machine) -> Result<Self, ContextError> {
        let is_physical = matches!(spec.watch, Watch::Physical(..));
        let acting = Acting::new(&spec)?;
        let (mut monitor, followed) = match spec.watch {
            Watch::Tables(attributes) => (
                MonitorLoop::tables(attributes, machine.now()),
                Followed::processes(spec.limits),
            ),
            Watch::Regions(attributes) => (
                MonitorLoop::regions(attributes)?,
                Followed::processes(spec.limits),
            ),
            Watch::Physical(mut attributes, node) => {
                attributes.strategy.cluster_pages = 1;
                attributes.strategy.populated_only = false;
                let nodes = match node {
                    Some(node) => vec![node],
                    None => (0..machine.spec().nodes.len() as u32).collect(),
                };
                let ranges = nodes.into_iter().map(|node| machine.physical_range(node));
                let ranges = joined(ranges);
                (
                    MonitorLoop::regions(attributes)?,
                    Followed::physical(within(&ranges, &spec.limits)),
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

fn joined(ranges: impl Iterator<Item = AddressRange>) -> Vec<AddressRange> {
    let mut joined: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

fn within(ranges: &[AddressRange], limits: &[AddressRange]) -> Vec<AddressRange> {
    if limits.is_empty() {
        return ranges.to_vec();
    }
    let parts = ranges
        .iter()
        .flat_map(|range| limits.iter().filter_map(|limit| range.intersection(*limit)));
    parts.collect()
}

/// A machine on which Isotherm runs.
pub struct Simulation {
    machine: Machine,
    contexts: Vec<Watcher>,
    /// Processes still to start, the last first.
    starts: Vec<(Nanos, ProcessSpec)>,
    end: Nanos,
    next_second: Nanos,
    /// Until when the thread that watches and acts is busy with acting.
    busy_until: Nanos,
    targets: Targets,
}

impl Simulation {
    /// Isotherm in these contexts on `machine`, on which `starts` start at their times, until `end` or
    /// until all have ended.
    pub fn new(
        machine: Machine,
        mut starts: Vec<(Nanos, ProcessSpec)>,
        contexts: Vec<ContextSpec>,
        end: Nanos,
    ) -> Result<Self, ContextError> {
        // The last of them is the next: of those of one time, the first that was named.
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
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// How many contexts there are.
    pub fn nr_contexts(&self) -> usize {
        self.contexts.len()
    }

    /// The targets that a process is, one in each context that watches processes.
    pub fn targets_of(&self, process: usize) -> impl Iterator<Item = TargetId> + '_ {
        self.targets.of(process)
    }

    /// What watching in a context has cost.
    pub fn cost(&self, context: usize) -> Cost {
        self.contexts[context].probe.cost()
    }

    /// The intervals in force, and samples about which nothing could be known, in a context.
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

    /// Huge pages that a context's schemes make may waste this share of its targets' memory; `None`: any.
    pub fn set_max_waste(&mut self, context: usize, max_waste: Option<f64>) {
        let acting = &mut self.contexts[context].acting;
        acting.context.set_max_waste(max_waste);
    }

    /// How huge pages stand that a context has made under a bound on their waste.
    pub fn waste(&self, context: usize) -> Option<WasteStatus> {
        self.contexts[context].acting.context.waste()
    }

    /// Goes on to what happens next, and appends what there is to tell. Whether there is more.
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
        let is_running = |process: &Process| process.is_running();
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

    /// When there is something to do next.
    fn next_wake(&self) -> Nanos {
        let contexts = self.contexts.iter();
        let wakes = contexts.map(|context| match context.acting.goes_on_at() {
            Some(at) => at.min(context.wake_at),
            None => context.wake_at,
        });
        let wakes = wakes.map(|wake| shifted(wake, -self.machine.clock_error()));
        // Who watches and who acts are one thread.
        let wakes = wakes.map(|wake| wake.max(self.busy_until));
        let others = [self.next_second, self.end];
        let starts = self.starts.last().map(|(at, _)| *at);
        let all = wakes.chain(others).chain(starts);
        all.min().unwrap_or(self.end)
    }

    fn forget_ended(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Ended { target, .. } = event
                && let Some((at, local)) = self.targets.context(*target)
                && let Some(context) = self.contexts.get_mut(at)
            {
                context.acting.forget(local);
            }
        }
    }

    /// Guards look at what the last second was like.
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

    /// A context's monitor does what is due, and its schemes what follows.
    fn wake(&mut self, at: usize, clock: Nanos, events: &mut Vec<Event>) {
        let context = &mut self.contexts[at];
        let mut snapshots = Vec::new();
        let mut probe = SimProbe {
            machine: &mut self.machine,
            state: &mut context.probe,
        };
        let (monitor, followed) = (&mut context.monitor, &mut context.followed);
        let Ok(next) = monitor.step(clock, &mut probe, followed, &mut snapshots);
        let next = next.unwrap_or(self.end);
        context.wake_at = next.max(clock + Nanos(1));
        if snapshots.is_empty() {
            return;
        }
        events.extend(self.targets.seen(at, &snapshots));
        self.act(at, clock, &snapshots, events);
    }

    /// A context's schemes do what follows from what its monitor saw.
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
