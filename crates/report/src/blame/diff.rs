//! Two records side by side: the code whose idle memory has grown or shrunk.
//!
//! JSON: [`BlameDiffReport`].

use std::collections::BTreeMap;

use isotherm_engine::Nanos;
use serde::Serialize;

use super::{BlameReport, By, HugeBytes, Measure, NotBlamed};
use crate::context::RecordInfo;

/// All bytes of one of the records.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlameTotals {
    /// The record that the totals are based on.
    pub record: RecordInfo,
    /// The time of the last snapshots in the totals.
    pub time_ns: Nanos,
    /// All bytes of the measure.
    pub total_bytes: u64,
    /// Bytes with a known stack.
    pub blamed_bytes: u64,
    /// Blamed bytes that count for the nearer of two stacks.
    pub likely_bytes: u64,
    /// Bytes without a known stack.
    pub unknown: NotBlamed,
    /// Bytes of huge pages that were read, where their waste is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge: Option<HugeBytes>,
}

/// Bytes of one name in both records.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlamedDiff {
    /// The name.
    pub name: String,
    /// Bytes in the first record.
    pub before_bytes: u64,
    /// Bytes in the second record.
    pub after_bytes: u64,
}

/// Bytes of one stack in both records.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StackDiff {
    /// Functions, the outermost first.
    pub stack: Vec<String>,
    /// Bytes in the first record.
    pub before_bytes: u64,
    /// Bytes in the second record.
    pub after_bytes: u64,
}

/// The changes between two records.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlameDiffReport {
    /// `blame_diff`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The measure of the bytes.
    pub measure: Measure,
    /// Minimum idle time, where idle bytes are counted.
    pub at_least_ns: Nanos,
    /// Totals of the first record.
    pub before: BlameTotals,
    /// Totals of the second record.
    pub after: BlameTotals,
    /// The grouping of `blamed`.
    pub by: By,
    /// Bytes by group, the largest change first.
    pub blamed: Vec<BlamedDiff>,
    /// Bytes by stack, the largest change first.
    pub stacks: Vec<StackDiff>,
}

impl BlameDiffReport {
    /// Compares two reports with the same options.
    pub fn new(before: &BlameReport, after: &BlameReport) -> Self {
        let mut names: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        let mut stacks: BTreeMap<&[String], [u64; 2]> = BTreeMap::new();
        for (side, report) in [before, after].into_iter().enumerate() {
            for one in &report.blamed {
                names.entry(&one.name).or_default()[side] += one.bytes;
            }
            for stack in &report.stacks {
                stacks.entry(&stack.stack).or_default()[side] += stack.bytes;
            }
        }
        let blamed = |(name, [before_bytes, after_bytes]): (&str, [u64; 2])| BlamedDiff {
            name: name.to_owned(),
            before_bytes,
            after_bytes,
        };
        let stack = |(stack, [before_bytes, after_bytes]): (&[String], [u64; 2])| StackDiff {
            stack: stack.to_vec(),
            before_bytes,
            after_bytes,
        };
        Self {
            report: "blame_diff",
            version: crate::VERSION,
            measure: after.measure,
            at_least_ns: after.at_least_ns,
            before: BlameTotals::of(before),
            after: BlameTotals::of(after),
            by: after.by,
            blamed: by_change(names).map(blamed).collect(),
            stacks: by_change(stacks).map(stack).collect(),
        }
    }
}

/// Returns the bytes before and after by their change, the largest first.
fn by_change<K>(all: BTreeMap<K, [u64; 2]>) -> impl Iterator<Item = (K, [u64; 2])> {
    let mut all: Vec<(K, [u64; 2])> = all.into_iter().collect();
    all.sort_by_key(|(_, [before, after])| std::cmp::Reverse(before.abs_diff(*after)));
    all.into_iter()
}

impl BlameTotals {
    fn of(report: &BlameReport) -> Self {
        Self {
            record: report.record.clone(),
            time_ns: report.time_ns,
            total_bytes: report.total_bytes,
            blamed_bytes: report.blamed_bytes,
            likely_bytes: report.likely_bytes,
            unknown: report.unknown,
            huge: report.huge,
        }
    }
}

/// Formats folded stacks with the bytes of both records: the output of `difffolded.pl`, which `flamegraph.pl` draws in
/// red and blue.
pub fn folded_diff(report: &BlameDiffReport) -> String {
    let lines = report.stacks.iter().map(|stack| {
        let names = super::export::folded_names(&stack.stack);
        format!("{names} {} {}\n", stack.before_bytes, stack.after_bytes)
    });
    lines.collect()
}
