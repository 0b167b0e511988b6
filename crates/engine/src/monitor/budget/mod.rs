//! The budget of the page-table monitor: a share of one CPU, by measured cost.
//!
//! Problem: a part of the work is always needed (finding processes, reading tables, reporting). Each such piece has a
//! rate that follows from its cost. If no piece has a limit, nothing is left for clears, the only source of new
//! knowledge. With `--all` on a machine of two busy CPUs and five programs, the pieces' limits summed to 150 % of the
//! budget. Then 2 accessed bits were cleared in a minute.
//!
//! Approach: fixed shares ([`BudgetShares`]), which leave a fifth or more to clears and to the work of each second
//! (memory use, the guard's inputs).
//!
//! On a shared virtual machine the reported CPU time is sometimes far more than was used, so both controllers tolerate
//! single outliers. They differ in the controlled quantity:
//!
//! - `TokenBucket`: the amount of work that can be planned piece by piece (clears of accessed bits);
//! - `FixedCost`: the length of intervals that all cost the same (reading all tables).

mod fixed_cost;
mod token_bucket;

pub(super) use fixed_cost::FixedCost;
pub(super) use token_bucket::{TokenBucket, total_ns};

/// Largest share of the budget for each kind of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetShares {
    /// Reading targets, their mappings, and their list of page tables.
    pub update: f64,
    /// Finding new processes between those updates.
    pub follow: f64,
    /// The fixed cost of an interval: reading tables and reporting.
    pub interval: f64,
    /// Recording the results by frame.
    pub frames: f64,
    /// Reading and clearing the page cache's marks.
    pub page_cache: f64,
    /// Reading and clearing these marks during the first two rounds, until results exist.
    pub new_page_cache: f64,
}

impl BudgetShares {
    /// Shares for processes.
    pub const PROCESSES: Self = Self {
        update: 0.2,
        follow: 0.1,
        interval: 0.5,
        frames: 0.0,
        page_cache: 0.0,
        new_page_cache: 0.0,
    };
    /// Shares for processes that may share memory, whose frames are read as well.
    pub const GROUP: Self = Self {
        interval: 0.4,
        frames: 0.1,
        ..Self::PROCESSES
    };
    /// Shares for a whole machine.
    pub const MACHINE: Self = Self {
        update: 0.1,
        follow: 0.05,
        interval: 0.3,
        frames: 0.1,
        page_cache: 0.15,
        new_page_cache: 0.4,
    };
    /// Shares for a whole machine whose results are reported by frame.
    pub const FRAMES: Self = Self {
        interval: 0.2,
        frames: 0.2,
        ..Self::MACHINE
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_or_more_is_left() {
        for shares in [
            BudgetShares::PROCESSES,
            BudgetShares::GROUP,
            BudgetShares::MACHINE,
            BudgetShares::FRAMES,
        ] {
            let scheduled = shares.update + shares.follow + shares.interval;
            let sum = scheduled + shares.frames + shares.page_cache;
            assert!(sum < 0.801, "{shares:?}");
            let at_first = sum - shares.page_cache + shares.new_page_cache;
            assert!(at_first < 1.0, "{shares:?}");
        }
    }
}
