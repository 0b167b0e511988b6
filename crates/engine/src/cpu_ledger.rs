//! CPU time that a process spends outside the steps of its monitors.
//!
//! Problem: a probe measures the CPU time of its process, which also acts, samples stacks and draws. Watching less
//! would save none of that, so that no monitor may pay for it. Other work is for watching, but has its own period.
//!
//! Approach: such work is charged to an account. Each step gets the totals, to subtract them from the probe's cost.

use crate::address::Nanos;
use crate::port::Cost;

/// Purpose of CPU time outside the monitors' steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuAccount {
    /// Watching with a period of its own: part of the cost, but not of each interval's.
    Watching,
    /// Acting on memory.
    Acting,
    /// Sampling page faults and reading huge pages.
    Stacks,
    /// Reporting to the user.
    Reports,
}

/// Totals of CPU time outside the monitors' steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLedger {
    /// Total of [`CpuAccount::Watching`].
    pub watching: Nanos,
    /// Total of all other accounts, which are no cost of watching.
    pub other: Nanos,
}

impl CpuLedger {
    /// Adds `cpu` to an account.
    pub fn charge(&mut self, account: CpuAccount, cpu: Nanos) {
        let total = match account {
            CpuAccount::Watching => &mut self.watching,
            CpuAccount::Acting | CpuAccount::Stacks | CpuAccount::Reports => &mut self.other,
        };
        *total = *total + cpu;
    }

    /// Returns the part of a probe's `cost` that is for watching.
    #[must_use]
    pub fn of_watching(self, cost: Cost) -> Cost {
        Cost {
            monitor_cpu: cost.monitor_cpu.since(self.other),
            ..cost
        }
    }

    /// Returns the part of a probe's `cost` that the monitors' steps took.
    #[must_use]
    pub fn of_steps(self, cost: Cost) -> Cost {
        Cost {
            monitor_cpu: cost.monitor_cpu.since(self.other + self.watching),
            ..cost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_work_is_a_cost_of_watching_but_not_of_steps() {
        let mut cpu = CpuLedger::default();
        cpu.charge(CpuAccount::Watching, Nanos(2));
        for account in [CpuAccount::Acting, CpuAccount::Stacks, CpuAccount::Reports] {
            cpu.charge(account, Nanos(10));
        }
        let cost = Cost {
            monitor_cpu: Nanos(37),
            clears: 3,
            ..Cost::default()
        };
        let (watching, steps) = (cpu.of_watching(cost), cpu.of_steps(cost));
        assert_eq!((watching.monitor_cpu, watching.clears), (Nanos(7), 3));
        assert_eq!((steps.monitor_cpu, steps.clears), (Nanos(5), 3));
    }
}
