//! Acting: what schemes plan from a session's snapshots is carried out, or in a dry run only said,
//! within what the guard allows; what came of it goes back to the schemes, to the monitor (ages) and
//! into the record. Isotherm acts itself ([`own`]), or has the kernel's DAMON act ([`kernel`]). Each context of the
//! session has schemes, an executor and a guard of its own; what this process acts on is claimed once for all of them.

mod conflicts;
mod context;
mod eligible;
mod file_waits;
mod goal;
mod guard;
mod idle;
mod kernel;
mod lacking;
mod locks;
mod own;
mod permits;
pub(crate) mod progress;
mod spared;
mod summary;
mod system;
mod taken;
mod waits;

use anyhow::ensure;
use isotherm_config::{ActingSpec, SessionSpec, World};
use isotherm_engine::Nanos;
use isotherm_record::Item;

use crate::session::Session;
use kernel::KernelActing;
use own::OwnActing;

pub(crate) use conflicts::{all_schemes, for_want_of_swap, without_group};
pub use conflicts::{warnings, warnings_of_schemes};
pub use lacking::lacking;
pub use permits::PodPermits;
pub use summary::{ActingStatus, ActingSummary, ContextStatus, SchemeSummary};

/// Schemes at work on a session: those of all its contexts.
pub struct Acting {
    by: Box<dyn Acts>,
}

/// Who acts.
trait Acts {
    /// What the user should know of how it is guarded, a sentence each.
    fn warnings(&self) -> Vec<String>;

    /// Does what follows from `items`, which the session has just yielded, and appends what was done.
    fn step(&mut self, session: &mut Session, items: &mut Vec<Item>) -> anyhow::Result<()>;

    /// Takes in the session's last words: there is nothing to do any more.
    fn finish(&mut self, _session: &mut Session, _items: &[Item]) {}

    /// When there is something to do again without anything having been seen: to go on with a plan that was not
    /// finished, to look at watermarks.
    fn wake_at(&self, now: Nanos) -> Option<Nanos>;

    /// How it stands.
    fn status(&self) -> ActingStatus<'_>;

    /// CPU time that acting has taken.
    fn cpu(&self) -> Nanos;

    /// Exchanges schemes and limits, of as many contexts; where it fails, everything stays as it is.
    fn tune(&mut self, of_all: Vec<ActingSpec>, session: &mut Session) -> anyhow::Result<()>;

    /// Stops acting in the context at this place, or goes on.
    fn set_paused(&mut self, at: usize, is_paused: bool);

    /// Acts on nobody but processes of these pods.
    fn permit_only(&mut self, pods: PodPermits) -> anyhow::Result<()>;
}

impl Acting {
    /// Takes hold of what `spec` asks for, whose session this is.
    ///
    /// # Errors
    /// What this machine cannot do, and whoever else acts on the targets.
    pub fn new(spec: &SessionSpec, session: &Session) -> anyhow::Result<Self> {
        let by: Box<dyn Acts> = match spec.world {
            World::Linux => Box::new(OwnActing::new(spec, session)?),
            World::Kernel => Box::new(KernelActing::new(spec)?),
        };
        Ok(Self { by })
    }

    /// What the user should know of how it is guarded, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.by.warnings()
    }

    /// Does what follows from `items`, which the session has just yielded, and appends what was done.
    ///
    /// # Errors
    /// What this machine refuses.
    pub fn step(&mut self, session: &mut Session, items: &mut Vec<Item>) -> anyhow::Result<()> {
        self.by.step(session, items)
    }

    /// Takes in the session's last words, before it is summed up.
    pub fn finish(&mut self, session: &mut Session, items: &[Item]) {
        self.by.finish(session, items);
    }

    /// When there is something to do again without anything having been seen: to go on with a plan that was not
    /// finished, to look at watermarks.
    pub fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        self.by.wake_at(now)
    }

    /// What was done so far, in a line, for a terminal.
    pub fn headline(&self) -> String {
        self.status().headline(self.by.cpu())
    }

    /// What was done so far.
    pub fn summary(&self) -> ActingSummary {
        self.status().summary(self.by.cpu())
    }

    /// How it stands.
    pub fn status(&self) -> ActingStatus<'_> {
        self.by.status()
    }

    /// Exchanges schemes and limits of all contexts while running, by those of a specification of as
    /// many.
    ///
    /// # Errors
    /// What cannot be set. Then everything stays as it is.
    pub fn tune(&mut self, spec: &SessionSpec, session: &mut Session) -> anyhow::Result<()> {
        let of_all = spec.contexts.iter();
        let of_all = of_all.map(|context| context.acting.clone().unwrap_or_default());
        let of_all: Vec<ActingSpec> = of_all.collect();
        let nr = self.nr_contexts();
        ensure!(
            of_all.len() == nr,
            "{nr} contexts are at work, and {} are given",
            of_all.len()
        );
        self.by.tune(of_all, session)
    }

    /// Stops acting in all contexts, or goes on.
    pub fn set_paused(&mut self, is_paused: bool) {
        for at in 0..self.nr_contexts() {
            self.set_context_paused(at, is_paused);
        }
    }

    /// Stops acting in one context, or goes on.
    pub fn set_context_paused(&mut self, at: usize, is_paused: bool) {
        self.by.set_paused(at, is_paused);
    }

    /// From now on acts on nobody but processes of these pods. What was planned for others is dropped.
    ///
    /// # Errors
    /// That the kernel acts, which knows nothing of pods.
    pub fn permit_only(&mut self, pods: PodPermits) -> anyhow::Result<()> {
        self.by.permit_only(pods)
    }

    fn nr_contexts(&self) -> usize {
        self.status().contexts.len()
    }
}
