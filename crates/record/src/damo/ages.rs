//! Ages for records without them: kernels before 5.16 print none, and other tools may leave them out.
//!
//! DAMON counts them in the same way (`kdamond_merge_regions` in `mm/damon/core.c`). If a region's access count has
//! changed by more than a tenth of its maximum, the age is 0; otherwise it is an interval older. For merged regions it
//! is their mean by size.
//!
//! Limits: nothing is known before the record's first snapshot, so real ages may be higher.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};

/// DAMON's threshold: a change of less than this part of the maximum does not count.
const THRESHOLD: f32 = 0.1;

struct Known {
    range: AddressRange,
    rate: Option<f32>,
    age: u32,
    age_ns: Nanos,
}

#[derive(Default)]
pub(super) struct Ages {
    before: BTreeMap<TargetId, Vec<Known>>,
}

impl Ages {
    /// Sets the ages of the regions of a target's next snapshot, in address order.
    pub(super) fn give(&mut self, snapshot: &mut Snapshot) {
        let lasted = snapshot.end.since(snapshot.start);
        let nr_samples = snapshot.nr_samples.max(1) as f32;
        let before = self.before.entry(snapshot.target).or_default();
        let mut first = 0;
        for region in &mut snapshot.regions {
            while before
                .get(first)
                .is_some_and(|known| known.range.end <= region.range.start)
            {
                first += 1;
            }
            give(region, nr_samples, lasted, &before[first..]);
        }
        let known = snapshot.regions.iter().map(|region| Known {
            range: region.range,
            rate: region.nr_accesses.map(|count| count / nr_samples),
            age: region.age,
            age_ns: region.age_ns,
        });
        *before = known.collect();
    }
}

/// Sets the age of a region. `before` begins with the first region that may overlap.
fn give(region: &mut RegionSnapshot, nr_samples: f32, lasted: Nanos, before: &[Known]) {
    let rate = region.nr_accesses.map(|count| count / nr_samples);
    let (mut age, mut age_ns) = (0_u128, 0_u128);
    for known in before {
        let Some(both) = known.range.intersection(region.range) else {
            break;
        };
        let is_same = match (rate, known.rate) {
            (Some(now), Some(then)) => (now - then).abs() <= THRESHOLD,
            (now, then) => now == then,
        };
        if is_same {
            let bytes = u128::from(both.len());
            age += bytes * (u128::from(known.age) + 1);
            age_ns += bytes * u128::from((known.age_ns + lasted).0);
        }
    }
    let bytes = u128::from(region.range.len());
    region.age = u32::try_from(age / bytes).unwrap_or(u32::MAX);
    region.age_ns = Nanos(u64::try_from(age_ns / bytes).unwrap_or(u64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(second: u64, regions: &[(u64, u64, f32)]) -> Snapshot {
        let regions = regions.iter().map(|(start, end, count)| {
            RegionSnapshot::new(AddressRange::new(*start, *end), Some(*count))
        });
        let times = [second, second + 1].map(|second| Nanos::from_millis(second * 1000));
        Snapshot::new(TargetId(0), times.into(), 20, regions.collect())
    }

    #[test]
    fn what_has_not_changed_gets_older() {
        let mut ages = Ages::default();
        let mut seconds = |regions: &[&[(u64, u64, f32)]]| -> Vec<Vec<u64>> {
            let all = regions.iter().enumerate().map(|(second, regions)| {
                let mut snapshot = snapshot(second as u64, regions);
                ages.give(&mut snapshot);
                let ages = snapshot.regions.iter();
                ages.map(|region| region.age_ns.0 / 1_000_000).collect()
            });
            all.collect()
        };
        let found = seconds(&[
            &[(0, 100, 0.0), (100, 200, 20.0)],
            &[(0, 100, 1.0), (100, 200, 20.0)],
            // The regions are split, and a part of the hot region has become idle.
            &[
                (0, 50, 0.0),
                (50, 100, 0.0),
                (100, 150, 0.0),
                (150, 200, 19.0),
            ],
            // The regions are merged.
            &[(0, 100, 0.0), (100, 200, 0.0)],
            // Memory was unmapped in between.
            &[(150, 300, 0.0)],
        ]);
        let wanted: [&[u64]; 5] = [
            &[0, 0],
            &[1000, 1000],
            &[2000, 2000, 0, 2000],
            &[3000, 500],
            &[500],
        ];
        assert_eq!(found, wanted);
    }
}
