//! Accuracy of a monitor's snapshots against the truth, by bytes.
//!
//! Problem: "the monitor finds hot memory" must become numbers that mean the same for regions, for single pages, for
//! any tool.
//!
//! Approach: only snapshots that lie wholly within one phase are scored, and only the bytes of the workload's own
//! regions. A region is *claimed* when its access rate reaches a threshold. Precision is the hot share of the bytes
//! claimed, recall the claimed share of the bytes hot, both summed over all snapshots. Memory of unknown state claims
//! nothing.
//!
//! Limits: warm memory (accessed, but seldom) is neither right nor wrong at the lowest threshold, since whether a
//! single access falls into an interval is chance. Above that it counts as not hot.

use isotherm_engine::{AddressRange, Nanos, Snapshot};

use crate::layout::Heat;
pub use crate::score::AccuracyScore;
use crate::truth::Episode;

/// Access rate at which the second threshold claims a region.
pub const QUARTER: f32 = 0.25;

/// Times in which snapshots are left out, since the monitor is still settling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Time from the first snapshot's start.
    pub record: Nanos,
    /// Time from each phase's start.
    pub phase: Nanos,
}

/// Accuracy of a series of snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accuracy {
    /// Snapshots scored.
    pub snapshots: u64,
    /// Mean number of regions in them.
    pub regions_mean: f64,
    /// Score of regions that are claimed at any access, in bytes.
    pub any: AccuracyScore,
    /// Score of regions that are claimed from [`QUARTER`] of the highest possible rate on, in bytes.
    pub quarter: AccuracyScore,
    /// Share of the workload's bytes about which the snapshots say nothing.
    pub unknown_share: f64,
}

/// Scores `snapshots`, which are in the order of their times, against `episodes`.
pub fn score<'a>(
    snapshots: impl IntoIterator<Item = &'a Snapshot>,
    episodes: &[Episode],
    warm_up: WarmUp,
) -> Accuracy {
    let phases: Vec<Phase> = episodes.iter().map(Phase::new).collect();
    let mut accuracy = Accuracy::default();
    let (mut regions, mut known, mut bytes) = (0, 0, 0_u64);
    let mut began = None;
    for snapshot in snapshots {
        let began = *began.get_or_insert(snapshot.start);
        // Phases are in order and few: this is the last one that has begun when the snapshot ends.
        let Some(phase) = phases.iter().rev().find(|p| p.start < snapshot.end) else {
            continue;
        };
        let from = (phase.start + warm_up.phase).max(began + warm_up.record);
        if snapshot.start < from || snapshot.end > phase.end || phase.hot.bytes == 0 {
            continue;
        }
        accuracy.snapshots += 1;
        regions += snapshot.regions.len();
        known += phase.add(snapshot, &mut accuracy);
        bytes += phase.hot.bytes + phase.warm.bytes + phase.cold.bytes;
    }
    accuracy.regions_mean = regions as f64 / accuracy.snapshots.max(1) as f64;
    accuracy.unknown_share = 1.0 - known as f64 / bytes.max(1) as f64;
    accuracy
}

/// Ranges that do not overlap, in order, with the bytes before each.
struct RangeSet {
    ranges: Vec<AddressRange>,
    before: Vec<u64>,
    bytes: u64,
}

impl RangeSet {
    fn new(ranges: impl IntoIterator<Item = AddressRange>) -> Self {
        let mut ranges: Vec<AddressRange> = ranges.into_iter().collect();
        ranges.sort_unstable();
        let mut bytes = 0;
        let mut before = Vec::with_capacity(ranges.len());
        for range in &ranges {
            before.push(bytes);
            bytes += range.len();
        }
        Self {
            ranges,
            before,
            bytes,
        }
    }

    /// Bytes of the set below `address`.
    fn below(&self, address: u64) -> u64 {
        let after = self.ranges.partition_point(|r| r.start < address);
        match after.checked_sub(1) {
            None => 0,
            Some(i) => self.before[i] + address.min(self.ranges[i].end) - self.ranges[i].start,
        }
    }

    fn overlap(&self, range: AddressRange) -> u64 {
        self.below(range.end) - self.below(range.start)
    }
}

struct Phase {
    start: Nanos,
    end: Nanos,
    hot: RangeSet,
    warm: RangeSet,
    cold: RangeSet,
}

impl Phase {
    fn new(episode: &Episode) -> Self {
        let of = |heats: &[Heat]| RangeSet::new(heats.iter().map(|h| h.range));
        Self {
            start: episode.start,
            end: episode.end.unwrap_or(Nanos(u64::MAX)),
            hot: of(&episode.temperature.hot),
            warm: of(&episode.temperature.warm),
            cold: RangeSet::new(episode.temperature.cold.iter().copied()),
        }
    }

    /// Adds the claims of a snapshot; returns the bytes whose state it knows.
    fn add(&self, snapshot: &Snapshot, accuracy: &mut Accuracy) -> u64 {
        accuracy.any.truth += self.hot.bytes as f64;
        accuracy.quarter.truth += self.hot.bytes as f64;
        let mut known = 0;
        for region in &snapshot.regions {
            let Some(rate) = snapshot.access_rate(region) else {
                continue;
            };
            let hot = self.hot.overlap(region.range);
            let warm = self.warm.overlap(region.range);
            let cold = self.cold.overlap(region.range);
            known += hot + warm + cold;
            if rate > 0.0 {
                accuracy.any.claim(hot as f64, cold as f64);
            }
            if rate >= QUARTER {
                accuracy.quarter.claim(hot as f64, (warm + cold) as f64);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    //! Pictures: one character for each page, from page 1 on. Truth: `#` hot, `+` warm, `.` cold, blank
    //! nothing known. Snapshot: `0`-`4` accesses seen of at most 4, `?` unknown, blank no region;
    //! neighbouring equal characters are one region.

    use isotherm_engine::{PAGE_SIZE, RegionSnapshot, TargetId};

    use super::*;
    use crate::layout::Temperature;

    fn ranges(picture: &str, wanted: char) -> Vec<AddressRange> {
        let mut all: Vec<AddressRange> = Vec::new();
        for (page, c) in std::iter::zip(1u64.., picture.chars()) {
            let range = AddressRange::new(page * PAGE_SIZE, (page + 1) * PAGE_SIZE);
            match all.last_mut() {
                Some(last) if c == wanted && last.end == range.start => last.end = range.end,
                _ if c == wanted => all.push(range),
                _ => {}
            }
        }
        all
    }

    fn episode(start_ms: u64, end_ms: u64, truth: &str) -> Episode {
        let heat = |range| Heat {
            range,
            probability: 0.1,
        };
        Episode {
            phase: "p".into(),
            start: Nanos::from_millis(start_ms),
            end: Some(Nanos::from_millis(end_ms)),
            temperature: Temperature {
                hot: ranges(truth, '#').into_iter().map(heat).collect(),
                warm: ranges(truth, '+').into_iter().map(heat).collect(),
                cold: ranges(truth, '.'),
            },
            operations: 1,
        }
    }

    fn snapshot(start_ms: u64, end_ms: u64, seen: &str) -> Snapshot {
        let mut regions = Vec::new();
        for character in "01234?".chars() {
            let accesses = character.to_digit(10).map(|digit| digit as f32);
            let region = |range| RegionSnapshot::new(range, accesses);
            regions.extend(ranges(seen, character).into_iter().map(region));
        }
        regions.sort_by_key(|region| region.range.start);
        let times = [start_ms, end_ms].map(Nanos::from_millis);
        Snapshot::new(TargetId(0), times.into(), 4, regions)
    }

    /// `expected`: precision and recall at any access, and at a quarter; in per cent, `-` where undefined.
    fn check(truth: &str, seen: &str, expected: &str) {
        let snapshots = [snapshot(100, 200, seen)];
        let episodes = [episode(0, 1000, truth)];
        let accuracy = score(&snapshots, &episodes, WarmUp::default());
        let percent =
            |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.0}", v * 100.0));
        let found = [&accuracy.any, &accuracy.quarter].map(|of| [of.precision(), of.recall()]);
        let found: Vec<String> = found.concat().into_iter().map(percent).collect();
        assert_eq!(found.join(" "), expected, "truth {truth:?} seen {seen:?}");
    }

    #[test]
    fn claims_are_compared_with_the_truth() {
        check("..##..", "004400", "100 100 100 100");
        check("..##..", "001100", "100 100 100 100");
        // A blind monitor finds nothing.
        check("..##..", "000000", "- 0 - 0");
        check("..##..", "??????", "- 0 - 0");
        check("..##..", "      ", "- 0 - 0");
        // One region over all is right by chance only.
        check(".##.....", "44444444", "25 100 25 100");
        // Memory that is not the workload's is not scored.
        check("  ##.. ", "4444004", "100 100 100 100");
        // Warm memory counts at the higher threshold only.
        check("##++", "4411", "100 100 50 100");
        check("##++", "4400", "100 100 100 100");
    }

    #[test]
    fn snapshots_that_cross_a_phase_are_left_out() {
        let episodes = [episode(0, 1000, "##.."), episode(1000, 2000, "..##")];
        let snapshots = [
            snapshot(0, 400, "4400"),
            snapshot(800, 1200, "4444"),
            snapshot(1200, 1600, "0044"),
            snapshot(1900, 2100, "4444"),
        ];
        let accuracy = score(&snapshots, &episodes, WarmUp::default());
        // The second snapshot crosses into the next phase, where it is not evenly spread either. The last one ends
        // after the truth does.
        assert_eq!(accuracy.snapshots, 2);
        assert_eq!(accuracy.any.precision(), Some(1.0));
        assert_eq!(accuracy.any.recall(), Some(1.0));
    }

    #[test]
    fn settling_leaves_early_snapshots_out() {
        let episodes = [episode(0, 10_000, "##..")];
        let snapshots = [snapshot(0, 400, "4444"), snapshot(2000, 2400, "4400")];
        let warm_up = WarmUp {
            record: Nanos::from_millis(1000),
            phase: Nanos(0),
        };
        let accuracy = score(&snapshots, &episodes, warm_up);
        assert_eq!(accuracy.snapshots, 1);
        assert_eq!(accuracy.any.precision(), Some(1.0));
    }

    #[test]
    fn unknown_memory_is_counted_as_such() {
        let snapshots = [snapshot(0, 100, "4??0")];
        let episodes = [episode(0, 1000, "##..")];
        let accuracy = score(&snapshots, &episodes, WarmUp::default());
        assert!((accuracy.unknown_share - 0.5).abs() < 1e-9);
        assert_eq!(accuracy.any.recall(), Some(0.5));
    }
}
