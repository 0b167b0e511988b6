//! Acting in one context: its schemes, who carries out what they plan, and its guard.

use anyhow::Context as _;
use isotherm_engine::scheme::{Action, SchemeEngine};
use isotherm_engine::{Actuator, Nanos, Operation, Outcome, Snapshot, TargetId};
use isotherm_linux::act::{ActOptions, PhysicalActuator, ProcessActuator};
use isotherm_linux::clock::process_cpu;
use isotherm_record::{ActionSample, GuardSample, Item};

use super::guard::Watch;
use super::portions::Portions;
use super::{Setup, eligible, system};
use crate::recorder::Session;

/// Operations are carried out in portions of at most this many bytes, or of what the guard allows,
/// between which its allowance and the user's wish to stop are looked at.
const PORTION_BYTES: u64 = 64 << 20;

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
        let plan = self.schemes.plan(now, &self.snapshots, &facts);
        let (done, outcomes) = self.carry_out(&plan, session)?;
        let is_dry = matches!(self.hands, Hands::None);
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
        let mut portions = Portions::new(plan);
        let (mut portion, mut outcomes) = (Vec::new(), Vec::new());
        while !session.is_stopped() {
            let allowed = self.guard.allowance().unwrap_or(u64::MAX);
            let is_harmless = portions.next_action() == Some(Action::Stat);
            if allowed == 0 && !is_harmless {
                break;
            }
            portions.take(PORTION_BYTES.min(allowed), &mut portion);
            if portion.is_empty() {
                break;
            }
            match &mut self.hands {
                Hands::None => {
                    outcomes.clear();
                    outcomes.extend(portion.iter().map(Outcome::assumed));
                }
                Hands::Processes(actuator) => actuator.act(&portion, &mut outcomes)?,
                Hands::Physical(actuator) => actuator.act(&portion, &mut outcomes)?,
            }
            if !is_harmless {
                self.guard
                    .charge(outcomes.iter().map(|outcome| outcome.applied).sum());
            }
            portions.done(&outcomes);
        }
        Ok(portions.finish())
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
            let sample = &mut samples[at];
            sample.nr_tried += 1;
            sample.sz_tried += operation.range.len();
            sample.sz_applied += outcome.applied;
            sample.took = sample.took + outcome.took;
            for (why, bytes) in &outcome.refused {
                *sample.refused.entry(*why).or_default() += bytes;
            }
        }
        samples.into_iter().map(Item::Action).collect()
    }
}
