//! What managing memory costs on one machine, measured there: for predictions instead of constants.
//!
//! Problem: what paging out takes depends on what is compressed, on the kernel, on how dear an interrupt is, and on
//! whether the program runs meanwhile; between machines and programs that is a factor of ten.
//!
//! Approach: the operations that schemes are made of are carried out on memory of a program of our own that holds
//! pages of the program in question, several times each (`isotherm_linux::calibrate`). A trace keeps what was measured,
//! so that a replay elsewhere is of the machine that it was recorded on.

use serde::{Deserialize, Serialize};

use crate::statistics::Summary;

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
    /// Of single measurements; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let summary = Summary::of(values.iter().copied())?;
        Some(Self {
            min: summary.min,
            median: summary.median,
            max: summary.max,
        })
    }

    /// The one that `bound` asks for.
    pub fn at(&self, bound: Bound) -> f64 {
        match bound {
            Bound::Low => self.min,
            Bound::Middle => self.median,
            Bound::High => self.max,
        }
    }
}

/// Which of several measurements.
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

/// What was measured; `None`: it could not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Calibration {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Its kernel.
    pub kernel: String,
    /// Where pages were paged out to (`zram (lz4)`); nothing if there was no swap.
    pub swap: Option<String>,
    /// How many pages of the program in question were what was paged out; 0: made-up content.
    pub content_pages: u64,
    /// Bytes that compressed swap holds for each that it takes.
    pub compression_ratio: Option<f64>,
    /// CPU time of acting a page, where blocks of 2 MiB go whole.
    pub page_out_whole_ns: Option<Measured>,
    /// The part of that time that a thread loses which works on the same memory's program meanwhile, 0 to 1.
    pub page_out_whole_lost: Option<Measured>,
    /// CPU time of acting a page, where pages go one by one and the program sleeps.
    pub page_out_alone_ns: Option<Measured>,
    /// The same, where a thread of the program works meanwhile.
    pub page_out_running_ns: Option<Measured>,
    /// The part of that time that the thread loses, 0 to 1.
    pub page_out_running_lost: Option<Measured>,
    /// What a page takes that comes back, in the program's own time; in random order, so that caches help little.
    pub refault_ns: Option<Measured>,
    /// A page's first fault.
    pub minor_fault_ns: Option<Measured>,
    /// The first fault of a huge page.
    pub huge_fault_ns: Option<Measured>,
    /// 2 MiB are made a huge page.
    pub collapse_ns: Option<Measured>,
    /// A range's accessed bits are cleared while the program runs: what it takes besides its pages.
    pub clear_range_ns: Option<Measured>,
    /// And for each of its pages.
    pub clear_page_ns: Option<Measured>,
    /// A page's next access takes longer once its accessed bit was cleared; in random order.
    pub set_again_ns: Option<Measured>,
    /// What measuring took.
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
