//! Loops around the engine that every world shares: they fix the order of reading, deciding and acting.
//!
//! The engine takes facts and returns plans. The loops call a world's probe and actuator by the traits of
//! [`crate::port`]: the same code monitors a real process and a simulated one. They read no clock and no file and make
//! no system call: the caller passes the time, and all else is the world's.

mod monitor;
mod regions;
mod tables;

pub use monitor::MonitorLoop;
pub use regions::RegionLoop;
pub use tables::{TableLoop, TableProbe, TargetSource};

use std::collections::BTreeMap;

use crate::snapshot::TargetId;

/// Numbers of several contexts' targets in one record: each context numbers its own from 0.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    /// Context and target, indexed by the record's number.
    targets: Vec<(usize, TargetId)>,
    numbers: BTreeMap<(usize, TargetId), TargetId>,
}

impl Numbering {
    /// Returns the record's number for a target of the context with this index; assigns the next number if it has none.
    pub fn give(&mut self, context: usize, target: TargetId) -> TargetId {
        *self.numbers.entry((context, target)).or_insert_with(|| {
            self.targets.push((context, target));
            TargetId(self.targets.len() as u32 - 1)
        })
    }

    /// Returns the record's number for a context's target, if it has one.
    pub fn number(&self, context: usize, target: TargetId) -> Option<TargetId> {
        self.numbers.get(&(context, target)).copied()
    }

    /// Returns the index of the context that a number belongs to, and the target's number in it.
    pub fn context(&self, number: TargetId) -> Option<(usize, TargetId)> {
        self.targets.get(number.0 as usize).copied()
    }
}
