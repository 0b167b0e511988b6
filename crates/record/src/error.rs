//! Errors of records, and their places.

use std::io;

/// The reason why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    #[error("cannot read the record at byte {offset}")]
    Read { offset: u64, source: io::Error },
    #[error("cannot write the record after byte {offset}")]
    Write { offset: u64, source: io::Error },
    /// Further writes are refused: an earlier write failed part-way, and a reader could not find messages behind a torn
    /// one.
    #[error("the record was closed by an earlier write error")]
    Closed,
    #[error("this is not an isotherm record: {0}")]
    NotARecord(String),
    #[error(
        "the record ends at byte {length}, within its header; its recorder died before it had \
         written anything"
    )]
    NoHeader { length: u64 },
    #[error(
        "the record's format is version {found}, this program reads up to {known}; use a newer one"
    )]
    Version { found: String, known: u32 },
    /// The record has bytes that no writer of records writes.
    #[error("the record is damaged: the message at byte {offset} {reason}")]
    Corrupt { offset: u64, reason: String },
    /// Another program compressed the rows by an unsupported codec.
    #[error(
        "its rows are compressed by {codec}, and only zstd is read here; write it again with zstd, or \
         without compression"
    )]
    Compression { codec: &'static str },
    /// The message claims a size beyond that of any record of ours.
    #[error(
        "the message at byte {offset} claims {claimed} for its {what}, more than the {limit} that \
         a record may hold; the record is damaged or not meant well"
    )]
    TooLarge {
        offset: u64,
        what: &'static str,
        claimed: u64,
        limit: u64,
    },
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
