//! What will be refused, known before anything is done: locked memory, devices', a process that takes no advice.

use isotherm_engine::scheme::Action;
use isotherm_engine::{Operation, Outcome, Refusal, TargetId};

use super::batch::{self, Block};
use super::{ProcessActuator, areas_of, refused};
use crate::probe::ProbeError;
use isotherm_engine::monitor::bits;

impl ProcessActuator {
    /// What would come of `operations`, as far as that is known before: what is there, within the physical memory that
    /// this is for, and can be reclaimed at all. What else may be in the way, acting finds.
    pub fn foresee(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>, ProbeError> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for operation in operations {
            let target = operation.target;
            if operation.idle_only && self.probe.hides_accesses(target) {
                outcomes.push(refused(operation, Refusal::Unobservable));
                continue;
            }
            self.read_areas(std::slice::from_ref(operation))?;
            if self.cannot_advise(target, operation.action) {
                outcomes.push(refused(operation, Refusal::Unsupported));
                continue;
            }
            let blocks = self.blocks(target, std::slice::from_ref(operation))?;
            let mut blocks = blocks.unwrap_or_default();
            self.keep_frames(target, &mut blocks)?;
            if takes_from_lists(operation.action) {
                self.refuse_unreclaimable(target, &mut blocks);
            }
            for block in &mut blocks {
                block.applied = block.wanted;
            }
            outcomes.push(batch::outcome(operation, &mut blocks));
        }
        Ok(outcomes)
    }

    /// Refuses what lies in mappings that the kernel reclaims nothing of, before anything is done to it.
    pub(super) fn refuse_unreclaimable(&self, target: TargetId, blocks: &mut [Block]) {
        for area in areas_of(&self.areas, target) {
            let Some(why) = area.unreclaimable else {
                continue;
            };
            for block in batch::within(blocks, area.range) {
                let pages = bits::mask(block.address, area.range);
                block.refuse(&pages, why.into());
            }
        }
    }

    /// The outcomes of operations that all lie in mappings of which nothing is ever reclaimed, without looking at them.
    pub(super) fn never_reclaimed(&self, batch: &[Operation]) -> Option<Vec<Outcome>> {
        let outcome = |operation: &Operation| {
            let areas = areas_of(&self.areas, operation.target);
            let area = batch::mapping_around(operation.range, areas)?;
            let why = Refusal::from(area.unreclaimable?);
            takes_from_lists(operation.action).then(|| Outcome {
                refused: [(why, operation.bytes)].into(),
                ..Outcome::default()
            })
        };
        batch.iter().map(outcome).collect()
    }

    /// Whether `action` is done by advice, and nobody can give any about `target`.
    pub(super) fn cannot_advise(&self, target: TargetId, action: Action) -> bool {
        let is_advice = !matches!(
            action,
            Action::Stat | Action::MigrateHot | Action::MigrateCold
        );
        let process = self.probe.process(target);
        is_advice && process.is_some_and(|process| !process.takes_advice())
    }
}

/// Whether the kernel does `action` only to pages on its lists for reclaim.
pub(super) fn takes_from_lists(action: Action) -> bool {
    matches!(action, Action::Pageout | Action::Cold | Action::LruDeprio)
}
