//! The claims of a world's snapshots, compared with the result of exact scans.

use isotherm_engine::{Nanos, Snapshot, TargetId};
use isotherm_policy::scheme::{Quota, Scheme, SchemeEngine, SystemFacts};
use isotherm_workload::score::{AccuracyScore, share};

use super::truth::{Overlap, Truth};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claims {
    pub(super) accessed: AccuracyScore,
    /// Memory that is reported as idle for at least the idle age.
    pub(super) idle: AccuracyScore,
    pub(super) unknown: u64,
}

impl Claims {
    /// Returns the share of the memory of known truth on which nothing is reported.
    pub(super) fn unknown_share(&self) -> Option<f64> {
        share(self.unknown as f64, self.accessed.truth + self.idle.truth)
    }

    /// Adds the claims of a snapshot of a process; `idle_for` is the age from which memory is idle.
    pub(super) fn add(&mut self, snapshot: &Snapshot, pid: u32, idle_for: Nanos, truth: &Truth) {
        let bytes = truth.bytes;
        self.accessed.truth += bytes.accessed as f64;
        self.idle.truth += bytes.idle as f64;
        let mut said = 0;
        for region in &snapshot.clone().by_page().regions {
            let Some(nr_accesses) = region.nr_accesses else {
                continue;
            };
            let overlap = truth.of(pid, region.range, None);
            said += overlap.accessed + overlap.idle;
            let (accessed, idle) = (overlap.accessed as f64, overlap.idle as f64);
            if nr_accesses <= 0.0 && region.age_ns >= idle_for {
                self.idle.claim(idle, accessed);
            } else if nr_accesses > 0.0 {
                self.accessed.claim(accessed, idle);
            }
        }
        self.unknown += bytes.accessed + bytes.idle - said;
    }
}

/// Returns the memory that each scheme would act on, by the last snapshot of each process.
pub(super) fn about(
    schemes: &[Scheme],
    last: &[(u32, Snapshot)],
    truth: &Truth,
) -> anyhow::Result<Vec<Overlap>> {
    let mut about = vec![Overlap::default(); schemes.len()];
    for (at, scheme) in schemes.iter().enumerate() {
        // Each scheme is planned alone: the first of several would take the memory of the others.
        let alone = Scheme {
            quota: Quota::default(),
            watermarks: None,
            ..scheme.clone()
        };
        let mut engine = SchemeEngine::new(vec![alone])?;
        let snapshots = { last.iter().enumerate() }.map(|(at, (_, snapshot))| Snapshot {
            target: TargetId(at as u32),
            ..snapshot.clone()
        });
        let snapshots: Vec<Snapshot> = snapshots.collect();
        let Some(now) = snapshots.iter().map(|snapshot| snapshot.end).max() else {
            continue;
        };
        for operation in engine.plan(now, &snapshots, &SystemFacts::default()) {
            let pid = last[operation.target.0 as usize].0;
            let overlap = truth.of(pid, operation.range, operation.pages.as_deref());
            about[at].accessed += overlap.accessed;
            about[at].idle += overlap.idle;
        }
    }
    Ok(about)
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{AddressRange, PAGE_SIZE, RegionSnapshot};
    use isotherm_policy::scheme::{AccessPattern, Action, Age, Bounds, Frequency};
    use isotherm_record::{PageBlock, PageSnapshot};

    use super::super::truth::Scans;
    use super::*;

    /// Returns the truth of four pages, of which the first two are in use.
    fn truth() -> Truth {
        let mut block = PageBlock::default();
        (block.present[0], block.accessed[0]) = (0b1111, 0b0011);
        let scan = PageSnapshot {
            blocks: vec![block],
            ..PageSnapshot::default()
        };
        let mut scans = Scans::default();
        scans.take(7, &scan);
        Truth::between(&scans, &scans)
    }

    /// Returns a snapshot of regions, given by their ends in pages, accesses and ages in seconds.
    fn snapshot(regions: &[(u64, Option<f32>, u64)]) -> Snapshot {
        let mut start = 0;
        let regions = regions.iter().map(|(end, nr_accesses, age)| {
            let range = AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
            start = *end;
            let region = RegionSnapshot::new(range, *nr_accesses);
            region.aged(*age as u32, Nanos::from_millis(age * 1000))
        });
        Snapshot {
            nr_samples: 20,
            regions: regions.collect(),
            ..Snapshot::default()
        }
    }

    fn check(
        regions: &[(u64, Option<f32>, u64)],
        accessed: [u64; 2],
        idle: [u64; 2],
        unknown: u64,
    ) {
        let mut claims = Claims::default();
        let five = Nanos::from_millis(5000);
        claims.add(&snapshot(regions), 7, five, &truth());
        let pages =
            |score: AccuracyScore| [score.hit, score.claimed].map(|bytes| bytes as u64 / PAGE_SIZE);
        assert_eq!(pages(claims.accessed), accessed);
        assert_eq!(pages(claims.idle), idle);
        assert_eq!(claims.unknown / PAGE_SIZE, unknown);
    }

    #[test]
    fn claims_are_hits_where_they_are_true() {
        check(&[(2, Some(9.0), 1), (4, Some(0.0), 6)], [2, 2], [2, 2], 0);
        check(&[(1, Some(9.0), 1), (4, Some(0.0), 6)], [1, 1], [2, 3], 0);
        // The first region is not idle for long enough, and the second is unknown.
        check(&[(3, Some(0.0), 1), (4, None, 0)], [0, 0], [0, 0], 1);
        check(&[], [0, 0], [0, 0], 4);
    }

    #[test]
    fn a_scheme_is_about_memory_that_is_there() {
        let [min, max] = [Nanos::from_millis(5000), Nanos(u64::MAX)].map(Age::Time);
        let pattern = AccessPattern {
            nr_accesses: Bounds::new(Frequency::Samples(0), Frequency::Samples(0)),
            age: Bounds::new(min, max),
            ..AccessPattern::ANY
        };
        let schemes = [Scheme::new(pattern, Action::Pageout)];
        let last = [(7, snapshot(&[(1, Some(9.0), 1), (100, Some(0.0), 6)]))];
        let about = about(&schemes, &last, &truth()).expect("a scheme");
        let pages = [about[0].accessed, about[0].idle].map(|bytes| bytes / PAGE_SIZE);
        assert_eq!(pages, [1, 2]);
    }
}
