//! Converts Parquet to a record.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema};
use isotherm_engine::{Nanos, TargetId};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};

use super::decode::{columns_of, decoded};
use super::{Around, HEADER_COLUMN, ITEMS_COLUMN, ITEMS_KEY, Placed, Stamp};
use crate::columns::{Kind, MEMORY_COLUMNS};
use crate::convert::{Conversion, ConvertError};
use crate::error::RecordError;
use crate::item::{Header, Item, TargetStart};
use crate::pages::{GRANULARITY, GRANULARITY_PAGE};
use crate::reader::check_item;
use crate::rows::Rows;
use crate::schema::{HEADER_KEY, VERSION, VERSION_KEY};
use crate::writer::{MAX_REGIONS, MAX_ROWS_HELD, Writer};

type Builder = ParquetRecordBatchReaderBuilder<File>;

/// Writes the record in the Parquet file `input` to `output`.
pub fn import<W: Write>(input: &File, output: W) -> Result<Conversion, ConvertError> {
    let builder = open(input)?;
    let metadata: HashMap<String, String> = builder
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .into_iter()
        .flatten()
        .filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?)))
        .collect();
    let mut conversion = Conversion::default();
    let stamp = match stamp_in_metadata(&metadata)? {
        Some(stamp) => Some(stamp),
        None => stamp_in_column(input)?,
    };
    let header = match stamp {
        Some(Stamp { version, .. }) if version > VERSION => {
            return Err(ConvertError::Record(RecordError::Version {
                found: version.to_string(),
                known: VERSION,
            }));
        }
        Some(stamp) => stamp.header,
        None => {
            conversion.assumed.push(format!(
                "a header by its first row, since it has no {HEADER_COLUMN}"
            ));
            derived_header(input)?
        }
    };
    let schema = builder.schema().clone();
    let has_items =
        schema.field_with_name(ITEMS_COLUMN).is_ok() || metadata.contains_key(ITEMS_KEY);
    if !has_items {
        conversion.assumed.push(format!(
            "nothing of targets, mappings and costs, since it has no {ITEMS_COLUMN}"
        ));
    }
    let kind = kind_of(&header, &schema);
    let mut merge = Merge {
        writer: Writer::create(output, &header)?,
        rows: 0,
        items: parse_items(metadata.get(ITEMS_KEY).map_or("[]", String::as_str))?,
        open: None,
        after: Vec::new(),
        strangers: (!has_items).then(BTreeSet::new),
        conversion,
    };
    let columns = builder.parquet_schema().root_schema().get_fields();
    let fields = kind.fields();
    let wanted = columns.iter().enumerate().filter(|(_, column)| {
        column.name() == ITEMS_COLUMN || fields.iter().any(|field| field.name() == column.name())
    });
    let wanted: Vec<usize> = wanted.map(|(index, _)| index).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
    let builder = builder.with_projection(mask).with_batch_size(MAX_ROWS_HELD);
    let mut batches = decoded(|| builder.build())?;
    while let Some(batch) = decoded(|| Ok(batches.next().transpose()?))? {
        merge.add_batch(kind, &batch)?;
    }
    merge.finish()
}

/// Opens the file with Parquet's own types: the writing program's Arrow types are ignored.
fn open(input: &File) -> Result<Builder, ConvertError> {
    let input = input.try_clone().map_err(ConvertError::Read)?;
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    decoded(|| ParquetRecordBatchReaderBuilder::try_new_with_options(input, options))
}

fn stamp_in_metadata(metadata: &HashMap<String, String>) -> Result<Option<Stamp>, ConvertError> {
    let Some(json) = metadata.get(HEADER_KEY) else {
        return Ok(None);
    };
    let header = serde_json::from_str(json)
        .map_err(|error| ConvertError::NotARecord(format!("its header does not parse: {error}")))?;
    let version = metadata.get(VERSION_KEY).and_then(|v| v.parse().ok());
    Ok(Some(Stamp {
        version: version.unwrap_or(1),
        header,
    }))
}

/// Reads the header from the first row that has one.
fn stamp_in_column(input: &File) -> Result<Option<Stamp>, ConvertError> {
    const ROWS_AT_ONCE: usize = 1024;
    let builder = open(input)?;
    let Ok(column) = builder.schema().index_of(HEADER_COLUMN) else {
        return Ok(None);
    };
    let mask = ProjectionMask::roots(builder.parquet_schema(), [column]);
    let builder = builder.with_projection(mask).with_batch_size(ROWS_AT_ONCE);
    let mut batches = decoded(|| builder.build())?;
    while let Some(batch) = decoded(|| Ok(batches.next().transpose()?))? {
        if let Some(json) = texts(batch.column(0), HEADER_COLUMN)?
            .into_iter()
            .flatten()
            .next()
        {
            let stamp = serde_json::from_str(json).map_err(|error| {
                ConvertError::NotARecord(format!("its {HEADER_COLUMN} does not parse: {error}"))
            })?;
            return Ok(Some(stamp));
        }
    }
    Ok(None)
}

/// Derives a header from the first row: the start of the record, and the length of its first snapshot.
fn derived_header(input: &File) -> Result<Header, ConvertError> {
    let builder = open(input)?;
    let mut header = Header {
        writer: concat!("isotherm ", env!("CARGO_PKG_VERSION"), " convert").to_string(),
        operations: "unknown".to_string(),
        ..Header::default()
    };
    if builder.schema().field_with_name("present").is_ok() {
        let page = (GRANULARITY.to_string(), GRANULARITY_PAGE.to_string());
        header.settings.extend([page]);
    }
    let kind = kind_of(&header, builder.schema());
    let builder = builder.with_batch_size(1).with_limit(1);
    let mut batches = decoded(|| builder.build())?;
    let Some(batch) = decoded(|| Ok(batches.next().transpose()?))? else {
        return Ok(header);
    };
    let mut rows = Rows::new(0, kind, columns_of(kind, &batch)?).map_err(not_a_record)?;
    let (start, end, nr_samples) = match rows.next_item().map_err(not_a_record)? {
        Some(Item::Snapshot(first)) => (first.start, first.end, first.nr_samples),
        Some(Item::Pages(first)) => (first.start, first.end, 1),
        _ => return Ok(header),
    };
    header.started = start;
    header.aggregation_interval = end.since(start);
    header.sample_interval = Nanos(header.aggregation_interval.0 / u64::from(nr_samples.max(1)));
    Ok(header)
}

fn kind_of(header: &Header, schema: &Schema) -> Kind {
    let has_memory = MEMORY_COLUMNS
        .iter()
        .all(|name| schema.field_with_name(name).is_ok());
    match Kind::of(header) {
        Kind::Regions if !has_memory => Kind::BareRegions,
        kind => kind,
    }
}

fn texts<'a>(column: &'a ArrayRef, name: &str) -> Result<Vec<Option<&'a str>>, ConvertError> {
    match column.data_type() {
        DataType::Utf8 => Ok(column.as_string::<i32>().iter().collect()),
        // pyarrow uses this type for a column of nulls only.
        DataType::Null => Ok(vec![None; column.len()]),
        other => Err(ConvertError::NotARecord(format!(
            "its column {name} is {other}, and a record's is Utf8"
        ))),
    }
}

fn not_a_record(error: RecordError) -> ConvertError {
    match error {
        RecordError::Corrupt { reason, .. } => ConvertError::NotARecord(format!("it {reason}")),
        other => other.into(),
    }
}

fn check_length(rows: usize) -> Result<(), ConvertError> {
    if rows > MAX_REGIONS {
        return Err(ConvertError::NotARecord(format!(
            "one of its snapshots has more than {MAX_REGIONS} rows"
        )));
    }
    Ok(())
}

fn parse_items(json: &str) -> Result<VecDeque<Placed>, ConvertError> {
    let items: VecDeque<Placed> = serde_json::from_str(json)
        .map_err(|error| ConvertError::NotARecord(format!("its items do not parse: {error}")))?;
    items.iter().try_for_each(|placed| check(&placed.item))?;
    Ok(items)
}

fn check(item: &Item) -> Result<(), ConvertError> {
    check_item(item).map_err(|reason| ConvertError::NotARecord(format!("an item {reason}")))
}

/// Returns the items beside the rows that have any.
fn around(batch: &RecordBatch) -> Result<Vec<(usize, Around)>, ConvertError> {
    let Some(column) = batch.column_by_name(ITEMS_COLUMN) else {
        return Ok(Vec::new());
    };
    let texts = texts(column, ITEMS_COLUMN)?.into_iter().enumerate();
    let mut found = Vec::new();
    for (row, json) in texts.filter_map(|(row, json)| Some((row, json?))) {
        let around: Around = serde_json::from_str(json).map_err(|error| {
            ConvertError::NotARecord(format!("its {ITEMS_COLUMN} does not parse: {error}"))
        })?;
        around
            .before
            .iter()
            .chain(&around.after)
            .try_for_each(check)?;
        found.push((row, around));
    }
    Ok(found)
}

/// Merges rows and items. A snapshot may be split between batches.
struct Merge<W: Write> {
    writer: Writer<W>,
    /// Rows in snapshots that are complete.
    rows: u64,
    items: VecDeque<Placed>,
    open: Option<(u32, Item)>,
    /// Items behind the open snapshot.
    after: Vec<Item>,
    /// Targets seen so far, in a record whose items do not name targets.
    strangers: Option<BTreeSet<TargetId>>,
    conversion: Conversion,
}

impl<W: Write> Merge<W> {
    fn add_batch(&mut self, kind: Kind, batch: &RecordBatch) -> Result<(), ConvertError> {
        let mut around = VecDeque::from(around(batch)?);
        let mut rows = Rows::new(0, kind, columns_of(kind, batch)?).map_err(not_a_record)?;
        while let Some(number) = rows.next_number() {
            let first = rows.next_row();
            let Some(item) = rows.next_item().map_err(not_a_record)? else {
                break;
            };
            self.add(number, item, &mut around, first..rows.next_row())?;
        }
        Ok(())
    }

    /// Adds a snapshot, or a part of one, from `rows` of a batch.
    fn add(
        &mut self,
        number: u32,
        item: Item,
        around: &mut VecDeque<(usize, Around)>,
        rows: Range<usize>,
    ) -> Result<(), ConvertError> {
        let last = self.open.as_ref().map(|(open, _)| *open);
        if last.is_some_and(|last| number < last) {
            return Err(ConvertError::NotARecord(
                "its rows are not in a record's order; sort them by snapshot and start".to_string(),
            ));
        }
        if last != Some(number) {
            self.close()?;
        }
        while let Some((_, here)) = around.pop_front_if(|(row, _)| rows.contains(row)) {
            for item in here.before {
                self.write_item(&item)?;
            }
            self.after.extend(here.after);
        }
        match (&mut self.open, item) {
            (Some((_, Item::Snapshot(whole))), Item::Snapshot(part)) => {
                check_length(whole.regions.len() + part.regions.len())?;
                whole.regions.extend(part.regions);
            }
            (Some((_, Item::Pages(whole))), Item::Pages(part)) => {
                check_length(whole.blocks.len() + part.blocks.len())?;
                whole.blocks.extend(part.blocks);
            }
            (_, item) => self.open = Some((number, item)),
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), ConvertError> {
        if let Some((_, item)) = self.open.take() {
            self.write_items(self.rows)?;
            let (target, start, rows) = match &item {
                Item::Snapshot(snapshot) => {
                    (snapshot.target, snapshot.start, snapshot.regions.len())
                }
                Item::Pages(pages) => (pages.target, pages.start, pages.blocks.len()),
                _ => unreachable!("rows are snapshots"),
            };
            self.introduce(target, start)?;
            self.rows += rows as u64;
            self.write_item(&item)?;
        }
        for item in std::mem::take(&mut self.after) {
            self.write_item(&item)?;
        }
        Ok(())
    }

    /// Writes a target start for a target that no item names.
    fn introduce(&mut self, target: TargetId, time: Nanos) -> Result<(), ConvertError> {
        let is_new = self
            .strangers
            .as_mut()
            .is_some_and(|seen| seen.insert(target));
        if is_new {
            let start = TargetStart::new(time, target, 0, "unknown");
            self.write_item(&Item::TargetStart(start))?;
        }
        Ok(())
    }

    fn write_item(&mut self, item: &Item) -> Result<(), ConvertError> {
        self.conversion.count(item);
        Ok(self.writer.write(item)?)
    }

    /// Writes the items of the metadata that belong before row `row + 1`.
    fn write_items(&mut self, row: u64) -> Result<(), ConvertError> {
        while let Some(placed) = self.items.pop_front_if(|placed| placed.row <= row) {
            self.write_item(&placed.item)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Conversion, ConvertError> {
        self.close()?;
        self.write_items(u64::MAX)?;
        self.writer.finish()?;
        Ok(self.conversion)
    }
}
