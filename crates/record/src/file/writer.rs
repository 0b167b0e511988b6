//! Writes a record.
//!
//! Problem: a record must open as a plain table in any Arrow reader. It must keep tables of other shapes (mappings,
//! memory use, cost) in the order in which things happened, and survive a SIGKILL.
//!
//! Approach: a record is one Arrow IPC stream. Rows of regions are collected and written as zstd-compressed record
//! batches. Any other item is written as a batch of *no* rows. Its message carries the item as JSON in its custom
//! metadata (key `isotherm.item`), which other readers ignore. Each message, or several that belong together, leaves in
//! one `write`. A killed recorder therefore tears the last message at most, and a snapshot is never split between two.
//!
//! Limits: rows are held back until [`MAX_ROWS_HELD`] of them or about a second has gathered, or until an item must
//! follow them. A killed recorder loses these rows. A snapshot of more than [`MAX_REGIONS`] regions is refused. A
//! failed write closes the writer, since a reader could not find data behind a torn message.

use std::io::Write;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{Schema, SchemaRef};
use isotherm_engine::{Nanos, Snapshot};

use crate::blocks::{self, SnapshotBlocks};
use crate::columns::{Columns, Kind};
use crate::error::RecordError;
use crate::frame::{
    END_OF_STREAM, MAX_BODY, MAX_METADATA, append_framed, append_item, append_rows,
};
use crate::item::{Header, Item};
use crate::pages::{PageSnapshot, check_blocks};
use crate::rows::check_memory;
use crate::schema::schema_of;

/// Number of rows gathered before they are written.
pub const MAX_ROWS_HELD: usize = 16_384;
/// The largest number of regions of one snapshot.
pub const MAX_REGIONS: usize = 2 << 20;
/// The largest number of blocks of one page snapshot: 2 TiB of memory.
pub const MAX_PAGE_BLOCKS: usize = 1 << 20;
/// Longest time that rows of earlier snapshots are held back.
const MAX_TIME_HELD: Nanos = Nanos::from_millis(1000);
/// The compression level: fast, and about as small as higher levels on these columns.
const ZSTD_LEVEL: i32 = 1;

/// Writes a record to `W`, which need not be buffered.
pub struct Writer<W: Write> {
    pub(crate) output: W,
    schema: SchemaRef,
    kind: Kind,
    options: IpcWriteOptions,
    context: IpcWriteContext,
    rows: Columns,
    /// Time of the oldest row that is held back.
    held_since: Option<Nanos>,
    next_snapshot: u32,
    /// Buffer of encoded messages to write; kept for its capacity.
    out: Vec<u8>,
    written: u64,
    closed: bool,
}

impl<W: Write> Writer<W> {
    /// Starts a record: the header is written at once.
    pub fn create(output: W, header: &Header) -> Result<Self, RecordError> {
        let schema = schema_of(header)?;
        let options = IpcWriteOptions::default()
            .try_with_compression(Some(CompressionType::ZSTD))
            .and_then(|options| options.try_with_compression_level(Some(ZSTD_LEVEL)))
            .map_err(|error| RecordError::Unwritable(format!("zstd: {error}")))?;
        let mut writer = Self {
            output,
            schema: Arc::new(Schema::new(schema.fields().clone())),
            kind: Kind::of(header),
            options,
            context: IpcWriteContext::default(),
            rows: Columns::default(),
            held_since: None,
            next_snapshot: 0,
            out: Vec::new(),
            written: 0,
            closed: false,
        };
        let encoded = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &schema,
            &mut DictionaryTracker::new(true),
            &writer.options,
        );
        if encoded.ipc_message.len() as u64 > MAX_METADATA {
            return Err(RecordError::Unwritable(
                "the header is longer than a message can be".to_string(),
            ));
        }
        append_framed(&mut writer.out, &encoded.ipc_message, &[]);
        writer.send()?;
        Ok(writer)
    }

    /// Adds an item. Region rows are held back for a while; see the module's text.
    pub fn write(&mut self, item: &Item) -> Result<(), RecordError> {
        match item {
            Item::Snapshot(snapshot) if !snapshot.regions.is_empty() => {
                self.write_snapshot(snapshot)
            }
            Item::Pages(pages) if !pages.blocks.is_empty() => self.write_pages(pages),
            Item::Snapshot(_) | Item::Pages(_) => {
                self.next_snapshot += 1;
                self.write_item(item)
            }
            _ => self.write_item(item),
        }
    }

    /// Writes everything held back to the output.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.encode_rows()?;
        self.send()
    }

    /// Writes everything held back and the end mark.
    pub fn finish(mut self) -> Result<W, RecordError> {
        self.encode_rows()?;
        self.out.extend_from_slice(&END_OF_STREAM);
        self.send()?;
        Ok(self.output)
    }

    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), RecordError> {
        self.expect(Kind::Regions, snapshot.regions.len(), MAX_REGIONS)?;
        let finite = |n: Option<f32>| n.is_none_or(|n| n.is_finite() && n >= 0.0);
        if let Some(region) = snapshot.regions.iter().find(|r| !finite(r.nr_accesses)) {
            return Err(RecordError::Unwritable(format!(
                "the region {:?} has {:?} accesses",
                region.range, region.nr_accesses
            )));
        }
        let checked = snapshot.regions.iter().try_for_each(check_memory);
        let unwritable = |reason| RecordError::Unwritable(format!("the snapshot {reason}"));
        checked.map_err(unwritable)?;
        if !snapshot.blocks.is_empty() {
            blocks::check(&snapshot.blocks).map_err(unwritable)?;
            let its = Item::Blocks(SnapshotBlocks::of(snapshot));
            self.write_item(&its)?;
        }
        self.make_room(snapshot.regions.len(), snapshot.end)?;
        self.rows.push_snapshot(self.next_snapshot, snapshot);
        self.end_snapshot(snapshot.end)
    }

    fn write_pages(&mut self, pages: &PageSnapshot) -> Result<(), RecordError> {
        self.expect(Kind::Pages, pages.blocks.len(), MAX_PAGE_BLOCKS)?;
        check_blocks(&pages.blocks).map_err(RecordError::Unwritable)?;
        self.make_room(pages.blocks.len(), pages.end)?;
        self.rows.push_pages(self.next_snapshot, pages);
        self.end_snapshot(pages.end)
    }

    fn write_item(&mut self, item: &Item) -> Result<(), RecordError> {
        if self.closed {
            return Err(RecordError::Closed);
        }
        let json = serde_json::to_string(item)
            .map_err(|error| RecordError::Unwritable(error.to_string()))?;
        if json.len() as u64 > MAX_METADATA - 4096 {
            return Err(RecordError::Unwritable(format!(
                "an item of {} bytes is longer than a message can be",
                json.len()
            )));
        }
        self.encode_rows()?;
        append_item(&mut self.out, self.schema.fields().len(), &json);
        self.send()
    }

    fn expect(&self, kind: Kind, rows: usize, limit: usize) -> Result<(), RecordError> {
        if self.closed {
            return Err(RecordError::Closed);
        }
        if kind != self.kind {
            return Err(RecordError::Unwritable(format!(
                "a snapshot of {kind:?} in a record of {:?}; the header's `granularity` setting \
                 decides which a record holds",
                self.kind
            )));
        }
        if rows > limit {
            return Err(RecordError::Unwritable(format!(
                "a snapshot of {rows} rows, more than the {limit} that a record holds in one"
            )));
        }
        Ok(())
    }

    /// Writes earlier rows if the new ones would make them too many or too old.
    fn make_room(&mut self, nr_rows: usize, now: Nanos) -> Result<(), RecordError> {
        let held = self.rows.len();
        let too_many = held + nr_rows > MAX_ROWS_HELD;
        if held > 0 && (too_many || self.is_late(now)) {
            self.flush()?;
        }
        self.held_since.get_or_insert(now);
        Ok(())
    }

    fn end_snapshot(&mut self, now: Nanos) -> Result<(), RecordError> {
        self.next_snapshot += 1;
        if self.is_late(now) || self.rows.len() >= MAX_ROWS_HELD {
            self.flush()?;
        }
        Ok(())
    }

    fn is_late(&self, now: Nanos) -> bool {
        let held = self.held_since.map(|since| now.since(since));
        held.is_some_and(|held| held >= MAX_TIME_HELD)
    }

    /// Encodes the rows held back as a message in `out`.
    fn encode_rows(&mut self) -> Result<(), RecordError> {
        self.held_since = None;
        if self.rows.len() == 0 {
            return Ok(());
        }
        let columns = std::mem::take(&mut self.rows).into_arrays(self.kind);
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .expect("every row was pushed to every column");
        let (dictionaries, encoded) = IpcDataGenerator::default()
            .encode(
                &batch,
                &mut DictionaryTracker::new(true),
                &self.options,
                &mut self.context,
            )
            .map_err(|error| RecordError::Unwritable(error.to_string()))?;
        assert!(dictionaries.is_empty(), "no column is a dictionary");
        assert!(
            encoded.arrow_data.len() as u64 <= MAX_BODY,
            "rows are bounded"
        );
        append_rows(&mut self.out, &encoded);
        Ok(())
    }

    fn send(&mut self) -> Result<(), RecordError> {
        if self.closed {
            return Err(RecordError::Closed);
        }
        let sent = self
            .output
            .write_all(&self.out)
            .and_then(|()| self.output.flush());
        if let Err(source) = sent {
            self.closed = true;
            return Err(RecordError::Write {
                offset: self.written,
                source,
            });
        }
        self.written += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }
}
