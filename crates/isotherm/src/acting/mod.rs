//! Acting: what schemes plan from a session's snapshots is carried out, or in a dry run only said,
//! within what the guard allows; what came of it goes back to the schemes, to the monitor (ages) and
//! into the record.

mod beside;
mod claims;
mod guard;
mod progress;
mod setup;
mod system;

use anyhow::Context;
use isotherm_engine::guard::{GuardLimits, GuardStatus};
use isotherm_engine::scheme::{Action, Scheme, SchemeEngine, SchemeStatus, Stats};
use isotherm_engine::{Actuator, Nanos, Operation, Outcome, Refusal, Snapshot};
use isotherm_linux::act::{ActOptions, PhysicalActuator, ProcessActuator};
use isotherm_linux::clock::process_cpu;
use isotherm_record::{ActionSample, GuardSample, Item};

use crate::recorder::Session;
use crate::units::format_bytes;
use claims::Claims;
use guard::Watch;

pub(crate) use guard::GuardArgs;
pub(crate) use setup::{SchemeArgs, Setup, lacking, parse};

/// Operations are carried out in groups of about this many bytes, between which the guard's allowance
/// and the user's wish to stop are looked at.
const GROUP_BYTES: u64 = 64 << 20;

/// Who carries out what is planned.
enum Hands {
    /// Nobody: a dry run.
    None,
    Processes(Box<ProcessActuator>),
    Physical(Box<PhysicalActuator>),
}

/// Schemes at work on a session.
pub(crate) struct Acting {
    schemes: SchemeEngine,
    hands: Hands,
    guard: Watch,
    claims: Claims,
    snapshots: Vec<Snapshot>,
    /// CPU time that acting has taken.
    cpu: Nanos,
}

/// What acting has come to: one entry for each scheme.
#[derive(serde::Serialize)]
pub(crate) struct ActingSummary {
    pub(crate) dry_run: bool,
    pub(crate) schemes: Vec<SchemeSummary>,
    pub(crate) guard_stops: u64,
    /// CPU time that acting took, compressing pages included.
    pub(crate) acting_cpu_seconds: f64,
}

#[derive(serde::Serialize)]
pub(crate) struct SchemeSummary {
    pub(crate) action: Action,
    #[serde(flatten)]
    pub(crate) stats: Stats,
}

/// How acting stands.
#[derive(serde::Serialize)]
pub(crate) struct ActingStatus<'a> {
    pub(crate) dry_run: bool,
    pub(crate) paused: bool,
    pub(crate) schemes: Vec<SchemeStatus<'a>>,
    pub(crate) limits: GuardLimits,
    pub(crate) guard: GuardStatus,
}

impl ActingSummary {
    /// For people: a line for each scheme.
    pub(crate) fn text(&self) -> String {
        let done = if self.dry_run { "would be" } else { "were" };
        let mut lines: Vec<String> = self
            .schemes
            .iter()
            .enumerate()
            .map(|(i, scheme)| {
                let refused: Vec<String> = scheme
                    .stats
                    .refused
                    .iter()
                    .map(|(why, bytes)| format!("{} {}", format_bytes(*bytes), words(*why)))
                    .collect();
                let refused = if refused.is_empty() {
                    String::new()
                } else {
                    format!("; not: {}", refused.join(", "))
                };
                format!(
                    "scheme {i}, {}: {} of {} tried {done} acted on{refused}",
                    scheme.action,
                    format_bytes(scheme.stats.sz_applied),
                    format_bytes(scheme.stats.sz_tried),
                )
            })
            .collect();
        lines.push(format!(
            "acting took {:.2} s of CPU",
            self.acting_cpu_seconds
        ));
        if self.guard_stops > 0 {
            lines.push(format!(
                "the guard stopped the schemes {} times",
                self.guard_stops
            ));
        }
        lines.join("\n")
    }
}

/// A reason, as the end of a sentence.
fn words(why: Refusal) -> &'static str {
    match why {
        Refusal::NoSwap => "for want of swap",
        Refusal::SwapFull => "as swap is full",
        Refusal::Shared => "shared with other processes",
        Refusal::Locked => "locked or special",
        Refusal::NotOurFile => "of files that are not ours",
        Refusal::Unmapped => "not mapped",
        Refusal::NotPresent => "not in memory, or as wanted already",
        Refusal::Kept => "touched meanwhile, or kept by the kernel",
        Refusal::Sparse => "in blocks too sparse for huge pages",
        Refusal::NoRoom => "for want of room",
        Refusal::Exited => "of targets that ended",
        Refusal::Unsupported => "that this machine cannot act on",
        Refusal::Denied => "not permitted",
        Refusal::Other => "for other reasons",
    }
}

impl Acting {
    /// Takes hold of what `setup` asks for. Fails where this machine cannot do it.
    pub(crate) fn new(setup: &Setup, session: &Session) -> anyhow::Result<Self> {
        let options = ActOptions {
            spare_accessed: session.knows_every_page(),
            ..ActOptions::default()
        };
        let hands = if setup.dry_run {
            Hands::None
        } else if setup.physical {
            Hands::Physical(Box::new(PhysicalActuator::new(ActOptions::default())?))
        } else {
            Hands::Processes(Box::new(ProcessActuator::new(options)?))
        };
        let claims = match hands {
            Hands::None => Claims::none(),
            Hands::Processes(_) => Claims::of_processes()?,
            Hands::Physical(_) => Claims::of_the_machine()?,
        };
        for warning in beside::warnings(&setup.schemes) {
            eprintln!("isotherm: {warning}");
        }
        Ok(Self {
            schemes: SchemeEngine::new(setup.schemes.clone())?,
            hands,
            guard: Watch::new(setup)?,
            claims,
            snapshots: Vec::new(),
            cpu: Nanos(0),
        })
    }

    /// Does what follows from `items`, which the session has just yielded, and appends what was done.
    pub(crate) fn step(
        &mut self,
        session: &mut Session,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<()> {
        self.follow_targets(session, items)?;
        let now = session.now();
        if let Some(status) = self.guard.observe(now, session) {
            items.push(Item::Guard(GuardSample { time: now, status }));
        }
        self.snapshots.clear();
        self.snapshots
            .extend(items.iter().filter_map(|item| match item {
                Item::Snapshot(snapshot) if !self.claims.is_anothers(snapshot.target) => {
                    Some(snapshot.clone())
                }
                _ => None,
            }));
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let cpu_before = process_cpu();
        let facts = system::facts(&self.schemes.wanted_metrics(now));
        let plan = self.schemes.plan(now, &self.snapshots, &facts);
        let (done, outcomes) = self.carry_out(&plan, session)?;
        items.extend(samples(now, &done, &outcomes, self.is_dry()));
        for (target, range) in self.schemes.done(&done, &outcomes) {
            if !self.is_dry() {
                session.reset_age(target, range);
            }
        }
        // Compressing pages is not watching, and not to be saved on by watching less.
        let spent = process_cpu().since(cpu_before);
        self.cpu = self.cpu + spent;
        session.leave_out(spent);
        Ok(())
    }

    /// What was done so far.
    pub(crate) fn summary(&self) -> ActingSummary {
        let schemes = self.schemes.status().map(|status| SchemeSummary {
            action: status.action,
            stats: status.stats.clone(),
        });
        ActingSummary {
            dry_run: self.is_dry(),
            schemes: schemes.collect(),
            guard_stops: self.guard.status().nr_stops,
            acting_cpu_seconds: self.cpu.as_secs_f64(),
        }
    }

    /// How it stands.
    pub(crate) fn status(&self) -> ActingStatus<'_> {
        ActingStatus {
            dry_run: self.is_dry(),
            paused: self.schemes.is_paused(),
            schemes: self.schemes.status().collect(),
            limits: self.guard.limits(),
            guard: self.guard.status(),
        }
    }

    /// Exchanges schemes and limits while running. On an error everything stays as it is.
    pub(crate) fn tune(&mut self, schemes: Vec<Scheme>, limits: GuardLimits) -> anyhow::Result<()> {
        self.guard.can_set(limits)?;
        self.schemes.set_schemes(schemes)?;
        self.guard.set_limits(limits);
        Ok(())
    }

    /// Stops acting, or goes on.
    pub(crate) fn set_paused(&mut self, is_paused: bool) {
        self.schemes.set_paused(is_paused);
    }

    fn is_dry(&self) -> bool {
        matches!(self.hands, Hands::None)
    }

    fn follow_targets(&mut self, session: &Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let mut notes = Vec::new();
        for item in items.iter() {
            match item {
                Item::TargetStart(start) => {
                    if let Hands::Processes(actuator) = &mut self.hands
                        && let Some(process) = session.process(start.target)
                    {
                        if let Some(note) = self.claims.claim(start)? {
                            notes.push(note);
                            continue;
                        }
                        let process = process.context("cannot keep hold of a target")?;
                        // It may have ended already, which its exit tells.
                        actuator.add(start.target, process).ok();
                    }
                }
                Item::TargetExit(exit) => {
                    if let Hands::Processes(actuator) = &mut self.hands {
                        actuator.remove(exit.target);
                    }
                    self.claims.release(exit.target);
                    self.guard.forget(exit.target);
                }
                _ => {}
            }
        }
        self.claims.begin();
        items.extend(notes);
        Ok(())
    }

    /// Carries out as much of the plan as the guard allows: what was done, and its outcomes.
    fn carry_out(
        &mut self,
        plan: &[Operation],
        session: &Session,
    ) -> anyhow::Result<(Vec<Operation>, Vec<Outcome>)> {
        let (mut done, mut outcomes) = (Vec::new(), Vec::new());
        let mut rest = plan;
        let mut group_outcomes = Vec::new();
        while !rest.is_empty() {
            let (group, after) = rest.split_at(group_length(rest));
            let allowed = self.guard.allowance().unwrap_or(u64::MAX);
            let harmless = group
                .iter()
                .all(|operation| operation.action == Action::Stat);
            if (allowed == 0 && !harmless) || session.is_stopped() {
                break;
            }
            match &mut self.hands {
                Hands::None => {
                    group_outcomes.clear();
                    group_outcomes.extend(group.iter().map(Outcome::assumed));
                }
                Hands::Processes(actuator) => actuator.act(group, &mut group_outcomes)?,
                Hands::Physical(actuator) => actuator.act(group, &mut group_outcomes)?,
            }
            if !harmless {
                let applied = group_outcomes.iter().map(|outcome| outcome.applied).sum();
                self.guard.charge(applied);
            }
            done.extend_from_slice(group);
            outcomes.append(&mut group_outcomes);
            rest = after;
        }
        Ok((done, outcomes))
    }
}

/// How many of the first operations go together.
fn group_length(operations: &[Operation]) -> usize {
    let mut bytes = 0;
    operations
        .iter()
        .take_while(|operation| {
            bytes += operation.range.len();
            bytes <= GROUP_BYTES
        })
        .count()
        .max(1)
}

/// One sample for each scheme that did something.
fn samples(now: Nanos, done: &[Operation], outcomes: &[Outcome], dry_run: bool) -> Vec<Item> {
    let mut samples: Vec<ActionSample> = Vec::new();
    for (operation, outcome) in done.iter().zip(outcomes) {
        let scheme = operation.scheme as u32;
        let at = samples.iter().position(|sample| sample.scheme == scheme);
        let at = at.unwrap_or_else(|| {
            samples.push(ActionSample {
                time: now,
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
