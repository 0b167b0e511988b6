//! Reports as Arrow tables: the content of their CSV with types, and with null in place of empty fields.
//!
//! Durations are nanoseconds. Points in time are nanoseconds since the beginning of the record. Sizes and addresses are
//! bytes. The sum of all targets has no number: its `target` is null.

use arrow_array::RecordBatch;
use isotherm_engine::TargetId;

use crate::rows::ColumnType::{F64, Name, U32, U64};
use crate::rows::{Column, Rows, Value, column, nullable};
use crate::{AccessReport, HeatmapReport, IdleReport, ReclaimCurveReport, WssReport};

/// A report with a table.
pub trait Tabulate {
    /// The columns of the table.
    const COLUMNS: &'static [Column];

    /// Returns the rows.
    fn table(&self) -> RecordBatch;
}

const TARGET: Column = nullable("target", U32, "Number of the target; null: all of them.");

fn target(target: Option<TargetId>) -> Value {
    Value::number(target.map(|target| target.0))
}

fn share(share: Option<f32>) -> Value {
    share.map_or(Value::Null, |share| Value::F64(f64::from(share)))
}

impl Tabulate for WssReport {
    /// The columns of a row for each step of time.
    const COLUMNS: &'static [Column] = &[
        TARGET,
        column("time_ns", U64, "When the step begins."),
        column("min_bytes", U64, "Least working set in the step."),
        column("mean_bytes", U64, "Its mean over time."),
        column("max_bytes", U64, "Its greatest."),
    ];

    fn table(&self) -> RecordBatch {
        let mut rows = Rows::new(Self::COLUMNS);
        for set in self.targets.iter().chain(&self.total) {
            for point in &set.series {
                rows.push([
                    target(set.target.target),
                    Value::U64(point.time_ns.0),
                    Value::U64(point.min),
                    Value::U64(point.mean),
                    Value::U64(point.max),
                ]);
            }
        }
        rows.take()
    }
}

impl Tabulate for IdleReport {
    /// The columns of a row for each minimum idle time, and for each percentile.
    const COLUMNS: &'static [Column] = &[
        TARGET,
        column("time_ns", U64, "When."),
        column(
            "kind",
            Name,
            "`idle_at_least`: `bytes` were idle for `idle_ns` or longer. `percentile`: `percent` of the known bytes \
             were idle for `idle_ns` at most.",
        ),
        nullable("percent", F64, "Of the bytes, 0 to 100."),
        column("idle_ns", U64, "How long."),
        nullable(
            "bytes",
            U64,
            "How many; null where the target was not watched for so long.",
        ),
    ];

    fn table(&self) -> RecordBatch {
        let mut rows = Rows::new(Self::COLUMNS);
        for memory in self.targets.iter().chain(&self.total) {
            let (who, when) = (memory.target.target, memory.time_ns.0);
            for idle in &memory.idle {
                rows.push([
                    target(who),
                    Value::U64(when),
                    Value::word("idle_at_least"),
                    Value::Null,
                    Value::U64(idle.at_least_ns.0),
                    Value::number(idle.bytes),
                ]);
            }
            for percentile in &memory.percentiles {
                rows.push([
                    target(who),
                    Value::U64(when),
                    Value::word("percentile"),
                    Value::F64(percentile.percent),
                    Value::U64(percentile.value),
                    Value::Null,
                ]);
            }
        }
        rows.take()
    }
}

impl Tabulate for AccessReport {
    /// The columns of a row for each region.
    const COLUMNS: &'static [Column] = &[
        TARGET,
        column("snapshot", U64, "Number of the target's snapshot."),
        column("start_ns", U64, "When its interval began."),
        column("end_ns", U64, "When it ended."),
        column("address_start", U64, "First address."),
        column("address_end", U64, "First address behind it."),
        column("size_bytes", U64, "Length of the region."),
        nullable(
            "access_rate",
            F64,
            "Share of checks that found an access, 0 to 1; null: not known.",
        ),
        column("age_ns", U64, "For how long it has been accessed so often."),
        column("age_intervals", U32, "The same in intervals."),
        column("nr_samples", U32, "Checks in the interval."),
        nullable("mapping", Name, "What lies there."),
        nullable("resident_bytes", U64, "Bytes in memory."),
        nullable("touched_bytes", U64, "Of these, accessed in the interval."),
        nullable(
            "unknown_bytes",
            U64,
            "Of these, those of which that is not known.",
        ),
        nullable("swapped_bytes", U64, "Bytes swapped out."),
    ];

    fn table(&self) -> RecordBatch {
        let mut rows = Rows::new(Self::COLUMNS);
        for table in &self.snapshots {
            for region in &table.regions {
                let memory = region.memory;
                let mapping = region.mapping.as_ref();
                rows.push([
                    target(table.target.target),
                    Value::U64(table.snapshot),
                    Value::U64(table.start_ns.0),
                    Value::U64(table.end_ns.0),
                    Value::U64(region.start),
                    Value::U64(region.end),
                    Value::U64(region.size_bytes),
                    share(region.access_rate),
                    Value::U64(region.age_ns.0),
                    Value::U64(u64::from(region.age_intervals)),
                    Value::U64(u64::from(table.nr_samples)),
                    mapping.map_or(Value::Null, |label| Value::Name(label.name.clone())),
                    Value::number(memory.map(|memory| memory.resident)),
                    Value::number(memory.map(|memory| memory.touched)),
                    Value::number(memory.map(|memory| memory.unknown)),
                    Value::number(memory.map(|memory| memory.swapped)),
                ]);
            }
        }
        rows.take()
    }
}

impl Tabulate for HeatmapReport {
    /// The columns of a row for each watched cell.
    const COLUMNS: &'static [Column] = &[
        TARGET,
        column("time_ns", U64, "When the column begins."),
        column("address_start", U64, "First address of the row."),
        column("address_end", U64, "First address behind it."),
        nullable(
            "access_rate",
            F64,
            "Mean access rate of what is known, 0 to 1; null where most is unknown.",
        ),
        column("age_ns", U64, "Mean age, by bytes."),
        column(
            "monitored_share",
            F64,
            "Share of bytes and time that was watched, above 0 to 1.",
        ),
        nullable("mapping", Name, "What was last known to lie there."),
    ];

    fn table(&self) -> RecordBatch {
        let mut rows = Rows::new(Self::COLUMNS);
        for heatmap in &self.targets {
            for (row, facts) in heatmap.rows.iter().enumerate() {
                for (column, cell) in heatmap.cells.row(row).iter().enumerate() {
                    if cell.monitored <= 0.0 {
                        continue;
                    }
                    let mapping = facts.mapping.as_ref();
                    rows.push([
                        target(heatmap.target.target),
                        Value::U64(self.time_at(column).0),
                        Value::U64(facts.range.start),
                        Value::U64(facts.range.end),
                        share(cell.access_rate),
                        Value::U64((f64::from(cell.age) * 1e9) as u64),
                        Value::F64(f64::from(cell.monitored)),
                        mapping.map_or(Value::Null, |label| Value::Name(label.name.clone())),
                    ]);
                }
            }
        }
        rows.take()
    }
}

impl Tabulate for ReclaimCurveReport {
    /// The columns of a row for each threshold.
    const COLUMNS: &'static [Column] = &[
        column(
            "policy",
            Name,
            "`idle`: each page is taken once it was idle for this time. `backoff`: refaulted pages later.",
        ),
        column("threshold_ns", U64, "Idle for so long."),
        column("saved_byte_seconds", F64, "Bytes times seconds."),
        column("saved_mean_bytes", U64, "Mean over time."),
        column(
            "saved_share",
            F64,
            "The same of the mean resident memory, 0 to 1.",
        ),
        column("refaults_per_s", F64, "Pages read back per second."),
        column(
            "slowdown",
            F64,
            "Share of its time that the program would have lost, 0 to 1.",
        ),
    ];

    fn table(&self) -> RecordBatch {
        let mut rows = Rows::new(Self::COLUMNS);
        let first = self.points.iter().map(|point| ("idle", point));
        let second = self.backoff_points.iter().map(|point| ("backoff", point));
        for (policy, point) in first.chain(second) {
            rows.push([
                Value::word(policy),
                Value::U64(point.threshold_ns.0),
                Value::F64(point.saved_byte_seconds),
                Value::U64(point.saved_mean_bytes),
                Value::F64(point.saved_share),
                Value::F64(point.refaults_per_s),
                Value::F64(point.slowdown),
            ]);
        }
        rows.take()
    }
}
