//! Targets of several contexts in one record: each context numbers its own from 0.

use std::collections::BTreeMap;

use crate::snapshot::TargetId;

/// The record's numbers for the contexts' targets.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    /// By the record's number: whose target it is, and its number there.
    targets: Vec<(usize, TargetId)>,
    numbers: BTreeMap<(usize, TargetId), TargetId>,
}

impl Numbering {
    /// Gives the next number to a target of the context at this place, which keeps the one that it has.
    pub fn give(&mut self, context: usize, target: TargetId) -> TargetId {
        if let Some(number) = self.number(context, target) {
            return number;
        }
        let number = TargetId(self.targets.len() as u32);
        self.targets.push((context, target));
        self.numbers.insert((context, target), number);
        number
    }

    /// The record's number for a context's target, if it was given one.
    pub fn number(&self, context: usize, target: TargetId) -> Option<TargetId> {
        self.numbers.get(&(context, target)).copied()
    }

    /// The place of the context that a number belongs to, and the target's number there.
    pub fn context(&self, number: TargetId) -> Option<(usize, TargetId)> {
        self.targets.get(number.0 as usize).copied()
    }
}
