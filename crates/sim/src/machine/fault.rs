//! What goes wrong on purpose.

use isotherm_engine::Nanos;

use super::Machine;

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub kind: FaultKind,
    /// From when on.
    pub from: Nanos,
    /// Until when.
    pub until: Nanos,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// A node has no free page.
    NodeFull(u32),
    /// Swap takes nothing.
    SwapFull,
    /// This share of migrations fails.
    Migration(f64),
    /// This share of pages is locked by somebody: their bits cannot be cleared, and they cannot be
    /// acted on.
    Contention(f64),
    /// A process ends, by its place among all.
    Exit(u32),
    /// The monitors' clock jumps: forward, or back.
    ClockJump(i64),
}

impl Machine {
    fn at_fault(&self) -> impl Iterator<Item = FaultKind> + '_ {
        let now = self.now;
        let faults = self.faults.iter();
        faults
            .filter(move |fault| fault.from <= now && now < fault.until)
            .map(|fault| fault.kind)
    }

    /// Whether something may go wrong now with one page and not with the next.
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

    /// Whether this migration fails, at random.
    pub(super) fn fails_to_migrate(&mut self) -> bool {
        let shares = self.at_fault().filter_map(|kind| match kind {
            FaultKind::Migration(share) => Some(share),
            _ => None,
        });
        let share = shares.fold(0.0, f64::max);
        share > 0.0 && self.draw() < share
    }

    /// Whether somebody holds this page, at random.
    pub(super) fn is_contended(&mut self) -> bool {
        let shares = self.at_fault().filter_map(|kind| match kind {
            FaultKind::Contention(share) => Some(share),
            _ => None,
        });
        let share = shares.fold(0.0, f64::max);
        share > 0.0 && self.draw() < share
    }

    /// Processes that must end now.
    pub(super) fn to_end(&self) -> Vec<usize> {
        let exits = self.at_fault().filter_map(|kind| match kind {
            FaultKind::Exit(process) => Some(process as usize),
            _ => None,
        });
        exits
            .filter(|p| {
                self.processes
                    .get(*p)
                    .is_some_and(super::Process::is_running)
            })
            .collect()
    }

    /// How far the monitors' clock is off.
    pub fn clock_error(&self) -> i64 {
        let jumps = self.at_fault().filter_map(|kind| match kind {
            FaultKind::ClockJump(by) => Some(by),
            _ => None,
        });
        jumps.sum()
    }
}
