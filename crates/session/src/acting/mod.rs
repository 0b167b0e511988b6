//! Acting: what schemes plan from a session's snapshots is carried out, or in a dry run only said,
//! within what the guard allows; what came of it goes back to the schemes, to the monitor (ages) and
//! into the record. Each context of the session has schemes, an executor and a guard of its own
//! ([`context`]); what this process acts on is claimed once for all of them.

mod conflicts;
mod context;
mod eligible;
mod file_waits;
mod goal;
mod guard;
mod idle;
mod lacking;
mod locks;
mod progress;
mod spared;
mod system;
mod waits;

use anyhow::ensure;
use isotherm_config::{ActingSpec, ContextSpec, SessionSpec};
use isotherm_engine::guard::{GuardLimits, GuardStatus, Limit};
use isotherm_engine::scheme::huge::WasteStatus;
use isotherm_engine::scheme::{Action, SchemeEngine, SchemeStatus, Stats};
use isotherm_engine::units::{format_bytes, format_share};
use isotherm_engine::{Nanos, Refusal, Snapshot};
use isotherm_linux::clock::process_cpu;
use isotherm_record::{Item, PageSnapshot};

use crate::session::Session;
use context::ContextActing;
use locks::Locks;
use spared::Spared;

pub use conflicts::{warnings, warnings_of_schemes};
pub use lacking::lacking;

/// Schemes at work on a session: those of all its contexts.
pub struct Acting {
    contexts: Vec<ContextActing>,
    locks: Locks,
    /// Where all of the machine is acted on: who is not.
    spared: Option<Spared>,
    /// Nobody's end has to be noticed, so that watching may rest where schemes do.
    may_rest: bool,
    rests_until: Option<Nanos>,
    dry_run: bool,
    /// CPU time that acting has taken.
    cpu: Nanos,
}

/// What acting has come to: one entry for each scheme.
#[derive(serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActingSummary {
    /// Nothing was done: the numbers say what would have been.
    pub dry_run: bool,
    /// In a dry run: bytes that would be out of memory at the end.
    pub would_be_out_bytes: Option<u64>,
    /// One entry for each scheme of each context.
    pub schemes: Vec<SchemeSummary>,
    /// How often a guard stopped its schemes.
    pub guard_stops: u64,
    /// What targets lost by acting, as the guards measured it, and what they might have.
    pub guard_lost_seconds: f64,
    /// See `guard_lost_seconds`; zero without a limit on the slowdown.
    pub guard_allowed_seconds: f64,
    /// Huge pages that schemes have made under a bound on their waste, of each context that has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<WasteStatus>,
    /// CPU time that acting took, compressing pages included.
    pub acting_cpu_seconds: f64,
}

/// What a scheme has come to.
#[derive(serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeSummary {
    /// Whose it is, where there are several contexts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Its place there.
    pub scheme: usize,
    /// What it does.
    pub action: Action,
    /// DAMON's statistics of it.
    #[serde(flatten)]
    pub stats: Stats,
}

/// How acting stands.
#[derive(serde::Serialize)]
pub struct ActingStatus<'a> {
    /// Nothing is done: the numbers say what would be.
    pub dry_run: bool,
    /// In a dry run: bytes that would be out of memory now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_be_out_bytes: Option<u64>,
    /// Every context is paused.
    pub paused: bool,
    /// In their order.
    pub contexts: Vec<ContextStatus<'a>>,
}

/// How acting stands in one context.
#[derive(serde::Serialize)]
pub struct ContextStatus<'a> {
    /// `null` where there is one only.
    pub name: Option<&'a str>,
    /// It watches, and does not act.
    pub paused: bool,
    /// In their order.
    pub schemes: Vec<SchemeStatus<'a>>,
    /// What its targets may lose.
    pub limits: GuardLimits,
    /// What they lose, and what that allows.
    pub guard: GuardStatus,
    /// Huge pages that were made under a bound on their waste.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<WasteStatus>,
}

impl ActingSummary {
    /// For people: a line for each scheme.
    pub fn text(&self) -> String {
        let done = if self.dry_run { "would be" } else { "were" };
        let mut lines: Vec<String> = self
            .schemes
            .iter()
            .map(|scheme| {
                let refused: Vec<String> = scheme
                    .stats
                    .refused
                    .iter()
                    .map(|(why, bytes)| format!("{} {}", format_bytes(*bytes), refusal_words(*why)))
                    .collect();
                let refused = if refused.is_empty() {
                    String::new()
                } else {
                    format!("; not: {}", refused.join(", "))
                };
                let context = scheme.context.as_ref();
                let moved: Vec<String> = scheme
                    .stats
                    .moved
                    .iter()
                    .map(|way| {
                        let bytes = format_bytes(way.bytes);
                        format!("{bytes} from node {} to node {}", way.from, way.to)
                    })
                    .collect();
                let moved = if moved.is_empty() {
                    String::new()
                } else {
                    format!("; {}", moved.join(", "))
                };
                format!(
                    "{}scheme {}, {}: {} of {} tried {done} acted on{moved}{refused}",
                    context.map_or_else(String::new, |name| format!("{name}, ")),
                    scheme.scheme,
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
        for huge in &self.huge_pages {
            lines.push(format!(
                "of {} that schemes made huge, {} were never written (at most {} may be, {} of the targets' memory); {} \
                 stayed small for that",
                format_bytes(huge.huge),
                format_bytes(huge.wasted),
                format_bytes(huge.max),
                format_share(huge.max_share),
                format_bytes(huge.kept_small),
            ));
        }
        if self.guard_stops > 0 {
            lines.push(format!(
                "the guard stopped the schemes {} times",
                self.guard_stops
            ));
        }
        lines.join("\n")
    }
}

/// A limit, in a word or two.
pub fn limit_words(limit: Limit) -> &'static str {
    match limit {
        Limit::Slowdown => "slowdown",
        Limit::Refaults => "refaults",
        Limit::Psi => "pressure",
        Limit::RefaultWait => "a long wait",
    }
}

/// A reason, as the end of a sentence.
pub fn refusal_words(why: Refusal) -> &'static str {
    match why {
        Refusal::NoSwap => "for want of swap",
        Refusal::SwapFull => "as swap is full",
        Refusal::Shared => "shared with other processes",
        Refusal::Dirty => "not written to their files yet",
        Refusal::Locked => "locked or special",
        Refusal::NotOurFile => "of files that are not ours",
        Refusal::Unmapped => "not mapped",
        Refusal::NotPresent => "not in memory, or as wanted already",
        Refusal::Kept => "touched meanwhile, or kept by the kernel",
        Refusal::Refaulted => "kept, as it came back before",
        Refusal::Incompressible => "that compressed swap does not make smaller",
        Refusal::Sparse => "in blocks too sparse for huge pages",
        Refusal::Wasteful => "in blocks of which huge pages would waste too much",
        Refusal::Written => "data of huge pages, which stay",
        Refusal::NoRoom => "for want of room",
        Refusal::Exited => "of targets that ended",
        Refusal::Unsupported => "that this machine cannot act on",
        Refusal::Denied => "not permitted",
        Refusal::Unobservable => "as not all accesses to it can be seen (KVM guest, device)",
        Refusal::Other => "for other reasons",
    }
}

impl Acting {
    /// Takes hold of what `spec` asks for, whose session this is.
    ///
    /// # Errors
    /// What this machine cannot do, and whoever else acts on the targets.
    pub fn new(spec: &SessionSpec, session: &Session) -> anyhow::Result<Self> {
        let of_all = || spec.contexts.iter().filter_map(|c| c.acting.as_ref());
        let dry_run = of_all().all(|acting| acting.is_dry_run);
        let mut locks = if dry_run {
            Locks::none()
        } else if spec.contexts.iter().any(ContextSpec::samples_frames) {
            Locks::of_the_machine()?
        } else {
            Locks::of_processes()?
        };
        let is_machine = |c: &ContextSpec| c.targets.is_machine();
        let spared = spec.contexts.iter().any(is_machine);
        if spec.contexts.iter().all(is_machine) {
            // Nobody is named: what others act on is left to them from the first on.
            locks.begin();
        }
        let contexts = spec.contexts.iter().enumerate();
        let contexts = contexts.map(|(at, context)| ContextActing::new(at, context, session));
        Ok(Self {
            contexts: contexts.collect::<anyhow::Result<_>>()?,
            locks,
            spared: spared.then(Spared::who_started_us),
            may_rest: spec.contexts.iter().all(is_machine),
            rests_until: None,
            dry_run,
            cpu: Nanos(0),
        })
    }

    /// What the user should know of how it is guarded, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let lacks = self.contexts.iter().filter_map(|c| c.meters.lacks.clone());
        let mut warnings: Vec<String> = lacks.collect();
        warnings.dedup();
        warnings
    }

    /// Does what follows from `items`, which the session has just yielded, and appends what was done.
    pub fn step(&mut self, session: &mut Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let (cpu_before, acted_before) = (process_cpu(), self.cpu);
        self.follow_targets(session, items)?;
        let nr_seen = items.len();
        let unrecorded = session.take_unrecorded();
        for (at, context) in self.contexts.iter_mut().enumerate() {
            let (locks, spared, now) = (&self.locks, self.spared.as_ref(), session.now());
            let is_ours = |item: &&Item| match item {
                Item::Snapshot(Snapshot { target, .. })
                | Item::Pages(PageSnapshot { target, .. }) => {
                    session.context_of(*target) == at
                        && !locks.is_anothers(*target)
                        && !spared.is_some_and(|spared| spared.has(*target))
                }
                _ => false,
            };
            let told = if context.is_told_by_frame() {
                &unrecorded
            } else {
                &items[..nr_seen]
            };
            context.look(&mut told.iter().filter(is_ours));
            self.cpu = self.cpu + context.step(now, session, items)?;
        }
        self.rest(session, items);
        // What was looked at for that comes whenever there is something to do.
        let acted = self.cpu.since(acted_before);
        session.note_other_cpu(process_cpu().since(cpu_before).since(acted));
        Ok(())
    }

    /// Lets watching rest while all schemes do.
    fn rest(&mut self, session: &mut Session, items: &mut Vec<Item>) {
        if !self.may_rest {
            return;
        }
        let now = session.now();
        let mut until = Some(Nanos(u64::MAX));
        for context in &mut self.contexts {
            let its = context.rests_until(now, session);
            until = until.zip(its).map(|(until, its)| until.min(its));
        }
        if until.is_some() != self.rests_until.is_some() {
            let text = if until.is_some() {
                "free memory is outside the schemes' watermarks: nothing is watched or done until that changes"
            } else {
                "free memory is within the schemes' watermarks: they are at work"
            };
            items.push(Item::Note {
                time: now,
                text: text.to_owned(),
            });
        }
        session.set_resting(until.is_some());
        self.rests_until = until;
    }

    /// When there is something to do again without anything having been seen: to go on with a plan that was not
    /// finished, to look at watermarks.
    pub fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        if self.rests_until.is_some() {
            return self.rests_until;
        }
        let goes_on = self.contexts.iter().filter_map(ContextActing::goes_on_at);
        goes_on.min().map(|at| at.max(now + Nanos(1)))
    }

    /// What was done so far, in a line, for a terminal.
    pub fn headline(&self) -> String {
        let contexts = || self.contexts.iter();
        let guards: Vec<GuardStatus> = contexts().map(ContextActing::guard_status).collect();
        let waited: u64 = guards.iter().map(|g| g.since_start.lost.0).sum();
        let stops: u64 = guards.iter().map(|g| g.nr_stops).sum();
        let why = guards.iter().find_map(|g| g.exceeded);
        let why = why.map_or_else(String::new, |limit| format!(" ({})", limit_words(limit)));
        let strain = guards.iter().filter_map(|g| g.strain).reduce(f64::max);
        let strain = strain.map_or_else(|| "unknown".into(), |strain| format!("{strain:.2}"));
        let state = if guards.iter().any(|g| g.is_in_debt) {
            ", paying back"
        } else if guards.iter().any(|g| !g.is_open) {
            ", stopped"
        } else if { guards.iter() }.any(|g| g.page_cache.is_some_and(|pool| !pool.is_open)) {
            ", page cache stopped"
        } else if guards.iter().any(|g| g.budget.is_exhausted) {
            ", waiting for CPU"
        } else {
            ""
        };
        format!(
            "targets lost {:.2} s, {stops} stops{why}, strain {strain}, acting {:.1} s of CPU{state}",
            waited as f64 / 1e9,
            self.cpu.as_secs_f64(),
        )
    }

    /// What was done so far.
    pub fn summary(&self) -> ActingSummary {
        let schemes = self.contexts.iter().flat_map(|context| {
            let schemes = context.context.schemes().status().enumerate();
            schemes.map(|(scheme, status)| SchemeSummary {
                context: context.name.clone(),
                scheme,
                action: status.action,
                stats: status.stats.clone(),
            })
        });
        let guards: Vec<_> = self
            .contexts
            .iter()
            .map(context::ContextActing::guard_status)
            .collect();
        let stops = guards.iter().map(|guard| guard.nr_stops);
        let lost = guards.iter().map(|guard| guard.since_start.lost);
        let allowed = guards.iter().map(|guard| guard.since_start.allowed);
        ActingSummary {
            dry_run: self.dry_run,
            would_be_out_bytes: self.would_be_out(),
            schemes: schemes.collect(),
            guard_stops: stops.sum(),
            guard_lost_seconds: lost.map(Nanos::as_secs_f64).sum(),
            guard_allowed_seconds: allowed.map(Nanos::as_secs_f64).sum(),
            huge_pages: self
                .contexts
                .iter()
                .filter_map(|c| c.context.waste())
                .collect(),
            acting_cpu_seconds: self.cpu.as_secs_f64(),
        }
    }

    /// In a dry run, bytes that would be out of memory now.
    pub fn would_be_out(&self) -> Option<u64> {
        let all = self.contexts.iter().map(|c| c.context.would_be_out());
        self.dry_run.then(|| all.sum())
    }

    /// How it stands.
    pub fn status(&self) -> ActingStatus<'_> {
        let contexts = self.contexts.iter().map(|context| ContextStatus {
            name: context.name.as_deref(),
            paused: context.context.schemes().is_paused(),
            schemes: context.context.schemes().status().collect(),
            limits: context.context.guard().limits(),
            guard: context.guard_status(),
            huge_pages: context.context.waste(),
        });
        ActingStatus {
            dry_run: self.dry_run,
            would_be_out_bytes: self.would_be_out(),
            paused: self
                .contexts
                .iter()
                .all(|c| c.context.schemes().is_paused()),
            contexts: contexts.collect(),
        }
    }

    /// Exchanges schemes and limits of all contexts while running, by those of a specification of as
    /// many.
    ///
    /// # Errors
    /// What cannot be set. Then everything stays as it is.
    pub fn tune(&mut self, spec: &SessionSpec) -> anyhow::Result<()> {
        let of_all = spec
            .contexts
            .iter()
            .map(|c| c.acting.clone().unwrap_or_default());
        let of_all: Vec<ActingSpec> = of_all.collect();
        ensure!(
            of_all.len() == self.contexts.len(),
            "{} contexts are at work, and {} are given",
            self.contexts.len(),
            of_all.len()
        );
        for (context, acting) in self.contexts.iter().zip(&of_all) {
            context.meters.can_set(acting.limits)?;
            SchemeEngine::new(acting.schemes.clone())?;
        }
        for (context, acting) in self.contexts.iter_mut().zip(of_all) {
            context.tune(acting)?;
        }
        Ok(())
    }

    /// Stops acting in all contexts, or goes on.
    pub fn set_paused(&mut self, is_paused: bool) {
        for at in 0..self.contexts.len() {
            self.set_context_paused(at, is_paused);
        }
    }

    /// Stops acting in one context, or goes on.
    pub fn set_context_paused(&mut self, at: usize, is_paused: bool) {
        self.contexts[at].context.set_paused(is_paused);
    }

    fn follow_targets(&mut self, session: &Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let mut notes = Vec::new();
        for item in items.iter() {
            match item {
                Item::TargetStart(start)
                    if self
                        .spared
                        .as_mut()
                        .is_some_and(|spared| spared.takes(start)) => {}
                Item::TargetStart(start) => match self.locks.acquire(start)? {
                    Some(note) => notes.push(note),
                    None => self.contexts[session.context_of(start.target)]
                        .add(start.target, session)?,
                },
                Item::TargetExit(exit) => {
                    self.contexts[session.context_of(exit.target)].remove(exit.target);
                    self.locks.release(exit.target);
                    if let Some(spared) = &mut self.spared {
                        spared.forget(exit.target);
                    }
                }
                _ => {}
            }
        }
        self.locks.begin();
        let starts = items.iter().find_map(|item| match item {
            Item::TargetStart(start) => Some(start),
            _ => None,
        });
        if let (Some(spared), Some(start)) = (&mut self.spared, starts) {
            notes.extend(spared.note(start));
        }
        items.extend(notes);
        Ok(())
    }
}
