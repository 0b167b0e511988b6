//! Cost of memory management on one machine, measured there: predictions use it instead of constants.
//!
//! Problem: the time of a page-out depends on the compressed content, the kernel, the cost of an interrupt, and whether
//! the program runs meanwhile. Between machines and programs that is a factor of ten.
//!
//! Approach: the schemes' operations are executed several times each on memory of a helper program that holds pages of
//! the program in question (`isotherm_linux::calibrate`). A trace keeps the measurements, so that a replay elsewhere
//! predicts the machine that it was recorded on.

use serde::{Deserialize, Serialize};

use crate::address::Nanos;
use crate::statistics::ValueSummary;

/// Time that a program loses by a refault and the page-out of another page, on zram (docs/results/overhead.md).
pub const SWAP_COST: Nanos = Nanos(11_000);

/// A cost that was measured several times, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measured {
    /// The least.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The most.
    pub max: f64,
}

impl Measured {
    /// Returns the summary of single measurements; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let summary = ValueSummary::of(values.iter().copied())?;
        Some(Self {
            min: summary.min,
            median: summary.median,
            max: summary.max,
        })
    }

    /// Returns the measurement that `bound` selects.
    pub fn at(&self, bound: Bound) -> f64 {
        match bound {
            Bound::Low => self.min,
            Bound::Middle => self.median,
            Bound::High => self.max,
        }
    }
}

/// Cost and gain of one kind of swap on this machine, measured with copies of programs' pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SwapMeasured {
    /// `zram` or `zswap`.
    pub kind: String,
    /// Algorithm by which it compresses.
    pub compressor: String,
    /// Bytes that it holds for each byte of memory that it takes.
    pub ratio: Option<Measured>,
    /// Part of the paged-out pages that it holds in memory, 0 to 1; the others went to the disk.
    pub kept_in_memory: Option<Measured>,
    /// Time to page out a page, among many.
    pub page_out_ns: Option<Measured>,
    /// Time to read a page back, in random order.
    pub fault_in_ns: Option<Measured>,
    /// Reason why it was not measured, or not to the end.
    pub unknown: Option<String>,
}

impl SwapMeasured {
    /// Returns a kind that could not be measured, and the reason.
    pub fn unknown(kind: &str, why: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            unknown: Some(why.to_owned()),
            ..Self::default()
        }
    }
}

/// Latency and bandwidth of a memory node for one thread on the processors of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeMeasured {
    /// Node whose processors read.
    pub cpu_node: u32,
    /// Node whose memory is read.
    pub node: u32,
    /// Time of a load that waits for the one before it.
    pub latency_ns: Option<Measured>,
    /// Bytes that one thread reads in order, a second.
    pub read_bytes_per_s: Option<Measured>,
    /// Reason why it was not measured.
    pub unknown: Option<String>,
}

/// Choice among several measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The least.
    Low,
    /// The median.
    #[default]
    Middle,
    /// The most.
    High,
}

/// Measurements of one machine. `None`: it could not be measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Calibration {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Kernel of the machine.
    pub kernel: String,
    /// Swap device that pages were paged out to (`zram (lz4)`); `None` if there was no swap.
    pub swap: Option<String>,
    /// Number of the program's pages that were paged out; 0: made-up content.
    pub content_pages: u64,
    /// Bytes that compressed swap holds for each byte that it takes.
    pub compression_ratio: Option<f64>,
    /// CPU time of acting per page, if blocks of 2 MiB are paged out whole.
    pub page_out_whole_ns: Option<Measured>,
    /// Part of that time that a running thread of the same program loses, 0 to 1.
    pub page_out_whole_lost: Option<Measured>,
    /// CPU time of acting per page, if pages are paged out one by one and the program sleeps.
    pub page_out_alone_ns: Option<Measured>,
    /// CPU time of acting per page, if pages are paged out one by one and a thread of the program runs.
    pub page_out_running_ns: Option<Measured>,
    /// The part of that time that the thread loses, 0 to 1.
    pub page_out_running_lost: Option<Measured>,
    /// Time of the program to read one page back; in random order, so that caches help little.
    pub refault_ns: Option<Measured>,
    /// Time of a page's first fault.
    pub minor_fault_ns: Option<Measured>,
    /// Time of the first fault of a huge page.
    pub huge_fault_ns: Option<Measured>,
    /// Time to collapse 2 MiB into a huge page.
    pub collapse_ns: Option<Measured>,
    /// Fixed time to clear the accessed bits of a range while the program runs, without its pages.
    pub clear_range_ns: Option<Measured>,
    /// Time to clear the accessed bit of each page of the range.
    pub clear_page_ns: Option<Measured>,
    /// Additional time of a page's next access after its accessed bit was cleared; in random order.
    pub set_again_ns: Option<Measured>,
    /// Seconds that the measurements took.
    pub took_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_measurements_the_median_and_the_extremes_are_kept() {
        let measured = Measured::of(&[3.0, 1.0, 2.0]).expect("some");
        let bounds = [Bound::Low, Bound::Middle, Bound::High].map(|bound| measured.at(bound));
        assert_eq!(bounds.map(|value| value as u64), [1, 2, 3]);
        assert_eq!(Measured::of(&[]), None);
    }
}
