//! One kdamond, as a monitor like any other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use isotherm_config::ContextSpec;
use isotherm_damon::{DamonContext, DamonError, KernelStats, nr_samples};
use isotherm_engine::{AddressRange, Cost, Intervals, Nanos, Refusal, Snapshot, TargetId};
use isotherm_linux::clock::{Clock, process_cpu};
use isotherm_linux::cpu::task_cpu;
use isotherm_linux::damon_trace::TracedWhat;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;
use isotherm_record::{ActionSample, Item, TargetStart};

use super::assemble::{Assembler, snapshot};
use super::hub::Hub;
use super::lower;
use crate::monitor::Monitor;
use crate::targets::TargetSet;
use isotherm_engine::units::format_bytes;

/// How often counters are read, and processes are looked for.
const PERIOD: Nanos = Nanos::from_millis(1_000);
/// Events are fetched at the ends of aggregation intervals, but not more often than this.
const SHORTEST_WAIT: Nanos = Nanos::from_millis(200);
/// A kdamond begins anew only after so many aggregation intervals: else it would tell nothing where processes end each
/// second.
const LEAST_LIFE: u64 = 10;
/// After so many looks at a kdamond that is off somebody must have turned it off.
const LOOKS_OFF: u32 = 3;
/// The target of physical memory.
const MEMORY: TargetId = TargetId(0);

/// Whose memory it is.
pub(super) enum Watched {
    Processes {
        probe: Box<PageTableProbe>,
        set: Box<TargetSet>,
    },
    /// All RAM, or a node's.
    Physical { is_told: bool },
}

impl Watched {
    /// Looks who comes and goes, says so, and tells the process ids that there are, in the order of their targets.
    pub(super) fn update(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Vec<u32>> {
        match self {
            Self::Processes { probe, set } => {
                set.update(probe, now, items)?;
                Ok(set.pids().map(|(_, pid)| pid).collect())
            }
            Self::Physical { is_told } => {
                if !std::mem::replace(is_told, true) {
                    items.push(Item::TargetStart(TargetStart {
                        time: now,
                        target: MEMORY,
                        pid: 0,
                        name: "physical".to_owned(),
                        context: None,
                    }));
                }
                Ok(Vec::new())
            }
        }
    }

    fn ids(&self) -> Vec<TargetId> {
        match self {
            Self::Processes { set, .. } => set.ids().collect(),
            Self::Physical { .. } => vec![MEMORY],
        }
    }

    fn is_live(&self, id: TargetId) -> bool {
        match self {
            Self::Processes { set, .. } => set.is_live(id),
            Self::Physical { .. } => true,
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Processes { set, .. } => set.is_over(),
            Self::Physical { .. } => false,
        }
    }
}

pub(super) struct KernelMonitor {
    hub: Rc<RefCell<Hub>>,
    /// The kdamond's place.
    at: usize,
    context: DamonContext,
    /// The context's name, where there are several.
    name: Option<String>,
    /// The schemes' actions as the user has them: a dry run's are others in the kernel.
    actions: Vec<&'static str>,
    is_dry_run: bool,
    ranges: Vec<AddressRange>,
    watched: Watched,
    /// The session's numbers of targets, by their places in the kdamond.
    order: Vec<TargetId>,
    assembler: Assembler,
    intervals: Intervals,
    /// What was told before the first step.
    first: Vec<Item>,
    /// The session's time less CLOCK_MONOTONIC.
    offset: u64,
    next_look: Nanos,
    stats: Vec<KernelStats>,
    /// CPU time of ours that was not spent on watching.
    left_out: Nanos,
    kdamond_cpu: Nanos,
    /// Of kdamonds that were restarted.
    former_cpu: Nanos,
    checks: u64,
    lost_told: u64,
    /// Looks in a row that found the kdamond off and processes alive.
    nr_off: u32,
    /// The earliest time to begin anew while some of its processes live.
    begins_anew: Nanos,
    /// The last attempt to watch new processes failed.
    is_refused: bool,
}

impl KernelMonitor {
    pub(super) fn new(
        hub: Rc<RefCell<Hub>>,
        at: usize,
        spec: &ContextSpec,
        context: DamonContext,
        watched: Watched,
        first: Vec<Item>,
    ) -> Self {
        let actions = spec.schemes().iter().map(|scheme| scheme.action.name());
        let acting = spec.acting.as_ref();
        Self {
            hub,
            at,
            name: spec.name.clone(),
            actions: actions.collect(),
            is_dry_run: acting.is_some_and(|acting| acting.is_dry_run),
            ranges: spec.ranges.clone(),
            order: watched.ids(),
            watched,
            assembler: Assembler::default(),
            intervals: context.intervals,
            context,
            first,
            offset: Clock::start().offset(),
            next_look: Nanos(0),
            stats: Vec::new(),
            left_out: Nanos(0),
            kdamond_cpu: Nanos(0),
            former_cpu: Nanos(0),
            checks: 0,
            lost_told: 0,
            nr_off: 0,
            begins_anew: Nanos(0),
            is_refused: false,
        }
    }

    /// What the kdamond has seen since the last time.
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
                TracedWhat::BeforeApply { .. } | TracedWhat::EffectiveSize { .. } => {}
            }
        }
        Ok(())
    }

    /// A snapshot gets its target's number; one of a target that is not known (any more) is none.
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

    /// Where there are no events: what a scheme that takes every region was tried on.
    fn fetch_by_scheme(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let scheme = self.actions.len();
        let regions = self.hub.borrow_mut().tried_regions(self.at, scheme)?;
        // Whose they are is not told.
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

    /// Looks at processes and counters.
    fn look(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let pids = self.watched.update(now, items)?;
        let ids = self.watched.ids();
        if ids.iter().any(|id| !self.order.contains(id)) {
            // It may be off already: all have ended while it was begun.
            self.nr_off = 0;
            self.take_in(&ids, &pids, now, items)?;
        }
        if !self.hub.borrow().is_on(self.at)? {
            return Ok(());
        }
        let pid = self.hub.borrow().pid(self.at);
        if let Some(cpu) = pid.and_then(task_cpu) {
            self.kdamond_cpu = cpu;
        }
        let asked = self.ask(now, items);
        self.unless_it_ended(asked)?;
        self.tell_lost(now, items);
        Ok(())
    }

    /// Has the kdamond tell what it knows.
    fn ask(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        if self.context.intervals_goal.is_some() {
            self.intervals = self.hub.borrow_mut().intervals(self.at)?;
        }
        if !self.hub.borrow().has_trace() {
            self.fetch_by_scheme(now, items)?;
        }
        self.tell_stats(now, items)
    }

    /// What a kdamond failed to tell is no fault if it has ended meanwhile, with all its processes.
    fn unless_it_ended(&self, told: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = told else { return Ok(()) };
        let has_ended = error.downcast_ref().is_some_and(DamonError::is_of_the_end);
        if has_ended || !self.hub.borrow().is_on(self.at)? {
            return Ok(());
        }
        Err(error)
    }

    /// Somebody has come. Where nobody has gone meanwhile, the kernel only gets more targets; else places would
    /// become others', and the kdamond begins anew, after a while.
    fn take_in(
        &mut self,
        ids: &[TargetId],
        pids: &[u32],
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<()> {
        let mut hub = self.hub.borrow_mut();
        let only_more = ids.starts_with(&self.order);
        let is_on = hub.is_on(self.at)?;
        if is_on && !only_more && now < self.begins_anew {
            return Ok(());
        }
        let targets = pids.iter().map(|pid| lower::target(*pid, &self.ranges));
        self.context.targets = targets.collect();
        let done = if only_more && is_on {
            hub.commit(self.at, &self.context)
        } else {
            hub.restart(self.at, &self.context)
        };
        drop(hub);
        if let Err(error) = done {
            if matches!(error.downcast_ref(), Some(DamonError::Changed { .. })) {
                return Err(error);
            }
            // One that has just ended spoils it for all: tried again soon, without it.
            if !(only_more && is_on) {
                self.order.clear();
            }
            self.next_look = now + SHORTEST_WAIT;
            if !std::mem::replace(&mut self.is_refused, true) {
                let text = format!("kernel DAMON did not take new processes: {error:#}");
                items.push(Item::Note { time: now, text });
            }
            return Ok(());
        }
        self.is_refused = false;
        if !(only_more && is_on) {
            self.former_cpu = self.former_cpu + self.kdamond_cpu;
            self.kdamond_cpu = Nanos(0);
            self.stats.clear();
            self.begins_anew = now + Nanos(self.intervals.aggregation.0 * LEAST_LIFE);
        }
        self.assembler.restart();
        self.order = ids.to_vec();
        Ok(())
    }

    /// What schemes did since the last time.
    fn tell_stats(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        if self.actions.is_empty() {
            return Ok(());
        }
        let stats = self.hub.borrow_mut().stats(self.at)?;
        for (scheme, (action, stats)) in self.actions.iter().zip(&stats).enumerate() {
            let before = self.stats.get(scheme).copied().unwrap_or_default();
            let grown = |of: fn(&KernelStats) -> u64| of(stats).saturating_sub(of(&before));
            let tried = grown(|stats| stats.sz_tried);
            if tried == 0 {
                continue;
            }
            let applied = if self.is_dry_run {
                tried
            } else {
                grown(|stats| stats.sz_applied).min(tried)
            };
            let mut refused = BTreeMap::new();
            if applied < tried {
                refused.insert(Refusal::Other, tried - applied);
            }
            items.push(Item::Action(ActionSample {
                time: now,
                context: self.name.clone(),
                scheme: scheme as u32,
                action: (*action).to_owned(),
                dry_run: self.is_dry_run,
                nr_tried: grown(|stats| stats.nr_tried),
                sz_tried: tried,
                sz_applied: applied,
                refused,
                ..ActionSample::default()
            }));
        }
        self.stats = stats;
        Ok(())
    }

    /// A kdamond ends by itself when all its processes have, which is seen here a moment later. One that we could not
    /// turn on has no processes.
    fn require_on(&mut self) -> anyhow::Result<()> {
        let ids = self.watched.ids();
        let has_some = ids.iter().any(|id| self.order.contains(id));
        let is_off = has_some && !self.hub.borrow().is_on(self.at)?;
        self.nr_off = if is_off { self.nr_off + 1 } else { 0 };
        anyhow::ensure!(
            self.nr_off < LOOKS_OFF,
            "somebody has turned off the kdamond that this session had on; it ends"
        );
        Ok(())
    }

    fn tell_lost(&mut self, now: Nanos, items: &mut Vec<Item>) {
        let lost = self.hub.borrow().nr_lost();
        if lost > self.lost_told.saturating_mul(2) {
            self.lost_told = lost;
            let text = format!(
                "{lost} of DAMON's events did not fit into the buffer; {} snapshots were not whole and were left out",
                self.assembler.nr_broken()
            );
            items.push(Item::Note { time: now, text });
        }
    }
}

impl Monitor for KernelMonitor {
    fn step(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Option<Nanos>> {
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
        if self.hub.borrow().is_on(self.at)? {
            let told = self.tell_stats(now, items);
            self.unless_it_ended(told)?;
        }
        Ok(())
    }

    fn look_for_ends(&mut self, _now: Nanos) {
        self.next_look = Nanos(0);
    }

    fn leave_out(&mut self, cpu: Nanos) {
        self.left_out = self.left_out + cpu;
    }

    fn cost(&self) -> Cost {
        let ours = process_cpu().since(self.left_out);
        Cost {
            monitor_cpu: ours + self.former_cpu + self.kdamond_cpu,
            checks: self.checks,
            ..Cost::default()
        }
    }

    fn nr_unknown(&self) -> u64 {
        0
    }

    fn intervals(&self) -> Intervals {
        self.intervals
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        match &self.watched {
            Watched::Processes { probe, set } => set
                .ids()
                .filter_map(|id| Some((id, probe.process(id)?)))
                .collect(),
            Watched::Physical { .. } => Vec::new(),
        }
    }

    fn summary(&self) -> Option<String> {
        let done = if self.is_dry_run { "would be" } else { "were" };
        let schemes = self.actions.iter().zip(&self.stats).enumerate();
        let lines = schemes.map(|(at, (action, stats))| {
            let applied = if self.is_dry_run {
                stats.sz_tried
            } else {
                stats.sz_applied
            };
            format!(
                "scheme {at}, {action}, by the kernel: {} of {} tried {done} acted on",
                format_bytes(applied),
                format_bytes(stats.sz_tried),
            )
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}
