//! Acting: executes the operations that schemes plan from a session's snapshots, within the guard's limits; a dry run
//! only reports them. The results go back to the schemes, to the monitor (ages) and into the record. Isotherm acts
//! itself ([`own`]), or has the kernel's DAMON act ([`kernel`]). Each context of the session has schemes, an executor
//! and a guard of its own; the memory that this process acts on is claimed once for all of them.

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
mod protected;
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

pub use conflicts::warnings;
pub(crate) use conflicts::{all_schemes, for_want_of_swap, without_group};
pub use lacking::lacking;
pub use permits::PodPermits;
pub use summary::bounds::BoundTime;
pub(crate) use summary::bounds::words as bound_words;
pub use summary::{ActingStatus, ActingSummary, ContextStatus, SchemeSummary};

/// Whether no context of the session acts, but in a dry run.
pub(crate) fn is_dry_run(spec: &SessionSpec) -> bool {
    let mut acting = spec.contexts.iter().filter_map(|c| c.acting.as_ref());
    acting.all(|acting| acting.is_dry_run)
}

/// Schemes at work on a session: those of all its contexts.
pub type Acting = Box<dyn Acts>;

/// Claims the memory that `spec` asks for, and opens the meters.
///
/// # Errors
/// Fails if this machine cannot do what is asked for, or if another isotherm acts on the targets.
pub fn new_acting(spec: &SessionSpec) -> anyhow::Result<Acting> {
    let acting: Acting = match spec.world {
        World::Linux => Box::new(OwnActing::new(spec)?),
        World::Kernel => Box::new(KernelActing::new(spec)?),
        World::Attached => anyhow::bail!("what others have set up is only listened to"),
    };
    Ok(acting)
}

/// An executor of a session's schemes.
pub trait Acts {
    /// Returns remarks for the user on the guard, one sentence each.
    fn warnings(&self) -> Vec<String>;
    /// Acts on `items`, which the session has just yielded, and appends the results.
    ///
    /// # Errors
    /// Fails if this machine refuses to act.
    fn step(&mut self, session: &mut Session, items: &mut Vec<Item>) -> anyhow::Result<()>;
    /// Takes the session's last items, before it is summed up.
    fn finish(&mut self, _session: &mut Session, _items: &[Item]) {}
    /// Returns the time of the next work that needs no new snapshot: to continue an unfinished plan, or to check
    /// watermarks.
    fn wake_at(&self, now: Nanos) -> Option<Nanos>;
    /// Returns the state of acting.
    fn status(&self) -> ActingStatus<'_>;
    /// Returns the CPU time of acting.
    fn cpu(&self) -> Nanos;
    /// Exchanges schemes and limits: one specification for each context.
    ///
    /// # Errors
    /// Fails if something cannot be set; everything then stays as it is.
    fn exchange(&mut self, of_all: Vec<ActingSpec>, session: &mut Session) -> anyhow::Result<()>;
    /// Stops acting in one context, or resumes it.
    fn set_context_paused(&mut self, at: usize, is_paused: bool);
    /// Limits acting to processes of these pods from now on. Plans for others are dropped.
    ///
    /// # Errors
    /// Fails if the kernel acts, which knows nothing of pods.
    fn permit_only(&mut self, pods: PodPermits) -> anyhow::Result<()>;

    /// Returns the results so far in one line, for a terminal.
    fn headline(&self) -> String {
        self.status().headline(self.cpu())
    }

    /// Returns the results so far.
    fn summary(&self) -> ActingSummary {
        self.status().summary(self.cpu())
    }

    /// Exchanges schemes and limits of all contexts while running. The specification must have the same number of
    /// contexts.
    ///
    /// # Errors
    /// Fails if something cannot be set; everything then stays as it is.
    fn tune(&mut self, spec: &SessionSpec, session: &mut Session) -> anyhow::Result<()> {
        let of_all = spec.contexts.iter();
        let of_all = of_all.map(|context| context.acting.clone().unwrap_or_default());
        let of_all: Vec<ActingSpec> = of_all.collect();
        let nr = self.nr_contexts();
        ensure!(
            of_all.len() == nr,
            "{nr} contexts are at work, and {} are given",
            of_all.len()
        );
        self.exchange(of_all, session)
    }

    /// Stops acting in all contexts, or resumes it.
    fn set_paused(&mut self, is_paused: bool) {
        for at in 0..self.nr_contexts() {
            self.set_context_paused(at, is_paused);
        }
    }

    /// Returns the number of contexts.
    fn nr_contexts(&self) -> usize {
        self.status().contexts.len()
    }
}
