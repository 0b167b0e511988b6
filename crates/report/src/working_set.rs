//! How many bytes a snapshot found in use, and the sum of that over all targets.

use std::collections::BTreeMap;

use isotherm_engine::{MemoryTotals, Nanos, Snapshot, TargetId};

/// What a snapshot says about use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Touched bytes of regions that were accessed at least at the asked rate.
    pub(super) working_set: u64,
    /// What the regions hold.
    pub(super) totals: MemoryTotals,
}

impl Use {
    /// Counts a snapshot; without a `min_rate`, any access at all counts.
    pub(super) fn of(snapshot: &Snapshot, min_rate: Option<f32>) -> Self {
        let mut sum = Self::default();
        let least = min_rate.map(|rate| rate * snapshot.nr_samples.max(1) as f32);
        for region in &snapshot.regions {
            sum.totals.add(region);
            let counts = least.is_none_or(|least| region.nr_accesses.is_some_and(|n| n >= least));
            if counts {
                // A rate of zero admits regions that nothing touched, where the source knows of
                // addresses only.
                let is_idle = region.memory.is_none() && region.nr_accesses == Some(0.0);
                let all = is_idle && least.is_some();
                let bytes = if all {
                    region.range.len()
                } else {
                    region.touched()
                };
                sum.working_set = sum.working_set.saturating_add(bytes);
            }
        }
        sum
    }

    fn plus(self, other: Self) -> Self {
        Self {
            working_set: self.working_set.saturating_add(other.working_set),
            totals: self.totals.plus(other.totals),
        }
    }
}

/// The sum over all targets at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) sum: Use,
}

/// Sums the targets' snapshots interval by interval: all that end at the same time are one round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    last: BTreeMap<TargetId, (Nanos, Nanos, Use)>,
    open: Option<(Nanos, Nanos)>,
    closed_at: Option<Nanos>,
}

impl Rounds {
    /// Takes a target's count; gives the round before, if this begins a new one.
    pub(super) fn push(&mut self, snapshot: &Snapshot, used: Use) -> Option<Round> {
        let new_round = self.open.is_none_or(|(_, end)| end < snapshot.end);
        let finished = if new_round { self.close() } else { None };
        if new_round {
            self.open = Some((snapshot.start, snapshot.end));
        }
        self.last
            .insert(snapshot.target, (snapshot.start, snapshot.end, used));
        finished
    }

    /// Ends the last round.
    pub(super) fn close(&mut self) -> Option<Round> {
        let (start, end) = self.open.take()?;
        // A target that has not been seen for two of its intervals is gone.
        self.last.retain(|_, (from, to, _)| {
            let interval = to.since(*from);
            end.since(*to) <= interval + interval
        });
        let start = self.closed_at.map_or(start, |closed| closed.max(start));
        self.closed_at = Some(end);
        let uses = self.last.values().map(|(_, _, used)| *used);
        let sum = uses.fold(Use::default(), Use::plus);
        Some(Round { start, end, sum })
    }
}
