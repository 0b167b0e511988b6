//! The bytes in use in a snapshot, and their sum (or that of other counts) over all targets.

use std::collections::BTreeMap;

use isotherm_engine::{MemoryTotals, Nanos, Snapshot, TargetId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Touched bytes of regions that were accessed at least at the requested rate.
    pub(crate) working_set: u64,
    pub(crate) totals: MemoryTotals,
}

impl Use {
    /// Counts a snapshot; without a `min_rate`, any access at all counts.
    pub(crate) fn of(snapshot: &Snapshot, min_rate: Option<f32>) -> Self {
        let mut sum = Self::default();
        let least = min_rate.map(|rate| rate * snapshot.nr_samples.max(1) as f32);
        for region in &snapshot.regions {
            sum.totals.add(region);
            let counts = least.is_none_or(|least| region.nr_accesses.is_some_and(|n| n >= least));
            if !counts {
                continue;
            }
            // A rate of zero admits regions that nothing touched, where the source knows of addresses only.
            let is_idle = region.memory.is_none() && region.nr_accesses == Some(0.0);
            let bytes = match least {
                Some(_) if is_idle => region.range.len(),
                _ => region.touched(),
            };
            sum.working_set = sum.working_set.saturating_add(bytes);
        }
        sum
    }
}

impl Plus for Use {
    fn plus(self, other: Self) -> Self {
        Self {
            working_set: self.working_set.saturating_add(other.working_set),
            totals: self.totals.plus(other.totals),
        }
    }
}

/// Counts of a target that can be added; the default is the zero.
pub(crate) trait Plus: Copy + Default {
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

/// The sum over all targets at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round<U> {
    pub(crate) start: Nanos,
    pub(crate) end: Nanos,
    pub(crate) sum: U,
}

/// Sums the targets' snapshots interval by interval: all snapshots that end at the same time are one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds<U> {
    last: BTreeMap<TargetId, (Nanos, Nanos, U)>,
    open: Option<(Nanos, Nanos)>,
    closed_at: Option<Nanos>,
}

impl<U: Plus> Rounds<U> {
    /// Takes a target's count, and returns the round before if this count begins a new one.
    pub(crate) fn push(&mut self, snapshot: &Snapshot, used: U) -> Option<Round<U>> {
        let new_round = self.open.is_none_or(|(_, end)| end < snapshot.end);
        let finished = if new_round { self.close() } else { None };
        if new_round {
            self.open = Some((snapshot.start, snapshot.end));
        }
        self.last
            .insert(snapshot.target, (snapshot.start, snapshot.end, used));
        finished
    }

    pub(crate) fn close(&mut self) -> Option<Round<U>> {
        let (start, end) = self.open.take()?;
        // A target that has not been seen for two of its intervals is gone.
        self.last.retain(|_, (from, to, _)| {
            let interval = to.since(*from);
            end.since(*to) <= interval + interval
        });
        let start = self.closed_at.map_or(start, |closed| closed.max(start));
        self.closed_at = Some(end);
        let uses = self.last.values().map(|(_, _, used)| *used);
        let sum = uses.fold(U::default(), U::plus);
        Some(Round { start, end, sum })
    }
}
