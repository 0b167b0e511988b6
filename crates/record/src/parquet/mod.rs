//! A record as Parquet, and back.
//!
//! The rows become a Parquet table with the same columns. Two more columns hold the rest of the record as JSON.
//! `isotherm_header` is the header, the same in every row (a dictionary makes it take no space). `isotherm_items`, in
//! the first row of a snapshot, has the items before that snapshot. Both ways lose nothing. The header is in the file's
//! key-value metadata, too, for readers that look there. But pyarrow, pandas, polars and DuckDB drop the metadata when
//! they write a file again, and keep columns.
//!
//! A file from such programs is read by the names of its columns, in any order and among other columns, if their values
//! fit. Removed rows are missing, with the items in them. Without `isotherm_header`, the header is derived from the
//! rows, and the rest of it is unknown.
//!
//! Limits: rows must be in the record's order, sorted by `snapshot` and `start`. More than [`MAX_ITEMS_BYTES`] of items
//! between two snapshots are refused. A record without any row has its items in the metadata, under `isotherm.items`,
//! like all files of earlier versions. The parquet crate decompresses pages of a Parquet file, and trusts their sizes:
//! do not convert files of strangers without a memory limit. It panics on some damaged files (60.0: an index beyond its
//! dictionary). The import catches that and returns an error.

mod decode;
mod import;
#[cfg(test)]
mod tests;

use std::io::{Read, Write};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};

use crate::columns::{Columns, Kind};
use crate::convert::{Conversion, ConvertError};
use crate::item::{Header, Item};
use crate::reader::Reader;
use crate::schema::{VERSION, schema_of};
use crate::writer::MAX_ROWS_HELD;

pub use import::import;

/// Key of the items' JSON in the metadata.
const ITEMS_KEY: &str = "isotherm.items";
/// Name of the column that repeats the header.
const HEADER_COLUMN: &str = "isotherm_header";
const ITEMS_COLUMN: &str = "isotherm_items";
/// The largest number of bytes of items between two snapshots, as JSON.
pub const MAX_ITEMS_BYTES: usize = 256 << 20;
/// Number of rows in a row group: small enough to build in a few tens of megabytes.
const ROWS_IN_GROUP: usize = 256 << 10;

/// A value of [`HEADER_COLUMN`].
#[derive(Serialize, Deserialize)]
struct Stamp {
    version: u32,
    #[serde(flatten)]
    header: Header,
}

/// A value of [`ITEMS_COLUMN`].
#[derive(Default, Deserialize)]
struct Around {
    /// Items before the snapshot that the row begins.
    #[serde(default)]
    before: Vec<Item>,
    /// Items after the row, in the table's last row.
    #[serde(default)]
    after: Vec<Item>,
}

/// An item in the metadata, with its place.
#[derive(Deserialize)]
struct Placed {
    /// Number of rows before it.
    row: u64,
    item: Item,
}

/// Writes the rest of `record` as Parquet.
pub fn export<R: Read, W: Write + Send>(
    record: &mut Reader<R>,
    output: W,
) -> Result<Conversion, ConvertError> {
    let header = record.header().clone();
    let mut table = ParquetTable::create(&header, output)?;
    let mut conversion = Conversion::default();
    let mut number = 0;
    for item in record {
        let item = match item? {
            // Readers of such a table do not know bitmaps.
            Item::Snapshot(snapshot) if !snapshot.regions.is_empty() => {
                Item::Snapshot(snapshot.by_page())
            }
            other => other,
        };
        match &item {
            Item::Snapshot(snapshot) if !snapshot.regions.is_empty() => {
                table.begin_snapshot()?;
                table.columns.push_snapshot(number, snapshot);
            }
            Item::Pages(pages) if !pages.blocks.is_empty() => {
                table.begin_snapshot()?;
                table.columns.push_pages(number, pages);
            }
            other => table.waiting.add(other)?,
        }
        conversion.count(&item);
        number += u32::from(matches!(item, Item::Snapshot(_) | Item::Pages(_)));
    }
    table.finish()?;
    Ok(conversion)
}

/// Items as JSON, with commas between them.
#[derive(Default)]
struct Items(String);

impl Items {
    fn add(&mut self, item: &Item) -> Result<(), ConvertError> {
        let json = serde_json::to_string(item).map_err(ConvertError::Json)?;
        if self.0.len() + json.len() > MAX_ITEMS_BYTES {
            return Err(ConvertError::Impossible(format!(
                "more than {MAX_ITEMS_BYTES} bytes of mappings and other items between two \
                 snapshots, too much for a row of a Parquet file"
            )));
        }
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&json);
        Ok(())
    }
}

struct ParquetTable<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
    kind: Kind,
    stamp: String,
    columns: Columns,
    /// Rows of `columns` with items, and the items; both in order.
    items: Vec<(usize, String)>,
    waiting: Items,
}

impl<W: Write + Send> ParquetTable<W> {
    fn create(header: &Header, output: W) -> Result<Self, ConvertError> {
        let kind = Kind::of(header);
        let plain = schema_of(header)?;
        let mut metadata: Vec<KeyValue> = plain
            .metadata()
            .iter()
            .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
            .collect();
        // A map has no order, the same record must give the same file.
        metadata.sort_by(|a, b| a.key.cmp(&b.key));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS_IN_GROUP))
            .set_column_dictionary_enabled(ColumnPath::from(ITEMS_COLUMN), false)
            .set_key_value_metadata(Some(metadata))
            .build();
        let mut fields = kind.fields();
        let repeated = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        fields.push(Field::new(HEADER_COLUMN, repeated, false));
        fields.push(Field::new(ITEMS_COLUMN, DataType::Utf8, true));
        let schema = Arc::new(Schema::new(fields));
        let writer = ArrowWriter::try_new(output, schema.clone(), Some(properties))
            .map_err(ConvertError::Parquet)?;
        let stamp = Stamp {
            version: VERSION,
            header: header.clone(),
        };
        Ok(Self {
            writer,
            schema,
            kind,
            stamp: serde_json::to_string(&stamp).map_err(ConvertError::Json)?,
            columns: Columns::default(),
            items: Vec::new(),
            waiting: Items::default(),
        })
    }

    /// Writes full columns out, and gives the next snapshot's first row the items before it.
    fn begin_snapshot(&mut self) -> Result<(), ConvertError> {
        if self.columns.len() >= MAX_ROWS_HELD {
            self.write()?;
        }
        let Items(items) = std::mem::take(&mut self.waiting);
        if !items.is_empty() {
            let items = format!(r#"{{"before":[{items}]}}"#);
            self.items.push((self.columns.len(), items));
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ConvertError> {
        let rows = self.columns.len();
        let mut arrays = std::mem::take(&mut self.columns).into_arrays(self.kind);
        let stamp = Arc::new(StringArray::from(vec![self.stamp.as_str()]));
        let stamps = DictionaryArray::<Int32Type>::try_new(Int32Array::from(vec![0; rows]), stamp)
            .expect("every key is that of the one value");
        let mut items = std::mem::take(&mut self.items).into_iter().peekable();
        let items: StringArray = (0..rows)
            .map(|row| Some(items.next_if(|(at, _)| *at == row)?.1))
            .collect();
        arrays.push(Arc::new(stamps) as ArrayRef);
        arrays.push(Arc::new(items));
        let batch = RecordBatch::try_new(self.schema.clone(), arrays)
            .expect("every row was pushed to every column");
        self.writer.write(&batch).map_err(ConvertError::Parquet)
    }

    fn finish(mut self) -> Result<(), ConvertError> {
        let Items(items) = std::mem::take(&mut self.waiting);
        let rows = self.columns.len();
        if rows > 0 {
            self.add_after(rows - 1, &items);
            self.write()?;
        } else if !items.is_empty() {
            // No row can hold the items.
            let items: Vec<Item> =
                serde_json::from_str(&format!("[{items}]")).map_err(ConvertError::Json)?;
            let placed: Vec<_> = items
                .iter()
                .map(|item| serde_json::json!({ "row": 0, "item": item }))
                .collect();
            let json = serde_json::to_string(&placed).map_err(ConvertError::Json)?;
            self.writer
                .append_key_value_metadata(KeyValue::new(ITEMS_KEY.to_string(), json));
        }
        self.writer.close().map_err(ConvertError::Parquet)?;
        Ok(())
    }

    fn add_after(&mut self, row: usize, items: &str) {
        if items.is_empty() {
            return;
        }
        let after = format!(r#""after":[{items}]}}"#);
        match self.items.last_mut().filter(|(at, _)| *at == row) {
            Some((_, json)) => {
                json.pop();
                json.push(',');
                json.push_str(&after);
            }
            None => self.items.push((row, format!("{{{after}"))),
        }
    }
}
