//! Arrow IPC messages, written and read one at a time and without trust.
//!
//! Problem: arrow-rs writes streams, but cannot put custom metadata on a message. Its stream reader neither reports its
//! position in the file nor distinguishes a torn end from damage in the middle.
//!
//! Approach: this module does the framing (Arrow columnar format, "Encapsulated message format": `FF FF FF FF`, the
//! metadata's length, a flatbuffer padded to 8 bytes, the body). It leaves schemas and columns to arrow-ipc. A message
//! of ours carries a checksum of itself in its custom metadata, since neither Arrow nor zstd's plain frames have one.
//! The schema's message has none.
//!
//! Limits: no length is believed before the bytes are read: buffers grow with the input, up to [`MAX_METADATA`] and
//! [`MAX_BODY`].

use std::io::Read;

use arrow_buffer::Buffer;
use arrow_ipc::writer::EncodedData;
use arrow_ipc::{
    BodyCompression, BodyCompressionArgs, Buffer as BufferSpan, FieldNode, KeyValue, KeyValueArgs,
    Message, MessageArgs, MessageHeader, MetadataVersion, RecordBatch, RecordBatchArgs,
    root_as_message,
};
use flatbuffers::FlatBufferBuilder;

use crate::error::RecordError;
use crate::schema::{CHECKSUM_KEY, ITEM_KEY};

/// The largest metadata of a message: an item of some 400,000 mappings fits.
pub(crate) const MAX_METADATA: u64 = 64 << 20;
/// The largest body of a message, before and after decompression.
pub(crate) const MAX_BODY: u64 = 256 << 20;
/// The marker before each message, and with a length of 0 at the end of the stream.
const CONTINUATION: [u8; 4] = [0xff; 4];
pub(crate) const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// The read step while a body grows: its claimed length is not allocated ahead.
const READ_STEP: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Frame {
    /// Offset of the message in the file.
    pub(crate) offset: u64,
    pub(crate) metadata: Vec<u8>,
    pub(crate) body: Buffer,
}

/// The next part of a stream.
#[derive(Debug)]
pub(crate) enum Next {
    Frame(Frame),
    /// The end mark.
    End,
    /// The file stops without an end mark; `lost` bytes of an unfinished message follow `offset`.
    Cut {
        offset: u64,
        lost: u64,
    },
}

/// Splits a stream into messages.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    input: R,
    /// Number of bytes consumed so far.
    pub(crate) offset: u64,
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, offset: 0 }
    }

    pub(crate) fn next(&mut self) -> Result<Next, RecordError> {
        let offset = self.offset;
        let cut = |reader: &Self| Next::Cut {
            offset,
            lost: reader.offset - offset,
        };
        let prefix = self.read_up_to(8)?;
        if prefix.len() < 8 {
            return Ok(cut(self));
        }
        if prefix == END_OF_STREAM {
            // Without this check, damage to a length could pass for the end.
            if !self.read_up_to(1)?.is_empty() {
                let reason = "is the end mark, but bytes follow it";
                return Err(RecordError::corrupt(offset, reason));
            }
            return Ok(Next::End);
        }
        if prefix == [0; 8] {
            // A power failure leaves zeros where a file had grown before its data was written.
            if !self.only_zeros_follow()? {
                return Err(RecordError::corrupt(offset, "is a hole of zeros"));
            }
            return Ok(cut(self));
        }
        if prefix[..4] != CONTINUATION {
            return Err(RecordError::corrupt(offset, "does not begin as one"));
        }
        let length = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]);
        let length = checked(offset, "metadata", u64::from(length), MAX_METADATA)?;
        let metadata = self.read_up_to(length)?;
        if (metadata.len() as u64) < length {
            return Ok(cut(self));
        }
        let message = parsed(offset, &metadata)?;
        let length = u64::try_from(message.bodyLength())
            .map_err(|_| RecordError::corrupt(offset, "has a body of negative length"))?;
        let length = checked(offset, "body", length, MAX_BODY)?;
        let body = self.read_up_to(length)?;
        if (body.len() as u64) < length {
            return Ok(cut(self));
        }
        Ok(Next::Frame(Frame {
            offset,
            metadata,
            body: Buffer::from_vec(body),
        }))
    }

    fn read_up_to(&mut self, length: u64) -> Result<Vec<u8>, RecordError> {
        let mut bytes = Vec::with_capacity(length.min(READ_STEP) as usize);
        let read = (&mut self.input).take(length).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        let offset = self.offset;
        match read {
            Ok(_) => Ok(bytes),
            Err(source) => Err(RecordError::Read { offset, source }),
        }
    }

    fn only_zeros_follow(&mut self) -> Result<bool, RecordError> {
        loop {
            let chunk = self.read_up_to(1 << 16)?;
            if chunk.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            if chunk.is_empty() {
                return Ok(true);
            }
        }
    }
}

fn checked(offset: u64, what: &'static str, claimed: u64, limit: u64) -> Result<u64, RecordError> {
    if claimed > limit {
        return Err(RecordError::TooLarge {
            offset,
            what,
            claimed,
            limit,
        });
    }
    Ok(claimed)
}

fn parsed(offset: u64, metadata: &[u8]) -> Result<Message<'_>, RecordError> {
    root_as_message(metadata).map_err(|error| {
        RecordError::corrupt(offset, format!("has metadata that does not parse: {error}"))
    })
}

impl Frame {
    /// Returns the flatbuffer, which [`FrameReader::next`] has verified already.
    pub(crate) fn message(&self) -> Result<Message<'_>, RecordError> {
        parsed(self.offset, &self.metadata)
    }

    /// Compares the message's checksum, and returns whether it has one.
    pub(crate) fn check(&self, message: &Message<'_>) -> Result<bool, RecordError> {
        let Some(written) = custom_metadata(message, CHECKSUM_KEY) else {
            return Ok(false);
        };
        let found = checksum(&self.metadata, written, &self.body);
        if written != found {
            return Err(RecordError::corrupt(
                self.offset,
                format!("has the checksum {found}, not {written} as it says"),
            ));
        }
        Ok(true)
    }
}

pub(crate) fn custom_metadata<'a>(message: &Message<'a>, key: &str) -> Option<&'a str> {
    message
        .custom_metadata()?
        .iter()
        .find(|pair| pair.key() == Some(key))?
        .value()
}

/// Computes the CRC-32 of a message without the checksum, which is a part of its metadata.
fn checksum(metadata: &[u8], own: &str, body: &[u8]) -> String {
    let start = own.as_ptr().addr() - metadata.as_ptr().addr();
    let mut crc = flate2::Crc::new();
    crc.update(&metadata[..start]);
    crc.update(&metadata[start + own.len()..]);
    crc.update(body);
    format!("{:08x}", crc.sum())
}

/// Appends a message of rows, as arrow-ipc encoded it, with a checksum.
pub(crate) fn append_rows(out: &mut Vec<u8>, encoded: &EncodedData) {
    let message = root_as_message(&encoded.ipc_message).expect("arrow-ipc encodes valid messages");
    let batch = message
        .header_as_record_batch()
        .expect("rows encode as a record batch");
    let nodes: Vec<FieldNode> = batch.nodes().into_iter().flatten().copied().collect();
    let buffers: Vec<BufferSpan> = batch.buffers().into_iter().flatten().copied().collect();
    let compression = batch.compression().map(|c| (c.codec(), c.method()));
    let metadata = batch_message(
        batch.length(),
        &nodes,
        &buffers,
        compression,
        encoded.arrow_data.len(),
        None,
    );
    append_checked(out, metadata, &encoded.arrow_data);
}

/// Appends a message of no rows that carries `json`: to other readers an empty batch.
pub(crate) fn append_item(out: &mut Vec<u8>, nr_columns: usize, json: &str) {
    let nodes = vec![FieldNode::new(0, 0); nr_columns];
    // Each of our columns has a validity bitmap and values.
    let buffers = vec![BufferSpan::new(0, 0); 2 * nr_columns];
    let metadata = batch_message(0, &nodes, &buffers, None, 0, Some(json));
    append_checked(out, metadata, &[]);
}

/// Fills in the checksum and appends the message.
fn append_checked(out: &mut Vec<u8>, mut metadata: Vec<u8>, body: &[u8]) {
    metadata.resize(metadata.len().next_multiple_of(8), 0);
    let message = root_as_message(&metadata).expect("just built");
    let own = custom_metadata(&message, CHECKSUM_KEY).expect("every message of ours has one");
    let start = own.as_ptr().addr() - metadata.as_ptr().addr();
    let checksum = checksum(&metadata, own, body);
    metadata[start..start + checksum.len()].copy_from_slice(checksum.as_bytes());
    append_framed(out, &metadata, body);
}

/// Appends metadata and body with their frame.
pub(crate) fn append_framed(out: &mut Vec<u8>, metadata: &[u8], body: &[u8]) {
    let padded = metadata.len().next_multiple_of(8);
    out.extend_from_slice(&CONTINUATION);
    out.extend_from_slice(&(padded as u32).to_le_bytes());
    out.extend_from_slice(metadata);
    out.resize(out.len() + padded - metadata.len(), 0);
    out.extend_from_slice(body);
}

fn batch_message(
    nr_rows: i64,
    nodes: &[FieldNode],
    buffers: &[BufferSpan],
    compression: Option<(arrow_ipc::CompressionType, arrow_ipc::BodyCompressionMethod)>,
    body_length: usize,
    item: Option<&str>,
) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::with_capacity(2048 + item.map_or(0, str::len));
    let nodes = builder.create_vector(nodes);
    let buffers = builder.create_vector(buffers);
    let compression = compression.map(|(codec, method)| {
        BodyCompression::create(&mut builder, &BodyCompressionArgs { codec, method })
    });
    let batch = RecordBatch::create(
        &mut builder,
        &RecordBatchArgs {
            length: nr_rows,
            nodes: Some(nodes),
            buffers: Some(buffers),
            compression,
            variadicBufferCounts: None,
        },
    );
    let item = item.map(|json| (ITEM_KEY, json));
    let pairs: Vec<_> = item
        .into_iter()
        .chain([(CHECKSUM_KEY, "00000000")])
        .map(|(key, value)| {
            let key = Some(builder.create_string(key));
            let value = Some(builder.create_string(value));
            KeyValue::create(&mut builder, &KeyValueArgs { key, value })
        })
        .collect();
    let custom_metadata = Some(builder.create_vector(&pairs));
    let message = Message::create(
        &mut builder,
        &MessageArgs {
            version: MetadataVersion::V5,
            header_type: MessageHeader::RecordBatch,
            header: Some(batch.as_union_value()),
            bodyLength: body_length as i64,
            custom_metadata,
        },
    );
    builder.finish(message, None);
    builder.finished_data().to_vec()
}
