//! A plan in portions: no portion is larger than what may be done now.
//!
//! A region may be gigabytes, and the guard allow megabytes. So operations are cut at the borders of
//! 2 MiB blocks (of which huge pages are made) and their parts' outcomes joined again, as the schemes
//! count regions, not parts.

use crate::address::{AddressRange, BLOCK_SIZE};
use crate::guard::Guard;
use crate::port::{Operation, Outcome};
use crate::scheme::Action;

/// Operations are carried out in portions of at most this many bytes, or of what the guard allows,
/// between which its allowance and the user's wish to stop are looked at.
const PORTION_BYTES: u64 = 64 << 20;

/// Carries out as much of `plan` as `guard` allows, while `goes_on`, by `act`, which appends an outcome
/// for each operation. Yields what was done, and its outcomes.
pub fn carry_out<E>(
    plan: &[Operation],
    guard: &mut Guard,
    goes_on: impl Fn() -> bool,
    mut act: impl FnMut(&[Operation], &mut Vec<Outcome>) -> Result<(), E>,
) -> Result<(Vec<Operation>, Vec<Outcome>), E> {
    let mut portions = Portions::new(plan);
    let (mut portion, mut outcomes) = (Vec::new(), Vec::new());
    while goes_on() {
        let allowed = guard.allowance().unwrap_or(u64::MAX);
        let is_harmless = portions.next_action() == Some(Action::Stat);
        if allowed == 0 && !is_harmless {
            break;
        }
        portions.take(PORTION_BYTES.min(allowed), &mut portion);
        if portion.is_empty() {
            break;
        }
        outcomes.clear();
        act(&portion, &mut outcomes)?;
        if !is_harmless {
            guard.charge(outcomes.iter().map(|outcome| outcome.applied).sum());
        }
        portions.done(&outcomes);
    }
    Ok(portions.finish())
}

/// A plan that is being carried out.
struct Portions<'a> {
    plan: &'a [Operation],
    /// The operation that comes next, and how much of it has been taken already.
    next: usize,
    taken: u64,
    /// The operations whose parts the last portion holds.
    in_hand: Vec<usize>,
    parts: Vec<AddressRange>,
    done: Vec<Operation>,
    outcomes: Vec<Outcome>,
    /// The operation that [`Portions::done`] ends with.
    last_done: Option<usize>,
}

impl<'a> Portions<'a> {
    fn new(plan: &'a [Operation]) -> Self {
        Self {
            plan,
            next: 0,
            taken: 0,
            in_hand: Vec::new(),
            parts: Vec::new(),
            done: Vec::new(),
            outcomes: Vec::new(),
            last_done: None,
        }
    }

    /// What comes next.
    fn next_action(&self) -> Option<Action> {
        Some(self.plan.get(self.next)?.action)
    }

    /// Takes at most `bytes`, but at least to the next border of a block, of what comes next: all of
    /// it harmless (only counting), or none.
    fn take(&mut self, bytes: u64, portion: &mut Vec<Operation>) {
        portion.clear();
        self.in_hand.clear();
        self.parts.clear();
        let is_harmless = self.next_action() == Some(Action::Stat);
        let mut room = bytes;
        while let Some(operation) = self.plan.get(self.next) {
            if (operation.action == Action::Stat) != is_harmless {
                break;
            }
            let start = operation.range.start + self.taken;
            let rest = operation.range.end - start;
            let length = if is_harmless || rest <= room {
                rest
            } else if portion.is_empty() {
                cut(start, room).min(rest)
            } else if room >= BLOCK_SIZE {
                cut(start, room)
            } else {
                break;
            };
            let part = AddressRange::new(start, start + length);
            portion.push(operation.part(part));
            self.in_hand.push(self.next);
            self.parts.push(part);
            if length < rest {
                self.taken += length;
                break;
            }
            (self.next, self.taken) = (self.next + 1, 0);
            if !is_harmless {
                room -= length.min(room);
            }
            if room == 0 {
                break;
            }
        }
    }

    /// What became of the last portion.
    fn done(&mut self, outcomes: &[Outcome]) {
        assert_eq!(self.in_hand.len(), outcomes.len(), "an outcome for each");
        for ((&which, part), outcome) in self.in_hand.iter().zip(&self.parts).zip(outcomes) {
            if self.last_done == Some(which)
                && let (Some(operation), Some(sum)) =
                    (self.done.last_mut(), self.outcomes.last_mut())
            {
                let range = AddressRange::new(operation.range.start, part.end);
                *operation = self.plan[which].part(range);
                add(sum, outcome);
                continue;
            }
            self.done.push(self.plan[which].part(*part));
            self.outcomes.push(outcome.clone());
            self.last_done = Some(which);
        }
    }

    /// What was done of the plan, and its outcomes.
    fn finish(self) -> (Vec<Operation>, Vec<Outcome>) {
        (self.done, self.outcomes)
    }
}

/// How far from `start` on to go for about `bytes`: to the last border of a block within, or else to
/// the next one.
fn cut(start: u64, bytes: u64) -> u64 {
    let within = (start + bytes) / BLOCK_SIZE * BLOCK_SIZE;
    if within > start {
        within - start
    } else {
        (start / BLOCK_SIZE + 1) * BLOCK_SIZE - start
    }
}

fn add(sum: &mut Outcome, part: &Outcome) {
    sum.filter_passed += part.filter_passed;
    sum.applied += part.applied;
    for (why, bytes) in &part.refused {
        *sum.refused.entry(*why).or_default() += bytes;
    }
    sum.took = sum.took + part.took;
}

#[cfg(test)]
mod tests {
    use crate::port::Refusal;
    use crate::snapshot::TargetId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn operation(action: Action, start_mib: u64, end_mib: u64) -> Operation {
        Operation {
            scheme: 0,
            action,
            destinations: Vec::new(),
            target: TargetId(0),
            range: AddressRange::new(start_mib * MIB, end_mib * MIB),
            bytes: (end_mib - start_mib) * MIB,
            filters: Vec::new(),
            pass_unmatched: true,
            idle_only: true,
        }
    }

    /// The portions of a plan, in MiB, when each may be of `bytes`.
    fn portions(plan: &[Operation], bytes: u64) -> Vec<Vec<(u64, u64)>> {
        let (mut portions, mut portion, mut all) = (Portions::new(plan), Vec::new(), Vec::new());
        loop {
            portions.take(bytes, &mut portion);
            if portion.is_empty() {
                break;
            }
            let outcome = |operation: &Operation| Outcome {
                applied: operation.range.len() - 1,
                refused: [(Refusal::Locked, 1)].into(),
                ..Outcome::default()
            };
            portions.done(&portion.iter().map(outcome).collect::<Vec<_>>());
            let ranges = portion.iter().map(|operation| operation.range);
            all.push(ranges.map(|r| (r.start / MIB, r.end / MIB)).collect());
        }
        let (done, outcomes) = portions.finish();
        assert_eq!(done, plan, "all of it, whole");
        for (operation, outcome) in done.iter().zip(outcomes) {
            let refused: u64 = outcome.refused.values().sum();
            assert_eq!(outcome.applied + refused, operation.range.len());
        }
        all
    }

    #[test]
    fn what_fits_goes_together() {
        let plan = [
            operation(Action::Pageout, 0, 10),
            operation(Action::Cold, 20, 30),
        ];
        assert_eq!(portions(&plan, 64 * MIB), [[(0, 10), (20, 30)]]);
        assert_eq!(portions(&plan, 20 * MIB), [[(0, 10), (20, 30)]]);
    }

    #[test]
    fn what_does_not_fit_is_cut_at_blocks() {
        let plan = [
            operation(Action::Pageout, 1, 12),
            operation(Action::Pageout, 20, 23),
        ];
        assert_eq!(
            portions(&plan, 5 * MIB),
            [vec![(1, 6)], vec![(6, 10)], vec![(10, 12), (20, 23)]]
        );
    }

    #[test]
    fn less_than_a_block_is_a_block_after_all() {
        let plan = [operation(Action::Pageout, 1, 6)];
        assert_eq!(portions(&plan, 1), [[(1, 2)], [(2, 4)], [(4, 6)]]);
    }

    #[test]
    fn counting_is_not_cut_nor_mixed_with_doing() {
        let plan = [
            operation(Action::Stat, 0, 100),
            operation(Action::Stat, 100, 200),
            operation(Action::Pageout, 200, 203),
        ];
        assert_eq!(
            portions(&plan, 2 * MIB),
            [
                vec![(0, 100), (100, 200)],
                vec![(200, 202)],
                vec![(202, 203)]
            ]
        );
    }
}
