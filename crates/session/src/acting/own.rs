//! Acting by Isotherm itself.

use isotherm_config::{ActingSpec, ContextSpec, SessionSpec};
use isotherm_engine::{CpuAccount, Nanos, Snapshot};
use isotherm_linux::clock::process_cpu;
use isotherm_policy::scheme::SchemeEngine;
use isotherm_record::{Item, PageSnapshot};

use super::context::ContextActing;
use super::guard::lacks_of;
use super::locks::Locks;
use super::permits::{PodAllowlist, PodPermits};
use super::protected::Protected;
use super::summary::{ActingStatus, ContextStatus};
use super::{Acts, is_dry_run};
use crate::session::Session;

pub(super) struct OwnActing {
    contexts: Vec<ContextActing>,
    locks: Locks,
    protected: Option<Protected>,
    /// Permissions of pods, if they decide which processes may be acted on.
    permits: Option<PodAllowlist>,
    /// Whether watching may rest where schemes do: the end of no process has to be noticed.
    may_rest: bool,
    rests_until: Option<Nanos>,
    dry_run: bool,
    cpu: Nanos,
}

impl OwnActing {
    pub(super) fn new(spec: &SessionSpec) -> anyhow::Result<Self> {
        let mut locks = Locks::of(spec)?;
        let is_machine = |c: &ContextSpec| c.targets.is_machine();
        let protected = spec.contexts.iter().any(is_machine);
        if spec.contexts.iter().all(is_machine) {
            // No process is named: those that others act on are left to them from the start.
            locks.has_begun = true;
        }
        let contexts = spec.contexts.iter().enumerate();
        let contexts = contexts.map(|(at, context)| ContextActing::new(at, context));
        Ok(Self {
            contexts: contexts.collect::<anyhow::Result<_>>()?,
            locks,
            protected: protected.then(Protected::who_started_us),
            permits: None,
            may_rest: spec.contexts.iter().all(is_machine),
            rests_until: None,
            dry_run: is_dry_run(spec),
            cpu: Nanos(0),
        })
    }

    /// Pauses watching while all schemes rest.
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
        session.is_resting = until.is_some();
        self.rests_until = until;
    }

    fn follow_pods(&mut self, item: &Item) {
        match (&mut self.permits, item) {
            (Some(permits), Item::TargetStart(start)) => permits.start(start),
            (Some(permits), Item::TargetExit(exit)) => permits.forget(exit.target),
            _ => {}
        }
    }

    /// Passes the targets that may be acted on to the contexts.
    fn apply_permits(&mut self) {
        if let Some(permits) = &self.permits {
            for context in &mut self.contexts {
                context.permit_only(permits.least_ages());
            }
        }
    }

    fn follow_targets(&mut self, session: &Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let mut notes = Vec::new();
        for item in items.iter() {
            self.follow_pods(item);
            match item {
                Item::TargetStart(start)
                    if self
                        .protected
                        .as_mut()
                        .is_some_and(|protected| protected.takes(start)) => {}
                Item::TargetStart(start) => {
                    let note = self.locks.acquire(start)?;
                    if note.is_none() {
                        let context = &mut self.contexts[session.monitor.context_of(start.target)];
                        // After exec nothing that was paged out before is left.
                        context.remove(start.target);
                        context.add(start.target, session)?;
                    }
                    notes.extend(note);
                }
                Item::TargetExit(exit) => {
                    self.contexts[session.monitor.context_of(exit.target)].remove(exit.target);
                    self.locks.release(exit.target);
                    if let Some(protected) = &mut self.protected {
                        protected.forget(exit.target);
                    }
                }
                _ => {}
            }
        }
        self.locks.has_begun = true;
        let starts = items.iter().find_map(|item| match item {
            Item::TargetStart(start) => Some(start),
            _ => None,
        });
        if let (Some(protected), Some(start)) = (&mut self.protected, starts) {
            notes.extend(protected.note(start));
        }
        items.extend(notes);
        Ok(())
    }
}

impl Acts for OwnActing {
    fn warnings(&self) -> Vec<String> {
        lacks_of({ self.contexts.iter() }.map(|context| &context.by.meters))
    }

    fn step(&mut self, session: &mut Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        let (cpu_before, acted_before) = (process_cpu(), self.cpu);
        self.follow_targets(session, items)?;
        if let Some(permits) = &mut self.permits
            && permits.refresh(session.now())
        {
            self.apply_permits();
        }
        let nr_seen = items.len();
        let unrecorded = session.monitor.take_internal_snapshots();
        for (at, context) in self.contexts.iter_mut().enumerate() {
            let (locks, protected, now) = (&self.locks, self.protected.as_ref(), session.now());
            let permits = self.permits.as_ref();
            let is_ours = |item: &&Item| match item {
                Item::Snapshot(Snapshot { target, .. })
                | Item::Pages(PageSnapshot { target, .. }) => {
                    session.monitor.context_of(*target) == at
                        && !locks.anothers.contains(target)
                        && !protected.is_some_and(|protected| protected.has(*target))
                        && permits.is_none_or(|permits| permits.has(*target))
                }
                _ => false,
            };
            let reported = if context.is_told_by_frame {
                &unrecorded
            } else {
                &items[..nr_seen]
            };
            context.look(&mut reported.iter().filter(is_ours));
            self.cpu = self.cpu + context.step(now, session, items)?;
        }
        self.rest(session, items);
        // The rest of the step's CPU time counts as watching, but does not depend on how often memory is sampled.
        let acted = self.cpu.since(acted_before);
        let spent = process_cpu().since(cpu_before).since(acted);
        session.charge(CpuAccount::Watching, spent);
        Ok(())
    }

    fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        if self.rests_until.is_some() {
            return self.rests_until;
        }
        let goes_on = self.contexts.iter().filter_map(ContextActing::goes_on_at);
        goes_on.min().map(|at| at.max(now + Nanos(1)))
    }

    fn status(&self) -> ActingStatus<'_> {
        let contexts = self.contexts.iter().map(|context| ContextStatus {
            name: context.by.meters.name.as_deref(),
            paused: context.context.schemes().is_paused(),
            schemes: context.context.schemes().status().collect(),
            limits: context.context.guard().limits(),
            guard: context.by.meters.status(context.context.guard()),
            bound_by: Some(context.bound_by()),
            bound_times: context.bounds.list(),
            huge_pages: context.context.waste(),
            kdamond: None,
            paged_out_bytes: None,
        });
        let out = self.contexts.iter().map(|c| c.context.would_be_out());
        ActingStatus::of(
            self.dry_run,
            self.dry_run.then(|| out.sum()),
            contexts.collect(),
        )
    }

    fn cpu(&self) -> Nanos {
        self.cpu
    }

    fn exchange(&mut self, of_all: Vec<ActingSpec>, _session: &mut Session) -> anyhow::Result<()> {
        for (context, acting) in self.contexts.iter().zip(&of_all) {
            context.by.meters.can_set(acting.limits)?;
            SchemeEngine::new(acting.schemes.clone())?;
        }
        for (context, acting) in self.contexts.iter_mut().zip(of_all) {
            context.tune(acting)?;
        }
        Ok(())
    }

    fn set_context_paused(&mut self, at: usize, is_paused: bool) {
        self.contexts[at].context.set_paused(is_paused);
    }

    fn permit_only(&mut self, pods: PodPermits) -> anyhow::Result<()> {
        self.permits.get_or_insert_default().pods = pods;
        self.apply_permits();
        Ok(())
    }
}
