//! Injected faults.

use isotherm_engine::Nanos;

use super::SimMachine;

/// A fault that lasts for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InjectedFault {
    pub kind: FaultKind,
    /// Time at which it begins.
    pub from: Nanos,
    /// Time at which it ends.
    pub until: Nanos,
}

/// Kind of an injected fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// A node has no free page.
    NodeFull(u32),
    /// Swap stores no more pages.
    SwapFull,
    /// This share of migrations fails.
    Migration(f64),
    /// This share of pages is locked: their bits cannot be cleared, and no action can be applied to them.
    Contention(f64),
    /// The process with this index ends.
    Exit(u32),
    /// The monitors' clock jumps by this number of nanoseconds: forward, or back.
    ClockJump(i64),
}

impl SimMachine {
    fn at_fault(&self) -> impl Iterator<Item = FaultKind> + '_ {
        let now = self.now;
        let faults = self.faults.iter();
        faults
            .filter(move |fault| fault.from <= now && now < fault.until)
            .map(|fault| fault.kind)
    }

    /// Whether a fault is active now, so that something may go wrong with one page and not with the next.
    pub(super) fn is_anything_wrong(&self) -> bool {
        self.at_fault().next().is_some()
    }

    pub(super) fn is_node_full(&self, node: u32) -> bool {
        self.at_fault()
            .any(|kind| kind == FaultKind::NodeFull(node))
    }

    pub(super) fn is_swap_full(&self) -> bool {
        self.at_fault().any(|kind| kind == FaultKind::SwapFull)
    }

    pub(super) fn fails_to_migrate(&mut self) -> bool {
        self.happens(|kind| match kind {
            FaultKind::Migration(share) => Some(share),
            _ => None,
        })
    }

    /// Draws whether this page is locked.
    pub(super) fn is_contended(&mut self) -> bool {
        self.happens(|kind| match kind {
            FaultKind::Contention(share) => Some(share),
            _ => None,
        })
    }

    /// Draws whether a fault happens, by the largest share that `share_of` finds; without one nothing is drawn.
    fn happens(&mut self, share_of: impl Fn(FaultKind) -> Option<f64>) -> bool {
        let share = self.at_fault().filter_map(share_of).fold(0.0, f64::max);
        share > 0.0 && self.draw() < share
    }

    pub(super) fn to_end(&self) -> Vec<usize> {
        let exits = self.at_fault().filter_map(|kind| match kind {
            FaultKind::Exit(process) => Some(process as usize),
            _ => None,
        });
        exits.filter(|p| self.is_running(*p)).collect()
    }

    /// Returns the error of the monitors' clock, in nanoseconds.
    pub fn clock_error(&self) -> i64 {
        let jumps = self.at_fault().filter_map(|kind| match kind {
            FaultKind::ClockJump(by) => Some(by),
            _ => None,
        });
        jumps.sum()
    }
}
