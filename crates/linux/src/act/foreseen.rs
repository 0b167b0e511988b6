//! Refusals that are known before an action starts: locked memory, device memory, a process without a main thread.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, TargetId};
use isotherm_policy::scheme::Action;
use isotherm_policy::{Operation, Outcome, Refusal};

use super::batch::{self, Block};
use super::{ProcessActuator, areas_of, refused};
use crate::probe::Result;

/// Interval between two checks of the excluded ranges against the mappings' flags.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Time for which shared memory is left alone at most.
const SHARED_FOR: Duration = Duration::from_mins(1);

impl ProcessActuator {
    /// Predicts the outcomes of `operations` for a dry run. Resident pages count as applied, unless they lie outside
    /// the physical ranges or in mappings that cannot be reclaimed. Other refusals only show when the kernel acts.
    pub fn foresee(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for operation in operations {
            let target = operation.target;
            self.read_areas([operation.target])?;
            if let Some(why) = self.impossible(operation) {
                outcomes.push(refused(operation, why));
                continue;
            }
            let blocks = self.blocks(target, std::slice::from_ref(operation))?;
            let mut blocks = blocks.unwrap_or_default();
            self.keep_frames(target, &mut blocks)?;
            if operation.action.is_reclaim() {
                self.refuse_unreclaimable(std::slice::from_ref(operation), &mut blocks);
            }
            for block in &mut blocks {
                block.applied = block.wanted;
            }
            outcomes.push(batch::outcome(operation, &mut blocks));
        }
        Ok(outcomes)
    }

    /// Refuses the pages of unreclaimable mappings. All `operations` have the same target.
    pub(super) fn refuse_unreclaimable(&mut self, operations: &[Operation], blocks: &mut [Block]) {
        let Some(first) = operations.first() else {
            return;
        };
        for area in areas_of(&self.areas, first.target) {
            let Some(why) = area.unreclaimable else {
                continue;
            };
            for block in batch::within(blocks, area.range) {
                let pages = bits::mask(block.address, area.range);
                block.refuse(&pages, why.into());
            }
            let parts = operations
                .iter()
                .filter_map(|o| o.range.intersection(area.range));
            self.left_alone.add(first.target, parts);
        }
    }

    /// Leaves ranges alone for up to a minute if none of their pages could be paged out, and other processes map nearly all of
    /// them. They would be tried again at each snapshot.
    pub(super) fn leave_shared(&mut self, operations: &[Operation], outcomes: &[Outcome]) {
        for (operation, outcome) in operations.iter().zip(outcomes) {
            let shared = outcome.refused.get(&Refusal::Shared).copied();
            let refused: u64 = outcome.refused.values().sum();
            let is_shared = shared.is_some_and(|shared| shared > 0 && shared * 10 >= refused * 9);
            if operation.action.is_reclaim() && outcome.applied == 0 && is_shared {
                self.left_alone
                    .add_shared(operation.target, operation.range);
            }
        }
    }

    /// Refuses a batch without reading page tables, if every operation lies in an unreclaimable mapping; else `None`.
    pub(super) fn never_reclaimed(&mut self, batch: &[Operation]) -> Option<Vec<Outcome>> {
        let outcome = |operation: &Operation| {
            let areas = areas_of(&self.areas, operation.target);
            let area = batch::mapping_around(operation.range, areas)?;
            let why = Refusal::from(area.unreclaimable?);
            operation.action.is_reclaim().then(|| Outcome {
                refused: [(why, operation.bytes)].into(),
                ..Outcome::default()
            })
        };
        let outcomes: Vec<Outcome> = batch.iter().map(outcome).collect::<Option<_>>()?;
        for operation in batch {
            self.left_alone
                .add(operation.target, [operation.range].into_iter());
        }
        Some(outcomes)
    }

    /// Returns the ranges that were refused as unreclaimable, which schemes exclude from now on. Reads the mappings'
    /// flags again every 10 s. Shared memory is tried again every minute.
    pub fn left_alone(&mut self) -> &BTreeMap<TargetId, Vec<AddressRange>> {
        if self.left_alone.is_due() {
            for target in self.left_alone.ranges.keys().copied().collect::<Vec<_>>() {
                let areas = self.probe.mappings(target).and_then(Result::ok);
                let areas = areas.unwrap_or_default();
                let still = areas.iter().filter(|area| area.unreclaimable.is_some());
                self.left_alone.keep(target, still.map(|area| area.range));
            }
        }
        &self.left_alone.ranges
    }

    /// Returns the reason why nothing can be done to the whole target: not all accesses to idle memory are seen, or the
    /// action needs process_madvise(2), which the target does not accept.
    pub(super) fn impossible(&self, operation: &Operation) -> Option<Refusal> {
        let target = operation.target;
        if operation.idle_only && self.probe.hides_accesses(target) {
            return Some(Refusal::Unobservable);
        }
        let is_advice = !matches!(
            operation.action,
            Action::Stat | Action::MigrateHot | Action::MigrateCold
        );
        let process = self.probe.process(target).filter(|_| is_advice);
        let is_refused = process.is_some_and(|process| !process.takes_advice());
        is_refused.then_some(Refusal::Unsupported)
    }
}

/// Ranges that were refused as unreclaimable, or as shared.
#[derive(Default)]
pub(super) struct LeftAlone {
    /// Disjoint ranges of each target, in address order.
    ranges: BTreeMap<TargetId, Vec<AddressRange>>,
    /// Those of them that were refused as shared.
    shared: BTreeMap<TargetId, Vec<AddressRange>>,
    looked: Option<Instant>,
    /// Time at which shared memory was last tried again.
    tried: Option<Instant>,
}

impl LeftAlone {
    fn add(&mut self, target: TargetId, parts: impl Iterator<Item = AddressRange>) {
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return;
        }
        let ranges = self.ranges.entry(target).or_default();
        *ranges = AddressRange::union(ranges.iter().copied().chain(parts));
    }

    fn add_shared(&mut self, target: TargetId, range: AddressRange) {
        let shared = self.shared.entry(target).or_default();
        *shared = AddressRange::union(shared.iter().copied().chain([range]));
        self.add(target, [range].into_iter());
    }

    fn keep(&mut self, target: TargetId, areas: impl Iterator<Item = AddressRange>) {
        let before = self.ranges.remove(&target).unwrap_or_default();
        let shared = self.shared.get(&target).cloned();
        self.add(target, shared.into_iter().flatten());
        for area in areas {
            let parts = before.iter().filter_map(|range| range.intersection(area));
            self.add(target, parts);
        }
    }

    fn is_due(&mut self) -> bool {
        let is_due = self
            .looked
            .is_none_or(|looked| looked.elapsed() >= LOOK_EVERY);
        if is_due {
            self.looked = Some(Instant::now());
        }
        let tried = self.tried.get_or_insert_with(Instant::now);
        if tried.elapsed() >= SHARED_FOR {
            *tried = Instant::now();
            self.shared.clear();
        }
        is_due && !self.ranges.is_empty()
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.ranges.remove(&target);
        self.shared.remove(&target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_alone_is_kept_as_long_as_it_cannot_be_reclaimed() {
        let range = |from: u64, to: u64| AddressRange::new(from << 12, to << 12);
        let target = TargetId(0);
        let mut alone = LeftAlone::default();
        alone.add(target, std::iter::empty());
        assert!(alone.ranges.is_empty());
        alone.add(target, [range(8, 12), range(0, 4)].into_iter());
        alone.add(target, [range(4, 6)].into_iter());
        assert_eq!(alone.ranges[&target], [range(0, 6), range(8, 12)]);
        alone.keep(target, [range(2, 9)].into_iter());
        assert_eq!(alone.ranges[&target], [range(2, 6), range(8, 9)]);
        alone.keep(target, std::iter::empty());
        assert!(alone.ranges.is_empty());
        alone.add_shared(target, range(0, 4));
        alone.keep(target, std::iter::empty());
        assert_eq!(alone.ranges[&target], [range(0, 4)], "for a minute");
        alone.forget(target);
        alone.keep(target, std::iter::empty());
        assert!(alone.ranges.is_empty());
    }
}
