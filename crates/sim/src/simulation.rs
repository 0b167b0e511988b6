//! A machine, and Isotherm on it: monitors, schemes and guards, each the engine's own, step by step.
//!
//! What `isotherm run` does in its loop with clocks and system calls, this does with simulated time:
//! the table monitor's loop and the carrying out of plans are the same code
//! ([`isotherm_engine::drive`]); the regions' loop is as short here as there.

mod targets;

use std::collections::BTreeMap;
use std::convert::Infallible;

use isotherm_engine::drive::{Carried, DryRun, Pace, TableLoop, TargetSource, carry_out};
use isotherm_engine::guard::{Guard, GuardLimits, GuardSignals, GuardStatus, waited_share};
use isotherm_engine::scheme::{Metric, NodeMemory, SchemeError, SystemFacts};
use isotherm_engine::table::{MappedRange, TableAttributes};
use isotherm_engine::{
    AccessProbe, Actuator, AddressRange, Attributes, AttributesError, Cost, Engine, Facts,
    Intervals, Layout, Nanos, Operation, Outcome, PAGE_SIZE, Scheme, SchemeEngine, Snapshot,
    TargetId, Touch,
};

use crate::kcompactd::Round;
use crate::machine::{Machine, ProbeState, Process, ProcessSpec, SimActuator, SimProbe};
use crate::memory::Zone;
use targets::Targets;

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
        /// What it maps: name and range.
        mappings: Vec<(String, AddressRange)>,
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
        /// What was tried, and what came of it.
        done: Vec<(Operation, Outcome)>,
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

enum Monitor {
    Tables(Box<TableLoop>, Followed),
    Regions(Box<Regions>),
}

/// What the table monitor knows of processes.
#[derive(Default)]
struct Followed {
    known: BTreeMap<TargetId, Vec<MappedRange>>,
    limits: Vec<AddressRange>,
    /// Processes of the machine that were looked at already.
    seen: usize,
    is_over: bool,
}

impl TargetSource<SimProbe<'_>> for Followed {
    fn update(
        &mut self,
        probe: &mut SimProbe<'_>,
        _now: Nanos,
    ) -> Result<Vec<TargetId>, Infallible> {
        let processes = probe.machine.processes();
        let ended = |target: &TargetId| !processes[target.0 as usize].is_running();
        let gone: Vec<TargetId> = self.known.keys().copied().filter(ended).collect();
        self.known.retain(|target, _| !ended(target));
        for (index, process) in processes.iter().enumerate().skip(self.seen) {
            let target = TargetId(index as u32);
            if process.is_running() {
                let mapped = mapped(probe.machine, target, &self.limits);
                let mapped = mapped.into_iter().map(|range| MappedRange { range });
                self.known.insert(target, mapped.collect());
            }
        }
        self.seen = processes.len();
        self.is_over = self.known.is_empty();
        Ok(gone)
    }

    fn is_over(&self) -> bool {
        // Others may still come: the simulation knows when nothing more happens.
        false
    }

    fn ids(&self) -> Vec<TargetId> {
        self.known.keys().copied().collect()
    }

    fn mappings(&self, target: TargetId) -> Vec<MappedRange> {
        self.known.get(&target).cloned().unwrap_or_default()
    }
}

/// A process's mappings, as far as they lie within `limits`.
fn mapped(machine: &Machine, target: TargetId, limits: &[AddressRange]) -> Vec<AddressRange> {
    let ranges = machine.mappings(target).map(|(_, range, _)| range);
    if limits.is_empty() {
        return ranges.collect();
    }
    ranges
        .flat_map(|range| {
            limits
                .iter()
                .filter_map(move |limit| range.intersection(*limit))
        })
        .collect()
}

/// DAMON's way: regions, by virtual or physical addresses.
struct Regions {
    engine: Engine,
    touches: Vec<Touch>,
    layouts_wanted: bool,
    physical: Option<Vec<AddressRange>>,
    limits: Vec<AddressRange>,
    known: Vec<TargetId>,
    nr_unknown: u64,
}

/// Physical memory is one target.
const PHYSICAL: TargetId = TargetId(0);

impl Regions {
    fn step(
        &mut self,
        now: Nanos,
        probe: &mut SimProbe<'_>,
        snapshots: &mut Vec<Snapshot>,
    ) -> Result<Nanos, Infallible> {
        probe.check(&mut self.touches)?;
        let unknown = |touch: &&Touch| matches!(touch, Touch::Unknown(_));
        self.nr_unknown += self.touches.iter().filter(unknown).count() as u64;
        let mut layouts = Vec::new();
        let mut ended = Vec::new();
        if std::mem::take(&mut self.layouts_wanted) {
            (layouts, ended) = self.look_who_is_there(probe.machine);
        }
        let facts = Facts {
            touches: &self.touches,
            layouts,
            ended: &ended,
            cost: probe.cost(),
        };
        let plan = self.engine.tick(now, facts);
        probe.arm(&plan.samples)?;
        snapshots.extend(plan.snapshots.iter().cloned());
        self.layouts_wanted = plan.layouts_wanted;
        Ok(plan.next_tick)
    }

    fn look_who_is_there(&mut self, machine: &Machine) -> (Vec<(TargetId, Layout)>, Vec<TargetId>) {
        if let Some(ranges) = &self.physical {
            return (vec![(PHYSICAL, Layout::Fixed(ranges.clone()))], Vec::new());
        }
        let is_live = |target: &TargetId| machine.processes()[target.0 as usize].is_running();
        let all = (0..machine.processes().len()).map(|index| TargetId(index as u32));
        let live: Vec<TargetId> = all.filter(is_live).collect();
        let ended = self.known.iter().copied().filter(|t| !is_live(t)).collect();
        let layouts = live.iter().map(|target| {
            let layout = if self.limits.is_empty() {
                Layout::Mappings {
                    mappings: mapped(machine, *target, &[]),
                    populated: None,
                }
            } else {
                Layout::Fixed(self.limits.clone())
            };
            (*target, layout)
        });
        let layouts = layouts.collect();
        self.known = live;
        (layouts, ended)
    }
}

struct Context {
    monitor: Monitor,
    probe: ProbeState,
    schemes: SchemeEngine,
    guard: Guard,
    pace: Pace,
    is_physical: bool,
    spares_accessed: bool,
    /// What a dry run has counted already; `None`: it is none.
    dry_run: Option<DryRun>,
    /// On the monitors' clock.
    wake_at: Nanos,
    /// Faults and CPU time of all processes at the guard's last look.
    before: (u64, f64),
    /// The time that processes had lost for memory then.
    lost_before: f64,
}

impl Context {
    fn new(spec: ContextSpec, machine: &Machine) -> Result<Self, ContextError> {
        let is_physical = matches!(spec.watch, Watch::Physical(..));
        let spares_accessed = matches!(spec.watch, Watch::Tables(_));
        let regions = |attributes, physical| -> Result<Monitor, ContextError> {
            Ok(Monitor::Regions(Box::new(Regions {
                engine: Engine::new(attributes)?,
                touches: Vec::new(),
                layouts_wanted: true,
                physical,
                limits: spec.limits.clone(),
                known: Vec::new(),
                nr_unknown: 0,
            })))
        };
        let monitor = match spec.watch {
            Watch::Tables(attributes) => {
                let followed = Followed {
                    limits: spec.limits.clone(),
                    ..Followed::default()
                };
                Monitor::Tables(
                    Box::new(TableLoop::new(attributes, machine.now())),
                    followed,
                )
            }
            Watch::Regions(attributes) => regions(attributes, None)?,
            Watch::Physical(mut attributes, node) => {
                attributes.strategy.cluster_pages = 1;
                attributes.strategy.populated_only = false;
                let nodes = match node {
                    Some(node) => vec![node],
                    None => (0..machine.spec().nodes.len() as u32).collect(),
                };
                let ranges = nodes.into_iter().map(|node| machine.physical_range(node));
                let ranges = joined(ranges);
                regions(attributes, Some(within(&ranges, &spec.limits)))?
            }
        };
        Ok(Self {
            monitor,
            probe: ProbeState::new(is_physical),
            schemes: SchemeEngine::new(spec.schemes)?,
            guard: Guard::new(spec.guard),
            pace: Pace::default(),
            is_physical,
            spares_accessed,
            dry_run: spec.dry_run.then(DryRun::default),
            wake_at: Nanos(0),
            before: (0, 0.0),
            lost_before: 0.0,
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
    contexts: Vec<Context>,
    /// Processes still to start, the last first.
    starts: Vec<(Nanos, ProcessSpec)>,
    end: Nanos,
    next_second: Nanos,
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
        starts.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let contexts = contexts
            .into_iter()
            .map(|spec| Context::new(spec, &machine));
        let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
        let is_physical: Vec<bool> = contexts.iter().map(|context| context.is_physical).collect();
        Ok(Self {
            targets: Targets::new(&is_physical),
            contexts,
            machine,
            starts,
            end,
            next_second: Nanos(0),
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
        match &self.contexts[context].monitor {
            Monitor::Tables(look, _) => (look.intervals(), look.nr_unknown()),
            Monitor::Regions(regions) => (regions.engine.intervals(), regions.nr_unknown),
        }
    }

    /// A context's schemes.
    pub fn schemes(&self, context: usize) -> &SchemeEngine {
        &self.contexts[context].schemes
    }

    /// A context's guard.
    pub fn guard(&self, context: usize) -> GuardStatus {
        self.contexts[context].guard.status()
    }

    /// Goes on to what happens next, and appends what there is to tell. Whether there is more.
    pub fn step(&mut self, events: &mut Vec<Event>) -> bool {
        let now = self.machine.now();
        while self.starts.last().is_some_and(|(at, _)| *at <= now) {
            self.machine
                .start(self.starts.pop().expect("there is one").1);
        }
        self.targets.tell(&self.machine, events);
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
            if self.contexts[at].wake_at <= clock {
                self.wake(at, clock, events);
            }
        }
        let wakes = self.contexts.iter().map(|context| context.wake_at);
        let next = wakes
            .map(|wake| shifted(wake, -self.machine.clock_error()))
            .chain([self.next_second, self.end])
            .chain(self.starts.last().map(|(at, _)| *at))
            .min()
            .unwrap_or(self.end);
        // A clock that has jumped back must not make time stand still.
        self.machine.advance(next.max(now + Nanos::from_millis(1)));
        true
    }

    /// Guards look at what the last second was like.
    fn observe(&mut self, events: &mut Vec<Event>) {
        let now = self.machine.now();
        let processes = self.machine.processes();
        let faults: u64 = processes.iter().map(Process::major_faults).sum();
        let cpu: f64 = processes.iter().map(|p| p.cpu().as_secs_f64()).sum();
        let resident: u64 = processes.iter().map(Process::rss).sum();
        let lost: f64 = processes.iter().map(|p| p.losses().refaults).sum();
        let cost = self.machine.spec().costs.refault_zram;
        for (at, context) in self.contexts.iter_mut().enumerate() {
            let (faults_before, cpu_before) = std::mem::replace(&mut context.before, (faults, cpu));
            let lost_before = std::mem::replace(&mut context.lost_before, lost);
            let seconds = PERIOD.as_secs_f64();
            let mut signals = GuardSignals::default();
            if now.0 > 0 {
                let new = faults - faults_before;
                signals = GuardSignals {
                    slowdown: Some(waited_share(new, cost, cpu - cpu_before, seconds)),
                    refaults_per_s: Some(new as f64 / seconds),
                    psi: Some(((lost - lost_before) / seconds).clamp(0.0, 1.0)),
                    waited: Some(Nanos(new * cost.0)),
                    ..GuardSignals::default()
                };
            }
            if context.guard.observe(now, signals, resident) {
                events.push(Event::Guard {
                    context: at,
                    status: context.guard.status(),
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
        let next = match &mut context.monitor {
            Monitor::Tables(look, followed) => {
                let Ok(next) = look.step(clock, &mut probe, followed, &mut snapshots);
                next.unwrap_or(self.end)
            }
            Monitor::Regions(regions) => {
                let Ok(next) = regions.step(clock, &mut probe, &mut snapshots);
                next
            }
        };
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
        let wanted = context.schemes.wanted_metrics(clock);
        let facts = facts(&self.machine, &wanted);
        let mut plan = context.schemes.plan(clock, snapshots, &facts);
        if let Some(dry_run) = &mut context.dry_run {
            dry_run.observe(snapshots);
            plan = dry_run.fresh(&plan);
        }
        let is_dry_run = context.dry_run.is_some();
        let mut actuator = SimActuator {
            machine: &mut self.machine,
            is_physical: context.is_physical,
            spare_accessed: context.spares_accessed,
        };
        let Ok(Carried { done, outcomes, .. }) = carry_out::<Infallible>(
            &plan,
            &mut context.guard,
            (&mut context.pace, Nanos(u64::MAX)),
            || true,
            |portion, outcomes| {
                if is_dry_run {
                    outcomes.extend(portion.iter().map(Outcome::assumed));
                    return Ok(());
                }
                actuator.act(portion, outcomes)
            },
        );
        if let Some(dry_run) = &mut context.dry_run {
            dry_run.assume(&done);
        }
        for (target, range) in context.schemes.done(&done, &outcomes) {
            if is_dry_run {
                continue;
            }
            match &mut context.monitor {
                Monitor::Tables(look, _) => look.reset_age(target, range, clock),
                Monitor::Regions(regions) => regions.engine.reset_age(target, range),
            }
        }
        if !done.is_empty() {
            events.push(Event::Acted {
                context: at,
                is_dry_run,
                done: done.into_iter().zip(outcomes).collect(),
            });
        }
    }
}

fn shifted(time: Nanos, by: i64) -> Nanos {
    Nanos(time.0.saturating_add_signed(by))
}

/// What goals and watermarks ask of the machine.
fn facts(machine: &Machine, wanted: &[Metric]) -> SystemFacts {
    let mut facts = SystemFacts::default();
    let zones = machine.memory().zones();
    for metric in wanted {
        match metric {
            Metric::FreeMem => {
                let all: u64 = zones.iter().map(Zone::pages).sum();
                let free = machine.memory().free_pages();
                facts.free_mem_permil = Some((free * 1000 / all.max(1)) as u32);
            }
            Metric::SomeMemPsi => {
                let processes = machine.processes().iter();
                let lost: f64 = processes.map(|p| p.losses().refaults).sum();
                facts.some_mem_psi_total_us = Some((lost * 1e6) as u64);
            }
            Metric::Node(node) => {
                if *node < machine.memory().nr_nodes() {
                    let frames = machine.memory().frames_of(*node);
                    let memory = NodeMemory {
                        total: (frames.end - frames.start) * PAGE_SIZE,
                        free: machine.memory().free_on(*node) * PAGE_SIZE,
                    };
                    facts.nodes.insert(*node, memory);
                }
            }
            // Groups and lists are not simulated: unknown.
            Metric::NodeMemcg(..) | Metric::Lru | Metric::Eligible(..) => {}
        }
    }
    facts
}
