//! Huge pages under a limit on their waste: selects the blocks of a plan that become huge.
//!
//! Schemes plan by regions; the waste of a huge page is known by block, and from the page tables only. So the blocks
//! that a plan would make huge are read first and ranked ([`scheme::huge`](crate::scheme::huge)). The selected ones are
//! stored in the operations. Blocks that were made huge are remembered and checked again with every plan: a huge page
//! that was split wastes nothing. The content of a few of them is read, since pages that the program writes later are
//! no waste.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Platform;
use super::trial::{Purpose, Trial, Verdict};
use crate::guard::Guard;
use crate::port::{Operation, Outcome, Refusal};
use crate::scheme::huge::{BlockUse, Candidate, TrialStatus, WasteStatus, fitting, rank};
use isotherm_engine::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, block_of};
use isotherm_engine::monitor::bits;
use isotherm_engine::snapshot::{Snapshot, TargetId};

/// Upper bound of one target's blocks that a plan reads: 256 GiB. Others wait until these are huge.
const BLOCKS_MAX: usize = 1 << 17;
/// Number of huge pages whose content is read with every plan to count their unused pages; it takes 4 ms.
const READ_PER_PLAN: usize = 16;

/// Result of narrowing a plan: the operations to execute, and those that are not, with their outcomes.
pub(super) type Narrowed = (Vec<Operation>, Vec<(Operation, Outcome)>);

#[derive(Debug, Default)]
pub(super) struct HugeBound {
    /// Share of the targets' memory; `None`: no limit.
    pub(super) max_waste: Option<f64>,
    /// Resident bytes of each target in its last snapshot.
    resident: BTreeMap<TargetId, u64>,
    /// Blocks selected to become huge, with the number of pages that were added or are still unused.
    made: BTreeMap<(TargetId, u64), u32>,
    trials: BTreeMap<TargetId, Trial>,
    /// Position at which reading continues.
    next_read: (TargetId, u64),
    status: WasteStatus,
    /// Whether acting has less time than it could use, so that a loan helps.
    pub(super) is_short_of_time: bool,
    /// Purpose of the loan on which the last plan makes huge pages.
    pub(super) loan: Option<Purpose>,
}

impl HugeBound {
    /// Returns the state; `None` without a limit, or before any block was selected.
    pub(super) fn status(&self) -> Option<WasteStatus> {
        (self.status.max_share > 0.0 || self.status.huge > 0).then_some(self.status)
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.resident.remove(&target);
        self.made.retain(|(of, _), _| *of != target);
        self.trials.remove(&target);
    }

    /// Stores the selected blocks in operations that make huge pages.
    pub(super) fn narrow<W: Platform>(
        &mut self,
        (now, plan): (Nanos, Vec<Operation>),
        snapshots: &[Snapshot],
        (guard, world): (&mut Guard, &mut W),
    ) -> Result<Narrowed, W::Error> {
        self.loan = None;
        guard.lend(0);
        let Some(max_waste) = self.max_waste.filter(|_| world.knows_blocks()) else {
            return Ok((plan, Vec::new()));
        };
        let resident = |snapshot: &Snapshot| (snapshot.target, snapshot.totals().resident);
        self.resident.extend(snapshots.iter().map(resident));
        if !plan.iter().any(makes_huge) && self.made.is_empty() {
            return Ok((plan, Vec::new()));
        }
        self.look_again(world)?;
        let mut blocks = BTreeMap::new();
        for snapshot in snapshots {
            let of_target = look_at(snapshot, &plan, world)?;
            blocks.insert(snapshot.target, of_target);
        }
        let small = { blocks.values().flatten() }.filter(|(_, found)| !found.now.is_huge);
        let mut candidates: Vec<Candidate> = small.map(|(_, found)| found.candidate).collect();
        rank(&mut candidates);
        let resident: u64 = self.resident.values().sum();
        let max = (resident as f64 * max_waste) as u64;
        let room = (max / PAGE_SIZE).saturating_sub(self.wasted_pages());
        let mut fitting: Vec<&Candidate> = fitting(&candidates, room).collect();
        if self.is_short_of_time || self.trials.values().any(Trial::is_going_on) {
            self.lend(now, &mut fitting, guard, world)?;
        }
        let mut chosen: BTreeMap<TargetId, BTreeSet<u64>> = BTreeMap::new();
        for candidate in fitting {
            let key = (candidate.target, candidate.block);
            chosen.entry(key.0).or_default().insert(key.1);
            self.made.insert(key, candidate.waste);
        }
        let nr_chosen: usize = chosen.values().map(BTreeSet::len).sum();
        self.status = WasteStatus {
            max_share: max_waste,
            max,
            kept_small: (candidates.len() - nr_chosen) as u64 * BLOCK_SIZE,
            ..self.status
        };
        Ok(divide(plan, &chosen, &blocks))
    }

    /// Continues the trials. Removes candidates that wait for a trial. If some get a loan, removes all others.
    fn lend<W: Platform>(
        &mut self,
        now: Nanos,
        candidates: &mut Vec<&Candidate>,
        guard: &mut Guard,
        world: &mut W,
    ) -> Result<(), W::Error> {
        let mut blocks: BTreeMap<TargetId, Vec<u64>> = BTreeMap::new();
        for candidate in &*candidates {
            blocks
                .entry(candidate.target)
                .or_default()
                .push(candidate.block);
        }
        for target in self.trials.keys() {
            blocks.entry(*target).or_default();
        }
        let mut lent = BTreeSet::new();
        for (target, blocks) in blocks {
            let made = self.made.range((target, 0)..=(target, u64::MAX));
            let huge: BTreeSet<u64> = made.map(|((_, block), _)| *block).collect();
            let walks = |blocks: &[u64]| mean_walks(target, blocks, world);
            // One trial at a time: measuring takes time, and what one costs changes the speed of others.
            let others = self.trials.iter().filter(|(other, _)| **other != target);
            let may_begin = !{ others }.any(|(_, trial)| trial.is_going_on());
            let trial = self.trials.entry(target).or_default();
            match trial.go_on((now, guard), (&blocks, may_begin), &huge, walks)? {
                Verdict::Usual => {}
                Verdict::Nothing => candidates.retain(|one| one.target != target),
                Verdict::Loan(blocks, purpose) => {
                    self.loan = self.loan.max(Some(purpose));
                    lent.extend(blocks.into_iter().map(|block| (target, block)));
                }
            }
        }
        if self.loan.is_some() {
            guard.lend(lent.len());
            candidates.retain(|one| lent.contains(&(one.target, one.block)));
        }
        let gains = self.trials.values().filter_map(Trial::gain);
        let best = gains.max_by(|one, other| one.speed[1].total_cmp(&other.speed[1]));
        self.status.trial = best.map(|gain| TrialStatus {
            huge: gain.blocks as u64 * BLOCK_SIZE,
            gain: gain.speed,
        });
        Ok(())
    }

    /// Forgets blocks that are not huge any more, and reads a few others to count their unused pages.
    fn look_again<W: Platform>(&mut self, world: &mut W) -> Result<(), W::Error> {
        let targets: BTreeSet<TargetId> = self.made.keys().map(|(target, _)| *target).collect();
        let mut still = BTreeMap::new();
        for target in targets {
            let all = self.made.range((target, 0)..=(target, u64::MAX));
            let all: Vec<u64> = all.map(|((_, block), _)| *block).collect();
            world.block_uses(target, &all, false, |found| {
                if found.is_huge {
                    let known = self.made.get(&(target, found.block));
                    still.insert((target, found.block), known.copied().unwrap_or(0));
                }
            })?;
        }
        self.made = still;
        let later = self.made.range(self.next_read..);
        let keys = later.chain(self.made.range(..self.next_read));
        let turn: Vec<(TargetId, u64)> = keys.take(READ_PER_PLAN).map(|(key, _)| *key).collect();
        for of_target in turn.chunk_by(|a, b| a.0 == b.0) {
            let target = of_target[0].0;
            let blocks: Vec<u64> = of_target.iter().map(|(_, block)| *block).collect();
            let made = &mut self.made;
            world.block_uses(target, &blocks, true, |found| {
                if let (Some(unused), Some(known)) =
                    (found.unused, made.get_mut(&(target, found.block)))
                {
                    *known = unused;
                }
            })?;
        }
        if let Some((target, block)) = turn.last() {
            self.next_read = (*target, block + 1);
        }
        self.status.huge = self.made.len() as u64 * BLOCK_SIZE;
        self.status.wasted = self.wasted_pages() * PAGE_SIZE;
        Ok(())
    }

    fn wasted_pages(&self) -> u64 {
        self.made.values().map(|waste| u64::from(*waste)).sum()
    }
}

/// Returns the mean page walks a second of blocks; `None` if most of them cannot be measured.
fn mean_walks<W: Platform>(
    target: TargetId,
    blocks: &[u64],
    world: &mut W,
) -> Result<Option<f64>, W::Error> {
    let (mut sum, mut nr) = (0.0, 0);
    world.page_walks(target, blocks, |_, walks| {
        sum += walks;
        nr += 1;
    })?;
    Ok((2 * nr > blocks.len()).then(|| sum / nr as f64))
}

#[derive(Clone, Copy, Debug)]
struct Found {
    now: BlockUse,
    candidate: Candidate,
}

type Blocks = BTreeMap<u64, Found>;

fn makes_huge(operation: &Operation) -> bool {
    operation.action.makes_huge()
}

/// Returns the state of one target's blocks that `plan` would make huge, and the translations that would save.
fn look_at<W: Platform>(
    snapshot: &Snapshot,
    plan: &[Operation],
    world: &mut W,
) -> Result<Blocks, W::Error> {
    let target = snapshot.target;
    let meant = |operation: &&Operation| operation.target == target && makes_huge(operation);
    let mut addresses: Vec<u64> = plan
        .iter()
        .filter(meant)
        .flat_map(|operation| blocks_of(operation.range))
        .take(BLOCKS_MAX)
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let mut blocks = Blocks::new();
    world.block_uses(target, &addresses, false, |now| {
        let candidate = Candidate {
            target,
            block: now.block,
            saved: 0.0,
            waste: now.missing(),
        };
        blocks.insert(now.block, Found { now, candidate });
    })?;
    for operation in plan.iter().filter(meant) {
        let rate = touched_share(snapshot, operation.range);
        let first = block_of(operation.range.start);
        for (block, found) in blocks.range_mut(first..operation.range.end) {
            let here = bits::and(&found.now.present, &bits::mask(*block, operation.range));
            found.candidate.saved += rate * f64::from(bits::count(&here));
        }
    }
    Ok(blocks)
}

fn blocks_of(range: AddressRange) -> impl Iterator<Item = u64> {
    let first = block_of(range.start);
    (first..range.end).step_by(BLOCK_SIZE as usize)
}

/// Returns the share of the resident pages that were touched in the interval.
fn touched_share(snapshot: &Snapshot, range: AddressRange) -> f64 {
    let regions = &snapshot.regions;
    let at = regions.partition_point(|region| region.range.end <= range.start);
    let Some(region) = regions.get(at).filter(|r| r.range.start < range.end) else {
        return 0.0;
    };
    match region.memory {
        Some(memory) => memory.touched as f64 / memory.resident.max(1) as f64,
        None => f64::from(snapshot.access_rate(region).unwrap_or(0.0)),
    }
}

/// Stores the chosen blocks in operations; those without a chosen block are not executed.
fn divide(
    plan: Vec<Operation>,
    chosen: &BTreeMap<TargetId, BTreeSet<u64>>,
    blocks: &BTreeMap<TargetId, Blocks>,
) -> Narrowed {
    let lists: BTreeMap<TargetId, Arc<[u64]>> = chosen
        .iter()
        .map(|(target, blocks)| (*target, blocks.iter().copied().collect()))
        .collect();
    let (mut todo, mut left) = (Vec::with_capacity(plan.len()), Vec::new());
    for mut operation in plan {
        if !makes_huge(&operation) {
            todo.push(operation);
            continue;
        }
        let range = operation.range;
        let first = block_of(range.start);
        let list = lists.get(&operation.target);
        let has_one = chosen
            .get(&operation.target)
            .is_some_and(|of_target| of_target.range(first..range.end).next().is_some());
        if let Some(list) = list.filter(|_| has_one) {
            operation.blocks = Some(Arc::clone(list));
            todo.push(operation);
        } else {
            let outcome = kept_small(&operation, blocks.get(&operation.target));
            left.push((operation, outcome));
        }
    }
    (todo, left)
}

/// Returns the outcome of an operation without a chosen block.
fn kept_small(operation: &Operation, blocks: Option<&Blocks>) -> Outcome {
    let first = block_of(operation.range.start);
    let mut outcome = Outcome::default();
    let found = blocks.into_iter();
    for (block, found) in found.flat_map(|all| all.range(first..operation.range.end)) {
        let mask = bits::mask(*block, operation.range);
        let why = if found.now.is_huge {
            Refusal::NotPresent
        } else {
            Refusal::Wasteful
        };
        let bytes = bits::bytes(&bits::and(&found.now.present, &mask));
        *outcome.refused.entry(why).or_default() += bytes;
    }
    outcome
}
