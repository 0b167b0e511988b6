//! A record as Parquet, and back.
//!
//! The rows become a Parquet table with the same columns. What else a record holds goes to the file's
//! key-value metadata: the header under the keys that a record's own schema has, all other items as
//! one JSON list under `isotherm.items`, each with the number of rows that stand before it, so that
//! the order survives. Both ways nothing is lost.
//!
//! Limits: Parquet keeps metadata in one piece at the end of the file, so the items are held in
//! memory meanwhile; more than [`MAX_ITEMS_BYTES`] of them are refused. Pages of a Parquet file are
//! decompressed by the parquet crate, which believes their sizes: do not convert files of strangers
//! without a memory limit. It panics on some damaged files (60.0: an index beyond its dictionary),
//! which is caught here and is an error like others.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use crate::columns::Columns;
use crate::convert::{Conversion, ConvertError};
use crate::error::RecordError;
use crate::item::Item;
use crate::reader::{Reader, check_item};
use crate::rows::Rows;
use crate::schema::{Kind, header_of, schema_of};
use crate::writer::{MAX_REGIONS, MAX_ROWS_HELD, Writer};

/// Key of the items' JSON.
const ITEMS_KEY: &str = "isotherm.items";
/// Most bytes of items, as JSON.
pub const MAX_ITEMS_BYTES: usize = 256 << 20;
/// Rows in a row group: small enough to build in a few tens of megabytes.
const ROWS_IN_GROUP: usize = 256 << 10;

/// An item and where it stands.
#[derive(Serialize, Deserialize)]
struct Placed {
    /// Rows before it.
    row: u64,
    item: Item,
}

/// Writes what is left of `record` as Parquet.
pub fn export<R: Read, W: Write + Send>(
    record: &mut Reader<R>,
    output: W,
) -> Result<Conversion, ConvertError> {
    let header = record.header().clone();
    let kind = Kind::of(&header);
    let schema = schema_of(&header)?;
    let mut table = Table::create(&schema, kind, output)?;
    let mut conversion = Conversion::default();
    let mut items = Items::default();
    let mut number = 0;
    for item in record {
        let rows = table.rows;
        let added = match item? {
            Item::Snapshot(snapshot) if !snapshot.regions.is_empty() => {
                // Who opens such a table knows nothing of bitmaps.
                let snapshot = snapshot.by_page();
                table.columns.push_snapshot(number, &snapshot);
                snapshot.regions.len()
            }
            Item::Pages(pages) if !pages.blocks.is_empty() => {
                table.columns.push_pages(number, &pages);
                pages.blocks.len()
            }
            other => {
                conversion.items += u64::from(!is_snapshot(&other));
                conversion.snapshots += u64::from(is_snapshot(&other));
                number += u32::from(is_snapshot(&other));
                items.add(&Placed {
                    row: rows,
                    item: other,
                })?;
                continue;
            }
        };
        number += 1;
        conversion.snapshots += 1;
        conversion.regions += added as u64;
        table.grow(added as u64)?;
    }
    table.finish(items.json)?;
    Ok(conversion)
}

fn is_snapshot(item: &Item) -> bool {
    matches!(item, Item::Snapshot(_) | Item::Pages(_))
}

/// Items as one JSON list that is written as they come.
#[derive(Default)]
struct Items {
    json: String,
}

impl Items {
    fn add(&mut self, item: &Placed) -> Result<(), ConvertError> {
        let json = serde_json::to_string(item).map_err(ConvertError::Json)?;
        if self.json.len() + json.len() > MAX_ITEMS_BYTES {
            return Err(ConvertError::Impossible(format!(
                "more than {MAX_ITEMS_BYTES} bytes of mappings and other items, too much for the \
                 metadata of a Parquet file"
            )));
        }
        self.json.push(if self.json.is_empty() { '[' } else { ',' });
        self.json.push_str(&json);
        Ok(())
    }
}

/// The Parquet file being written.
struct Table<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
    kind: Kind,
    columns: Columns,
    rows: u64,
}

impl<W: Write + Send> Table<W> {
    fn create(schema: &Schema, kind: Kind, output: W) -> Result<Self, ConvertError> {
        let mut metadata: Vec<KeyValue> = schema
            .metadata()
            .iter()
            .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
            .collect();
        // A map has no order, the same record must give the same file.
        metadata.sort_by(|a, b| a.key.cmp(&b.key));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS_IN_GROUP))
            .set_key_value_metadata(Some(metadata))
            .build();
        let schema = Arc::new(Schema::new(schema.fields().clone()));
        let writer = ArrowWriter::try_new(output, schema.clone(), Some(properties))
            .map_err(ConvertError::Parquet)?;
        Ok(Self {
            writer,
            schema,
            kind,
            columns: Columns::default(),
            rows: 0,
        })
    }

    fn grow(&mut self, rows: u64) -> Result<(), ConvertError> {
        self.rows += rows;
        if self.columns.len() >= MAX_ROWS_HELD {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ConvertError> {
        let arrays = std::mem::take(&mut self.columns).into_arrays(self.kind);
        let batch = RecordBatch::try_new(self.schema.clone(), arrays)
            .expect("every row was pushed to every column");
        self.writer.write(&batch).map_err(ConvertError::Parquet)
    }

    fn finish(mut self, mut items: String) -> Result<(), ConvertError> {
        if self.columns.len() > 0 {
            self.write()?;
        }
        if !items.is_empty() {
            items.push(']');
            let items = KeyValue::new(ITEMS_KEY.to_string(), items);
            self.writer.append_key_value_metadata(items);
        }
        self.writer.close().map_err(ConvertError::Parquet)?;
        Ok(())
    }
}

/// Writes the record that the Parquet file `input` holds to `output`.
pub fn import<W: Write>(input: File, output: W) -> Result<Conversion, ConvertError> {
    let builder = decoded(|| ParquetRecordBatchReaderBuilder::try_new(input))?;
    let metadata: HashMap<String, String> = builder
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .into_iter()
        .flatten()
        .filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?)))
        .collect();
    let mut items = parse_items(metadata.get(ITEMS_KEY).map_or("[]", String::as_str))?;
    let schema = Schema::new_with_metadata(builder.schema().fields().clone(), metadata);
    let (header, kind) =
        header_of(&schema).map_err(|error| ConvertError::NotARecord(error.to_string()))?;
    let mut merge = Merge {
        writer: Writer::create(output, &header)?,
        rows: 0,
        items: std::mem::take(&mut items),
        open: None,
        conversion: Conversion::default(),
    };
    let mut batches = decoded(|| builder.with_batch_size(MAX_ROWS_HELD).build())?;
    while let Some(batch) = decoded(|| Ok(batches.next().transpose()?))? {
        let mut rows = Rows::new(0, kind, &batch).map_err(not_a_record)?;
        while let Some(number) = rows.next_number() {
            if let Some(item) = rows.next_item().map_err(not_a_record)? {
                merge.add(number, item)?;
            }
        }
    }
    merge.finish()
}

/// What the parquet crate makes of a file; where it panics, an error.
fn decoded<T>(decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ConvertError> {
    thread_local! {
        static IS_DECODING: Cell<bool> = const { Cell::new(false) };
    }
    static QUIET: Once = Once::new();
    // Of other panics, and of other threads', the usual is said.
    QUIET.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_DECODING.get() {
                usual(info);
            }
        }));
    });
    IS_DECODING.set(true);
    // What is left of a reader that has panicked is dropped.
    let result = panic::catch_unwind(AssertUnwindSafe(decode));
    IS_DECODING.set(false);
    let damaged = || ParquetError::General("the file is damaged: it does not decode".to_owned());
    result
        .unwrap_or_else(|_| Err(damaged()))
        .map_err(ConvertError::Parquet)
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
    for placed in &items {
        check_item(&placed.item)
            .map_err(|reason| ConvertError::NotARecord(format!("an item {reason}")))?;
    }
    Ok(items)
}

/// Puts rows and items together again. A snapshot may be spread over batches.
struct Merge<W: Write> {
    writer: Writer<W>,
    /// Rows in snapshots that are complete.
    rows: u64,
    items: VecDeque<Placed>,
    open: Option<(u32, Item)>,
    conversion: Conversion,
}

impl<W: Write> Merge<W> {
    fn add(&mut self, number: u32, item: Item) -> Result<(), ConvertError> {
        match (&mut self.open, item) {
            (Some((open, Item::Snapshot(whole))), Item::Snapshot(part)) if *open == number => {
                check_length(whole.regions.len() + part.regions.len())?;
                whole.regions.extend(part.regions);
            }
            (Some((open, Item::Pages(whole))), Item::Pages(part)) if *open == number => {
                check_length(whole.blocks.len() + part.blocks.len())?;
                whole.blocks.extend(part.blocks);
            }
            (_, item) => {
                self.close()?;
                self.open = Some((number, item));
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), ConvertError> {
        if let Some((_, item)) = self.open.take() {
            self.write_items(self.rows)?;
            let rows = match &item {
                Item::Snapshot(snapshot) => snapshot.regions.len(),
                Item::Pages(pages) => pages.blocks.len(),
                _ => 0,
            };
            self.rows += rows as u64;
            self.conversion.snapshots += 1;
            self.conversion.regions += rows as u64;
            self.writer.write(&item)?;
        }
        Ok(())
    }

    /// Writes the items that stand before row `row + 1`.
    fn write_items(&mut self, row: u64) -> Result<(), ConvertError> {
        while let Some(placed) = self.items.pop_front_if(|placed| placed.row <= row) {
            self.conversion.items += u64::from(!is_snapshot(&placed.item));
            self.conversion.snapshots += u64::from(is_snapshot(&placed.item));
            self.writer.write(&placed.item)?;
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::{export, import};
    use crate::convert::ConvertError;
    use crate::item::{Header, Item};
    use crate::pages::{PageBlock, PageSnapshot};
    use crate::reader::Reader;
    use crate::tests::{by_page, every_item, header, read, snapshot, write};

    #[test]
    fn no_damage_makes_it_panic() {
        let record = write(&header(), &every_item());
        let mut table = tempfile::tempfile().expect("a file");
        let mut reader = Reader::open(&record[..]).expect("readable");
        export(&mut reader, table.try_clone().expect("a file")).expect("exports");
        table.rewind().expect("rewinds");
        let mut whole = Vec::new();
        table.read_to_end(&mut whole).expect("read");
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&damaged).expect("written");
            file.rewind().expect("rewinds");
            // Right or wrong, it returns.
            let _ = import(file, std::io::sink());
        }
    }

    /// Through Parquet and back.
    fn there_and_back(record: &[u8]) -> Vec<u8> {
        let mut table = tempfile::tempfile().expect("a file");
        let mut reader = Reader::open(record).expect("readable");
        let exported = export(&mut reader, table.try_clone().expect("a file")).expect("exports");
        table.rewind().expect("rewinds");
        let mut back = Vec::new();
        let imported = import(table, &mut back).expect("imports");
        assert_eq!(exported, imported);
        back
    }

    #[test]
    fn nothing_is_lost_and_the_order_is_kept() {
        let record = write(&header(), &every_item());
        // What is told by page comes back as regions.
        assert_eq!(read(&there_and_back(&record)).0, by_page(every_item()));
    }

    #[test]
    fn snapshots_that_lie_across_batches_are_whole_again() {
        let items: Vec<Item> = (0..7)
            .map(|tenth| {
                let mut snapshot = snapshot(0, tenth, "[0,1)=1");
                let region = snapshot.regions[0];
                snapshot.regions = (0..5000)
                    .map(|page| {
                        let mut region = region;
                        region.range.start = page * 4096;
                        region.range.end = (page + 1) * 4096;
                        region
                    })
                    .collect();
                Item::Snapshot(snapshot)
            })
            .collect();
        let record = write(&header(), &items);
        assert_eq!(read(&there_and_back(&record)).0, items);
    }

    #[test]
    fn pages_stay_pages() {
        let header = Header {
            settings: [("granularity".to_string(), "page".to_string())].into(),
            ..header()
        };
        let block = PageBlock {
            block: 2 << 20,
            present: [7; 8],
            accessed: [1; 8],
            ..PageBlock::default()
        };
        let pages = PageSnapshot {
            blocks: vec![block],
            ..PageSnapshot::default()
        };
        let items = vec![Item::Pages(pages.clone()), Item::Pages(pages)];
        let record = write(&header, &items);
        assert_eq!(read(&there_and_back(&record)).0, items);
    }

    #[test]
    fn other_files_are_refused() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"PAR1 and then nothing").expect("written");
        file.rewind().expect("rewinds");
        let error = import(file, Vec::new()).expect_err("is no Parquet");
        assert!(matches!(error, ConvertError::Parquet(_)), "{error}");
    }
}
