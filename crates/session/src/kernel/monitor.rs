//! A monitor that drives one kdamond.

use std::cell::RefCell;
use std::rc::Rc;

use isotherm_config::ContextSpec;
use isotherm_damon::{DamonContext, DamonError, DamonTarget, KernelStats, nr_samples};
use isotherm_engine::{AddressRange, Cost, CpuLedger, Intervals, Nanos, Snapshot, TargetId};
use isotherm_linux::clock::{Clock, process_cpu};
use isotherm_linux::cpu::task_cpu;
use isotherm_linux::damon_trace::TracedWhat;
use isotherm_linux::kernel_thread::kernel_thread;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;
use isotherm_policy::scheme::{AccessPattern, Action, Scheme};
use isotherm_record::Item;

use super::assemble::{Assembler, snapshot};
use super::lower;
use super::schemes::SchemeCounters;
use super::shared_damon::SharedDamon;
use crate::monitor::{
    Force, Kdamond, MEMORY, Monitor, MonitorStatus, NextStep, TargetTables, start_of_memory,
};
use crate::targets::TargetSet;

/// Interval between readings of counters and scans for processes.
const PERIOD: Nanos = Nanos::from_millis(1_000);
/// Events are fetched at the ends of aggregation intervals, but not more often than this.
const SHORTEST_WAIT: Nanos = Nanos::from_millis(200);
/// Fewest aggregation intervals between two restarts of a kdamond: otherwise it would report nothing where processes
/// end each second.
const LEAST_LIFE: u64 = 10;
/// Number of aggregation intervals between two commits that are not urgent. Each commit makes schemes wait for another
/// whole apply interval, so that commits in quick succession would keep them from being applied at all.
const BETWEEN_COMMITS: u64 = 4;
/// Limit on the ended processes that keep their places, on a kernel that cannot drop targets; the number of live ones,
/// if greater.
const GONE_MAX: usize = 16;
/// Number of successive checks that find the kdamond off before another user is taken to have turned it off.
const LOOKS_OFF: u32 = 3;

pub(super) enum Watched {
    Processes {
        probe: Box<PageTableProbe>,
        set: Box<TargetSet>,
    },
    /// All RAM, or that of a NUMA node.
    Physical { is_told: bool },
}

impl Watched {
    /// Updates and reports the processes, and returns the live process ids in the order of their targets.
    pub(super) fn update(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Vec<u32>> {
        match self {
            Self::Processes { probe, set } => {
                set.update(probe, now, items)?;
            }
            Self::Physical { is_told } => {
                if !std::mem::replace(is_told, true) {
                    items.push(start_of_memory(now));
                }
            }
        }
        Ok(self.pids())
    }

    fn set(&self) -> Option<&TargetSet> {
        match self {
            Self::Processes { set, .. } => Some(set),
            Self::Physical { .. } => None,
        }
    }

    /// Returns the ids of the live processes, as of the last update.
    fn pids(&self) -> Vec<u32> {
        let pids = self.set().into_iter().flat_map(TargetSet::pids);
        pids.map(|(_, pid)| pid).collect()
    }

    fn ids(&self) -> Vec<TargetId> {
        let set = self.set();
        set.map_or_else(|| vec![MEMORY], |set| set.ids().collect())
    }

    /// Returns the targets that live right now, with their process ids. Some may have ended since the last update, and
    /// a commit that names one of them is refused.
    fn living(&self) -> (Vec<TargetId>, Vec<u32>) {
        match self {
            Self::Processes { probe, set } => {
                let lives = |id| probe.process(id).is_some_and(Process::is_alive);
                set.pids().filter(|(id, _)| lives(*id)).unzip()
            }
            Self::Physical { .. } => (vec![MEMORY], Vec::new()),
        }
    }

    fn is_live(&self, id: TargetId) -> bool {
        self.set().is_none_or(|set| set.is_live(id))
    }

    fn is_over(&self) -> bool {
        self.set().is_some_and(TargetSet::is_over)
    }
}

/// Treatment of the places of ended processes when new ones come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// The commit removes them (`obsolete_target`).
    Dropped,
    /// This kernel thread, which has no memory, takes the place: a commit that names an ended process is refused.
    Kept { stand_in: u32 },
}

/// One kdamond, with its configuration and the state of its targets and counters.
pub(crate) struct KernelMonitor {
    hub: Rc<RefCell<SharedDamon>>,
    at: usize,
    context: DamonContext,
    counters: SchemeCounters,
    /// Whether the kdamond restarted since the last query, with its schemes held: quotas are not in force then.
    has_begun_anew: bool,
    ranges: Vec<AddressRange>,
    watched: Watched,
    /// The session's target ids, by their places in the kdamond.
    order: Vec<TargetId>,
    assembler: Assembler,
    intervals: Intervals,
    /// Items for the next step.
    first: Vec<Item>,
    /// The session's time less CLOCK_MONOTONIC.
    offset: u64,
    next_look: Nanos,
    checks: u64,
    lost_told: u64,
    /// Successive checks that found the kdamond off although processes live.
    nr_off: u32,
    /// The earliest time for a commit that is not urgent.
    next_commit: Nanos,
    /// The earliest time to begin anew while some of its processes live.
    begins_anew: Nanos,
    /// The last attempt to watch new processes failed.
    is_refused: bool,
}

impl KernelMonitor {
    pub(super) fn new(
        hub: Rc<RefCell<SharedDamon>>,
        at: usize,
        spec: &ContextSpec,
        context: DamonContext,
        watched: Watched,
        first: Vec<Item>,
    ) -> Self {
        let force = match &spec.acting {
            Some(acting) if acting.is_dry_run => Force::Pretends,
            // `Acting` releases the schemes.
            _ => Force::Held,
        };
        Self {
            hub,
            at,
            counters: SchemeCounters::new(spec.name.clone(), spec.schemes(), force),
            has_begun_anew: false,
            ranges: spec.ranges.clone(),
            order: watched.ids(),
            watched,
            assembler: Assembler::default(),
            intervals: context.intervals,
            context,
            first,
            offset: Clock::start().offset(),
            next_look: Nanos(0),
            checks: 0,
            lost_told: 0,
            nr_off: 0,
            next_commit: Nanos(0),
            begins_anew: Nanos(0),
            is_refused: false,
        }
    }

    /// Reads the kdamond's events since the last call.
    fn fetch(&mut self, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let events = self.hub.borrow_mut().take(self.at)?;
        for event in events {
            match event.what {
                TracedWhat::Aggregated(region) => {
                    let end = Nanos(self.offset + event.monotonic.0);
                    let whole = self.assembler.take(region, end, self.intervals);
                    self.tell(whole, items);
                }
                TracedWhat::IntervalsTuned { sample } => {
                    let nr = nr_samples(self.intervals);
                    self.intervals.sample = sample;
                    self.intervals.aggregation = Nanos(sample.0.saturating_mul(nr.into()));
                }
                TracedWhat::BeforeApply { scheme, region } => {
                    let bytes = region.range.len();
                    self.counters.note_tried(scheme, region.target, bytes);
                }
                // The counters report it, too, once a second.
                TracedWhat::EffectiveSize { .. } => {}
            }
        }
        Ok(())
    }

    /// Reports a snapshot under its target's id in the session, unless the target is not known (any more).
    fn tell(&mut self, snapshot: Option<Snapshot>, items: &mut Vec<Item>) {
        let Some(mut snapshot) = snapshot else { return };
        let target = self.order.get(snapshot.target.0 as usize);
        let Some(&target) = target.filter(|id| self.watched.is_live(**id)) else {
            return;
        };
        snapshot.target = target;
        self.checks += snapshot.regions.len() as u64 * u64::from(snapshot.nr_samples);
        items.push(Item::Snapshot(snapshot));
    }

    /// Reports the regions on which a scheme that takes every region was tried, as there are no events.
    fn fetch_by_scheme(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let scheme = self.counters.nr();
        let regions = self.hub.borrow_mut().claim.tried_regions(self.at, scheme)?;
        // The kernel does not report the target of a region.
        if self.order.len() != 1 || regions.is_empty() {
            return Ok(());
        }
        let regions = regions
            .iter()
            .map(|region| (region.range, region.nr_accesses, region.age));
        let snapshot = snapshot(TargetId(0), regions, now, self.intervals);
        self.tell(Some(snapshot), items);
        Ok(())
    }

    fn look(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        self.watched.update(now, items)?;
        let (ids, pids) = self.watched.living();
        if ids.iter().any(|id| !self.order.contains(id)) {
            // The kdamond may be off already, if all its processes ended while it started.
            self.nr_off = 0;
            self.take_in(&ids, &pids, now, items)?;
        }
        if !self.hub.borrow().claim.is_on(self.at)? {
            return Ok(());
        }
        let asked = self.ask(now, items);
        self.unless_it_ended(asked)?;
        self.tell_lost(now, items);
        Ok(())
    }

    /// Reads intervals, snapshots and counters from the kdamond.
    fn ask(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        if self.context.intervals_goal.is_some() {
            self.intervals = self.hub.borrow_mut().claim.intervals(self.at)?;
        }
        if self.hub.borrow().trace.is_none() {
            self.fetch_by_scheme(now, items)?;
        }
        self.tell_stats(now, items)
    }

    /// Ignores a failure to read from a kdamond that has ended meanwhile, with all its processes.
    fn unless_it_ended(&self, reported: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = reported else { return Ok(()) };
        let has_ended = error.downcast_ref().is_some_and(DamonError::is_of_the_end);
        if has_ended || !self.hub.borrow().claim.is_on(self.at)? {
            return Ok(());
        }
        Err(error)
    }

    /// Adds new processes to the kdamond, if a commit or a restart is due. A refusal is reported once, and the attempt
    /// repeated after [`SHORTEST_WAIT`].
    fn take_in(
        &mut self,
        ids: &[TargetId],
        pids: &[u32],
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<()> {
        let loses = self.way_to_commit(ids).is_none();
        let earliest = if loses {
            self.begins_anew
        } else {
            self.next_commit
        };
        if now < earliest && self.hub.borrow().claim.is_on(self.at)? {
            return Ok(());
        }
        let Err(error) = self.apply(now, ids, pids) else {
            self.is_refused = false;
            return Ok(());
        };
        if matches!(error.downcast_ref(), Some(DamonError::Changed { .. })) {
            return Err(error);
        }
        // A process that has just ended makes the commit fail for all: the next attempt is soon, without it.
        self.next_look = now + SHORTEST_WAIT;
        if !std::mem::replace(&mut self.is_refused, true) {
            let text = format!("kernel DAMON did not take new processes: {error:#}");
            items.push(Item::Note { time: now, text });
        }
        Ok(())
    }

    /// Returns a way for a commit to keep each process at its place; `None` if there is none.
    fn way_to_commit(&self, ids: &[TargetId]) -> Option<Places> {
        let nr_gone = self.order.iter().filter(|id| !ids.contains(id)).count();
        if self.hub.borrow().claim.drops_targets(self.at) {
            return Some(Places::Dropped);
        }
        if nr_gone == 0 {
            return Some(Places::Kept { stand_in: 0 });
        }
        let stand_in = kernel_thread().filter(|_| nr_gone <= GONE_MAX.max(ids.len()));
        stand_in.map(|stand_in| Places::Kept { stand_in })
    }

    /// Applies the current context with these targets. A commit keeps the kdamond's data of the targets that stay. If a
    /// commit cannot keep their places, the kdamond restarts.
    fn apply(&mut self, now: Nanos, ids: &[TargetId], pids: &[u32]) -> anyhow::Result<()> {
        let way = self.way_to_commit(ids);
        let mut hub = self.hub.borrow_mut();
        let is_on = hub.claim.is_on(self.at)?;
        let is_physical = matches!(self.watched, Watched::Physical { .. });
        let target = |pid: u32| lower::target(pid, &self.ranges);
        match way {
            _ if is_on && is_physical => hub.claim.commit(self.at, &self.context)?,
            Some(places) if is_on => {
                let pid_of = |id: &TargetId| {
                    let at = ids.iter().position(|live| live == id);
                    at.map(|at| pids[at])
                };
                let former = self.order.iter().map(|id| match (pid_of(id), places) {
                    (Some(pid), _) => target(pid),
                    (None, Places::Kept { stand_in }) => target(stand_in),
                    // A target must name a process that exists; the same commit removes its place.
                    (None, Places::Dropped) => DamonTarget {
                        is_obsolete: true,
                        ..target(std::process::id())
                    },
                });
                let mut targets: Vec<DamonTarget> = former.collect();
                let mut order = self.order.clone();
                for (id, pid) in ids.iter().zip(pids) {
                    if !order.contains(id) {
                        order.push(*id);
                        targets.push(target(*pid));
                    }
                }
                self.context.targets = targets;
                hub.claim.commit(self.at, &self.context)?;
                if places == Places::Dropped {
                    self.context.targets.retain(|target| !target.is_obsolete);
                    order.retain(|id| ids.contains(id));
                }
                self.order = order;
            }
            _ => {
                if !is_physical {
                    self.context.targets = pids.iter().map(|pid| target(*pid)).collect();
                    self.order.clear();
                }
                self.context.schemes = lower::held(&self.context.schemes);
                hub.restart(self.at, &self.context)?;
                self.counters.restart();
                self.has_begun_anew = true;
                self.begins_anew = now + Nanos(self.intervals.aggregation.0 * LEAST_LIFE);
                self.order = ids.to_vec();
            }
        }
        drop(hub);
        self.next_commit = now + Nanos(self.intervals.aggregation.0 * BETWEEN_COMMITS);
        self.assembler.restart();
        Ok(())
    }

    /// Reports the work of the schemes since the last call.
    fn tell_stats(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let stats = if self.counters.nr() > 0 {
            self.hub.borrow_mut().claim.stats(self.at)?
        } else {
            Vec::new()
        };
        let cpu = self.hub.borrow().pids[self.at].and_then(task_cpu);
        let samples = self.counters.take(now, stats, cpu, &self.order);
        items.extend(samples.into_iter().map(Item::Action));
        Ok(())
    }

    /// Fails if another user has turned the kdamond off. A kdamond ends on its own when all its processes have ended,
    /// which is noticed here a moment later. A kdamond that could not be turned on has no processes.
    fn require_on(&mut self) -> anyhow::Result<()> {
        let ids = self.watched.ids();
        let has_some = ids.iter().any(|id| self.order.contains(id));
        let is_off = has_some && !self.hub.borrow().claim.is_on(self.at)?;
        self.nr_off = if is_off { self.nr_off + 1 } else { 0 };
        anyhow::ensure!(
            self.nr_off < LOOKS_OFF,
            "another program has turned off this session's kdamond; it ends"
        );
        Ok(())
    }

    fn tell_lost(&mut self, now: Nanos, items: &mut Vec<Item>) {
        let lost = self.hub.borrow().nr_lost();
        if lost > self.lost_told.saturating_mul(2) {
            self.lost_told = lost;
            let text = format!(
                "{lost} of DAMON's events did not fit into the buffer; {} snapshots were not whole and were left out",
                self.assembler.nr_broken
            );
            items.push(Item::Note { time: now, text });
        }
    }
}

impl Kdamond for KernelMonitor {
    fn may_commit(&self, now: Nanos) -> bool {
        now >= self.next_commit
    }

    fn set_schemes(
        &mut self,
        now: Nanos,
        schemes: &[Scheme],
        mut in_force: Vec<Scheme>,
        force: Force,
    ) -> anyhow::Result<()> {
        let mut reported = Vec::new();
        self.fetch(&mut reported)?;
        if self.hub.borrow().claim.is_on(self.at)? {
            let asked = self.tell_stats(now, &mut reported);
            self.unless_it_ended(asked)?;
        }
        self.first.append(&mut reported);
        if self.hub.borrow().trace.is_none() {
            in_force.push(watcher());
        }
        let former = std::mem::replace(&mut self.context.schemes, in_force);
        let (ids, pids) = self.watched.living();
        if let Err(error) = self.apply(now, &ids, &pids) {
            self.context.schemes = former;
            // The tree's contents come into force with the next commit, of any caller: the former ones are restored.
            let mut hub = self.hub.borrow_mut();
            hub.claim.rewrite(self.at, &self.context).ok();
            return Err(error);
        }
        let force = if self.has_begun_anew && force == Force::Acts {
            Force::Held
        } else {
            force
        };
        self.counters.set(schemes, force);
        Ok(())
    }

    fn take_begun_anew(&mut self) -> bool {
        std::mem::take(&mut self.has_begun_anew)
    }

    fn require(&mut self, schemes: &[Scheme]) -> anyhow::Result<()> {
        let wanted = DamonContext {
            schemes: schemes.to_vec(),
            ..self.context.clone()
        };
        let mut hub = self.hub.borrow_mut();
        let taken = hub.claim.rewrite(self.at, &wanted);
        hub.claim.rewrite(self.at, &self.context)?;
        Ok(taken?)
    }

    fn begin_anew(&mut self) {
        // An error is ignored: the kdamond may be off already.
        self.hub.borrow_mut().claim.turn_off(self.at).ok();
    }

    fn totals(&self) -> &[KernelStats] {
        &self.counters.totals
    }

    fn pid(&self) -> Option<u32> {
        self.hub.borrow().pids[self.at]
    }

    fn watching_cpu(&self) -> Nanos {
        let (all, acting) = self.counters.cpu();
        all.since(acting)
    }

    fn acting_cpu(&self) -> Nanos {
        self.counters.cpu().1
    }
}

impl Monitor for KernelMonitor {
    fn step(&mut self, now: Nanos, _cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        items.append(&mut self.first);
        self.fetch(items)?;
        if now >= self.next_look {
            self.next_look = now + PERIOD;
            self.look(now, items)?;
            if self.watched.is_over() {
                return Ok(None);
            }
            self.require_on()?;
        }
        let wait = self.intervals.aggregation.clamp(SHORTEST_WAIT, PERIOD);
        Ok(Some((now + wait).min(self.next_look)))
    }

    fn last_look(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        self.fetch(items)?;
        if self.hub.borrow().claim.is_on(self.at)? {
            let reported = self.tell_stats(now, items);
            self.unless_it_ended(reported)?;
        }
        Ok(())
    }

    fn look_for_ends(&mut self, _now: Nanos) {
        self.next_look = Nanos(0);
    }

    fn status(&self, cpu: CpuLedger) -> MonitorStatus {
        let ours = process_cpu().since(cpu.other);
        let (kdamonds, acting) = self.counters.cpu();
        MonitorStatus {
            cost: Cost {
                monitor_cpu: ours + kdamonds.since(acting),
                checks: self.checks,
                ..Cost::default()
            },
            nr_unknown: 0,
            intervals: self.intervals,
        }
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        match &self.watched {
            Watched::Processes { probe, set } => set.processes(probe),
            Watched::Physical { .. } => Vec::new(),
        }
    }

    fn target_tables(&mut self, target: TargetId) -> Option<TargetTables<'_>> {
        match &mut self.watched {
            Watched::Processes { probe, set } => Some((&mut **probe, &**set, target)),
            Watched::Physical { .. } => None,
        }
    }

    fn kdamond(&mut self, _context: usize) -> Option<&mut dyn Kdamond> {
        Some(self)
    }
}

/// Returns the scheme whose tried regions serve as snapshots where there is no tracepoint.
pub(super) fn watcher() -> Scheme {
    Scheme::new(AccessPattern::ANY, Action::Stat)
}
