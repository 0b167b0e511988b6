//! A record as Arrow tables, batch by batch, for any program that reads Arrow.
//!
//! Problem: the file is an Arrow stream, but a program needs this crate to see more than its rows. Pages become
//! regions, items are JSON in messages' metadata, and nothing in the file may be trusted.
//!
//! Approach: the items of [`Reader`], checked as always, become batches of about [`ROWS`] rows. Memory holds one
//! message and one batch, regardless of the record's length.
//!
//! Limits: each table takes one pass. The rows of one snapshot stay together, so a batch is as large as the largest
//! snapshot.

use std::io::Read;
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    BooleanArray, DictionaryArray, RecordBatch, RecordBatchReader, StringArray,
    TimestampNanosecondArray, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use isotherm_engine::{MemoryTotals, Nanos, Snapshot};

use crate::columns::{Column, Columns, Kind, column};
use crate::error::RecordError;
use crate::item::Item;
use crate::reader::Reader;
use crate::schema::schema_of;

/// Approximate number of rows of a batch.
const ROWS: usize = 16_384;
/// Approximate bytes of text of items in a batch: one item may have megabytes.
const TEXT_BYTES: usize = 4 << 20;

/// A table of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordTable {
    /// A row for each snapshot, with the totals of its regions.
    Snapshots,
    /// A row for each region of each snapshot; page scans are replayed as regions.
    Regions,
    /// A row for each 2 MiB block of each page scan, in records with page scans.
    Pages,
    /// A row for each other item, its content as JSON.
    Items,
}

/// The batches of one table.
pub struct Batches<R> {
    reader: Reader<R>,
    schema: SchemaRef,
    rows: Rows,
    nr_snapshots: u32,
    is_over: bool,
}

impl<R: Read> Batches<R> {
    /// Creates the batches of `table` for the rest of `reader`.
    ///
    /// # Errors
    /// Fails if the record has no such table.
    pub fn new(reader: Reader<R>, table: RecordTable) -> Result<Self, RecordError> {
        let is_by_page = reader.is_page_record();
        if table == RecordTable::Pages && !is_by_page {
            return Err(RecordError::NoPages);
        }
        let metadata = schema_of(reader.header())?.metadata().clone();
        let (reader, mut rows) = match table {
            RecordTable::Snapshots => (reader.replay_pages(), Rows::Snapshots(Vec::new())),
            RecordTable::Regions => (reader.replay_pages(), Rows::of_columns(Kind::Regions)),
            RecordTable::Pages => (reader, Rows::of_columns(Kind::Pages)),
            RecordTable::Items => {
                let (rows, text_bytes) = (Vec::new(), 0);
                (reader, Rows::Items { rows, text_bytes })
            }
        };
        let columns = rows.take().into_iter();
        let fields: Vec<Field> = columns.map(|(field, _)| field).collect();
        Ok(Self {
            schema: Arc::new(Schema::new_with_metadata(fields, metadata)),
            rows,
            reader,
            nr_snapshots: 0,
            is_over: false,
        })
    }

    /// Returns the reader, which has the record's end once all batches were taken.
    pub fn reader(&self) -> &Reader<R> {
        &self.reader
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, RecordError> {
        while !self.is_over && !self.rows.is_batch() {
            match self.reader.next() {
                Some(item) => {
                    let item = item?;
                    self.rows.push(&item, self.nr_snapshots)?;
                    let is_snapshot = matches!(item, Item::Snapshot(_) | Item::Pages(_));
                    self.nr_snapshots += u32::from(is_snapshot);
                }
                None => self.is_over = true,
            }
        }
        if self.rows.len() == 0 {
            return Ok(None);
        }
        let columns = self.rows.take().into_iter();
        let columns = columns.map(|(_, values)| values).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        Ok(Some(batch.expect("every row was pushed to every column")))
    }
}

impl<R: Read> Iterator for Batches<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch();
        self.is_over |= batch.is_err();
        batch
            .map_err(|error| ArrowError::ExternalError(Box::new(error)))
            .transpose()
    }
}

impl<R: Read> RecordBatchReader for Batches<R> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Returns the regions of one snapshot, as rows of the table of regions.
pub fn regions(number: u32, snapshot: &Snapshot) -> RecordBatch {
    let mut columns = Columns::default();
    columns.push_snapshot(number, snapshot);
    let schema = Arc::new(Schema::new(Kind::Regions.fields()));
    RecordBatch::try_new(schema, columns.into_arrays(Kind::Regions))
        .expect("every row was pushed to every column")
}

enum Rows {
    Columns(Kind, Box<Columns>),
    Snapshots(Vec<SnapshotRow>),
    Items {
        rows: Vec<ItemRow>,
        text_bytes: usize,
    },
}

impl Rows {
    fn of_columns(kind: Kind) -> Self {
        Self::Columns(kind, Box::default())
    }

    fn push(&mut self, item: &Item, number: u32) -> Result<(), RecordError> {
        match (self, item) {
            (Self::Columns(_, rows), Item::Snapshot(snapshot)) => {
                rows.push_snapshot(number, snapshot);
            }
            (Self::Columns(_, rows), Item::Pages(pages)) => rows.push_pages(number, pages),
            (Self::Snapshots(rows), Item::Snapshot(snapshot)) => {
                rows.push(SnapshotRow::new(number, snapshot));
            }
            (Self::Items { .. }, Item::Snapshot(_) | Item::Pages(_)) => {}
            (Self::Items { rows, text_bytes }, item) => {
                let row = ItemRow::new(number, item)?;
                *text_bytes += row.json.len();
                rows.push(row);
            }
            _ => {}
        }
        Ok(())
    }

    fn len(&self) -> usize {
        match self {
            Self::Columns(_, rows) => rows.len(),
            Self::Snapshots(rows) => rows.len(),
            Self::Items { rows, .. } => rows.len(),
        }
    }

    fn is_batch(&self) -> bool {
        let is_long = matches!(self, Self::Items { text_bytes, .. } if *text_bytes >= TEXT_BYTES);
        is_long || self.len() >= ROWS
    }

    fn take(&mut self) -> Vec<Column> {
        match self {
            Self::Columns(kind, rows) => std::mem::take(&mut **rows).into_columns(*kind),
            Self::Snapshots(rows) => snapshot_columns(&std::mem::take(rows)),
            Self::Items { rows, text_bytes } => {
                *text_bytes = 0;
                item_columns(&std::mem::take(rows))
            }
        }
    }
}

fn times(times: impl Iterator<Item = Option<Nanos>>) -> TimestampNanosecondArray {
    let nanos = |time: Nanos| i64::try_from(time.0).unwrap_or(i64::MAX);
    let times: TimestampNanosecondArray = times.map(|time| time.map(nanos)).collect();
    times.with_timezone("UTC")
}

struct SnapshotRow {
    number: u32,
    start: Nanos,
    end: Nanos,
    target: u32,
    nr_samples: u32,
    regions: u32,
    totals: MemoryTotals,
}

impl SnapshotRow {
    fn new(number: u32, snapshot: &Snapshot) -> Self {
        Self {
            number,
            start: snapshot.start,
            end: snapshot.end,
            target: snapshot.target.0,
            nr_samples: snapshot.nr_samples,
            regions: u32::try_from(snapshot.regions.len()).unwrap_or(u32::MAX),
            totals: snapshot.totals(),
        }
    }
}

fn snapshot_columns(rows: &[SnapshotRow]) -> Vec<Column> {
    let number = |name: &str, of: fn(&SnapshotRow) -> u32| {
        let values = UInt32Array::from_iter_values(rows.iter().map(of));
        column(name, false, values)
    };
    let time = |name: &str, of: fn(&SnapshotRow) -> Nanos| {
        column(name, false, times(rows.iter().map(of).map(Some)))
    };
    let bytes = |name: &str, of: fn(&MemoryTotals) -> u64| {
        let values = rows.iter().map(|row| of(&row.totals));
        column(name, false, UInt64Array::from_iter_values(values))
    };
    let known = |name: &str, of: fn(&MemoryTotals) -> Option<u64>| {
        let values: UInt64Array = rows.iter().map(|row| of(&row.totals)).collect();
        column(name, true, values)
    };
    let is_exact: Vec<bool> = rows.iter().map(|row| row.totals.is_exact).collect();
    vec![
        number("snapshot", |row| row.number),
        time("start_time", |row| row.start),
        time("end_time", |row| row.end),
        number("target", |row| row.target),
        number("nr_samples", |row| row.nr_samples),
        number("regions", |row| row.regions),
        bytes("addresses", |totals| totals.addresses),
        known("resident", MemoryTotals::known_resident),
        bytes("touched", |totals| totals.touched),
        bytes("untouched", |totals| totals.untouched),
        bytes("unknown", |totals| totals.unknown),
        known("swapped", MemoryTotals::known_swapped),
        column("is_exact", false, BooleanArray::from(is_exact)),
    ]
}

struct ItemRow {
    time: Option<Nanos>,
    kind: &'static str,
    target: Option<u32>,
    nr_snapshots: u32,
    json: String,
}

impl ItemRow {
    fn new(nr_snapshots: u32, item: &Item) -> Result<Self, RecordError> {
        let json = serde_json::to_value(item).and_then(|mut whole| {
            let content = whole.get_mut(item.kind()).map(serde_json::Value::take);
            serde_json::to_string(&content.unwrap_or(whole))
        });
        Ok(Self {
            time: item.time(),
            kind: item.kind(),
            target: item.target().map(|target| target.0),
            nr_snapshots,
            json: json.map_err(|error| RecordError::Unwritable(format!("an item: {error}")))?,
        })
    }
}

fn item_columns(rows: &[ItemRow]) -> Vec<Column> {
    let kinds: DictionaryArray<Int8Type> = rows.iter().map(|row| row.kind).collect();
    let targets: UInt32Array = rows.iter().map(|row| row.target).collect();
    let snapshots = UInt32Array::from_iter_values(rows.iter().map(|row| row.nr_snapshots));
    let items = StringArray::from_iter_values(rows.iter().map(|row| &row.json));
    vec![
        column("time", true, times(rows.iter().map(|row| row.time))),
        column("kind", false, kinds),
        column("target", true, targets),
        column("snapshots", false, snapshots),
        column("item", false, items),
    ]
}
