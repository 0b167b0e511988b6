//! Acting in one context: its schemes, who carries out what they plan, and its guard.

use anyhow::Context as _;
use isotherm_engine::drive::{DryRun, carry_out};
use isotherm_engine::scheme::SchemeEngine;
use isotherm_engine::{Actuator, Nanos, Operation, Outcome, Snapshot, TargetId};
use isotherm_linux::act::{ActOptions, PhysicalActuator, ProcessActuator};
use isotherm_linux::clock::process_cpu;
use isotherm_record::{ActionSample, GuardSample, Item};

use super::guard::Watch;
use super::{Setup, eligible, system};
use crate::recorder::Session;

/// Who carries out what is planned.
enum Hands {
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
    hands: Hands,
    is_physical: bool,
    /// What a dry run has counted already.
    dry_run: DryRun,
    snapshots: Vec<Snapshot>,
}

impl ContextActing {
    pub(super) fn new(at: usize, setup: &Setup, session: &Session) -> anyhow::Result<Self> {
        let options = ActOptions {
            spare_accessed: session.knows_every_page(at),
            ..ActOptions::default()
        };
        let hands = if setup.dry_run {
            Hands::None
        } else if setup.is_physical() {
            Hands::Physical(Box::new(PhysicalActuator::new(ActOptions::default())?))
        } else {
            Hands::Processes(Box::new(ProcessActuator::new(options)?))
        };
        let mut schemes = SchemeEngine::new(setup.schemes.clone())?;
        schemes.set_paused(setup.is_paused);
        Ok(Self {
            name: setup.context.name.clone(),
            schemes,
            guard: Watch::new(at, setup)?,
            hands,
            is_physical: setup.is_physical(),
            dry_run: DryRun::default(),
            snapshots: Vec::new(),
        })
    }

    /// From now on `target` is acted on.
    pub(super) fn add(&mut self, target: TargetId, session: &Session) -> anyhow::Result<()> {
        if let Hands::Processes(actuator) = &mut self.hands
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
        if let Hands::Processes(actuator) = &mut self.hands {
            actuator.remove(target);
        }
        self.guard.forget(target);
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

    /// Does what follows from the snapshots, and appends what was done. Yields the CPU time that it
    /// took.
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
        if self.snapshots.is_empty() {
            return Ok(Nanos(0));
        }
        let cpu_before = process_cpu();
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
        let is_dry = matches!(self.hands, Hands::None);
        if is_dry {
            self.dry_run.observe(&self.snapshots);
            plan = self.dry_run.fresh(&plan);
        }
        let (done, outcomes) = self.carry_out(&plan, session)?;
        if is_dry {
            self.dry_run.assume(&done);
        }
        items.extend(self.samples(now, &done, &outcomes, is_dry));
        for (target, range) in self.schemes.done(&done, &outcomes) {
            if !is_dry {
                session.reset_age(target, range);
            }
        }
        // Compressing pages is not watching, and not to be saved on by watching less.
        let spent = process_cpu().since(cpu_before);
        session.leave_out(spent);
        Ok(spent)
    }

    /// Carries out as much of the plan as the guard allows: what was done, and its outcomes.
    fn carry_out(
        &mut self,
        plan: &[Operation],
        session: &Session,
    ) -> anyhow::Result<(Vec<Operation>, Vec<Outcome>)> {
        let hands = &mut self.hands;
        carry_out(
            plan,
            self.guard.guard_mut(),
            || !session.is_stopped(),
            |portion, outcomes| {
                match hands {
                    Hands::None => outcomes.extend(portion.iter().map(Outcome::assumed)),
                    Hands::Processes(actuator) => actuator.act(portion, outcomes)?,
                    Hands::Physical(actuator) => actuator.act(portion, outcomes)?,
                }
                Ok(())
            },
        )
    }

    /// One sample for each scheme that did something.
    fn samples(
        &self,
        now: Nanos,
        done: &[Operation],
        outcomes: &[Outcome],
        dry_run: bool,
    ) -> Vec<Item> {
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
        samples.into_iter().map(Item::Action).collect()
    }
}
