//! Reads a record, trusting nothing in it.
//!
//! Problem: a record may be cut at any byte (its recorder was killed, the disk was full). It may be damaged or
//! malicious. Reports read millions of rows, and must not need memory for all of them.
//!
//! Approach: the reader decodes one message at a time, and yields its snapshots one by one. It checks a message before
//! arrow-ipc sees it: every claimed length against the bytes that exist and against fixed limits, the sizes that
//! columns decompress to, and the checksum. A file that stops within a message ends without an error after its last
//! whole message, and [`Reader::truncated`] reports it. Any other content that no writer writes is an error that names
//! the byte. Whatever the input, reading neither panics nor holds more than a few times 256 MiB (one message, and its
//! decompressed rows).
//!
//! Limits: damage to a record that another program has rewritten (which drops the checksums) is found only where it
//! breaks the format. Snapshots must lie within one message, as we write them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{BufReader, Read};
use std::ops::Range;

use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_record_batch;
use arrow_ipc::{CompressionType, MessageHeader};
use arrow_schema::SchemaRef;
use isotherm_engine::{AddressRange, Nanos, Snapshot};
use serde::Serialize;

use crate::blocks::{self, SnapshotBlocks};
use crate::columns::Kind;
use crate::error::RecordError;
use crate::frame::{Frame, FrameReader, MAX_BODY, Next, custom_metadata};
use crate::index::TimeIndex;
use crate::item::{Header, Item};
use crate::pages::{PageAges, check_blocks};
use crate::rows::{Rows, check_memory};
use crate::schema::{ITEM_KEY, decoding_schema, header_of};
use crate::stacks::StackCounts;

/// The part of an unfinished record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Truncated {
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes of an unfinished message behind them.
    // 0: the file stops between two messages, and only the end mark is missing.
    pub bytes_lost: u64,
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the record was not finished (its recorder was killed, or still runs): {} bytes were read",
            self.bytes_read
        )?;
        if self.bytes_lost > 0 {
            write!(f, ", {} behind them are torn", self.bytes_lost)?;
        }
        Ok(())
    }
}

/// Reads a record from `R`, which need not be buffered. Iterating yields its items in their order;
/// after an error it ends.
#[derive(Debug)]
pub struct Reader<R> {
    frames: FrameReader<BufReader<R>>,
    header: Header,
    kind: Kind,
    schema: SchemaRef,
    rows: Option<Rows>,
    items: VecDeque<Item>,
    truncation: Option<Truncated>,
    done: bool,
    page_ages: Option<PageAges>,
    /// The page-by-page blocks of the next snapshot.
    blocks: Option<SnapshotBlocks>,
    /// Whether messages have checksums: all of them, or none where another program wrote them.
    checked: Option<bool>,
    salvages: bool,
    damage: Option<RecordError>,
    /// Bytes of the message whose items are being yielded.
    place: Range<u64>,
    index: Option<TimeIndex>,
    stacks: StackCounts,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(input: R) -> Result<Self, RecordError> {
        let mut frames = FrameReader::new(BufReader::new(input));
        let frame = match frames.next() {
            Ok(Next::Frame(frame)) => frame,
            Ok(Next::Cut { lost: 0, .. }) => {
                return Err(RecordError::NotARecord("the file is empty".to_string()));
            }
            Ok(Next::Cut { lost, .. }) => return Err(RecordError::NoHeader { length: lost }),
            Ok(Next::End) => {
                return Err(RecordError::NotARecord(
                    "an Arrow stream without a schema".to_string(),
                ));
            }
            Err(RecordError::Corrupt { reason, .. }) => {
                return Err(RecordError::NotARecord(format!(
                    "its first message {reason}"
                )));
            }
            Err(error) => return Err(error),
        };
        let message = frame.message()?;
        let schema = message.header_as_schema().ok_or_else(|| {
            RecordError::NotARecord("an Arrow stream that does not begin with a schema".to_string())
        })?;
        let schema = try_fb_to_schema(schema)
            .map_err(|error| RecordError::NotARecord(format!("its schema is broken: {error}")))?;
        let (header, kind) = header_of(&schema)?;
        Ok(Self {
            frames,
            header,
            kind,
            schema: decoding_schema(kind),
            rows: None,
            items: VecDeque::new(),
            truncation: None,
            done: false,
            page_ages: None,
            blocks: None,
            checked: None,
            salvages: false,
            damage: None,
            place: 0..0,
            index: None,
            stacks: StackCounts::default(),
        })
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns whether the rows are single pages, so that items are [`Item::Pages`] until [`Reader::replay_pages`] is
    /// called.
    pub fn is_page_record(&self) -> bool {
        self.kind == Kind::Pages
    }

    /// Returns the truncation after the end of reading, if the record is cut.
    pub fn truncated(&self) -> Option<Truncated> {
        self.truncation
    }

    /// Lets damage end the record without an error from here on: the items before it are whole. [`Reader::damage`]
    /// returns the damage.
    #[must_use]
    pub fn salvage(mut self) -> Self {
        self.salvages = true;
        self
    }

    /// Returns the damage that ended the reading, where it is no error.
    pub fn damage(&self) -> Option<&RecordError> {
        self.damage.as_ref()
    }

    /// Records the places of rows from here on.
    #[must_use]
    pub fn with_index(mut self) -> Self {
        self.index = Some(TimeIndex::default());
        self
    }

    /// Takes the places of the rows read so far, if [an index was requested](Reader::with_index).
    pub fn take_index(&mut self) -> Option<TimeIndex> {
        self.index.take()
    }

    fn note(&mut self, start: Nanos, end: Nanos) {
        if let Some(index) = &mut self.index {
            index.note(&self.place, start, end);
        }
    }

    /// Yields [`Item::Snapshot`]s in place of [`Item::Pages`] from here on (see [`PageAges`]). Blocks that snapshots
    /// list page by page become regions ([`Snapshot::by_page`]).
    #[must_use]
    pub fn replay_pages(mut self) -> Self {
        self.turn_pages_into_regions();
        self
    }

    pub(crate) fn turn_pages_into_regions(&mut self) {
        self.page_ages.get_or_insert_default();
    }

    /// Iterates over the remaining snapshots, without the items between them; page snapshots become regions.
    pub fn snapshots(&mut self) -> impl Iterator<Item = Result<Snapshot, RecordError>> + '_ {
        self.turn_pages_into_regions();
        self.filter_map(|item| match item {
            Ok(Item::Snapshot(snapshot)) => Some(Ok(snapshot)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn next_item(&mut self) -> Result<Option<Item>, RecordError> {
        loop {
            if let Some(rows) = &mut self.rows {
                if let Some(item) = rows.next_item()? {
                    match &item {
                        Item::Snapshot(its) => self.note(its.start, its.end),
                        Item::Pages(its) => self.note(its.start, its.end),
                        _ => {}
                    }
                    return Ok(Some(item));
                }
                self.rows = None;
            }
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            match self.frames.next()? {
                Next::Frame(frame) => {
                    self.place = frame.offset..self.frames.offset;
                    self.take_in(&frame)?;
                }
                Next::End => return Ok(None),
                Next::Cut { offset, lost } => {
                    self.truncation = Some(Truncated {
                        bytes_read: offset,
                        bytes_lost: lost,
                    });
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the next item in its final form.
    fn next_whole_item(&mut self) -> Result<Option<Item>, RecordError> {
        loop {
            let item = match self.next_item()? {
                Some(Item::Blocks(blocks)) => {
                    self.blocks = Some(blocks);
                    continue;
                }
                Some(Item::Snapshot(mut snapshot)) => {
                    if let Some(blocks) = self.blocks.take() {
                        blocks.give(&mut snapshot);
                    }
                    Item::Snapshot(if self.page_ages.is_some() {
                        snapshot.by_page()
                    } else {
                        snapshot
                    })
                }
                Some(Item::Pages(pages)) => match &mut self.page_ages {
                    Some(ages) => Item::Snapshot(ages.snapshot(&pages)?),
                    None => Item::Pages(pages),
                },
                Some(other) => other,
                None => return Ok(None),
            };
            return Ok(Some(item));
        }
    }

    fn take_in(&mut self, frame: &Frame) -> Result<(), RecordError> {
        let offset = frame.offset;
        let message = frame.message()?;
        if message.header_type() != MessageHeader::RecordBatch {
            return Err(RecordError::corrupt(offset, "is not a batch of rows"));
        }
        let batch = message
            .header_as_record_batch()
            .ok_or_else(|| RecordError::corrupt(offset, "holds no rows"))?;
        let checked = frame.check(&message)?;
        if *self.checked.get_or_insert(checked) != checked {
            // Otherwise damage to a checksum's name would pass for a record without checksums.
            return Err(RecordError::corrupt(
                offset,
                "has or lacks a checksum, unlike the message before it",
            ));
        }
        if let Some(json) = custom_metadata(&message, ITEM_KEY) {
            let items = parse_items(offset, json)?;
            for item in &items {
                let checked = match item {
                    Item::Stacks(samples) => self.stacks.take(samples),
                    Item::HugePages(sample) => sample.check(),
                    _ => Ok(()),
                };
                checked.map_err(|reason| RecordError::corrupt(offset, reason))?;
            }
            self.items.extend(items);
        }
        if batch.length() == 0 {
            // These blocks belong to the rows that follow.
            if let [Item::Blocks(its)] = self.items.make_contiguous() {
                let (start, end) = (its.start, its.end);
                self.note(start, end);
            }
            return Ok(());
        }
        if batch
            .compression()
            .is_some_and(|how| how.codec() == CompressionType::LZ4_FRAME)
        {
            return Err(RecordError::Compression { codec: "LZ4" });
        }
        check_layout(offset, &batch, &frame.body, self.kind)?;
        let version = message.version();
        let decoded = read_record_batch(
            &frame.body,
            batch,
            self.schema.clone(),
            &HashMap::new(),
            None,
            &version,
        )
        .map_err(|error| RecordError::corrupt(offset, format!("does not decode: {error}")))?;
        self.rows = Some(Rows::new(offset, self.kind, decoded)?);
        Ok(())
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Item, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.next_whole_item().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        match item {
            Some(Err(error @ (RecordError::Corrupt { .. } | RecordError::TooLarge { .. })))
                if self.salvages =>
            {
                self.damage = Some(error);
                None
            }
            item => item,
        }
    }
}

fn parse_items(offset: u64, json: &str) -> Result<Vec<Item>, RecordError> {
    let items = if json.trim_start().starts_with('[') {
        serde_json::from_str(json)
    } else {
        serde_json::from_str(json).map(|item| vec![item])
    };
    let items: Vec<Item> = items.map_err(|error| {
        RecordError::corrupt(offset, format!("has an item that does not parse: {error}"))
    })?;
    for item in &items {
        check_item(item).map_err(|reason| RecordError::corrupt(offset, reason))?;
    }
    Ok(items)
}

/// Checks an item from JSON beyond its types, and returns a description of the first fault.
pub(crate) fn check_item(item: &Item) -> Result<(), String> {
    let check_range = |range: &AddressRange| {
        if range.start < range.end {
            Ok(())
        } else {
            Err(format!("has the backward range {range:?}"))
        }
    };
    match item {
        Item::Snapshot(snapshot) => {
            blocks::check(&snapshot.blocks)?;
            snapshot.regions.iter().try_for_each(|region| {
                check_range(&region.range)?;
                check_memory(region)?;
                match region.nr_accesses {
                    Some(n) if !n.is_finite() || n < 0.0 => Err(format!("has {n} accesses")),
                    _ => Ok(()),
                }
            })
        }
        Item::Blocks(its) => blocks::check(&its.blocks),
        Item::Pages(pages) => check_blocks(&pages.blocks),
        Item::Mappings(change) => {
            let added = change.added.iter().map(|mapping| &mapping.range);
            change.removed.iter().chain(added).try_for_each(check_range)
        }
        _ => Ok(()),
    }
}

/// Checks every length that a batch claims, so that decoding it cannot go astray.
fn check_layout(
    offset: u64,
    batch: &arrow_ipc::RecordBatch<'_>,
    body: &[u8],
    kind: Kind,
) -> Result<(), RecordError> {
    let corrupt = |reason: &str| Err(RecordError::corrupt(offset, reason));
    let too_large = |what, claimed, limit| {
        Err(RecordError::TooLarge {
            offset,
            what,
            claimed,
            limit,
        })
    };
    let Ok(rows) = u64::try_from(batch.length()) else {
        return corrupt("has a negative number of rows");
    };
    let limit = MAX_BODY / kind.row_bytes() as u64;
    if rows > limit {
        return too_large("rows", rows, limit);
    }
    let columns = kind.fields().len();
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return corrupt("lacks its columns");
    };
    if nodes.len() != columns || buffers.len() != 2 * columns {
        return corrupt("has another number of columns than the schema");
    }
    for node in nodes {
        if node.length() != batch.length() || !(0..=node.length()).contains(&node.null_count()) {
            return corrupt("has columns of different lengths");
        }
    }
    let compressed = batch.compression().is_some();
    let mut decoded = 0u64;
    for span in buffers {
        let part = usize::try_from(span.offset()).ok().and_then(|start| {
            let end = start.checked_add(usize::try_from(span.length()).ok()?)?;
            body.get(start..end)
        });
        let Some(part) = part else {
            return corrupt("points outside of its body");
        };
        decoded += match part.first_chunk::<8>() {
            Some(prefix) if compressed => match i64::from_le_bytes(*prefix) {
                -1 => part.len() as u64,
                claimed => u64::try_from(claimed)
                    .unwrap_or(u64::MAX)
                    .min(u64::MAX >> 8),
            },
            None if compressed && !part.is_empty() => {
                return corrupt("has a compressed column without a length");
            }
            _ => part.len() as u64,
        };
    }
    if decoded > MAX_BODY {
        return too_large("decompressed rows", decoded, MAX_BODY);
    }
    Ok(())
}
