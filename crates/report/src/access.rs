//! The access report: the regions of a snapshot, each with its size, access rate, age and mapping.
//!
//! JSON: `{report: "access", version: 2, record, snapshots: [AccessTable]}`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use isotherm_engine::{
    AddressRange, MemoryTotals, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId,
};
use serde::Serialize;

use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use super::latest::Latest;
use super::mapping::{MappingLabel, MappingTable};
use isotherm_record::item::{Header, Item};

/// The snapshots to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The last snapshot of every target that had not ended before.
    #[default]
    Last,
    /// The snapshot whose interval contains this time since the beginning, or else the last one before it.
    At(Nanos),
    /// The snapshot with this number, counted from 0 for each target.
    Number(u64),
    /// All snapshots.
    All,
}

isotherm_engine::named! {
    /// The order of the regions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SortBy {
        /// Lowest address first.
        #[default]
        Address = "address",
        /// Largest first.
        Size = "size",
        /// Hottest first, unknown last.
        Rate = "rate",
        /// Longest unchanged first.
        Age = "age",
        /// Mapping name; unmapped regions last.
        Mapping = "mapping",
    }

    /// Returns its name in options.
    fn name;
    all ALL;
}

/// Inclusive bounds; an absent bound admits everything.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OptionalBounds<T> {
    /// The smallest value that is admitted.
    pub min: Option<T>,
    /// The largest value that is admitted.
    pub max: Option<T>,
}

impl<T> OptionalBounds<T> {
    /// Returns bounds of which either may be open.
    pub const fn new(min: Option<T>, max: Option<T>) -> Self {
        Self { min, max }
    }
}

impl<T: PartialOrd + Copy> OptionalBounds<T> {
    fn admit(&self, value: T) -> bool {
        self.min.is_none_or(|min| min <= value) && self.max.is_none_or(|max| value <= max)
    }

    fn is_open(&self) -> bool {
        self.min.is_none() && self.max.is_none()
    }
}

/// The selection of regions that the report shows, and their order.
#[derive(Clone, Debug, Default)]
pub struct AccessOptions {
    /// The snapshots to show.
    pub which: Which,
    /// The order of the regions.
    pub sort: SortBy,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// Bounds of a region's size in bytes.
    pub size: OptionalBounds<u64>,
    /// Bounds of its access rate, 0 to 1; a region of unknown rate is within no bounds.
    pub rate: OptionalBounds<f32>,
    /// Bounds of its age.
    pub age: OptionalBounds<Nanos>,
    /// A substring of the mapping's name.
    pub mapping: Option<String>,
    /// The largest number of regions to show.
    pub limit: Option<usize>,
    /// The access rate from which bytes count as hot. Accessed bytes below it are cold.
    pub hot_rate: HotRate,
}

/// The access rate from which bytes count as hot, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct HotRate(pub f32);

impl Default for HotRate {
    /// Returns 5 %, the threshold of DAMON's usual schemes.
    fn default() -> Self {
        Self(0.05)
    }
}

/// One region.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// First address.
    #[cfg_attr(feature = "schema", schemars(with = "crate::exact::Address"))]
    #[serde(serialize_with = "crate::exact::address")]
    pub start: u64,
    /// One past the last.
    #[cfg_attr(feature = "schema", schemars(with = "crate::exact::Address"))]
    #[serde(serialize_with = "crate::exact::address")]
    pub end: u64,
    /// Size of the region.
    pub size_bytes: u64,
    /// Share of checks that found an access, 0 to 1; `null` if unknown.
    pub access_rate: Option<f32>,
    /// Time since the region's access rate last changed much.
    pub age_ns: Nanos,
    /// Age in aggregation intervals.
    pub age_intervals: u32,
    /// Name of the mapping at the region; `null` where no mapping is known.
    pub mapping: Option<MappingLabel>,
    /// Memory at the addresses, as `resident`, `touched`, `unknown` and `swapped` bytes; `null` where the record's
    /// source cannot tell.
    pub memory: Option<RegionMemory>,
}

/// Bytes of memory by temperature. The first four add up to `resident_bytes`, or to `monitored_bytes` where the
/// record's source knows of addresses only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Totals {
    /// Touched bytes in regions that were accessed at the hot rate or more often.
    pub hot_bytes: u64,
    /// Touched bytes in regions that were accessed less often.
    pub cold_bytes: u64,
    /// Bytes that were not touched in the interval.
    pub idle_bytes: u64,
    /// Bytes of unknown state.
    pub unknown_bytes: u64,
    /// Bytes of all monitored addresses, with or without memory behind them.
    pub monitored_bytes: u64,
    /// Resident bytes; `null` where the record's source cannot tell.
    pub resident_bytes: Option<u64>,
    /// Swapped-out bytes; `null` where the record's source cannot tell.
    pub swapped_bytes: Option<u64>,
}

/// Totals of the admitted regions of all mappings with one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappingTotals {
    /// The name; `null` where no mapping is known.
    pub mapping: Option<String>,
    /// Number of regions.
    pub regions: usize,
    /// Bytes of these regions.
    #[serde(flatten)]
    pub totals: Totals,
}

/// The regions of one snapshot.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessTable {
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Number of the snapshot, counting the target's from 0.
    pub snapshot: u64,
    /// Start of the snapshot's interval.
    pub start_ns: Nanos,
    /// End of the snapshot's interval.
    pub end_ns: Nanos,
    /// Number of checks of each region.
    pub nr_samples: u32,
    /// The access rate from which bytes are hot.
    pub hot_rate: HotRate,
    /// Number of regions of the snapshot.
    pub regions_total: usize,
    /// Number of regions that the filters admit.
    pub regions_admitted: usize,
    /// Bytes by temperature of the admitted regions.
    pub totals: Totals,
    /// Totals by mapping, the one with the most memory first. A region that lies in several mappings counts for the one
    /// that holds most of it.
    pub mappings: Vec<MappingTotals>,
    /// The regions, filtered, sorted and limited.
    pub regions: Vec<Row>,
}

/// The requested snapshots together; `isotherm report access` writes them one by one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessReport {
    /// `access`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The requested snapshots.
    pub snapshots: Vec<AccessTable>,
    /// The record that the report is based on.
    pub record: RecordInfo,
}

/// The accumulator.
#[derive(Debug, Default)]
pub struct Access {
    context: RecordContext,
    options: AccessOptions,
    mappings: MappingTable,
    latest: Latest,
    counted: BTreeMap<TargetId, u64>,
}

impl Access {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: AccessOptions) -> Self {
        let at = match options.which {
            Which::At(at) => Some(at),
            _ => None,
        };
        Self {
            context: RecordContext::new(header, scope),
            latest: Latest::until(at),
            options,
            ..Self::default()
        }
    }

    /// Takes an item, and returns a table if the item is one of several requested snapshots.
    pub fn push(&mut self, item: &Item) -> Option<AccessTable> {
        self.context.observe(item);
        match item {
            Item::Mappings(change) => {
                let offset = self.context.offset(change.time);
                if self.latest.reaches(offset) {
                    self.mappings.apply(change);
                }
                None
            }
            Item::Snapshot(snapshot) => self.push_snapshot(snapshot),
            _ => None,
        }
    }

    fn push_snapshot(&mut self, snapshot: &Snapshot) -> Option<AccessTable> {
        let counted = self.counted.entry(snapshot.target).or_default();
        let number = *counted;
        *counted += 1;
        let wanted = match self.options.which {
            Which::All => true,
            Which::Number(wanted) => wanted == number,
            Which::Last | Which::At(_) => {
                self.latest.push(&mut self.context, snapshot, number);
                false
            }
        };
        (wanted && self.context.admits(snapshot)).then(|| self.table(snapshot, number))
    }

    /// Records the record's end, for a record that is not whole.
    pub fn end(&mut self, end: RecordEnd) {
        self.context.end(end);
    }

    /// Builds the whole report; `earlier` holds the tables that [`Access::push`] returned.
    pub fn finish_whole(self, mut earlier: Vec<AccessTable>) -> AccessReport {
        let record = self.record_info();
        earlier.extend(self.finish().0);
        AccessReport {
            report: "access",
            version: crate::VERSION,
            snapshots: earlier,
            record,
        }
    }

    /// Returns the last tables, and the number of targets that had ended before.
    pub fn finish(mut self) -> (Vec<AccessTable>, usize) {
        let (kept, ended) = std::mem::take(&mut self.latest).finish();
        let tables = kept.iter();
        let tables = tables.map(|kept| self.table(&kept.snapshot, kept.number));
        (tables.collect(), ended)
    }

    /// Describes the record that the report is based on.
    pub fn record_info(&self) -> RecordInfo {
        self.context.record_info()
    }

    fn table(&mut self, snapshot: &Snapshot, number: u64) -> AccessTable {
        let mut rows: Vec<Row> = Vec::new();
        let mut all = Sum::default();
        let mut by_mapping: BTreeMap<Option<Arc<str>>, Sum> = BTreeMap::new();
        let hot_rate = self.options.hot_rate;
        for region in &snapshot.regions {
            let Some(row) = self.admit(snapshot, region) else {
                continue;
            };
            let is_hot = row.access_rate.is_some_and(|rate| rate >= hot_rate.0);
            let name = row.mapping.as_ref().map(|m| Arc::clone(&m.name));
            all.add(region, is_hot);
            by_mapping.entry(name).or_default().add(region, is_hot);
            rows.push(row);
        }
        let regions_admitted = rows.len();
        sort(&mut rows, self.options.sort, self.options.reverse);
        rows.truncate(self.options.limit.unwrap_or(usize::MAX));
        AccessTable {
            target: self.context.target_info(snapshot.target),
            snapshot: number,
            start_ns: self.context.offset(snapshot.start),
            end_ns: self.context.offset(snapshot.end),
            nr_samples: snapshot.nr_samples,
            hot_rate,
            regions_total: snapshot.regions.len(),
            regions_admitted,
            totals: all.totals(),
            mappings: largest_first(by_mapping),
            regions: rows,
        }
    }

    fn admit(&self, snapshot: &Snapshot, region: &RegionSnapshot) -> Option<Row> {
        let options = &self.options;
        let AddressRange { start, end } = region.range;
        let access_rate = snapshot.access_rate(region);
        let rate_fits =
            options.rate.is_open() || access_rate.is_some_and(|rate| options.rate.admit(rate));
        let size_bytes = region.range.len();
        let fits = rate_fits && options.size.admit(size_bytes) && options.age.admit(region.age_ns);
        if !fits {
            return None;
        }
        let mapping = self.mappings.label(snapshot.target, region.range);
        if let Some(part) = &options.mapping {
            let name = &mapping.as_ref()?.name;
            name.find(part.as_str())?;
        }
        Some(Row {
            start,
            end,
            size_bytes,
            access_rate,
            age_ns: region.age_ns,
            age_intervals: region.age,
            mapping,
            memory: region.memory,
        })
    }
}

#[derive(Debug, Default)]
struct Sum {
    regions: usize,
    all: MemoryTotals,
    /// Touched bytes in hot regions.
    hot: u64,
}

impl Sum {
    fn add(&mut self, region: &RegionSnapshot, is_hot: bool) {
        self.regions += 1;
        self.all.add(region);
        if is_hot {
            self.hot = self.hot.saturating_add(region.touched());
        }
    }

    fn totals(&self) -> Totals {
        let Self { all, hot, .. } = self;
        Totals {
            hot_bytes: *hot,
            cold_bytes: all.touched.saturating_sub(*hot),
            idle_bytes: all.untouched,
            unknown_bytes: all.unknown,
            monitored_bytes: all.addresses,
            resident_bytes: all.known_resident(),
            swapped_bytes: all.known_swapped(),
        }
    }
}

fn largest_first(by_mapping: BTreeMap<Option<Arc<str>>, Sum>) -> Vec<MappingTotals> {
    let totals = by_mapping.into_iter().map(|(name, sum)| MappingTotals {
        mapping: name.map(|name| name.to_string()),
        regions: sum.regions,
        totals: sum.totals(),
    });
    let mut totals: Vec<_> = totals.collect();
    let size = |totals: &Totals| totals.resident_bytes.unwrap_or(totals.monitored_bytes);
    totals.sort_by_key(|m| std::cmp::Reverse(size(&m.totals)));
    totals
}

fn sort(rows: &mut [Row], by: SortBy, reverse: bool) {
    let rate = |row: &Row| row.access_rate.unwrap_or(-1.0);
    let name = |row: &Row| row.mapping.as_ref().map(|m| Arc::clone(&m.name));
    let order = |a: &Row, b: &Row| match by {
        SortBy::Address => Ordering::Equal,
        SortBy::Size => b.size_bytes.cmp(&a.size_bytes),
        SortBy::Rate => rate(b).total_cmp(&rate(a)),
        SortBy::Age => b.age_ns.cmp(&a.age_ns),
        SortBy::Mapping => match (name(a), name(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        },
    };
    rows.sort_by(|a, b| order(a, b).then(a.start.cmp(&b.start)));
    if reverse {
        rows.reverse();
    }
}
