//! A record as plain tables, for pandas, polars, DuckDB and any other reader of Parquet.
//!
//! **Problem.** A record's own rows have only target and address. The process, the mapping, memory use and costs are
//! items between them, and a rate is a count out of a number of checks. An analyst wants one row with all of it.
//!
//! **Approach.** There are four tables, each written in one pass: regions ([`REGIONS`]), memory use ([`RSS`]), costs
//! ([`COSTS`]) and the work of schemes ([`ACTIONS`]). Points in time are UTC timestamps, sizes are in bytes and
//! durations in nanoseconds, and the columns' names show it. Unknown values are null, and a column beside them has the
//! reason.
//!
//! **Limits.** Some items have no table: notes, the guard and fragmentation are left out, and counted. The lossless
//! export with a way back is the other one ([`isotherm_record::parquet`]). The writer holds a row group of each table
//! in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::convert::{ConvertError, LeftOut};
use isotherm_record::damo::AGES_SETTING;
use isotherm_record::item::{ActionSample, CostSample, Header, Item, UsageSample};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::context::{RecordContext, Scope, TargetInfo};
use crate::mapping::MappingTable;
use crate::rows::{ColumnValue, Rows, column, columns, nullable};

pub use crate::rows::{Column, ColumnType};

use ColumnType::{Bool, F64, Name, Time, U32, U64};

columns! {
    /// The table of regions: a row for each region of each snapshot.
    REGIONS, region_row(number: u32, snapshot: &Snapshot, watched: Option<Nanos>, target: &TargetInfo, mapping: Option<&str>,
        region: &RegionSnapshot):
    column("snapshot", U32, "Number of the snapshot in the record, from 0.") => number,
    column("time", Time, "End of the interval that the row is about.") => ColumnValue::Time(snapshot.end),
    column("interval_ns", U64, "How long the interval lasted.") => snapshot.end.since(snapshot.start),
    column("target", U32, "Number of the target in the record, from 0.") => snapshot.target,
    nullable("pid", U32, "Process id; null for physical memory, or where the record does not say.") => pid_of(target),
    nullable("process", Name, "Command name of the process; null where the record does not say.") => target.name.as_deref(),
    nullable("context", Name, "Context of the target, in a record of several; else null.") => target.context.as_deref(),
    nullable("mapping", Name,
        "Name of the mapping that most of the region lies in: a file's path, `[heap]`, `[stack]` or `(anonymous)`; \
         null where no mapping is known.") => mapping,
    column("address", U64, "First address of the region.") => region.range.start,
    column("size_bytes", U64, "Length of the region.") => region.range.len(),
    nullable("accessed_share", F64,
        "Share of checks that found the region accessed, 0 to 1; null where that is not known.") => share_of(region, snapshot.nr_samples),
    nullable("accessed_share_unknown", Name,
        "Why `accessed_share` is null: `swapped_out` or `not_resident` (no memory is there), or `not_observed` (the \
         region could not be checked in this interval).") => why_unknown(region),
    column("nr_samples", U32, "How often the region was checked in the interval.") => snapshot.nr_samples,
    nullable("age_ns", U64, "How long the region has been accessed about as often; null where that is not known.")
        => age_of(region, watched).ok(),
    nullable("age_unknown", Name,
        "Why `age_ns` is null: `accessed_share_unknown`, or `before_record` (ages are derived from the record \
         itself, and this region has not changed since the record began).") => age_of(region, watched).err(),
    nullable("resident_bytes", U64,
        "Bytes of the region in memory; null where the source cannot tell, as in the next three.")
        => region.memory.map(|memory| memory.resident),
    nullable("touched_bytes", U64, "Of the resident bytes, those accessed in the interval.")
        => region.memory.map(|memory| memory.touched),
    nullable("unknown_bytes", U64, "Of the resident bytes, those of which it is not known.")
        => region.memory.map(|memory| memory.unknown),
    nullable("swapped_bytes", U64, "Bytes of the region that are swapped out.") => region.memory.map(|memory| memory.swapped),
}

columns! {
    /// The table of memory use: a row for each target, about once a second.
    RSS, usage_row(usage: &UsageSample, target: u32, info: &TargetInfo):
    column("time", Time, "When it was read.") => ColumnValue::Time(usage.time),
    column("target", U32, "Number of the target in the record.") => target,
    nullable("pid", U32, "Process id, as in the table of regions.") => pid_of(info),
    nullable("process", Name, "Command name, as in the table of regions.") => info.name.as_deref(),
    nullable("context", Name, "Context, as in the table of regions.") => info.context.as_deref(),
    nullable("rss_bytes", U64, "Resident memory of the target (VmRSS).") => usage.rss.get(&target).copied(),
    nullable("swap_bytes", U64, "Swapped-out memory of the target (VmSwap).") => usage.swap.get(&target).copied(),
    column("system_total_bytes", U64, "The machine's memory (MemTotal).") => usage.system_total,
    column("system_free_bytes", U64, "Free memory (MemFree).") => usage.system_free,
    column("system_available_bytes", U64, "Available memory (MemAvailable).") => usage.system_available,
}

columns! {
    /// The table of costs: a row about once a second. All counts begin with the record.
    COSTS, cost_row(cost: &CostSample):
    column("time", Time, "When it was read.") => ColumnValue::Time(cost.time),
    column("monitor_cpu_ns", U64, "CPU time of the monitor itself.") => cost.cost.monitor_cpu,
    column("induced_cpu_ns", U64, "CPU time that the monitor is estimated to have taken from targets.")
        => cost.cost.induced_cpu,
    column("checks", U64, "Accessed bits checked.") => cost.cost.checks,
    column("clears", U64, "Ranges of pages cleared.") => cost.cost.clears,
    column("refused", U64, "Clears that were refused or had no effect.") => cost.cost.refused,
    column("unknown_samples", U64, "Samples about which nothing could be known.") => cost.unknown,
    column("sample_interval_ns", U64, "Sampling interval in force.") => cost.sample_interval,
    column("aggregation_interval_ns", U64, "Aggregation interval in force.") => cost.aggregation_interval,
    column("monitor_rss_bytes", U64, "Resident memory of the monitor.") => cost.monitor_rss,
}

columns! {
    /// The table of actions: a row for each scheme and scan.
    ACTIONS, action_row(action: &ActionSample):
    column("time", Time, "When.") => ColumnValue::Time(action.time),
    nullable("context", Name, "Context of the scheme, in a record of several; else null.") => action.context.as_deref(),
    column("scheme", U32, "Place of the scheme in its context, from 0.") => action.scheme,
    column("action", Name, "DAMOS's name of what it does.") => action.action.as_str(),
    column("dry_run", Bool, "Nothing was done: the row says what would have been.")
        => ColumnValue::Bool(action.dry_run),
    column("nr_tried", U64, "Regions that it was tried on.") => action.nr_tried,
    column("tried_bytes", U64, "Their bytes.") => action.sz_tried,
    column("applied_bytes", U64, "Bytes that were acted on, as seen afterwards.") => action.sz_applied,
    column("refused_bytes", U64, "Bytes that were not.")
        => action.refused.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)),
    column("took_ns", U64, "Time that it took.") => action.took,
    column("cpu_ns", U64, "CPU time that it took.") => action.cpu,
}

/// The tables, by the suffixes of their files' names after the name of the first.
pub const TABLES: [(&str, &[Column]); 4] = [
    ("regions", REGIONS),
    ("rss", RSS),
    ("costs", COSTS),
    ("actions", ACTIONS),
];

/// Number of rows that are buffered before they are encoded.
const ROWS_HELD: usize = 16_384;
const ROWS_IN_GROUP: usize = 256 << 10;

/// The result of the export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// Rows by table, in the order of [`TABLES`].
    pub rows: [u64; 4],
    /// Items without a table.
    pub left_out: LeftOut,
}

/// Writes a record as tables, as its items come.
pub struct Flat<W: Write + Send> {
    tables: [FlatFile<W>; 4],
    context: RecordContext,
    mappings: MappingTable,
    number: u32,
    /// Targets with derived ages, and the start of each one's first snapshot.
    first: BTreeMap<TargetId, Option<Nanos>>,
    left_out: LeftOut,
}

impl<W: Write + Send> Flat<W> {
    /// Creates the tables for a record that begins with `header`; a file for each table, in the order of [`TABLES`].
    pub fn create(header: &Header, files: [W; 4]) -> Result<Self, ConvertError> {
        let mut columns = TABLES.iter().map(|(_, columns)| *columns);
        let tables = files.map(|file| FlatFile::create(columns.next().unwrap_or(&[]), file));
        let [regions, rss, costs, actions] = tables;
        let derived = header.settings.keys();
        let derived = derived.filter_map(|name| name.strip_prefix(AGES_SETTING)?.parse().ok());
        Ok(Self {
            tables: [regions?, rss?, costs?, actions?],
            context: RecordContext::new(header, Scope::default()),
            mappings: MappingTable::default(),
            number: 0,
            first: derived.map(|target| (TargetId(target), None)).collect(),
            left_out: LeftOut::default(),
        })
    }

    /// Takes an item. The caller must have converted page scans to snapshots.
    pub fn push(&mut self, item: &Item) -> Result<(), ConvertError> {
        self.context.observe(item);
        match item {
            Item::Snapshot(snapshot) => self.push_snapshot(snapshot),
            Item::Mappings(change) => {
                self.mappings.apply(change);
                Ok(())
            }
            Item::TargetStart(_) => Ok(()),
            Item::Usage(usage) => self.push_usage(usage),
            Item::Cost(cost) => cost_row(|row| self.tables[2].push(row), cost),
            Item::Action(action) => action_row(|row| self.tables[3].push(row), action),
            Item::Pages(_) | Item::Blocks(_) => Err(ConvertError::Impossible(
                "page scans that were not made snapshots".to_string(),
            )),
            other => {
                self.left_out.add(left_out(other), 1);
                Ok(())
            }
        }
    }

    /// Ends the tables.
    pub fn finish(self) -> Result<Written, ConvertError> {
        let [regions, rss, costs, actions] = self.tables.map(FlatFile::finish);
        Ok(Written {
            rows: [regions?, rss?, costs?, actions?],
            left_out: self.left_out,
        })
    }

    fn push_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), ConvertError> {
        let number = self.number;
        self.number += 1;
        let target = self.context.target_info(snapshot.target);
        let first = self.first.get_mut(&snapshot.target);
        let first = first.map(|first| *first.get_or_insert(snapshot.start));
        let watched = first.map(|first| snapshot.start.since(first));
        for region in &snapshot.regions {
            let mapping = self.mappings.label(snapshot.target, region.range);
            let mapping = mapping.as_ref().map(|label| &*label.name);
            let push = |row: &[ColumnValue<'_>]| self.tables[0].push(row);
            region_row(push, number, snapshot, watched, &target, mapping, region)?;
        }
        Ok(())
    }

    fn push_usage(&mut self, usage: &UsageSample) -> Result<(), ConvertError> {
        let targets: BTreeSet<u32> = usage.rss.keys().chain(usage.swap.keys()).copied().collect();
        for target in targets {
            let info = self.context.target_info(TargetId(target));
            usage_row(|row| self.tables[1].push(row), usage, target, &info)?;
        }
        Ok(())
    }
}

fn pid_of(target: &TargetInfo) -> Option<u32> {
    target.pid.filter(|pid| *pid > 0)
}

fn share_of(region: &RegionSnapshot, nr_samples: u32) -> Option<f64> {
    let share = |n| f64::from(n) / f64::from(nr_samples.max(1));
    region.nr_accesses.map(share)
}

fn why_unknown(region: &RegionSnapshot) -> Option<&'static str> {
    match (region.nr_accesses, region.memory) {
        (Some(_), _) => None,
        (None, Some(memory)) if memory.resident == 0 && memory.swapped > 0 => Some("swapped_out"),
        (None, Some(memory)) if memory.resident == 0 => Some("not_resident"),
        (None, _) => Some("not_observed"),
    }
}

/// Returns the region's age, or the reason why it is unknown. `watched` is the time for which its target had been
/// watched before, for ages that are derived from it.
fn age_of(region: &RegionSnapshot, watched: Option<Nanos>) -> Result<Nanos, &'static str> {
    if region.nr_accesses.is_none() {
        return Err("accessed_share_unknown");
    }
    if watched.is_some_and(|watched| region.age_ns >= watched) {
        return Err("before_record");
    }
    Ok(region.age_ns)
}

fn left_out(item: &Item) -> &'static str {
    match item {
        Item::TargetExit(_) => "ends of targets",
        Item::Stacks(_) | Item::Symbols(_) | Item::HugePages(_) => "other items",
        other => other.plural(),
    }
}

/// One Parquet table, written row by row.
struct FlatFile<W: Write + Send> {
    writer: ArrowWriter<W>,
    table: Rows,
    rows: u64,
}

impl<W: Write + Send> FlatFile<W> {
    fn create(columns: &[Column], output: W) -> Result<Self, ConvertError> {
        let table = Rows::new(columns);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS_IN_GROUP))
            .build();
        let writer = ArrowWriter::try_new(output, table.schema(), Some(properties));
        Ok(Self {
            writer: writer.map_err(ConvertError::Parquet)?,
            table,
            rows: 0,
        })
    }

    fn push(&mut self, row: &[ColumnValue<'_>]) -> Result<(), ConvertError> {
        self.table.push(row);
        self.rows += 1;
        if self.table.held() == ROWS_HELD {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ConvertError> {
        let batch = self.table.take();
        self.writer.write(&batch).map_err(ConvertError::Parquet)
    }

    fn finish(mut self) -> Result<u64, ConvertError> {
        if self.table.held() > 0 {
            self.write()?;
        }
        self.writer.close().map_err(ConvertError::Parquet)?;
        Ok(self.rows)
    }
}
