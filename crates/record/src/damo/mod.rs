//! Records of damo, the user space tool of kernel DAMON: read, and written.
//!
//! Problem: people have recordings made by `damo record` and tools that read them, and want to look
//! at those with isotherm and at ours with damo.
//!
//! Approach: damo's JSON and its zlib-compressed form are read and written ([`json`], [`export`]);
//! the text that `perf script` prints of DAMON's trace points is read ([`perf`]). Names and units
//! are those of damo 3.4.3 (`_damo_records.py`, `_damon.py`, `_damo_fmt_str.py`); values with units,
//! commas, and missing ones are taken as damo takes them.
//!
//! Limits: a damo record lies in memory while it is converted, about 50 bytes for each region, and
//! input of more than [`MAX_INPUT`] bytes (decompressed) is refused. What damo's records cannot hold
//! (mappings, memory use, cost, regions of unknown access) is left out and counted.

pub mod export;
pub mod json;
pub mod perf;
#[cfg(test)]
mod tests;
pub mod units;

use std::io::{self, Read};

use isotherm_engine::{Nanos, RegionSnapshot, Snapshot, TargetId};

use crate::item::{Header, Item, TargetStart};

/// Longest input that is read, once it is decompressed.
pub const MAX_INPUT: u64 = 1 << 30;
/// DAMON's and damo's default sampling interval.
pub(crate) const DEFAULT_SAMPLE: Nanos = Nanos::from_millis(5);
/// DAMON's and damo's default aggregation interval.
pub(crate) const DEFAULT_AGGREGATION: Nanos = Nanos::from_millis(100);

/// Why a file of damo could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamoError {
    /// The operating system or the decompressor failed.
    #[error("cannot read it: {0}")]
    Read(io::Error),
    /// It could not be written.
    #[error("cannot write it: {0}")]
    Write(io::Error),
    /// Longer than what is read.
    #[error(
        "it is longer than {} MiB, the most that is read of damo's formats; record a shorter time, \
         or split it",
        MAX_INPUT >> 20
    )]
    TooLarge,
    /// Not the JSON that damo writes.
    #[error("it is not a damo record: {0}")]
    Json(String),
    /// A line of `perf script` that makes no sense.
    #[error("line {line} {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Readable, but it cannot be right.
    #[error("{0}")]
    Invalid(String),
}

/// A record made from another program's file.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// The record's header; what the file does not say is empty.
    pub header: Header,
    /// Its items, in order of time.
    pub items: Vec<Item>,
    /// What had to be assumed.
    pub warnings: Vec<String>,
}

/// Input that fails, and knows that it did, behind [`MAX_INPUT`] bytes.
pub(crate) struct Limited<R> {
    input: R,
    left: u64,
    pub(crate) exceeded: bool,
}

impl<R: Read> Limited<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            left: MAX_INPUT,
            exceeded: false,
        }
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        let Some(left) = self.left.checked_sub(n as u64) else {
            self.exceeded = true;
            return Err(io::Error::other("too long"));
        };
        self.left = left;
        Ok(n)
    }
}

/// Numbers foreign targets in order of appearance, and collects their snapshots.
#[derive(Default)]
pub(crate) struct Collector<K> {
    targets: Vec<K>,
    names: Vec<String>,
    pub(crate) snapshots: Vec<Snapshot>,
}

impl<K: PartialEq> Collector<K> {
    pub(crate) fn target(&mut self, key: K, name: impl FnOnce() -> String) -> TargetId {
        let index = self.targets.iter().position(|k| *k == key);
        let index = index.unwrap_or_else(|| {
            self.targets.push(key);
            self.names.push(name());
            self.targets.len() - 1
        });
        TargetId(index as u32)
    }

    /// The items, in order of time.
    pub(crate) fn into_items(mut self) -> Vec<Item> {
        self.snapshots.sort_by_key(|s| (s.end, s.start));
        let first = self.snapshots.iter().map(|s| s.start).min();
        let time = first.unwrap_or_default();
        let starts = self.names.into_iter().enumerate().map(|(index, name)| {
            Item::TargetStart(TargetStart {
                time,
                target: TargetId(index as u32),
                pid: 0,
                name,
            })
        });
        starts
            .chain(self.snapshots.into_iter().map(Item::Snapshot))
            .collect()
    }
}

/// Brings regions into address order and refuses those that overlap.
pub(crate) fn in_order(regions: &mut [RegionSnapshot]) -> Result<(), String> {
    regions.sort_by_key(|r| r.range);
    let overlap = regions
        .windows(2)
        .find(|two| two[0].range.end > two[1].range.start);
    match overlap {
        None => Ok(()),
        Some(two) => Err(format!(
            "the regions {:?} and {:?} of one snapshot overlap",
            two[0].range, two[1].range
        )),
    }
}

/// How often a region is checked at these intervals.
pub(crate) fn checks(sample: Nanos, aggregation: Nanos) -> u32 {
    let checks = aggregation.0 as f64 / sample.0.max(1) as f64;
    (checks.round() as u32).max(1)
}

/// The parts of a header that every import shares.
pub(crate) fn header(format: &str, started: Nanos, sample: Nanos, aggregation: Nanos) -> Header {
    Header {
        writer: format!(
            "isotherm {} (from damo's {format})",
            env!("CARGO_PKG_VERSION")
        ),
        started,
        sample_interval: sample,
        aggregation_interval: aggregation,
        settings: [("imported_from".to_string(), format.to_string())].into(),
        ..Header::default()
    }
}
