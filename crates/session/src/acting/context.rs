//! Acting in one context: its schemes, the executor of their plans, and its guard.

use std::collections::BTreeMap;

use anyhow::Context as _;
use isotherm_config::{ActingSpec, ContextSpec, MonitorSpec, TargetSpec};
use isotherm_engine::monitor::page_scans::PageScans;
use isotherm_engine::{AddressRange, CpuAccount, Nanos, Snapshot, TargetId};
use isotherm_linux::act::{ActOptions, PhysicalActuator, ProcessActuator};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::node;
use isotherm_linux::probe::ProbeError;
use isotherm_policy::guard::Pool;
use isotherm_policy::scheme::huge::BlockUse;
use isotherm_policy::scheme::{Action, Metric, SchemeEngine, SchemeError, SystemFacts};
use isotherm_policy::{Actuator, Operation, Outcome, Refusal};
use isotherm_policy::{BoundBy, Context, Platform};
use isotherm_record::{ActionSample, Item, PageSnapshot};

use super::goal::GoalMeter;
use super::guard::Meters;
use super::summary::bounds::BoundTimes;
use super::{eligible, system};
use crate::session::Session;
use crate::start::parts::ram;

enum Executor {
    /// A dry run; the actuator predicts refusals, and does not act.
    None(Option<Box<ProcessActuator>>),
    Processes(Box<ProcessActuator>),
    Physical(Box<PhysicalActuator>),
}

impl Executor {
    /// Returns the actuator of processes; in a dry run it only predicts.
    fn with_dry_run(&mut self) -> Option<&mut ProcessActuator> {
        match self {
            Self::Processes(actuator) | Self::None(Some(actuator)) => Some(actuator),
            Self::None(None) | Self::Physical(_) => None,
        }
    }

    /// Returns the actuator that knows which pages were paged out; `None` in dry runs and for physical memory.
    fn of_processes(&mut self) -> Option<&mut ProcessActuator> {
        match self {
            Self::Processes(actuator) => Some(actuator),
            Self::None(_) | Self::Physical(_) => None,
        }
    }
}

/// Executor and meters of a context.
pub(super) struct Instruments {
    at: usize,
    pub(super) meters: Meters,
    executor: Executor,
    is_physical: bool,
    /// Targets that may be acted on, if not all may, with the minimum age of their memory.
    permitted: Option<BTreeMap<TargetId, Nanos>>,
    /// Scans of every page, if the context is watched by these.
    scans: PageScans,
}

/// This machine, while a context acts on it.
struct ThisMachine<'a> {
    session: &'a mut Session,
    by: &'a mut Instruments,
}

impl Actuator for ThisMachine<'_> {
    type Error = ProbeError;

    fn lacks(&self, action: Action) -> Option<String> {
        isotherm_linux::act::lacks(action)
    }

    fn act(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), ProbeError> {
        // All operations are of one pool, as batches of a plan are.
        let pool = operations.first().map(Operation::pool);
        match (&mut self.by.executor, pool) {
            (_, None) => {}
            (Executor::None(_), Some(Pool::PageCache)) => {
                outcomes.extend(operations.iter().map(Outcome::assumed));
            }
            (Executor::None(_), Some(Pool::Processes)) => self.assume(operations, outcomes)?,
            (_, Some(Pool::PageCache)) => self.act_on_page_cache(operations, outcomes),
            (Executor::Processes(actuator), _) => actuator.act(operations, outcomes)?,
            (Executor::Physical(actuator), _) => actuator.act(operations, outcomes)?,
        }
        Ok(())
    }
}

impl ThisMachine<'_> {
    fn act_on_page_cache(&mut self, operations: &[Operation], outcomes: &mut Vec<Outcome>) {
        let (now, nr_before) = (self.session.now(), outcomes.len());
        if let Some(page_cache) = self.session.monitor.page_cache(self.by.at) {
            // An error concerns all operations that are left: the monitor meets it as well, and reports it.
            let _ = page_cache.act(now, operations, outcomes);
        }
        let nr_done = outcomes.len() - nr_before;
        outcomes.extend(operations[nr_done..].iter().map(|operation| Outcome {
            refused: [(Refusal::Other, operation.bytes)].into(),
            ..Outcome::default()
        }));
    }
}

impl Platform for ThisMachine<'_> {
    fn assume(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), ProbeError> {
        let Executor::None(Some(actuator)) = &mut self.by.executor else {
            outcomes.extend(operations.iter().map(Outcome::assumed));
            return Ok(());
        };
        let foreseen = actuator.foresee(operations)?;
        outcomes.extend(operations.iter().zip(foreseen).map(|(operation, outcome)| {
            let bytes = outcome.applied.min(operation.bytes);
            Outcome {
                filter_passed: outcome.filter_passed.min(operation.bytes),
                applied: bytes,
                refused: outcome.refused_of_tried(operation),
                ..Outcome::default()
            }
        }));
        Ok(())
    }

    fn facts(
        &mut self,
        wanted: &[Metric],
        schemes: &SchemeEngine,
        snapshots: &[Snapshot],
    ) -> SystemFacts {
        let (session, by) = (&*self.session, &mut *self.by);
        let actuator = by.executor.with_dry_run();
        let left_alone = actuator.map(|actuator| actuator.left_alone().clone());
        SystemFacts {
            eligible_bp: eligible::shares(wanted, schemes, snapshots, session, by.is_physical),
            least_age: by.permitted.clone().unwrap_or_default(),
            left_alone: left_alone.unwrap_or_default(),
            ..system::facts(wanted)
        }
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        self.session.reset_age(target, range);
        self.by.scans.reset_age(target, range, self.session.now());
    }

    fn is_stopped(&self) -> bool {
        self.session.is_stopped()
    }

    fn knows_blocks(&self) -> bool {
        matches!(self.by.executor, Executor::Processes(_))
    }

    fn block_uses(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        is_read: bool,
        look: impl FnMut(BlockUse),
    ) -> Result<(), ProbeError> {
        match self.by.executor.of_processes() {
            Some(actuator) => actuator.block_uses(target, blocks, is_read, look),
            None => Ok(()),
        }
    }

    fn page_walks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        look: impl FnMut(u64, f64),
    ) -> Result<(), ProbeError> {
        match self.by.executor.of_processes() {
            Some(actuator) => actuator.page_walks(target, blocks, look),
            None => Ok(()),
        }
    }

    fn note_paged_out(&mut self, target: TargetId, bytes: u64) {
        // The paged-out pages of processes are known one by one.
        if matches!(self.by.executor, Executor::Physical(_)) {
            self.by.meters.waits.paged_out(target, bytes);
        }
    }
}

pub(super) struct ContextActing {
    pub(super) context: Context,
    pub(super) by: Instruments,
    /// Whether memory is watched by frame: the items that the context acts on are not among the session's.
    pub(super) is_told_by_frame: bool,
    goal: Option<GoalMeter>,
    snapshots: Vec<Snapshot>,
    pub(super) bounds: BoundTimes,
}

impl ContextActing {
    pub(super) fn new(at: usize, spec: &ContextSpec) -> anyhow::Result<Self> {
        let acting = spec.acting.clone().unwrap_or_default();
        let is_physical = spec.samples_frames();
        let options = ActOptions {
            // A set accessed bit then means that the page was accessed recently.
            spare_accessed: !matches!(spec.monitor, MonitorSpec::Regions(_)),
            ..ActOptions::default()
        };
        let within = part_of_memory(spec)?;
        let by_process = || {
            let actuator = ProcessActuator::new(options)?;
            anyhow::Ok(Box::new(match within.as_deref() {
                Some(ram) => actuator.within(ram),
                None => actuator,
            }))
        };
        let executor = if acting.is_dry_run {
            Executor::None((!is_physical).then(by_process).transpose()?)
        } else if is_physical {
            Executor::Physical(Box::new(PhysicalActuator::new(ActOptions::default())?))
        } else {
            Executor::Processes(by_process()?)
        };
        let schemes = acting.schemes.clone();
        let mut context = Context::new(schemes, acting.limits, acting.is_dry_run)?;
        context.set_paused(acting.is_paused);
        context.set_max_waste(acting.max_waste);
        let by = Instruments {
            at,
            meters: Meters::new(at, spec, &acting)?,
            executor,
            is_physical,
            permitted: None,
            scans: PageScans::default(),
        };
        Ok(Self {
            context,
            by,
            is_told_by_frame: spec.targets.is_physical() && !is_physical,
            goal: GoalMeter::new(spec)?,
            snapshots: Vec::new(),
            bounds: BoundTimes::default(),
        })
    }

    /// Returns the time until which its schemes rest by their watermarks, if they all do.
    pub(super) fn rests_until(&mut self, now: Nanos, session: &mut Session) -> Option<Nanos> {
        let by = &mut self.by;
        let mut world = ThisMachine { session, by };
        let until = self.context.rests_until(now, &mut world);
        if until.is_some() {
            self.bounds.note(now, self.bound_by());
        }
        until
    }

    pub(super) fn add(&mut self, target: TargetId, session: &Session) -> anyhow::Result<()> {
        if let Some(actuator) = self.by.executor.with_dry_run()
            && let Some(process) = session.process(target)
        {
            let process = process.context("cannot keep hold of a target")?;
            // The process may have ended already, which its exit item reports.
            actuator.add(target, process).ok();
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, target: TargetId) {
        if let Some(actuator) = self.by.executor.with_dry_run() {
            actuator.remove(target);
        }
        self.by.meters.waits.forget(target);
        self.context.forget(target);
        self.by.scans.forget(target);
    }

    /// Limits acting to these targets from now on, without the page cache. Pending operations on others are dropped.
    pub(super) fn permit_only(&mut self, permitted: BTreeMap<TargetId, Nanos>) {
        for target in self.context.targets_of_pending() {
            if !permitted.contains_key(&target) {
                self.context.drop_rest_of(target);
            }
        }
        self.by.permitted = Some(permitted);
    }

    /// Takes the snapshots among `items`, which are this context's.
    pub(super) fn look(&mut self, items: &mut dyn Iterator<Item = &Item>) {
        self.snapshots.clear();
        let scans = &mut self.by.scans;
        self.snapshots.extend(items.filter_map(|item| match item {
            Item::Snapshot(snapshot) => Some(snapshot.clone()),
            Item::Pages(pages) => Some(snapshot_of(scans, pages)),
            _ => None,
        }));
    }

    pub(super) fn bound_by(&self) -> BoundBy {
        self.context.bound_by(&self.by.meters.acting)
    }

    /// Exchanges schemes and limits while running; the caller has checked that they can be kept.
    pub(super) fn tune(&mut self, acting: ActingSpec) -> Result<(), SchemeError> {
        self.context.set_schemes(acting.schemes)?;
        self.context.guard_mut().set_limits(acting.limits);
        self.context.set_max_waste(acting.max_waste);
        self.by.meters.set(acting.limits, acting.act_budget);
        Ok(())
    }

    /// Acts on the snapshots, or continues a pending plan, for at most 50 ms, and appends the results. Returns the CPU
    /// time that it took.
    pub(super) fn step(
        &mut self,
        now: Nanos,
        session: &mut Session,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<Nanos> {
        let drops_cache = self.drops_cache();
        if drops_cache && let Some(page_cache) = session.monitor.page_cache(self.by.at) {
            self.snapshots.extend(page_cache.take_snapshot());
        }
        let guard = self.context.guard_mut();
        let actuator = self.by.executor.of_processes();
        let meters = &mut self.by.meters;
        let before = process_cpu();
        items.extend(meters.observe(now, session, guard, drops_cache, actuator));
        // That is no cost of watching, and neither is compressing pages.
        let observed = process_cpu().since(before);
        session.charge(CpuAccount::Acting, observed);
        let is_due = self.goes_on_at().is_some_and(|at| at <= now);
        if self.snapshots.is_empty() && !is_due {
            self.bounds.note(now, self.bound_by());
            return Ok(observed);
        }
        let goal = self.goal.as_ref().map(|goal| {
            let out = if self.context.is_dry_run() {
                self.context.would_be_out()
            } else {
                self.by.meters.waits.out()
            };
            // A goal that cannot be read counts as reached: acting must not go on for ever.
            goal.room(out).unwrap_or(0)
        });
        self.context.guard_mut().set_goal_limit(goal);
        let room = self.by.meters.begin(now, self.context.guard());
        let (began, cpu_before) = (session.now(), process_cpu());
        let by = &mut self.by;
        let mut world = ThisMachine { session, by };
        let (done, outcomes) = self.context.step(now, &self.snapshots, room, &mut world)?;
        if self.context.guard().has_reached_goal() {
            self.context.clear_pending();
        }
        let spent = process_cpu().since(cpu_before);
        session.charge(CpuAccount::Acting, spent);
        items.extend(self.samples(now, &done, &outcomes, spent));
        let mut times = BTreeMap::new();
        let meters = &mut self.by.meters;
        if let Some(actuator) = self.by.executor.of_processes() {
            times = actuator.take_interrupted();
            for (target, block, pages) in actuator.take_paged_out() {
                meters.waits.pages_paged_out(target, block, &pages);
            }
        }
        let ended = session.now();
        let spent_and_lasted = (spent, ended.since(began));
        meters.end(ended, spent_and_lasted, &times, self.context.on_loan());
        self.bounds.note(now, self.bound_by());
        Ok(observed + spent)
    }

    /// Returns the time at which a pending plan continues, if there is one.
    pub(super) fn goes_on_at(&self) -> Option<Nanos> {
        let next = || self.by.meters.acting.next_step();
        self.context.has_pending().then(next)
    }

    /// Returns whether the schemes also apply to the page cache, which can only be dropped. It belongs to no pod.
    fn drops_cache(&self) -> bool {
        if self.by.permitted.is_some() {
            return false;
        }
        let mut schemes = self.context.schemes().status();
        schemes.all(|scheme| matches!(scheme.action, Action::Pageout | Action::Stat))
    }

    fn samples(
        &self,
        now: Nanos,
        done: &[Operation],
        outcomes: &[Outcome],
        spent: Nanos,
    ) -> Vec<Item> {
        let (name, dry_run) = (self.by.meters.name.as_deref(), self.context.is_dry_run());
        let mut samples = ActionSample::of_schemes(now, name, dry_run, done, outcomes);
        // The schemes share the CPU time of a step by their parts of the elapsed time.
        let total: u64 = samples.iter().map(|sample| sample.took.0).sum();
        for sample in &mut samples {
            let share = u128::from(spent.0) * u128::from(sample.took.0) / u128::from(total.max(1));
            sample.cpu = Nanos(share as u64);
        }
        samples.into_iter().map(Item::Action).collect()
    }
}

/// Returns the RAM that is acted on, if that is a part of the processes' memory.
fn part_of_memory(spec: &ContextSpec) -> anyhow::Result<Option<Vec<AddressRange>>> {
    let TargetSpec::Physical { node, .. } = &spec.targets else {
        return Ok(None);
    };
    let is_part = !spec.ranges.is_empty() || node.is_some() && node::count() > 1;
    is_part.then(|| ram(*node, &spec.ranges)).transpose()
}

fn snapshot_of(scans: &mut PageScans, pages: &PageSnapshot) -> Snapshot {
    let blocks = pages.blocks.iter().copied();
    scans.push(pages.target, (pages.start, pages.end), blocks)
}
