//! Common parts of all conversions: the formats, their detection, and the result.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;

use crate::error::RecordError;
use crate::item::Item;

/// A format of recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Arrow IPC, as Isotherm writes it.
    Isotherm,
    /// damo's list of records as JSON.
    Json,
    /// damo's list of records as JSON, compressed by zlib; damo's default.
    JsonCompressed,
    /// Output of DAMON's trace points.
    PerfScript,
    /// Parquet as we write it.
    Parquet,
}

/// Length of a file's beginning that [`Format::detect`] needs.
const DETECT_LENGTH: u64 = 1 << 16;

impl Format {
    /// Detects the format by the beginning of a file; else returns a description of the file.
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

    /// Detects the format by the beginning of `input`, and consumes that part.
    ///
    /// # Errors
    /// Fails if the input cannot be read.
    pub fn detect_in(input: impl Read) -> io::Result<Result<Self, String>> {
        Ok(Self::detect(&head_of(input)?))
    }
}

/// Consumes the beginning of `input`, by which [`Format::detect`] detects its format.
pub(crate) fn head_of(input: impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    input.take(DETECT_LENGTH).read_to_end(&mut head)?;
    Ok(head)
}

/// Access checks per aggregation interval, for files without this number: 100 ms of 5 ms each, the defaults of damo and
/// of kernel DAMON.
pub const DEFAULT_NR_SAMPLES: u32 = 20;

/// The result of a conversion, and the parts that could not be converted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conversion {
    /// Number of snapshots written.
    pub snapshots: u64,
    /// Number of their regions.
    pub regions: u64,
    /// Number of other items written.
    pub items: u64,
    /// Parts that were left out.
    pub left_out: LeftOut,
    /// Values that the input lacked, and the assumptions in their place.
    pub assumed: Vec<String>,
    /// Numbers of different names that became numbers, by kind, in a record for publication.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replaced: BTreeMap<&'static str, usize>,
}

/// Parts that the other format cannot hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Number of regions with unknown accesses.
    pub unknown_regions: u64,
    /// Numbers of all other parts by kind.
    pub others: BTreeMap<&'static str, u64>,
}

impl Conversion {
    /// Counts an item that is written.
    pub fn count(&mut self, item: &Item) {
        let regions = match item {
            Item::Snapshot(snapshot) => snapshot.regions.len(),
            Item::Pages(pages) => pages.blocks.len(),
            _ => {
                self.items += 1;
                return;
            }
        };
        self.snapshots += 1;
        self.regions += regions as u64;
    }

    /// Adds the omissions and assumptions of a second step over the same data, and takes its written counts.
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
    /// Returns whether everything was converted.
    pub fn is_empty(&self) -> bool {
        self.unknown_regions == 0 && self.others.is_empty()
    }

    /// Adds `count` parts of one kind.
    pub fn add(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.others.entry(kind).or_default() += count;
        }
    }
}

/// The reason why a conversion failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("cannot read this as a record of damo's (json)")]
    Json(#[source] serde_json::Error),
    #[error("this record of damo's holds {0}")]
    Impossible(String),
    #[error("line {line} of the trace {reason}")]
    Trace { line: u64, reason: String },
    #[error("the trace has no line of `damon:damon_aggregated` or `damon:damos_before_apply`")]
    NoTrace,
    #[error(
        "this isotherm was built without Parquet, for a quick first look; `make build` builds it whole"
    )]
    WithoutParquet,
    #[cfg(feature = "parquet")]
    #[error("cannot read or write this as Parquet")]
    Parquet(#[source] parquet::errors::ParquetError),
    #[error("this Parquet file is not a record: {0}")]
    NotARecord(String),
    #[error("cannot read the input")]
    Read(#[source] io::Error),
    #[error("cannot write the output")]
    Write(#[source] io::Error),
    #[error("cannot keep intermediate data in {folder}")]
    Scratch { folder: String, source: io::Error },
}

impl ConvertError {
    /// Builds the error of intermediate data in `folder`.
    pub(crate) fn scratch(folder: &Path, source: io::Error) -> Self {
        let folder = folder.display().to_string();
        Self::Scratch { folder, source }
    }
}
