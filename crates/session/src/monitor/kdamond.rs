//! A context that the kernel's DAMON watches, for acting by its schemes.

use isotherm_damon::KernelStats;
use isotherm_engine::Nanos;
use isotherm_policy::scheme::Scheme;

/// Effect of the schemes at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Force {
    /// Schemes act.
    Acts,
    /// Schemes count the memory that they would be tried on: a dry run.
    Pretends,
    /// Schemes do not act for now, and the kernel's counts meanwhile are ignored.
    Held,
}

/// A kdamond and the schemes of its context.
pub(crate) trait Kdamond {
    /// Returns whether another commit leaves schemes the time to be applied.
    fn may_commit(&self, now: Nanos) -> bool;

    /// Has the kernel act by `in_force`, the form that the user's `schemes` have at present. If this kernel refuses
    /// them, it keeps its former schemes.
    fn set_schemes(
        &mut self,
        now: Nanos,
        schemes: &[Scheme],
        in_force: Vec<Scheme>,
        force: Force,
    ) -> anyhow::Result<()>;

    /// Returns whether the kdamond restarted, with its schemes held, since the last call.
    fn take_begun_anew(&mut self) -> bool;

    /// Checks that this kernel accepts these schemes, without applying them. The error lists all that it lacks.
    fn require(&mut self, schemes: &[Scheme]) -> anyhow::Result<()>;

    /// Turns the kdamond off, so that the next schemes start a new one.
    fn begin_anew(&mut self);

    /// Returns the kernel's counters of each scheme since the start.
    fn totals(&self) -> &[KernelStats];

    /// Returns the kdamond's process id, as last known.
    fn pid(&self) -> Option<u32>;

    /// Returns the part of the kdamond's CPU time that watching took.
    fn watching_cpu(&self) -> Nanos;

    /// Returns the part of the kdamond's CPU time that acting took.
    fn acting_cpu(&self) -> Nanos;
}
