//! What conversions of any format share: the formats, how to tell them apart, what came of it.

use std::collections::BTreeMap;
use std::io::{self, Read};

use serde::Serialize;

use crate::error::RecordError;

/// A format of recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Arrow IPC, as Isotherm writes it.
    Isotherm,
    /// damo's list of records as JSON.
    Json,
    /// The same through zlib; damo's default.
    JsonCompressed,
    /// What DAMON's trace points print.
    PerfScript,
    /// Parquet, as we write it.
    Parquet,
}

/// How much of a file's beginning [`Format::detect`] wants to see.
pub const DETECT_LENGTH: usize = 1 << 16;

impl Format {
    /// Tells the format by the beginning of a file; else says what the file is or might be.
    pub fn detect(head: &[u8]) -> Result<Self, String> {
        const MAGICS: [(&[u8], &str); 5] = [
            (
                b"PERFILE2",
                "a perf.data file; run `perf script -i FILE > trace.txt` and convert that",
            ),
            (
                b"ARROW1",
                "an Arrow file; only an Arrow stream can be a record",
            ),
            (b"\x1f\x8b", "gzip-compressed; run `gunzip` first"),
            (b"\x28\xb5\x2f\xfd", "zstd-compressed; run `unzstd` first"),
            (b"\x7fELF", "a program"),
        ];
        if head.is_empty() {
            return Err("empty".to_string());
        }
        if head.starts_with(&[0xff; 4]) {
            return Ok(Self::Isotherm);
        }
        if head.starts_with(b"PAR1") {
            return Ok(Self::Parquet);
        }
        if let Some((_, what)) = MAGICS.iter().find(|(magic, _)| head.starts_with(magic)) {
            return Err((*what).to_string());
        }
        // zlib: method 8, and a header that divides by 31 (RFC 1950).
        if let [first, second, ..] = head
            && first & 0x0f == 8
            && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
        {
            return Ok(Self::JsonCompressed);
        }
        let text = head.trim_ascii_start();
        if text.starts_with(b"[") && !text.starts_with(b"[0") {
            return Ok(Self::Json);
        }
        if text.starts_with(b"{") {
            return Err("JSON, but not the list of records that damo writes".to_string());
        }
        if head.contains(&0) {
            return Err("of no known format".to_string());
        }
        Ok(Self::PerfScript)
    }

    /// The same of what `input` begins with, which is read that far.
    ///
    /// # Errors
    /// Those of reading.
    pub fn detect_in(input: impl Read) -> io::Result<Result<Self, String>> {
        let mut head = Vec::new();
        input.take(DETECT_LENGTH as u64).read_to_end(&mut head)?;
        Ok(Self::detect(&head))
    }
}

/// Access checks in an aggregation interval where a file does not say: 100 ms of 5 ms each, the
/// defaults of damo and of kernel DAMON.
pub const DEFAULT_NR_SAMPLES: u32 = 20;

/// What was converted, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conversion {
    /// Snapshots written.
    pub snapshots: u64,
    /// Their regions.
    pub regions: u64,
    /// Other items written.
    pub items: u64,
    /// What was left out.
    pub left_out: LeftOut,
    /// What the input did not say and was assumed instead.
    pub assumed: Vec<String>,
}

/// What the other format cannot hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Regions of which it is unknown whether they were accessed.
    pub unknown_regions: u64,
    /// Everything else, by kind.
    pub others: BTreeMap<&'static str, u64>,
}

impl Conversion {
    /// Adds what a second step over the same data left out or assumed; what it wrote counts.
    pub fn then(&mut self, second: Self) {
        self.snapshots = second.snapshots;
        self.regions = second.regions;
        self.items = second.items;
        self.left_out.unknown_regions += second.left_out.unknown_regions;
        for (kind, count) in second.left_out.others {
            self.left_out.add(kind, count);
        }
        self.assumed.extend(second.assumed);
    }
}

impl LeftOut {
    /// Whether everything was converted.
    pub fn is_empty(&self) -> bool {
        self.unknown_regions == 0 && self.others.is_empty()
    }

    /// Counts what is of this kind.
    pub fn add(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.others.entry(kind).or_default() += count;
        }
    }
}

/// Why a conversion failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// Our record could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// damo's JSON is broken, or not what damo writes.
    #[error("cannot read this as a record of damo's (json)")]
    Json(#[source] serde_json::Error),
    /// damo's JSON holds something that no recording can.
    #[error("this record of damo's holds {0}")]
    Impossible(String),
    /// A trace that does not make sense.
    #[error("line {line} of the trace {reason}")]
    Trace {
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// Nothing to convert.
    #[error("the trace has no line of `damon:damon_aggregated` or `damon:damos_before_apply`")]
    NoTrace,
    /// Parquet is a feature of this crate, and was left out.
    #[error(
        "this isotherm was built without Parquet, for a quick first look; `make build` builds it whole"
    )]
    WithoutParquet,
    /// The Parquet library cannot read or write the file.
    #[cfg(feature = "parquet")]
    #[error("cannot read or write this as Parquet")]
    Parquet(#[source] parquet::errors::ParquetError),
    /// A Parquet file that holds no record, or a damaged one.
    #[error("this Parquet file is not a record: {0}")]
    NotARecord(String),
    /// The input could not be read.
    #[error("cannot read the input")]
    Read(#[source] io::Error),
    /// The output could not be written.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
    /// Room for intermediate data could not be had.
    #[error("cannot keep intermediate data in {folder}")]
    Scratch { folder: String, source: io::Error },
}
