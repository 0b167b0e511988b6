//! Memory over time, of each target and of all together: resident, in use, idle by age, unknown, swapped out. The
//! module serves pages; `report footprint` and `report idle` print the same in a terminal.
//!
//! If there are more than [`MOST_TARGETS`] targets, only the largest have a course of their own. The sum covers all.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::{Nanos, Snapshot, TargetId};

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, Scope, TargetInfo};
use super::series::{Point, Series};
use super::working_set::{Plus, Round, Rounds};
use isotherm_record::item::{Header, Item, UsageSample};

/// The largest number of targets with a course of their own; twice this number while reading.
pub(crate) const MOST_TARGETS: usize = 64;
pub(crate) const AGES: [Nanos; 3] = [
    Nanos::from_millis(5_000),
    Nanos::from_millis(30_000),
    Nanos::from_millis(120_000),
];

/// Names of the quantities: resident bytes that were accessed within the interval, that were idle for less than the
/// smallest of [`AGES`], and that were idle for each of [`AGES`] but not for the next; resident bytes of unknown state;
/// swapped-out bytes; RSS and swap as the kernel reported them.
const QUANTITIES: [&str; NR_COUNTS + 2] = [
    "touched",
    "idle",
    "idle_5s",
    "idle_30s",
    "idle_2min",
    "unknown",
    "swapped",
    "rss",
    "swap",
];
/// Number of quantities that snapshots have; the kernel reports the others.
const NR_COUNTS: usize = 4 + AGES.len();
const RSS: usize = NR_COUNTS;

/// The course of one target or of all.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetCourse {
    /// The target.
    pub target: TargetInfo,
    /// The quantities in the record, by name, in bytes over time; steps without values are absent.
    pub quantities: Vec<(&'static str, Vec<Point>)>,
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct CourseReport {
    /// Time from the beginning to the last sample.
    pub duration_ns: Nanos,
    /// The course of all targets together.
    pub total: TargetCourse,
    /// The course of each target, the largest first.
    pub targets: Vec<TargetCourse>,
    /// Number of smaller targets without a course of their own.
    pub targets_left_out: usize,
}

/// Bytes of one snapshot, by the first of [`QUANTITIES`].
#[derive(Clone, Copy, Debug, Default)]
struct Counts([u64; NR_COUNTS]);

impl Counts {
    fn of(snapshot: &Snapshot) -> Self {
        let mut counts = [0_u64; NR_COUNTS];
        let interval = snapshot.end.since(snapshot.start);
        let mut add = |at: usize, bytes: u64| counts[at] = counts[at].saturating_add(bytes);
        for region in &snapshot.regions {
            add(0, region.touched());
            let idle = region.idle();
            let idle_for = region.age_ns + interval;
            let class = AGES.iter().filter(|age| **age <= idle_for).count();
            add(1 + class, idle);
            // A region that was accessed also holds untouched bytes, idle for less than an interval.
            add(1, region.untouched().saturating_sub(idle));
            add(NR_COUNTS - 2, region.unknown());
            add(NR_COUNTS - 1, region.memory.map_or(0, |m| m.swapped));
        }
        Self(counts)
    }
}

impl Plus for Counts {
    fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| {
            self.0[at].saturating_add(other.0[at])
        }))
    }
}

/// The series of [`QUANTITIES`].
#[derive(Clone, Debug, Default)]
struct Quantities([Series; QUANTITIES.len()]);

impl Quantities {
    fn push(&mut self, offset: Nanos, length: Nanos, counts: Counts) {
        for (series, bytes) in self.0.iter_mut().zip(counts.0) {
            series.push(offset, length, bytes);
        }
    }

    fn size(&self) -> u64 {
        let mean = |series: &Series| series.summary().map_or(0, |(_, mean, _)| mean);
        let resident = self.0[..NR_COUNTS - 1].iter().map(mean);
        let resident = resident.fold(0, u64::saturating_add);
        resident.max(mean(&self.0[RSS]))
    }

    fn finish(self, target: TargetInfo) -> TargetCourse {
        let quantities = QUANTITIES.into_iter().zip(self.0);
        let quantities = quantities.filter(|(_, series)| !series.is_empty());
        let quantities = quantities.map(|(name, series)| (name, series.points()));
        TargetCourse {
            target,
            quantities: quantities.collect(),
        }
    }
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Course {
    context: RecordContext,
    rounds: Rounds<Counts>,
    total: Quantities,
    targets: BTreeMap<TargetId, Quantities>,
    /// Targets that were among the smallest when there were too many. They stay out, as a course with a gap would
    /// mislead.
    left_out: BTreeSet<TargetId>,
    end: Nanos,
}

impl Course {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            ..Self::default()
        }
    }

    fn push_snapshot(&mut self, snapshot: &Snapshot) {
        let counts = Counts::of(snapshot);
        // The time is the end of the interval, because the ages are reached then.
        let offset = self.context.offset(snapshot.end);
        let length = snapshot.end.since(snapshot.start);
        self.end = self.end.max(offset);
        if let Some(own) = self.of(snapshot.target) {
            own.push(offset, length, counts);
        }
        let round = self.rounds.push(snapshot, counts);
        self.push_round(round);
    }

    fn push_round(&mut self, round: Option<Round<Counts>>) {
        if let Some(Round { start, end, sum }) = round {
            let offset = self.context.offset(end);
            self.total.push(offset, end.since(start), sum);
        }
    }

    fn push_usage(&mut self, usage: &UsageSample) {
        let offset = self.context.offset(usage.time);
        self.end = self.end.max(offset);
        for (which, bytes) in [&usage.rss, &usage.swap].into_iter().enumerate() {
            let bytes = bytes.iter().map(|(id, bytes)| (TargetId(*id), *bytes));
            let admitted = bytes.filter(|(target, _)| self.context.admits_target(*target));
            let admitted: Vec<(TargetId, u64)> = admitted.collect();
            if admitted.is_empty() {
                continue;
            }
            let sum = admitted.iter().map(|(_, bytes)| *bytes);
            let sum = sum.fold(0, u64::saturating_add);
            self.total.0[RSS + which].push(offset, Nanos(1), sum);
            for (target, bytes) in admitted {
                if let Some(own) = self.of(target) {
                    own.0[RSS + which].push(offset, Nanos(1), bytes);
                }
            }
        }
    }

    /// Returns the series of a target, unless it was left out. If there are too many, drops the smallest.
    fn of(&mut self, target: TargetId) -> Option<&mut Quantities> {
        if self.left_out.contains(&target) {
            return None;
        }
        if self.targets.len() >= 2 * MOST_TARGETS && !self.targets.contains_key(&target) {
            self.keep_largest();
        }
        Some(self.targets.entry(target).or_default())
    }

    fn keep_largest(&mut self) {
        let by_size = self.targets.iter().map(|(id, of)| (of.size(), *id));
        let mut by_size: Vec<(u64, TargetId)> = by_size.collect();
        by_size.sort_by(|a, b| b.cmp(a));
        for (_, target) in by_size.iter().skip(MOST_TARGETS) {
            self.targets.remove(target);
            self.left_out.insert(*target);
        }
    }
}

impl Accumulate for Course {
    type Report = CourseReport;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Snapshot(snapshot) if self.context.admits(snapshot) => {
                self.push_snapshot(snapshot);
            }
            Item::Usage(usage) if self.context.admits_time(usage.time) => self.push_usage(usage),
            _ => {}
        }
    }

    fn finish_at(mut self, _: RecordEnd) -> CourseReport {
        let round = self.rounds.close();
        self.push_round(round);
        self.keep_largest();
        let mut targets: Vec<_> = std::mem::take(&mut self.targets).into_iter().collect();
        targets.sort_by_key(|(_, quantities)| std::cmp::Reverse(quantities.size()));
        let targets = targets.into_iter();
        let targets = targets.map(|(id, of)| of.finish(self.context.target_info(id)));
        CourseReport {
            targets: targets.collect(),
            duration_ns: self.end,
            total: self.total.finish(TargetInfo::all()),
            targets_left_out: self.left_out.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{header, snapshot_at};
    use isotherm_engine::PAGE_SIZE;

    fn points<'a>(course: &'a TargetCourse, quantity: &str) -> &'a [Point] {
        let found = course.quantities.iter().find(|of| of.0 == quantity);
        found.map_or(&[][..], |(_, points)| points.as_slice())
    }

    fn pages(course: &TargetCourse, quantity: &str) -> Vec<u64> {
        let points = points(course, quantity).iter();
        points.map(|point| point.mean / PAGE_SIZE).collect()
    }

    #[test]
    fn bytes_are_counted_by_age_for_each_and_for_all() {
        let mut course = Course::new(&header(), Scope::default());
        for target in 0..2 {
            let mut snapshot = snapshot_at(target, 0, 1000, "[0,4)=9 [4,12)=0 [12,13)=?");
            snapshot.regions[1].age_ns = Nanos::from_millis(29_000);
            course.push(&Item::Snapshot(snapshot));
        }
        let found = course.finish();
        assert_eq!(pages(&found.total, "touched"), [8]);
        assert_eq!(pages(&found.total, "idle_30s"), [16]);
        assert_eq!(pages(&found.total, "unknown"), [2]);
        assert_eq!(found.targets.len(), 2);
        assert_eq!(pages(&found.targets[0], "idle_30s"), [8]);
        assert_eq!(pages(&found.targets[0], "idle"), [0]);
        // The end of the interval, when the memory had that age.
        let idle = points(&found.total, "idle_30s").iter();
        let times: Vec<Nanos> = idle.map(|point| point.time_ns).collect();
        assert_eq!(times, [Nanos::from_millis(1000)]);
        assert_eq!(found.duration_ns, Nanos::from_millis(1000));
    }

    #[test]
    fn of_many_targets_the_largest_stay_and_the_sum_is_of_all() {
        let mut course = Course::new(&header(), Scope::default());
        for target in 0..1000 {
            let pages = if target == 500 { 100 } else { 1 };
            let picture = format!("[0,{pages})=9");
            course.push(&Item::Snapshot(snapshot_at(target, 0, 1000, &picture)));
        }
        let found = course.finish();
        assert_eq!(found.targets.len(), MOST_TARGETS);
        assert_eq!(found.targets[0].target.target, Some(TargetId(500)));
        assert_eq!(found.targets.len() + found.targets_left_out, 1000);
        assert_eq!(pages(&found.total, "touched"), [1099]);
    }
}
