//! The footprint report: resident size, swap, working set and the machine's memory over time.
//!
//! JSON: [`FootprintReport`].

use isotherm_engine::{Nanos, TargetId};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use super::series::{Point, Series};
use super::working_set::{Round, Rounds, Use};
use isotherm_record::item::{Header, Item, UsageSample};

/// One quantity over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Metric"))]
pub struct FootprintMetric {
    /// Name of the quantity. A process has `rss`, `swap`, `resident` (as the monitor sees it, where it does),
    /// `working_set` and `unknown` (monitored, but of unknown state). The machine has `system_used` (total less free)
    /// and `system_unavailable` (total less available). The monitor has `monitor_rss`.
    pub name: &'static str,
    /// Lowest value.
    pub min_bytes: u64,
    /// Mean over time.
    pub mean_bytes: u64,
    /// Highest value.
    pub max_bytes: u64,
    /// The values over time.
    pub series: Vec<Point>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FootprintReport {
    /// `footprint`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// The target, if only one was requested; otherwise sums are over all targets.
    pub target: Option<TargetId>,
    /// The machine's memory, where the record has it.
    pub system_total_bytes: Option<u64>,
    /// The quantities in the record; quantities that it lacks are absent.
    pub metrics: Vec<FootprintMetric>,
}

/// The accumulator.
#[derive(Debug, Default)]
pub struct Footprint {
    context: RecordContext,
    target: Option<TargetId>,
    min_rate: Option<f32>,
    rounds: Rounds<Use>,
    system_total: Option<u64>,
    rss: Series,
    swap: Series,
    resident: Series,
    working_set: Series,
    unknown: Series,
    system_used: Series,
    system_unavailable: Series,
    monitor_rss: Series,
}

impl Footprint {
    /// Creates an accumulator for a record that begins with `header`. Regions accessed at `min_rate` (0 to 1) or more
    /// often are in the working set; with `None`, all accessed regions are.
    pub fn new(header: &Header, scope: Scope, min_rate: Option<f32>) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            target: scope.target,
            min_rate,
            ..Self::default()
        }
    }

    fn push_usage(&mut self, usage: &UsageSample) {
        let offset = self.context.offset(usage.time);
        let one = Nanos(1);
        for (bytes, series) in [(&usage.rss, &mut self.rss), (&usage.swap, &mut self.swap)] {
            let of_targets = bytes.iter();
            let admitted = of_targets.filter(|(id, _)| self.context.admits_target(TargetId(**id)));
            if let Some(sum) = admitted
                .map(|(_, bytes)| *bytes)
                .reduce(u64::saturating_add)
            {
                series.push(offset, one, sum);
            }
        }
        if usage.system_total > 0 {
            let total = usage.system_total;
            self.system_total = Some(total);
            let used = total.saturating_sub(usage.system_free);
            self.system_used.push(offset, one, used);
            let unavailable = total.saturating_sub(usage.system_available);
            self.system_unavailable.push(offset, one, unavailable);
        }
    }

    fn push_round(&mut self, round: Option<Round<Use>>) {
        if let Some(Round { start, end, sum }) = round {
            let offset = self.context.offset(start);
            let length = end.since(start);
            self.working_set.push(offset, length, sum.working_set);
            self.unknown.push(offset, length, sum.totals.unknown);
            if let Some(resident) = sum.totals.known_resident() {
                self.resident.push(offset, length, resident);
            }
        }
    }
}

impl Accumulate for Footprint {
    type Report = Option<FootprintReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Snapshot(snapshot) if self.context.admits(snapshot) => {
                let used = Use::of(snapshot, self.min_rate);
                let round = self.rounds.push(snapshot, used);
                self.push_round(round);
            }
            Item::Usage(usage) if self.context.admits_time(usage.time) => self.push_usage(usage),
            Item::Cost(cost) if self.context.admits_time(cost.time) && cost.monitor_rss > 0 => {
                let offset = self.context.offset(cost.time);
                self.monitor_rss.push(offset, Nanos(1), cost.monitor_rss);
            }
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<FootprintReport> {
        self.context.end(end);
        let round = self.rounds.close();
        self.push_round(round);
        let metrics = [
            ("rss", &self.rss),
            ("swap", &self.swap),
            ("resident", &self.resident),
            ("working_set", &self.working_set),
            ("unknown", &self.unknown),
            ("system_used", &self.system_used),
            ("system_unavailable", &self.system_unavailable),
            ("monitor_rss", &self.monitor_rss),
        ];
        let metrics = metrics.into_iter().filter_map(|(name, series)| {
            let (min_bytes, mean_bytes, max_bytes) = series.summary()?;
            Some(FootprintMetric {
                name,
                min_bytes,
                mean_bytes,
                max_bytes,
                series: series.points(),
            })
        });
        let metrics: Vec<FootprintMetric> = metrics.collect();
        (!metrics.is_empty()).then(|| FootprintReport {
            report: "footprint",
            version: crate::VERSION,
            record: self.context.record_info(),
            target: self.target,
            system_total_bytes: self.system_total,
            metrics,
        })
    }
}
