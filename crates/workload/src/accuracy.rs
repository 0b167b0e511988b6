//! Accuracy of a monitor's snapshots against the truth, by bytes.
//!
//! Problem: "the monitor finds hot memory" must become numbers that mean the same for regions, for single pages, for
//! any tool.
//!
//! Approach: only snapshots that lie wholly within one phase are scored, and only the bytes of the workload's own
//! regions. A region is *claimed* when its access rate reaches a threshold. Precision is the hot share of the bytes
//! claimed, recall the claimed share of the bytes hot, both summed over all snapshots. Top-k needs no threshold. It is
//! the hot share of the k bytes with the highest rates, where k is the number of hot bytes. Among equal rates every
//! byte is as likely to be taken, and a rate of zero finds nothing. Memory of unknown state claims nothing.
//!
//! Limits: warm memory (accessed, but seldom) is neither right nor wrong at the lowest threshold, since whether a
//! single access falls into an interval is chance. Above that it counts as not hot.

use isotherm_engine::statistics::median;
use isotherm_engine::{AddressRange, Nanos, Snapshot};
use serde::Serialize;

use crate::score::AccuracyScore;
use crate::truth::Episode;

pub use observed::{HOT_SCANS, observed};

mod observed;

/// Access rate at which the second threshold claims a region.
pub const QUARTER: f32 = 0.25;
/// Top-k at which a hot set counts as found.
pub const FOUND: f64 = 0.9;
/// Shortest monitored time of a phase in which nothing was found; shorter phases do not count.
const WATCHED_MIN: Nanos = Nanos::from_millis(1000);

/// Times in which snapshots are left out, since the monitor is still settling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Time from the first snapshot's start.
    pub record: Nanos,
    /// Time from each phase's start.
    pub phase: Nanos,
}

/// Accuracy of a series of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    /// Snapshots scored.
    pub snapshots: u64,
    /// Mean number of regions in them.
    pub regions_mean: f64,
    /// Score of regions that are claimed at any access.
    pub any: AccuracyScore,
    /// Score of regions that are claimed from [`QUARTER`] of the highest possible rate on.
    pub quarter: AccuracyScore,
    /// Median of top-k over snapshots.
    pub top_k: Option<f64>,
    /// Median over snapshots of (claimed at any access - hot) / hot.
    pub wss_error: Option<f64>,
    /// Median over snapshots of the same error's absolute value.
    pub wss_error_absolute: Option<f64>,
    /// Share of the workload's bytes about which the snapshots say nothing.
    pub unknown_share: f64,
    /// Detection lag of each phase: seconds until a snapshot had [`FOUND`] of the hot bytes in its top-k. They count
    /// from the phase's or the record's start, whichever is later; `None` if no snapshot had.
    pub detection_lags: Vec<Option<f64>>,
}

impl Accuracy {
    /// Median detection lag in seconds; `None` where half of the phases or more were never found.
    pub fn detection_lag(&self) -> Option<f64> {
        let unfound = |lag: &Option<f64>| lag.unwrap_or(f64::INFINITY);
        let lags = self.detection_lags.iter().map(unfound).collect();
        median(lags).filter(|lag| lag.is_finite())
    }
}

/// Scores `snapshots`, which are in the order of their times, against `episodes`.
pub fn score<'a>(
    snapshots: impl IntoIterator<Item = &'a Snapshot>,
    episodes: &[Episode],
    warm_up: WarmUp,
) -> Accuracy {
    let mut scorers: Vec<Scorer> = episodes.iter().map(Scorer::new).collect();
    let mut tally = Tally::default();
    let mut began = None;
    for snapshot in snapshots {
        let began = *began.get_or_insert(snapshot.start);
        // Phases are in order and few: this is the last one that has begun when the snapshot ends.
        let Some(scorer) = scorers.iter_mut().rev().find(|j| j.start < snapshot.end) else {
            continue;
        };
        if snapshot.end > scorer.end || scorer.hot.bytes == 0 {
            continue;
        }
        let view = scorer.view(snapshot);
        let since = scorer.start.max(began);
        scorer.watched = snapshot.end.since(since);
        if scorer.found.is_none() && view.top_k >= FOUND {
            scorer.found = Some(scorer.watched.as_secs_f64());
        }
        if snapshot.start >= scorer.start + warm_up.phase
            && snapshot.start >= began + warm_up.record
        {
            tally.add(&view, scorer, snapshot.regions.len());
        }
    }
    let watched = |j: &&Scorer| j.found.is_some() || j.watched >= WATCHED_MIN;
    Accuracy {
        detection_lags: scorers.iter().filter(watched).map(|j| j.found).collect(),
        ..tally.finish()
    }
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

/// One episode, with its ranges indexed.
struct Scorer {
    start: Nanos,
    end: Nanos,
    hot: RangeSet,
    warm: RangeSet,
    cold: RangeSet,
    watched: Nanos,
    found: Option<f64>,
}

/// Scores of one snapshot.
#[derive(Default)]
struct View {
    any: AccuracyScore,
    quarter: AccuracyScore,
    top_k: f64,
    known: u64,
}

impl Scorer {
    fn new(episode: &Episode) -> Self {
        let of = |heats: &[crate::layout::Heat]| RangeSet::new(heats.iter().map(|h| h.range));
        Self {
            start: episode.start,
            end: episode.end.unwrap_or(Nanos(u64::MAX)),
            hot: of(&episode.temperature.hot),
            warm: of(&episode.temperature.warm),
            cold: RangeSet::new(episode.temperature.cold.iter().copied()),
            watched: Nanos(0),
            found: None,
        }
    }

    fn bytes(&self) -> u64 {
        self.hot.bytes + self.warm.bytes + self.cold.bytes
    }

    fn view(&self, snapshot: &Snapshot) -> View {
        let mut view = View::default();
        view.any.truth = self.hot.bytes as f64;
        view.quarter.truth = view.any.truth;
        let mut ranked = Vec::new();
        for region in &snapshot.regions {
            let Some(rate) = snapshot.access_rate(region) else {
                continue;
            };
            let hot = self.hot.overlap(region.range);
            let warm = self.warm.overlap(region.range);
            let cold = self.cold.overlap(region.range);
            view.known += hot + warm + cold;
            if rate > 0.0 {
                view.any.claim(hot as f64, cold as f64);
                ranked.push((rate, hot, hot + warm + cold));
            }
            if rate >= QUARTER {
                view.quarter.claim(hot as f64, (warm + cold) as f64);
            }
        }
        view.top_k = top_k(ranked, self.hot.bytes);
        view
    }
}

/// Returns the top-k share. `ranked` holds access rates, hot bytes and bytes.
fn top_k(mut ranked: Vec<(f32, u64, u64)>, k: u64) -> f64 {
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut left = k as f64;
    let mut hit = 0.0;
    for same in ranked.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()) {
        let (hot, bytes) = same
            .iter()
            .fold((0, 0), |(hot, bytes), r| (hot + r.1, bytes + r.2));
        if bytes == 0 {
            continue;
        }
        let taken = (left / bytes as f64).min(1.0);
        hit += hot as f64 * taken;
        left -= bytes as f64 * taken;
        if left <= 0.0 {
            break;
        }
    }
    hit / k as f64
}

#[derive(Default)]
struct Tally {
    sum: Accuracy,
    regions: usize,
    known: u64,
    bytes: u64,
    top_k: Vec<f64>,
    wss_errors: Vec<f64>,
}

impl Tally {
    fn add(&mut self, view: &View, scorer: &Scorer, regions: usize) {
        self.sum.snapshots += 1;
        self.regions += regions;
        self.sum.any = [self.sum.any, view.any].into_iter().sum();
        self.sum.quarter = [self.sum.quarter, view.quarter].into_iter().sum();
        self.known += view.known;
        self.bytes += scorer.bytes();
        self.top_k.push(view.top_k);
        let hot = scorer.hot.bytes as f64;
        self.wss_errors.push((view.any.claimed - hot) / hot);
    }

    fn finish(self) -> Accuracy {
        let absolute = self.wss_errors.iter().map(|error| error.abs()).collect();
        Accuracy {
            regions_mean: self.regions as f64 / self.sum.snapshots.max(1) as f64,
            top_k: median(self.top_k),
            wss_error: median(self.wss_errors),
            wss_error_absolute: median(absolute),
            unknown_share: 1.0 - self.known as f64 / self.bytes.max(1) as f64,
            ..self.sum
        }
    }
}

#[cfg(test)]
mod tests;
