//! How well snapshots agree with what a workload really did: precision and recall by bytes.
//!
//! A region counts as found hot when it was seen accessed in at least half of the checks. Within
//! the workload's own memory, bytes found hot and hot in truth are right; precision is their share
//! of the bytes found hot, recall their share of the bytes that were hot. Summed over snapshots, not
//! averaged, so that an empty snapshot cannot count as perfect. A snapshot that reaches over the
//! border of a phase has no single truth and is left out. Regions about which nothing is known are
//! not found hot, so they lower recall; their bytes are also counted for themselves.

use std::fmt;

use isotherm_engine::{AddressRange, Nanos, Snapshot};
use serde::{Deserialize, Serialize};

/// What a workload did: written by `vm-guest hot`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truth {
    /// The workload's memory: only this is judged.
    pub area: Vec<AddressRange>,
    /// What was hot when.
    pub phases: Vec<Phase>,
}

/// A time in which the same memory was hot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Beginning.
    pub start: Nanos,
    /// End.
    pub end: Nanos,
    /// The hot ranges, not overlapping.
    pub hot: Vec<AddressRange>,
}

/// Byte counts, summed over the judged snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// How many snapshots were judged.
    pub snapshots: u64,
    /// Regions in them.
    pub regions: u64,
    /// Bytes found hot that were hot.
    pub right: u64,
    /// Bytes found hot.
    pub found: u64,
    /// Bytes that were hot.
    pub hot: u64,
    /// Bytes of regions about which nothing was known.
    pub unknown: u64,
}

/// The least share of checks at which a region counts as hot.
const HOT_RATE: f32 = 0.5;

impl Score {
    /// Judges `snapshots`, leaving out those that end within `settle` after a phase's beginning.
    pub fn of(snapshots: &[Snapshot], truth: &Truth, settle: Nanos) -> Self {
        let mut score = Self::default();
        for snapshot in snapshots {
            let phase = truth
                .phases
                .iter()
                .find(|p| p.start <= snapshot.start && snapshot.end <= p.end);
            let Some(phase) = phase.filter(|p| snapshot.end >= p.start + settle) else {
                continue;
            };
            score.snapshots += 1;
            score.hot += overlap(&phase.hot, &truth.area);
            for region in &snapshot.regions {
                let inside = overlap(&[region.range], &truth.area);
                score.regions += u64::from(inside > 0);
                match snapshot.access_rate(region) {
                    None => score.unknown += inside,
                    Some(rate) if rate >= HOT_RATE => {
                        score.found += inside;
                        score.right += overlap(&[region.range], &phase.hot);
                    }
                    Some(_) => {}
                }
            }
        }
        score
    }

    /// Share of the bytes found hot that were; 0 where nothing was found.
    pub fn precision(&self) -> f64 {
        self.right as f64 / self.found.max(1) as f64
    }

    /// Share of the hot bytes that were found.
    pub fn recall(&self) -> f64 {
        self.right as f64 / self.hot.max(1) as f64
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "precision {:.3}  recall {:.3}  {:>3} snapshots  {:>4.0} regions  {:>5.1} MiB unknown",
            self.precision(),
            self.recall(),
            self.snapshots,
            self.regions as f64 / self.snapshots.max(1) as f64,
            self.unknown as f64 / self.snapshots.max(1) as f64 / f64::from(1 << 20),
        )
    }
}

fn overlap(one: &[AddressRange], other: &[AddressRange]) -> u64 {
    one.iter()
        .flat_map(|a| other.iter().filter_map(move |b| a.intersection(*b)))
        .map(AddressRange::len)
        .sum()
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};

    use super::{Phase, Score, Truth};

    /// Judges one snapshot, a picture of 10-byte cells (`#` hot, `.` cold, `?` unknown), against
    /// another of what was true.
    fn check(found: &str, truth: &str, precision: f64, recall: f64) {
        let cells = |picture: &str| -> Vec<(AddressRange, char)> {
            let starts = (0..).step_by(10);
            starts
                .zip(picture.chars())
                .map(|(s, c)| (AddressRange::new(s, s + 10), c))
                .collect()
        };
        let snapshot = Snapshot {
            target: TargetId(0),
            start: Nanos(10),
            end: Nanos(20),
            nr_samples: 4,
            regions: cells(found)
                .into_iter()
                .map(|(range, c)| RegionSnapshot {
                    range,
                    nr_accesses: match c {
                        '#' => Some(2.0),
                        '.' => Some(1.0),
                        _ => None,
                    },
                    age: 0,
                    age_ns: Nanos(0),
                })
                .collect(),
        };
        let hot = cells(truth).into_iter().filter(|c| c.1 == '#').map(|c| c.0);
        let truth = Truth {
            area: vec![AddressRange::new(0, 10 * truth.len() as u64)],
            phases: vec![Phase {
                start: Nanos(10),
                end: Nanos(20),
                hot: hot.collect(),
            }],
        };
        let score = Score::of(&[snapshot], &truth, Nanos(0));
        assert_eq!(score.snapshots, 1);
        assert!((score.precision() - precision).abs() < 1e-9, "{score}");
        assert!((score.recall() - recall).abs() < 1e-9, "{score}");
    }

    #[test]
    fn bytes_decide() {
        check("##..", "##..", 1.0, 1.0);
        check("####", "##..", 0.5, 1.0);
        check("#...", "##..", 1.0, 0.5);
        check("..##", "##..", 0.0, 0.0);
    }

    #[test]
    fn unknown_is_not_found() {
        check("#?..", "##..", 1.0, 0.5);
    }

    #[test]
    fn finding_nothing_is_not_perfect() {
        check("....", "##..", 0.0, 0.0);
    }

    #[test]
    fn memory_of_others_is_not_judged() {
        check("##..##", "##..", 1.0, 1.0);
    }
}
