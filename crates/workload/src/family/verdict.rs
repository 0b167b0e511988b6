//! Compares a snapshot with the pages that were really touched in its interval.
//!
//! A region may say how much of it is resident and touched: each of its pages then counts as touched with that chance.
//! A region that is accessed and does not say so counts whole, with its holes. Pages that may count either way are on
//! neither side of the comparison. Pages that the monitor reports as unknown are left out of precision and recall, and
//! counted.

use std::ops::Range;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, RegionSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

use super::EDGE;
use super::journal::{TouchJournal, Touched};
use super::pages::PageSet;
use crate::score::AccuracyScore;

/// Number of pages below which no score is given: 1 MiB.
const FEW: f64 = 256.0;

/// Largest share of touched pages that may count either way in an interval that is scored.
const UNDECIDED_MAX: f64 = 1.0 / 3.0;

/// Time for which a region must be reported idle to be checked for that.
pub const IDLE_FOR: Nanos = Nanos::from_millis(2000);

/// Parts of a record that a monitor may miss: its beginning, and some snapshots after each move.
const SETTLE: Nanos = Nanos::from_millis(5000);
const SETTLE_SNAPSHOTS: usize = 3;

/// Score of one snapshot. All numbers are pages of the program's memory unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Time at which the interval ended.
    pub end: Nanos,
    /// Length of the interval.
    pub interval: Nanos,
    /// Pages touched in it, without those left out as unknown.
    pub truth: f64,
    /// Pages that may count either way.
    pub either: f64,
    /// Pages reported as touched, less those that may count either way.
    pub claimed: f64,
    /// Pages that were touched and are reported so.
    pub hit: f64,
    /// Pages reported as touched, all of them.
    pub working_set: f64,
    /// Pages that the monitor reports as unknown.
    pub unknown: f64,
    /// Touched pages among these.
    pub unknown_touched: f64,
    /// Pages reported as idle for [`IDLE_FOR`].
    pub idle: f64,
    /// Pages of these that were touched in that time.
    pub wrongly_idle: f64,
    /// Bytes of the whole process that are reported as touched.
    pub touched_bytes: u64,
    /// Bytes of the whole process that are reported as idle.
    pub idle_bytes: u64,
    /// Bytes of the whole process that are reported as resident.
    pub resident_bytes: u64,
}

impl Verdict {
    /// Whether most of the pages that may have been touched are known to be touched. Else, as with a sweep at the
    /// interval's edge, precision and recall would be those of the remainder.
    pub fn is_decided(&self) -> bool {
        self.either <= UNDECIDED_MAX * (self.truth + self.unknown_touched + self.either)
    }

    /// Returns the pages reported as touched against those that were.
    pub fn score(&self) -> AccuracyScore {
        AccuracyScore {
            hit: self.hit,
            claimed: self.claimed,
            truth: self.truth,
        }
    }

    /// Precision of the pages reported as touched; `None` where next to none are.
    pub fn precision(&self) -> Option<f64> {
        let precision = self.score().precision();
        precision.filter(|_| self.is_decided() && self.claimed >= FEW)
    }

    /// Recall of the touched pages; `None` where next to none were.
    pub fn recall(&self) -> Option<f64> {
        let recall = self.score().recall();
        recall.filter(|_| self.is_decided() && self.truth >= FEW)
    }

    /// Error of the working set, as a share of the true one (at least 1 MiB): below 0 it is too small. The true one
    /// lies between two numbers where pages may count either way. `None` where next to none were touched or are
    /// reported so, or where it is not known which.
    pub fn error(&self) -> Option<f64> {
        let least = self.truth;
        let most = self.truth + self.unknown_touched + self.either;
        let off = if self.working_set < least {
            self.working_set - least
        } else {
            (self.working_set - most).max(0.0)
        };
        (self.is_decided() && least.max(self.working_set) >= FEW).then(|| off / least.max(FEW))
    }
}

/// Known touches of a program.
pub trait Truth {
    /// The pages touched in an interval.
    fn touched(&self, start: Nanos, end: Nanos) -> Touched;

    /// The parts of `range` that are the program's memory, and their page numbers.
    fn parts(&self, range: AddressRange) -> Vec<(AddressRange, Range<usize>)>;
}

impl Truth for TouchJournal {
    fn touched(&self, start: Nanos, end: Nanos) -> Touched {
        self.touched_by(start, end, EDGE)
    }

    fn parts(&self, range: AddressRange) -> Vec<(AddressRange, Range<usize>)> {
        let base = self.ready.memory.start;
        let part = range.intersection(self.ready.memory);
        part.map(|part| {
            let first = (part.start - base) / PAGE_SIZE;
            let last = (part.end - base).div_ceil(PAGE_SIZE);
            (part, first as usize..last as usize)
        })
        .into_iter()
        .collect()
    }
}

/// Returns the snapshots that are not of the beginning, nor of a move or just after it.
pub fn settled<'a>(
    snapshots: &'a [Snapshot],
    moves: &'a [Nanos],
) -> impl Iterator<Item = &'a Snapshot> {
    let began = snapshots.first().map_or(Nanos(0), |s| s.start);
    let settled = snapshots.iter().enumerate().filter(move |(i, s)| {
        let earlier = snapshots[i.saturating_sub(SETTLE_SNAPSHOTS)].start;
        s.start >= began + SETTLE && !moves.iter().any(|at| (earlier..s.end).contains(at))
    });
    settled.map(|(_, snapshot)| snapshot)
}

/// Scores `snapshot`.
pub fn verdict(truth: &impl Truth, snapshot: &Snapshot) -> Verdict {
    let touched = truth.touched(snapshot.start, snapshot.end);
    let since = Nanos(snapshot.end.0.saturating_sub(IDLE_FOR.0));
    let recent = truth.touched(since, snapshot.end).certain;
    let mut verdict = Verdict {
        end: snapshot.end,
        interval: snapshot.end.since(snapshot.start),
        truth: touched.certain.len() as f64,
        either: touched.either.len() as f64,
        ..Verdict::default()
    };
    for region in &snapshot.regions {
        verdict.touched_bytes += region.touched();
        verdict.idle_bytes += region.idle();
        verdict.resident_bytes += region.resident();
        for (part, pages) in truth.parts(region.range) {
            add(&mut verdict, &region.part(part), pages, &touched, &recent);
        }
    }
    verdict
}

fn add(
    verdict: &mut Verdict,
    region: &RegionSnapshot,
    pages: Range<usize>,
    touched: &Touched,
    recent: &PageSet,
) {
    let in_pages = |bytes: u64| bytes as f64 / PAGE_SIZE as f64;
    let resident = in_pages(region.resident()).max(f64::MIN_POSITIVE);
    let (claimed, unknown) = (in_pages(region.touched()), in_pages(region.unknown()));
    let share = |part: f64| (part / resident).min(1.0);
    let truth = touched.certain.count(pages.clone()) as f64;
    let either = touched.either.count(pages.clone()) as f64;
    verdict.working_set += claimed;
    verdict.claimed += (claimed - share(claimed) * either).max(0.0);
    verdict.unknown += unknown;
    verdict.unknown_touched += share(unknown) * truth;
    verdict.truth -= share(unknown) * truth;
    // A report about the known pages applies to the touched ones among them.
    let known = truth * (1.0 - share(unknown));
    let chance = (claimed / (resident - unknown).max(f64::MIN_POSITIVE)).min(1.0);
    verdict.hit += (chance * known).min(claimed);
    if region.age_ns >= IDLE_FOR && region.idle() > 0 {
        let idle = in_pages(region.idle());
        verdict.idle += idle;
        verdict.wrongly_idle += (share(idle) * recent.count(pages) as f64).min(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::TouchOrder;
    use super::super::journal::tests::{BASE, case, journal, steady};
    use super::*;
    use isotherm_engine::{AddressRange, RegionMemory, TargetId};

    /// Returns a program that touches all of a quarter of 32 MiB again and again in the first half second.
    fn program() -> TouchJournal {
        journal(case(TouchOrder::Sweep), steady(50, 4096))
    }

    fn region(first: u64, last: u64, nr_accesses: Option<f32>) -> RegionSnapshot {
        let range = AddressRange::new(BASE + first * PAGE_SIZE, BASE + last * PAGE_SIZE);
        RegionSnapshot::new(range, nr_accesses)
    }

    fn snapshot(regions: Vec<RegionSnapshot>) -> Snapshot {
        let times = [100, 400].map(Nanos::from_millis);
        Snapshot::new(TargetId(0), times.into(), 1, regions)
    }

    fn verdict_of(regions: Vec<RegionSnapshot>) -> Verdict {
        verdict(&program(), &snapshot(regions))
    }

    /// Checks precision, recall and error; returns the verdict.
    fn check(regions: Vec<RegionSnapshot>, expected: [Option<f64>; 3]) -> Verdict {
        let verdict = verdict_of(regions);
        let found = [verdict.precision(), verdict.recall(), verdict.error()];
        assert_eq!(found, expected, "{verdict:?}");
        verdict
    }

    #[test]
    fn the_truth_itself_is_right() {
        let pages = program().layout.hot(0).into_iter().map(u64::from);
        let regions = pages.map(|p| region(p, p + 1, Some(1.0))).collect();
        check(regions, [Some(1.0), Some(1.0), Some(0.0)]);
    }

    #[test]
    fn a_region_counts_whole_where_it_does_not_say_what_is_touched() {
        let whole = region(0, 8192, Some(0.5));
        check(vec![whole], [Some(0.25), Some(1.0), Some(3.0)]);
    }

    #[test]
    fn a_region_counts_in_proportion_where_it_says_so() {
        let memory = RegionMemory {
            resident: 32 << 20,
            touched: 8 << 20,
            ..RegionMemory::default()
        };
        let mixed = region(0, 8192, Some(0.5)).holding(memory);
        // The sum is right.
        check(vec![mixed], [Some(0.25), Some(0.25), Some(0.0)]);
    }

    #[test]
    fn what_is_not_said_at_all_is_missed_and_what_is_unknown_is_counted_apart() {
        check(vec![], [None, Some(0.0), Some(-1.0)]);
        let unknown = check(vec![region(0, 8192, None)], [None; 3]);
        assert!((unknown.unknown_touched - 2048.0).abs() < 1e-9);
    }

    #[test]
    fn an_interval_with_a_sweep_at_its_edge_is_not_scored() {
        // One sweep of 1 ms, at 500 ms.
        let sweep = vec![super::super::journal::Batch {
            start: 500_000_000,
            end: 501_000_000,
            from: 0,
            to: 2048,
            phase: 0,
        }];
        let all = vec![region(0, 8192, Some(1.0))];
        let mut late = snapshot(all);
        late.end = Nanos::from_millis(501);
        let verdict = super::verdict(&journal(case(TouchOrder::Sweep), sweep), &late);
        assert!(!verdict.is_decided());
        assert_eq!((verdict.precision(), verdict.recall()), (None, None));
    }

    #[test]
    fn idle_memory_that_was_touched_is_found() {
        let idle = region(0, 8192, Some(0.0)).aged(0, Nanos::from_millis(5000));
        let old = verdict_of(vec![idle]);
        assert!((old.wrongly_idle - 2048.0).abs() < 1e-9);
        let young = verdict_of(vec![region(0, 8192, Some(0.0))]);
        assert!(young.wrongly_idle.abs() < 1e-9);
    }

    #[test]
    fn only_the_programs_memory_is_judged_but_sums_are_of_the_whole_process() {
        let mut beside = region(0, 1, Some(1.0));
        beside.range = AddressRange::new(BASE - (64 << 20), BASE);
        let verdict = verdict_of(vec![beside]);
        assert_eq!(verdict.touched_bytes, 64 << 20);
        assert!(verdict.working_set.abs() < 1e-9);
    }
}
