//! Acting in one context: its schemes, who carries out what they plan, and its guard.

use std::collections::BTreeMap;

use anyhow::Context as _;
use isotherm_config::ContextSpec;
use isotherm_engine::drive::{Carried, DryRun, Pace, carry_out};
use isotherm_engine::guard::RefaultHistory;
use isotherm_engine::scheme::{Action, SchemeEngine};
use isotherm_engine::{
    Actuator, BLOCK_SIZE, Nanos, Operation, Outcome, Refusal, Snapshot, TargetId,
};
use isotherm_linux::act::{ActOptions, PhysicalActuator, ProcessActuator};
use isotherm_linux::clock::process_cpu;
use isotherm_record::{ActionSample, GuardSample, Item};

use super::guard::Watch;
use super::{eligible, system};
use crate::session::Session;

/// Who carries out what is planned.
enum Executor {
    /// Nobody: a dry run.
    None,
    Processes(Box<ProcessActuator>),
    Physical(Box<PhysicalActuator>),
}

/// One context at work.
pub(super) struct ContextActing {
    pub(super) name: Option<String>,
    pub(super) schemes: SchemeEngine,
    pub(super) guard: Watch,
    executor: Executor,
    is_physical: bool,
    /// What a dry run has counted already.
    dry_run: DryRun,
    snapshots: Vec<Snapshot>,
    pace: Pace,
    history: RefaultHistory,
    /// What is left of plans that did not go into one step.
    rest: Vec<Operation>,
}

impl ContextActing {
    pub(super) fn new(at: usize, context: &ContextSpec, session: &Session) -> anyhow::Result<Self> {
        let acting = context.acting.clone().unwrap_or_default();
        let options = ActOptions {
            spare_accessed: session.knows_every_page(at),
            ..ActOptions::default()
        };
        let executor = if acting.is_dry_run {
            Executor::None
        } else if context.targets.is_physical() {
            Executor::Physical(Box::new(PhysicalActuator::new(ActOptions::default())?))
        } else {
            Executor::Processes(Box::new(ProcessActuator::new(options)?))
        };
        let mut schemes = SchemeEngine::new(acting.schemes.clone())?;
        schemes.set_paused(acting.is_paused);
        Ok(Self {
            name: context.name.clone(),
            schemes,
            guard: Watch::new(at, context, &acting)?,
            executor,
            is_physical: context.targets.is_physical(),
            dry_run: DryRun::default(),
            snapshots: Vec::new(),
            pace: Pace::default(),
            history: RefaultHistory::default(),
            rest: Vec::new(),
        })
    }

    /// From now on `target` is acted on.
    pub(super) fn add(&mut self, target: TargetId, session: &Session) -> anyhow::Result<()> {
        if let Executor::Processes(actuator) = &mut self.executor
            && let Some(process) = session.process(target)
        {
            let process = process.context("cannot keep hold of a target")?;
            // It may have ended already, which its exit tells.
            actuator.add(target, process).ok();
        }
        Ok(())
    }

    /// `target` is no more.
    pub(super) fn remove(&mut self, target: TargetId) {
        if let Executor::Processes(actuator) = &mut self.executor {
            actuator.remove(target);
        }
        self.guard.forget(target);
        self.history.forget(target);
        self.rest.retain(|operation| operation.target != target);
        self.dry_run.forget(target);
    }

    /// Bytes that would be out of memory now, had the dry run been none.
    pub(super) fn would_be_out(&self) -> u64 {
        self.dry_run.paged_out()
    }

    /// Takes the snapshots among `items`, which are this context's.
    pub(super) fn look(&mut self, items: &mut dyn Iterator<Item = &Item>) {
        self.snapshots.clear();
        self.snapshots.extend(items.filter_map(|item| match item {
            Item::Snapshot(snapshot) => Some(snapshot.clone()),
            _ => None,
        }));
    }

    /// Whether a plan has not been finished.
    pub(super) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// What is left of a plan is not wanted any more.
    pub(super) fn drop_rest(&mut self) {
        self.rest.clear();
    }

    /// Does what follows from the snapshots, or goes on with what is left of a plan, for at most 50 ms,
    /// and appends what was done. Yields the CPU time that it took.
    pub(super) fn step(
        &mut self,
        now: Nanos,
        session: &mut Session,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<Nanos> {
        if let Some(status) = self.guard.observe(now, session) {
            items.push(Item::Guard(GuardSample {
                time: now,
                context: self.name.clone(),
                status,
            }));
        }
        if self.snapshots.is_empty() && self.rest.is_empty() {
            return Ok(Nanos(0));
        }
        let room = self.guard.begin(now);
        let cpu_before = process_cpu();
        let mut carried = Carried::default();
        if !self.snapshots.is_empty() {
            carried = self.plan(now, session)?;
        }
        self.carry_out(&mut carried, room, session)?;
        let spent = process_cpu().since(cpu_before);
        let Carried { done, outcomes, .. } = &carried;
        let is_dry = matches!(self.executor, Executor::None);
        if is_dry {
            self.dry_run.assume(done);
        }
        items.extend(self.samples(now, done, outcomes, spent));
        for (target, range) in self.schemes.done(done, outcomes) {
            if !is_dry {
                session.reset_age(target, range);
            }
        }
        // Compressing pages is not watching, and not to be saved on by watching less.
        let spent = process_cpu().since(cpu_before);
        session.leave_out(spent);
        let times = match &mut self.executor {
            Executor::Processes(actuator) => actuator.take_interrupted(),
            Executor::None | Executor::Physical(_) => BTreeMap::new(),
        };
        self.guard.end(session.now(), spent, &times);
        Ok(spent)
    }

    /// Plans anew for the targets of the snapshots. Yields what is not to be done, as memory that came
    /// back is kept.
    fn plan(&mut self, now: Nanos, session: &Session) -> anyhow::Result<Carried> {
        let wanted = self.schemes.wanted_metrics(now);
        let mut facts = system::facts(&wanted);
        facts.eligible_bp = eligible::shares(
            &wanted,
            &self.schemes,
            &self.snapshots,
            session,
            self.is_physical,
        );
        let mut plan = self.schemes.plan(now, &self.snapshots, &facts);
        if matches!(self.executor, Executor::None) {
            self.dry_run.observe(&self.snapshots);
            plan = self.dry_run.fresh(&plan);
        }
        let (plan, kept) = self.keep_refaulted(now, plan)?;
        let is_new = |target| self.snapshots.iter().any(|s| s.target == target);
        self.rest.retain(|operation| !is_new(operation.target));
        self.rest.extend(plan);
        let refused = |operation: &Operation| Outcome {
            refused: [(Refusal::Refaulted, operation.bytes)].into(),
            ..Outcome::default()
        };
        Ok(Carried {
            outcomes: kept.iter().map(refused).collect(),
            done: kept,
            rest: Vec::new(),
        })
    }

    /// Divides a plan into what may be done, and what came back too soon the last time.
    fn keep_refaulted(
        &mut self,
        now: Nanos,
        plan: Vec<Operation>,
    ) -> anyhow::Result<(Vec<Operation>, Vec<Operation>)> {
        let Executor::Processes(actuator) = &mut self.executor else {
            return Ok((plan, Vec::new()));
        };
        // Without a guard schemes do what they say, as DAMON's do.
        if !self.guard.limits().is_limited() {
            return Ok((plan, Vec::new()));
        }
        for snapshot in &self.snapshots {
            self.history.look(snapshot);
        }
        for (target, blocks) in self.history.suspects(&plan) {
            let history = &mut self.history;
            actuator.present(target, &blocks, |block, pages| {
                history.found(now, target, block, pages);
            })?;
        }
        Ok(self.history.sift(now, plan))
    }

    /// Carries out as much of the plan as the guard allows and as goes into `room`, and adds what was done.
    fn carry_out(
        &mut self,
        carried: &mut Carried,
        room: Nanos,
        session: &Session,
    ) -> anyhow::Result<()> {
        let executor = &mut self.executor;
        let mut more = carry_out(
            &self.rest,
            self.guard.guard_mut(),
            (&mut self.pace, room),
            || !session.is_stopped(),
            |portion, outcomes| -> anyhow::Result<()> {
                match executor {
                    Executor::None => outcomes.extend(portion.iter().map(Outcome::assumed)),
                    Executor::Processes(actuator) => actuator.act(portion, outcomes)?,
                    Executor::Physical(actuator) => actuator.act(portion, outcomes)?,
                }
                Ok(())
            },
        )?;
        self.rest = std::mem::take(&mut more.rest);
        self.note_paged_out(&more)?;
        carried.done.extend(more.done);
        carried.outcomes.extend(more.outcomes);
        Ok(())
    }

    /// What was paged out may come back.
    fn note_paged_out(&mut self, carried: &Carried) -> anyhow::Result<()> {
        let mut blocks: BTreeMap<TargetId, Vec<u64>> = BTreeMap::new();
        for (operation, outcome) in carried.done.iter().zip(&carried.outcomes) {
            if operation.action != Action::Pageout || outcome.applied == 0 {
                continue;
            }
            self.guard.paged_out(operation.target, outcome.applied);
            let first = operation.range.start & !(BLOCK_SIZE - 1);
            let of_target = blocks.entry(operation.target).or_default();
            of_target.extend((first..operation.range.end).step_by(BLOCK_SIZE as usize));
        }
        let Executor::Processes(actuator) = &mut self.executor else {
            return Ok(());
        };
        for (target, mut blocks) in blocks {
            blocks.sort_unstable();
            blocks.dedup();
            let history = &mut self.history;
            actuator.present(target, &blocks, |block, left| {
                history.paged_out(target, block, left);
            })?;
        }
        Ok(())
    }

    /// One sample for each scheme that did something.
    fn samples(
        &self,
        now: Nanos,
        done: &[Operation],
        outcomes: &[Outcome],
        spent: Nanos,
    ) -> Vec<Item> {
        let dry_run = matches!(self.executor, Executor::None);
        let mut samples: Vec<ActionSample> = Vec::new();
        for (operation, outcome) in done.iter().zip(outcomes) {
            let scheme = operation.scheme as u32;
            let at = samples.iter().position(|sample| sample.scheme == scheme);
            let at = at.unwrap_or_else(|| {
                samples.push(ActionSample {
                    time: now,
                    context: self.name.clone(),
                    scheme,
                    action: operation.action.name().to_owned(),
                    dry_run,
                    ..ActionSample::default()
                });
                samples.len() - 1
            });
            samples[at].add(operation, outcome);
        }
        // Schemes share what a step took, by their part of the time.
        let total: u64 = samples.iter().map(|sample| sample.took.0).sum();
        for sample in &mut samples {
            let share = u128::from(spent.0) * u128::from(sample.took.0) / u128::from(total.max(1));
            sample.cpu = Nanos(share as u64);
        }
        samples.into_iter().map(Item::Action).collect()
    }
}
