//! The last snapshot of each target, at the record's end or at a given moment.

use std::collections::BTreeMap;

use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};

use crate::context::RecordContext;

/// The largest number of targets that are kept; above it, targets that ended long ago are dropped.
const MAX_TARGETS: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) snapshot: Snapshot,
    /// The number that it was pushed with.
    pub(crate) number: u64,
    pub(crate) watched_since: Nanos,
    /// The oldest age in its first snapshot, which a monitor that ran earlier had already counted.
    pub(crate) age_before: Nanos,
}

impl Kept {
    pub(crate) fn idle_for(&self, region: &RegionSnapshot) -> Nanos {
        let interval = self.snapshot.end.since(self.snapshot.start);
        match region.nr_accesses {
            // Ages may count the first interval as well.
            Some(n) if n <= 0.0 => (region.age_ns + interval).min(self.known_for()),
            // The rest of the region was touched at the beginning of the interval at the latest, as far as is known.
            _ => Nanos(interval.0.saturating_sub(1)),
        }
    }

    /// Returns the longest idle time that the snapshots can show.
    pub(crate) fn known_for(&self) -> Nanos {
        self.snapshot.end.since(self.watched_since) + self.age_before
    }
}

/// Keeps the last snapshot of each target up to a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latest {
    at: Option<Nanos>,
    kept: BTreeMap<TargetId, Kept>,
    newest_end: Nanos,
    let_go: usize,
}

impl Latest {
    /// Keeps snapshots up to `at`, since the beginning; up to the record's end if `None`.
    pub(crate) fn until(at: Option<Nanos>) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    /// Returns whether this moment (since the beginning) is before the end.
    pub(crate) fn reaches(&self, offset: Nanos) -> bool {
        self.at.is_none_or(|at| offset <= at)
    }

    pub(crate) fn push(&mut self, context: &mut RecordContext, snapshot: &Snapshot, number: u64) {
        let offset = context.offset(snapshot.start);
        if !context.admits(snapshot) || !self.reaches(offset) {
            return;
        }
        self.newest_end = self.newest_end.max(snapshot.end);
        if let Some(kept) = self.kept.get_mut(&snapshot.target) {
            // In place: a copy of regions, but no allocation for each snapshot of a long record.
            kept.snapshot.clone_from(snapshot);
            kept.number = number;
            return;
        }
        let first = Kept {
            snapshot: snapshot.clone(),
            number,
            watched_since: snapshot.start,
            age_before: age_before(snapshot),
        };
        self.kept.insert(snapshot.target, first);
        // A process has one address space: the memory of its earlier program is gone.
        let earlier = context.predecessor(snapshot.target);
        if earlier.is_some_and(|earlier| self.kept.remove(&earlier).is_some()) {
            self.let_go += 1;
        }
        if self.kept.len() > MAX_TARGETS {
            self.let_ended_go();
        }
    }

    /// Returns the last snapshots of the targets that existed at the moment, and the number of targets that had ended
    /// before.
    pub(crate) fn finish(mut self) -> (Vec<Kept>, usize) {
        self.let_ended_go();
        (self.kept.into_values().collect(), self.let_go)
    }

    /// Drops ended targets: those whose last snapshot is older than two of its intervals.
    fn let_ended_go(&mut self) {
        let newest_end = self.newest_end;
        let before = self.kept.len();
        self.kept.retain(|_, kept| {
            let snapshot = &kept.snapshot;
            let interval = snapshot.end.since(snapshot.start);
            newest_end.since(snapshot.end) <= interval + interval
        });
        self.let_go += before - self.kept.len();
    }
}

/// Returns the oldest age of a first snapshot. One interval may be its own.
fn age_before(snapshot: &Snapshot) -> Nanos {
    let interval = snapshot.end.since(snapshot.start);
    let ages = snapshot.regions.iter().map(|region| region.age_ns);
    let oldest = ages.max().unwrap_or_default();
    if oldest > interval { oldest } else { Nanos(0) }
}

#[cfg(test)]
mod tests {
    use isotherm_record::{Header, Item, TargetStart};

    use super::*;
    use crate::Scope;

    #[test]
    fn a_process_that_becomes_another_program_has_one_address_space() {
        let mut context = RecordContext::new(&Header::default(), Scope::default());
        let mut latest = Latest::until(None);
        // Of three targets, two are one process.
        for (at, pid) in (0..).zip([7, 8, 7]) {
            let (time, target) = (Nanos::from_millis(400 * u64::from(at)), TargetId(at));
            let start = TargetStart::new(time, target, pid, "");
            context.observe(&Item::TargetStart(start));
            let times = (time, time + Nanos::from_millis(400));
            let snapshot = Snapshot::new(target, times, 0, Vec::new());
            latest.push(&mut context, &snapshot, 0);
        }
        let (kept, let_go) = latest.finish();
        let kept: Vec<u32> = kept.iter().map(|kept| kept.snapshot.target.0).collect();
        assert_eq!((kept, let_go), (vec![1, 2], 1));
    }
}
