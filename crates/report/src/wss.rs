//! The working-set report: the bytes in use, as percentiles over time and as a series.
//!
//! A snapshot's working set is the touched memory of its regions whose access rate reaches a minimum (by default, any
//! access). Where the source knows of addresses only, all bytes of these regions count. Regions of unknown state are in
//! no working set. Their bytes are reported beside it, so that it reads as "at least".
//!
//! JSON: [`WssReport`].

use std::collections::BTreeMap;

use isotherm_engine::{Nanos, TargetId};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use super::series::{Percentile, Point, Series, TimeMean, WeightedValues};
use super::working_set::{Round, Rounds, Use};
use isotherm_record::item::{Header, Item};

/// The query: the minimum rate and the percentiles.
#[derive(Clone, Debug)]
pub struct WssOptions {
    /// The lowest access rate, 0 to 1, that counts as use; any access if `None`.
    pub min_rate: Option<f32>,
    /// The requested percentiles, 0 to 100.
    pub percentiles: Vec<f64>,
}

impl Default for WssOptions {
    fn default() -> Self {
        Self {
            min_rate: None,
            percentiles: vec![0.0, 25.0, 50.0, 75.0, 100.0],
        }
    }
}

/// The working set of a target, or of all targets.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkingSet {
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Working set, mean over time.
    pub mean_bytes: u64,
    /// Bytes of unknown state, mean over time.
    pub unknown_mean_bytes: u64,
    /// Bytes of all monitored addresses, with or without memory behind them, mean over time.
    pub monitored_mean_bytes: u64,
    /// Resident bytes, mean over time; `null` where the record's source cannot tell.
    pub resident_mean_bytes: Option<u64>,
    /// Swapped-out bytes, mean over time; `null` where the record's source cannot tell.
    pub swapped_mean_bytes: Option<u64>,
    /// Mean RSS, where the record has it.
    pub rss_mean_bytes: Option<u64>,
    /// The working set was at most `value` bytes for `percent` of the time.
    pub percentiles: Vec<Percentile>,
    /// Largest error of a percentile, which may be too low by this number of bytes.
    pub resolution_bytes: u64,
    /// The working set over time.
    pub series: Vec<Point>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WssReport {
    /// `wss`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// The lowest access rate that counts; `null` means any access.
    pub min_rate: Option<f32>,
    /// The working set of each target.
    pub targets: Vec<WorkingSet>,
    /// The sum, if there is more than one target.
    pub total: Option<WorkingSet>,
}

/// The accumulator.
#[derive(Debug, Default)]
pub struct Wss {
    context: RecordContext,
    options: WssOptions,
    targets: BTreeMap<TargetId, Track>,
    total: Track,
    rounds: Rounds<Use>,
}

#[derive(Debug, Default)]
struct Track {
    snapshots: u64,
    unknown: TimeMean,
    monitored: TimeMean,
    resident: TimeMean,
    swapped: TimeMean,
    is_inexact: bool,
    rss: Series,
    distribution: WeightedValues,
    series: Series,
}

impl Wss {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: WssOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            options,
            ..Self::default()
        }
    }

    fn push_round(&mut self, round: Option<Round<Use>>) {
        if let Some(Round { start, end, sum }) = round {
            let offset = self.context.offset(start);
            self.total.push(offset, end.since(start), sum);
        }
    }
}

impl Accumulate for Wss {
    type Report = WssReport;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Snapshot(snapshot) if self.context.admits(snapshot) => {
                let used = Use::of(snapshot, self.options.min_rate);
                let start = self.context.offset(snapshot.start);
                let track = self.targets.entry(snapshot.target).or_default();
                track.push(start, snapshot.end.since(snapshot.start), used);
                let round = self.rounds.push(snapshot, used);
                self.push_round(round);
            }
            Item::Usage(usage) if self.context.admits_time(usage.time) => {
                let offset = self.context.offset(usage.time);
                let mut sum: Option<u64> = None;
                for (&target, &rss) in &usage.rss {
                    let target = TargetId(target);
                    if self.context.admits_target(target) {
                        let track = self.targets.entry(target).or_default();
                        track.rss.push(offset, Nanos(1), rss);
                        sum = Some(sum.unwrap_or(0).saturating_add(rss));
                    }
                }
                if let Some(sum) = sum {
                    self.total.rss.push(offset, Nanos(1), sum);
                }
            }
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> WssReport {
        self.context.end(end);
        let round = self.rounds.close();
        self.push_round(round);
        let percentiles = &self.options.percentiles;
        let context = &self.context;
        let targets = self.targets.iter().filter(|(_, of)| of.snapshots > 0);
        let targets = targets.map(|(id, of)| of.finish(context.target_info(*id), percentiles));
        let targets: Vec<WorkingSet> = targets.collect();
        let total = (targets.len() > 1).then(|| self.total.finish(TargetInfo::all(), percentiles));
        WssReport {
            report: "wss",
            version: crate::VERSION,
            record: self.context.record_info(),
            min_rate: self.options.min_rate,
            targets,
            total,
        }
    }
}

impl Track {
    fn push(&mut self, start: Nanos, length: Nanos, used: Use) {
        self.snapshots += 1;
        let totals = used.totals;
        self.unknown.push(length, totals.unknown);
        self.monitored.push(length, totals.addresses);
        self.resident.push(length, totals.resident);
        self.swapped.push(length, totals.swapped);
        self.is_inexact |= !totals.is_exact;
        let weight = length.0.max(1) as f64;
        self.distribution.push(used.working_set, weight);
        self.series.push(start, length, used.working_set);
    }

    fn finish(&self, target: TargetInfo, percentiles: &[f64]) -> WorkingSet {
        WorkingSet {
            target,
            snapshots: self.snapshots,
            mean_bytes: self.series.summary().map_or(0, |(_, mean, _)| mean),
            unknown_mean_bytes: self.unknown.mean(),
            monitored_mean_bytes: self.monitored.mean(),
            resident_mean_bytes: (!self.is_inexact).then(|| self.resident.mean()),
            swapped_mean_bytes: (!self.is_inexact).then(|| self.swapped.mean()),
            rss_mean_bytes: self.rss.summary().map(|(_, mean, _)| mean),
            percentiles: self.distribution.percentiles(percentiles),
            resolution_bytes: self.distribution.resolution(),
            series: self.series.points(),
        }
    }
}
