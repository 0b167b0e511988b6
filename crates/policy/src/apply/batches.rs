//! Execution of a plan in batches: no batch exceeds the current limits.
//!
//! A region may be gigabytes, while the guard allows megabytes, or a step 50 ms. So operations are cut at the borders
//! of 2 MiB blocks (of which huge pages are made). The outcomes of their parts are joined again, as the schemes count
//! regions, not parts. The size of a step follows from the recent speed of the same action ([`Throughput`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use crate::guard::{Guard, OnLoan, Pool, StepTime};
use crate::port::{Operation, Outcome, Refusal};
use crate::scheme::Action;
use isotherm_engine::address::{AddressRange, BLOCK_SIZE, Nanos};

const BATCH_MAX: u64 = 64 << 20;
/// Upper bound of a batch in bytes while little of the memory is resident: all of the next batch may be.
const SPARSE_MAX: u64 = 16 << 20;
/// Size of a batch for an action with an unknown speed.
const FIRST_BATCH: u64 = 2 * BLOCK_SIZE;

/// Speed of actions, in bytes of resident memory per nanosecond.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    speeds: BTreeMap<Action, f64>,
    /// Factor on batches, raised while little of the memory is resident.
    stretch: u64,
}

impl Throughput {
    /// Returns the bytes of the next batch, if it may take `left`. It assumes that all of the memory is resident.
    fn batch(&self, action: Action, left: Nanos) -> u64 {
        let Some(speed) = self.speeds.get(&action) else {
            return FIRST_BATCH;
        };
        let bytes = ((speed * left.0 as f64) as u64).clamp(BLOCK_SIZE, BATCH_MAX);
        let stretched = bytes.saturating_mul(self.stretch.max(1));
        bytes.max(stretched.min(SPARSE_MAX))
    }

    /// Learns the speed from a batch and its outcomes.
    fn learn(&mut self, action: Action, batch: &[Operation], outcomes: &[Outcome]) {
        let took: u64 = outcomes.iter().map(|outcome| outcome.took.0).sum();
        let asked: u64 = batch.iter().map(Operation::extent).sum();
        let absent = |outcome: &Outcome| {
            let of = |why| outcome.refused.get(&why).copied().unwrap_or(0);
            of(Refusal::NotPresent) + of(Refusal::Unmapped) + of(Refusal::Exited)
        };
        let there = asked.saturating_sub(outcomes.iter().map(absent).sum());
        self.stretch = if there < asked / 8 {
            (self.stretch.max(1) * 2).min(64)
        } else {
            1
        };
        if took == 0 || there < BLOCK_SIZE / 2 {
            return;
        }
        let speed = there as f64 / took as f64;
        let known = self.speeds.entry(action).or_insert(speed);
        // A lower speed is adopted at once, a higher one gradually.
        *known = speed.min(f64::midpoint(*known, speed));
    }
}

/// Result of executing a plan.
#[derive(Debug, Default)]
pub struct Executed {
    /// Executed operations.
    pub done: Vec<Operation>,
    /// Outcome of each operation.
    pub outcomes: Vec<Outcome>,
    /// Time in which huge pages were made on a loan.
    pub on_loan: Nanos,
}

impl Executed {
    /// Appends the result of further execution.
    pub fn append(&mut self, mut more: Self) {
        self.done.append(&mut more.done);
        self.outcomes.append(&mut more.outcomes);
        self.on_loan = self.on_loan + more.on_loan;
    }

    /// Returns the part that was done on a loan, for a trial or not.
    pub fn on_loan(&self, is_trial: bool) -> OnLoan {
        let made = { self.done.iter().zip(&self.outcomes) }
            .filter(|(operation, _)| operation.action.makes_huge())
            .map(|(_, outcome)| outcome.applied.div_ceil(BLOCK_SIZE));
        OnLoan {
            share: self.on_loan.0 as f64 / (self.took().0 as f64).max(1.0),
            blocks: made.sum(),
            is_trial,
        }
    }

    /// Returns the total time.
    pub fn took(&self) -> Nanos {
        let outcomes = self.outcomes.iter();
        outcomes.fold(Nanos(0), |sum, one| sum + one.took)
    }
}

/// Executes as much of `plan`, which is about `pool`, as `guard` and the time `room` allow. Huge pages on a loan have
/// their own time. `act` appends an outcome for each operation and returns whether to continue. If any time is
/// available, at least a block is executed. Executed operations are removed from the plan, unless `act` fails.
pub fn execute<E>(
    plan: &mut VecDeque<Operation>,
    (guard, pool): (&mut Guard, Pool),
    (pace, room): (&mut Throughput, StepTime),
    mut act: impl FnMut(&[Operation], &mut Vec<Outcome>) -> Result<ControlFlow<()>, E>,
) -> Result<Executed, E> {
    let mut batches = Batches::new(plan.make_contiguous());
    let (mut batch, mut outcomes) = (Vec::new(), Vec::new());
    let (mut usual, mut on_loan) = (Nanos(0), Nanos(0));
    while let Some(action) = batches.next_action() {
        let allowed = guard.available_for(pool, action).unwrap_or(u64::MAX);
        let is_harmless = action == Action::Stat;
        let lent = room
            .on_loan
            .filter(|time| action.makes_huge() && on_loan < *time);
        let (spent, room) = match lent {
            Some(time) => (&mut on_loan, time),
            None => (&mut usual, room.usual),
        };
        if !is_harmless && (allowed == 0 || *spent >= room) {
            break;
        }
        let bytes = pace.batch(action, room.since(*spent));
        batches.take(bytes.min(allowed), &mut batch);
        outcomes.clear();
        let flow = act(&batch, &mut outcomes)?;
        if !is_harmless {
            let applied = outcomes.iter().map(|outcome| outcome.applied).sum();
            guard.charge(pool, action, applied);
            *spent = outcomes.iter().fold(*spent, |sum, one| sum + one.took);
            pace.learn(action, &batch, &outcomes);
        }
        batches.done(&outcomes);
        if flow.is_break() {
            break;
        }
    }
    let Batches {
        next,
        taken,
        done,
        outcomes,
        ..
    } = batches;
    plan.drain(..next);
    if let Some(first) = plan.front_mut().filter(|_| taken > 0) {
        let rest = AddressRange::new(first.range.start + taken, first.range.end);
        *first = first.part(rest);
    }
    Ok(Executed {
        done,
        outcomes,
        on_loan,
    })
}

#[derive(Default)]
struct Batches<'a> {
    plan: &'a [Operation],
    /// Index of the next operation; `taken` is the number of its bytes that have been taken already.
    next: usize,
    taken: u64,
    /// Operations in the last batch, by index.
    in_hand: Vec<usize>,
    parts: Vec<AddressRange>,
    done: Vec<Operation>,
    outcomes: Vec<Outcome>,
    last_done: Option<usize>,
}

impl<'a> Batches<'a> {
    fn new(plan: &'a [Operation]) -> Self {
        Self {
            plan,
            ..Self::default()
        }
    }

    fn next_action(&self) -> Option<Action> {
        Some(self.plan.get(self.next)?.action)
    }

    /// Takes at most `bytes`, but at least up to the next border of a block, of the next operations of one action.
    /// Harmless operations (only counting) are taken whole.
    fn take(&mut self, bytes: u64, batch: &mut Vec<Operation>) {
        batch.clear();
        self.in_hand.clear();
        self.parts.clear();
        let Some(action) = self.next_action() else {
            return;
        };
        let is_harmless = action == Action::Stat;
        let mut room = bytes;
        while let Some(operation) = self.plan.get(self.next) {
            if operation.action != action {
                break;
            }
            let start = operation.range.start + self.taken;
            let rest = operation.range.end - start;
            // Pages of one block are not cut.
            let is_pages = operation.pages.is_some() && batch.is_empty();
            let length = if is_harmless || is_pages || rest.min(operation.extent()) <= room {
                rest
            } else if batch.is_empty() {
                cut(start, room).min(rest)
            } else if room >= BLOCK_SIZE {
                cut(start, room)
            } else {
                break;
            };
            let part = AddressRange::new(start, start + length);
            let part_of = operation.part(part);
            // For single pages, only their own bytes count.
            let extent = part_of.extent();
            batch.push(part_of);
            self.in_hand.push(self.next);
            self.parts.push(part);
            if length < rest {
                self.taken += length;
                break;
            }
            (self.next, self.taken) = (self.next + 1, 0);
            if !is_harmless {
                room -= extent.min(room);
            }
            if room == 0 {
                break;
            }
        }
    }

    fn done(&mut self, outcomes: &[Outcome]) {
        assert_eq!(self.in_hand.len(), outcomes.len(), "an outcome for each");
        for ((&which, part), outcome) in self.in_hand.iter().zip(&self.parts).zip(outcomes) {
            if self.last_done == Some(which)
                && let (Some(operation), Some(sum)) =
                    (self.done.last_mut(), self.outcomes.last_mut())
            {
                let range = AddressRange::new(operation.range.start, part.end);
                *operation = self.plan[which].part(range);
                sum.add(outcome);
                continue;
            }
            self.done.push(self.plan[which].part(*part));
            self.outcomes.push(outcome.clone());
            self.last_done = Some(which);
        }
    }
}

/// Returns the length from `start` for about `bytes`: up to the last border of a block within them, or else to the next
/// one.
fn cut(start: u64, bytes: u64) -> u64 {
    let within = (start + bytes) / BLOCK_SIZE * BLOCK_SIZE;
    if within > start {
        within - start
    } else {
        (start / BLOCK_SIZE + 1) * BLOCK_SIZE - start
    }
}

#[cfg(test)]
mod tests {
    use crate::guard::{GuardLimits, STEP};
    use isotherm_engine::snapshot::TargetId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn operation(action: Action, start_mib: u64, end_mib: u64) -> Operation {
        let range = AddressRange::new(start_mib * MIB, end_mib * MIB);
        Operation::on(action, TargetId(0), range)
    }

    /// Returns the batches of a plan, in MiB, if each may have `bytes`.
    fn batches(plan: &[Operation], bytes: u64) -> Vec<Vec<(u64, u64)>> {
        let (mut batches, mut batch, mut all) = (Batches::new(plan), Vec::new(), Vec::new());
        loop {
            batches.take(bytes, &mut batch);
            if batch.is_empty() {
                break;
            }
            let outcome = |operation: &Operation| Outcome {
                applied: operation.range.len() - 1,
                refused: [(Refusal::Locked, 1)].into(),
                ..Outcome::default()
            };
            batches.done(&batch.iter().map(outcome).collect::<Vec<_>>());
            let ranges = batch.iter().map(|operation| operation.range);
            all.push(ranges.map(|r| (r.start / MIB, r.end / MIB)).collect());
        }
        assert_eq!(batches.done, plan, "all of it, whole");
        assert_eq!(batches.next, plan.len());
        for (operation, outcome) in batches.done.iter().zip(batches.outcomes) {
            let refused: u64 = outcome.refused.values().sum();
            assert_eq!(outcome.applied + refused, operation.range.len());
        }
        all
    }

    #[test]
    fn what_fits_goes_together() {
        let plan = [(0, 10), (20, 30)].map(|(start, end)| operation(Action::Pageout, start, end));
        assert_eq!(batches(&plan, 64 * MIB), [[(0, 10), (20, 30)]]);
        assert_eq!(batches(&plan, 20 * MIB), [[(0, 10), (20, 30)]]);
        let two = [plan[0].clone(), operation(Action::Cold, 20, 30)];
        assert_eq!(batches(&two, 64 * MIB), [[(0, 10)], [(20, 30)]]);
    }

    #[test]
    fn what_does_not_fit_is_cut_at_blocks() {
        let plan = [(1, 12), (20, 23)].map(|(start, end)| operation(Action::Pageout, start, end));
        let wanted = [vec![(1, 6)], vec![(6, 10)], vec![(10, 12), (20, 23)]];
        assert_eq!(batches(&plan, 5 * MIB), wanted);
    }

    #[test]
    fn less_than_a_block_is_a_block_after_all() {
        let plan = [operation(Action::Pageout, 1, 6)];
        assert_eq!(batches(&plan, 1), [[(1, 2)], [(2, 4)], [(4, 6)]]);
    }

    #[test]
    fn counting_is_not_cut_nor_mixed_with_doing() {
        let plan = [
            operation(Action::Stat, 0, 100),
            operation(Action::Stat, 100, 200),
            operation(Action::Pageout, 200, 203),
        ];
        let counted = vec![(0, 100), (100, 200)];
        let wanted = [counted, vec![(200, 202)], vec![(202, 203)]];
        assert_eq!(batches(&plan, 2 * MIB), wanted);
    }

    /// Executes `plan` in steps; each page where `is_there` takes `ns`. Returns the time and the memory of each step.
    fn steps(plan: &[Operation], ns: u64, is_there: impl Fn(u64) -> bool) -> Vec<(Nanos, u64)> {
        let mut guard = Guard::new(GuardLimits::default());
        let (mut pace, mut steps) = (Throughput::default(), Vec::new());
        let mut rest: VecDeque<Operation> = plan.to_vec().into();
        while !rest.is_empty() && steps.len() < 100_000 {
            let act = |batch: &[Operation], outcomes: &mut Vec<Outcome>| {
                outcomes.extend(batch.iter().map(|operation| {
                    let pages = (operation.range.start..operation.range.end).step_by(4096);
                    let there = pages.filter(|page| is_there(*page)).count() as u64;
                    let absent = operation.range.len() - there * 4096;
                    Outcome {
                        applied: there * 4096,
                        refused: [(Refusal::NotPresent, absent)].into(),
                        took: Nanos(there * ns + 10_000),
                        ..Outcome::default()
                    }
                }));
                Ok::<_, ()>(ControlFlow::Continue(()))
            };
            let room = StepTime::usual(STEP);
            let (guard, pace) = ((&mut guard, Pool::Processes), (&mut pace, room));
            let executed = execute(&mut rest, guard, pace, act).expect("never fails");
            let done = executed.done.iter().map(|operation| operation.bytes);
            steps.push((executed.took(), done.sum()));
        }
        steps
    }

    #[test]
    fn a_step_takes_50_ms_and_the_rest_of_the_plan_waits() {
        let plan = [operation(Action::Pageout, 0, 2300)];
        for ns in [500, 4_000, 18_000, 60_000] {
            let steps = steps(&plan, ns, |_| true);
            assert_eq!(steps.iter().map(|step| step.1).sum::<u64>(), 2300 * MIB);
            // The first batch is a guess, and no batch is less than a block.
            let longest = steps[1..].iter().map(|step| step.0).max().expect("steps");
            let block = Nanos(512 * ns + 10_000);
            assert!(longest <= STEP + block, "{ns} ns: {longest:?}");
            let shortest = steps[1..steps.len() - 1].iter().map(|step| step.0).min();
            let is_long = shortest >= Some(Nanos::from_millis(25));
            assert!(is_long, "{ns} ns: {shortest:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_passed_quickly() {
        let plan = [operation(Action::Pageout, 0, 40_000)];
        let is_there = |address: u64| (address / MIB).is_multiple_of(1000);
        let steps = steps(&plan, 10_000, is_there);
        assert!(steps.len() < 30, "{} steps", steps.len());
        let longest = steps.iter().map(|step| step.0).max().expect("steps");
        assert!(longest < Nanos::from_millis(80), "{longest:?}");
    }
}
