//! Errors of records, and their places.

use std::io;

/// The reason why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The operating system refused a read.
    #[error("cannot read the record at byte {offset}")]
    Read {
        /// Number of bytes read so far.
        offset: u64,
        source: io::Error,
    },
    /// The operating system refused a write.
    #[error("cannot write the record after byte {offset}")]
    Write {
        /// Number of bytes written so far.
        offset: u64,
        source: io::Error,
    },
    /// Further writes are refused: an earlier write failed part-way, and a reader could not find messages behind a torn
    /// one.
    #[error("the record was closed by an earlier write error")]
    Closed,
    /// The file is not a record.
    #[error("this is not an isotherm record: {0}")]
    NotARecord(String),
    /// The file ends before its header does.
    #[error(
        "the record ends at byte {length}, within its header; its recorder died before it had \
         written anything"
    )]
    NoHeader {
        /// Length of the file.
        length: u64,
    },
    /// A later version wrote the file.
    #[error(
        "the record's format is version {found}, this program reads up to {known}; use a newer one"
    )]
    Version {
        /// Version in the file.
        found: String,
        /// Highest version that this program reads.
        known: u32,
    },
    /// The record has bytes that no writer of records writes.
    #[error("the record is damaged: the message at byte {offset} {reason}")]
    Corrupt {
        /// Offset of the message.
        offset: u64,
        /// Description of the fault.
        reason: String,
    },
    /// Another program compressed the rows by an unsupported codec.
    #[error(
        "its rows are compressed by {codec}, and only zstd is read here; write it again with zstd, or \
         without compression"
    )]
    Compression {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The message claims a size beyond that of any record of ours.
    #[error(
        "the message at byte {offset} claims {claimed} for its {what}, more than the {limit} that \
         a record may hold; the record is damaged or not meant well"
    )]
    TooLarge {
        /// Offset of the message.
        offset: u64,
        /// Name of the value that is too large.
        what: &'static str,
        /// The claimed size.
        claimed: u64,
        /// The limit.
        limit: u64,
    },
    /// The item cannot be written to this record.
    #[error("cannot write this to a record: {0}")]
    Unwritable(String),
    /// Single pages were requested from a record of regions.
    #[error("the record holds no page scans; make one with `isotherm record --pages`")]
    NoPages,
    /// Replaying page snapshots would need too much memory.
    #[error(
        "replaying these page snapshots needs the age of more than {limit} single pages; record \
         fewer targets or a shorter range"
    )]
    TooManyPages {
        /// The largest number of ages that are kept.
        limit: u64,
    },
}

impl RecordError {
    pub(crate) fn corrupt(offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            offset,
            reason: reason.into(),
        }
    }
}
