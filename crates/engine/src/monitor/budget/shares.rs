//! How the budget of watching is divided.
//!
//! Problem: a part of the work comes in any case (looking who is there, reading tables, telling), and each such
//! piece has a rhythm that follows from what it costs. If each may take what it likes of the budget, nothing is
//! left for clears, by which alone something new is learnt: with `--all` on a machine of two busy CPUs and five
//! programs, the pieces' limits came to 150 % of the budget, and 2 accessed bits were cleared in a minute.
//!
//! Approach: fixed shares, which leave a fifth or more to clears and to what is read each second (memory use, what the
//! guard looks at).

/// Most that each kind of work may take, as a share of the budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetShares {
    /// Looks at targets, their mappings, and which page tables there are.
    pub update: f64,
    /// Looks at who is new, between those.
    pub follow: f64,
    /// What every interval costs: reading tables, telling what they say.
    pub interval: f64,
    /// Putting down what is known by frame.
    pub frames: f64,
    /// Reading and clearing the page cache's marks.
    pub page_cache: f64,
    /// The same until something is known of it: two rounds.
    pub new_page_cache: f64,
}

impl BudgetShares {
    /// Of watching processes.
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
    /// Of watching all that a machine has.
    pub const MACHINE: Self = Self {
        update: 0.1,
        follow: 0.05,
        interval: 0.3,
        frames: 0.1,
        page_cache: 0.15,
        new_page_cache: 0.4,
    };
    /// The same, where what is told is told by frame.
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
