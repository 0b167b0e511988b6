//! Numbering of several contexts' targets in one record: each context numbers its own from 0.

use std::collections::BTreeMap;

use crate::snapshot::TargetId;

/// Numbers of the contexts' targets in the record.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    /// Context and target, indexed by the record's number.
    targets: Vec<(usize, TargetId)>,
    numbers: BTreeMap<(usize, TargetId), TargetId>,
}

impl Numbering {
    /// Returns the record's number for a target of the context with this index; assigns the next number if it has none.
    pub fn give(&mut self, context: usize, target: TargetId) -> TargetId {
        if let Some(number) = self.number(context, target) {
            return number;
        }
        let number = TargetId(self.targets.len() as u32);
        self.targets.push((context, target));
        self.numbers.insert((context, target), number);
        number
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
