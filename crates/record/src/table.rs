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

use arrow_array::builder::{
    BooleanBuilder, PrimitiveBuilder, StringBuilder, StringDictionaryBuilder,
};
use arrow_array::types::{
    ArrowPrimitiveType, Int8Type, TimestampNanosecondType, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use isotherm_engine::{Nanos, Snapshot};

use crate::columns::Columns;
use crate::error::RecordError;
use crate::item::Item;
use crate::reader::Reader;
use crate::schema::{Kind, schema_of};

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
    /// Number of snapshots so far.
    nr_snapshots: u32,
    /// Whether the record has been read.
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
        let (reader, rows) = match table {
            RecordTable::Snapshots => (reader.replay_pages(), Rows::Snapshots(Box::default())),
            RecordTable::Regions => (reader.replay_pages(), Rows::of_columns(Kind::Regions)),
            RecordTable::Pages => (reader, Rows::of_columns(Kind::Pages)),
            RecordTable::Items => (reader, Rows::Items(Box::default())),
        };
        Ok(Self {
            schema: Arc::new(Schema::new_with_metadata(rows.fields(), metadata)),
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
        let columns = self.rows.take();
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

/// Rows that are being gathered.
enum Rows {
    Columns(Kind, Box<Columns>),
    Snapshots(Box<SnapshotRows>),
    Items(Box<ItemRows>),
}

impl Rows {
    fn of_columns(kind: Kind) -> Self {
        Self::Columns(kind, Box::default())
    }

    fn fields(&self) -> Vec<Field> {
        match self {
            Self::Columns(kind, _) => kind.fields(),
            Self::Snapshots(_) => SnapshotRows::fields(),
            Self::Items(_) => ItemRows::fields(),
        }
    }

    fn push(&mut self, item: &Item, number: u32) -> Result<(), RecordError> {
        match (self, item) {
            (Self::Columns(_, rows), Item::Snapshot(snapshot)) => {
                rows.push_snapshot(number, snapshot);
            }
            (Self::Columns(_, rows), Item::Pages(pages)) => rows.push_pages(number, pages),
            (Self::Snapshots(rows), Item::Snapshot(snapshot)) => rows.push(number, snapshot),
            (Self::Items(_), Item::Snapshot(_) | Item::Pages(_)) => {}
            (Self::Items(rows), item) => rows.push(number, item)?,
            _ => {}
        }
        Ok(())
    }

    fn len(&self) -> usize {
        match self {
            Self::Columns(_, rows) => rows.len(),
            Self::Snapshots(rows) => rows.nr,
            Self::Items(rows) => rows.nr,
        }
    }

    fn is_batch(&self) -> bool {
        let is_long = matches!(self, Self::Items(rows) if rows.text_bytes >= TEXT_BYTES);
        is_long || self.len() >= ROWS
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        match self {
            Self::Columns(kind, rows) => std::mem::take(&mut **rows).into_arrays(*kind),
            Self::Snapshots(rows) => rows.take(),
            Self::Items(rows) => rows.take(),
        }
    }
}

fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn times() -> PrimitiveBuilder<TimestampNanosecondType> {
    PrimitiveBuilder::new().with_data_type(time_type())
}

fn nanos(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn finish<T: ArrowPrimitiveType>(column: &mut PrimitiveBuilder<T>) -> ArrayRef {
    Arc::new(column.finish())
}

struct SnapshotRows {
    nr: usize,
    times: [PrimitiveBuilder<TimestampNanosecondType>; 2],
    /// Snapshot, target, samples, regions.
    numbers: [PrimitiveBuilder<UInt32Type>; 4],
    /// Addresses, resident, touched, untouched, unknown, swapped.
    bytes: [PrimitiveBuilder<UInt64Type>; 6],
    is_exact: BooleanBuilder,
}

impl Default for SnapshotRows {
    fn default() -> Self {
        Self {
            nr: 0,
            times: [times(), times()],
            numbers: Default::default(),
            bytes: Default::default(),
            is_exact: BooleanBuilder::default(),
        }
    }
}

impl SnapshotRows {
    fn fields() -> Vec<Field> {
        let number = |name: &str| Field::new(name, DataType::UInt32, false);
        let bytes = |name: &str| Field::new(name, DataType::UInt64, false);
        let may_be_unknown = |name: &str| Field::new(name, DataType::UInt64, true);
        vec![
            number("snapshot"),
            Field::new("start_time", time_type(), false),
            Field::new("end_time", time_type(), false),
            number("target"),
            number("nr_samples"),
            number("regions"),
            bytes("addresses"),
            may_be_unknown("resident"),
            bytes("touched"),
            bytes("untouched"),
            bytes("unknown"),
            may_be_unknown("swapped"),
            Field::new("is_exact", DataType::Boolean, false),
        ]
    }

    fn push(&mut self, number: u32, snapshot: &Snapshot) {
        self.nr += 1;
        let totals = snapshot.totals();
        self.times[0].append_value(nanos(snapshot.start));
        self.times[1].append_value(nanos(snapshot.end));
        let regions = u32::try_from(snapshot.regions.len()).unwrap_or(u32::MAX);
        let numbers = [number, snapshot.target.0, snapshot.nr_samples, regions];
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            column.append_value(number);
        }
        let bytes = [
            Some(totals.addresses),
            totals.known_resident(),
            Some(totals.touched),
            Some(totals.untouched),
            Some(totals.unknown),
            totals.known_swapped(),
        ];
        for (column, bytes) in self.bytes.iter_mut().zip(bytes) {
            column.append_option(bytes);
        }
        self.is_exact.append_value(totals.is_exact);
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        self.nr = 0;
        let [number, target, samples, regions] = self.numbers.each_mut().map(finish);
        let [start, end] = self.times.each_mut().map(finish);
        let mut columns = vec![number, start, end, target, samples, regions];
        columns.extend(self.bytes.each_mut().map(finish));
        columns.push(Arc::new(self.is_exact.finish()));
        columns
    }
}

struct ItemRows {
    nr: usize,
    text_bytes: usize,
    time: PrimitiveBuilder<TimestampNanosecondType>,
    kind: StringDictionaryBuilder<Int8Type>,
    target: PrimitiveBuilder<UInt32Type>,
    snapshots: PrimitiveBuilder<UInt32Type>,
    item: StringBuilder,
}

impl Default for ItemRows {
    fn default() -> Self {
        Self {
            nr: 0,
            text_bytes: 0,
            time: times(),
            kind: StringDictionaryBuilder::new(),
            target: PrimitiveBuilder::new(),
            snapshots: PrimitiveBuilder::new(),
            item: StringBuilder::new(),
        }
    }
}

impl ItemRows {
    fn fields() -> Vec<Field> {
        let name = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        vec![
            Field::new("time", time_type(), true),
            Field::new("kind", name, false),
            Field::new("target", DataType::UInt32, true),
            Field::new("snapshots", DataType::UInt32, false),
            Field::new("item", DataType::Utf8, false),
        ]
    }

    fn push(&mut self, nr_snapshots: u32, item: &Item) -> Result<(), RecordError> {
        let json = serde_json::to_value(item).and_then(|mut whole| {
            let content = whole.get_mut(item.kind()).map(serde_json::Value::take);
            serde_json::to_string(&content.unwrap_or(whole))
        });
        let json = json.map_err(|error| RecordError::Unwritable(format!("an item: {error}")))?;
        self.nr += 1;
        self.text_bytes += json.len();
        self.time.append_option(item.time().map(nanos));
        self.kind.append_value(item.kind());
        self.target
            .append_option(item.target().map(|target| target.0));
        self.snapshots.append_value(nr_snapshots);
        self.item.append_value(json);
        Ok(())
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        self.nr = 0;
        self.text_bytes = 0;
        vec![
            finish(&mut self.time),
            Arc::new(self.kind.finish()),
            finish(&mut self.target),
            finish(&mut self.snapshots),
            Arc::new(self.item.finish()),
        ]
    }
}
