//! What can be wrong with a record, and where.

use std::io;

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The operating system refused a read.
    #[error("cannot read the record at byte {offset}")]
    Read {
        /// How far reading had come.
        offset: u64,
        source: io::Error,
    },
    /// The operating system refused a write.
    #[error("cannot write the record after byte {offset}")]
    Write {
        /// How much had been written.
        offset: u64,
        source: io::Error,
    },
    /// Nothing more may be written: an earlier write failed part-way, and anything behind a torn
    /// message could not be found again.
    #[error("the record was closed by an earlier write error")]
    Closed,
    /// The file is something else.
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
    /// Written by a later version.
    #[error(
        "the record's format is version {found}, this program reads up to {known}; use a newer one"
    )]
    Version {
        /// What the file says.
        found: String,
        /// What we read.
        known: u32,
    },
    /// Bytes that no writer of records writes.
    #[error("the record is damaged: the message at byte {offset} {reason}")]
    Corrupt {
        /// Where the message starts.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Rows that another program has compressed in a way that is not read here.
    #[error(
        "its rows are compressed by {codec}, and only zstd is read here; write it again with zstd, or \
         without compression"
    )]
    Compression {
        /// By what.
        codec: &'static str,
    },
    /// A claim beyond what any record of ours holds.
    #[error(
        "the message at byte {offset} claims {claimed} for its {what}, more than the {limit} that \
         a record may hold; the record is damaged or not meant well"
    )]
    TooLarge {
        /// Where the message starts.
        offset: u64,
        /// What is too large.
        what: &'static str,
        /// How large it says it is.
        claimed: u64,
        /// How large it may be.
        limit: u64,
    },
    /// A thing that cannot stand in this record.
    #[error("cannot write this to a record: {0}")]
    Unwritable(String),
    /// Single pages are asked for of a record of regions.
    #[error("the record holds no page scans; make one with `isotherm record --pages`")]
    NoPages,
    /// Replaying page snapshots would need too much memory.
    #[error(
        "replaying these page snapshots needs the age of more than {limit} single pages; record \
         fewer targets or a shorter range"
    )]
    TooManyPages {
        /// How many ages are kept at most.
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
