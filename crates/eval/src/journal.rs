//! The journal of an evaluation: a line of JSON for each finished step, in order. Steps in the journal are not
//! repeated; a last line that was cut by a crash is ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tuned::TunedEntry;

pub use isotherm_tune::json_lines::{append, read};

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "lowercase")]
pub enum Entry {
    /// An evaluation began or continued, on this machine.
    Machine(RunMachine),
    /// A run has ended.
    Run(Box<RunEntry>),
    /// A workload was recorded and tuned.
    Tuned(Box<TunedEntry>),
}

/// Machine that runs were made on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMachine {
    /// Host name.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processor.
    pub cpu: String,
    /// Number of processors that were online.
    pub nr_cpus: usize,
    /// RAM, in KiB.
    pub memory_kib: u64,
    /// Version of Isotherm.
    pub isotherm: String,
    /// Swap that existed before and that the experiment used, in KiB; `None`: its own swap, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_swap_kib: Option<u64>,
    /// Time of the entry, in seconds since the Unix epoch.
    pub time_s: u64,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// Name of the workload.
    pub workload: String,
    /// Name of the configuration.
    pub configuration: String,
    /// Number of the repeat, from 1; [`crate::TUNING`]: the recording for tuning, which is not measured.
    pub repeat: u32,
    /// Fingerprint of the run: [`crate::PlannedRun::fingerprint`].
    pub fingerprint: String,
    /// Time of the start, in seconds since the Unix epoch.
    pub time_s: u64,
    /// Result of the run.
    pub outcome: RunResult,
    /// Output of the Isotherm beside it at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<serde_json::Value>,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunResult {
    /// The run was measured.
    Measured(Box<RunMeasurements>),
    /// The run failed and will be repeated; the reason.
    Failed(String),
}

/// Measurements while `run` ran. Means are over samples at 1 Hz; counts are increases during the run. `None`: this
/// kernel, or this run, does not report the value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMeasurements {
    /// Seconds from start to end.
    pub runtime_s: f64,
    /// Units of work in a second, as the workload reported them.
    pub throughput: Option<f64>,
    /// CPU time of the workload's processes, seconds.
    pub cpu_s: Option<f64>,
    /// Number of samples.
    pub samples: u64,
    /// Mean of MemTotal - MemFree, less free pages on lists of single processors, KiB.
    pub memused_kib: f64,
    /// Mean resident memory of the workload's processes, KiB.
    pub rss_kib: f64,
    /// Major faults of the system.
    pub pgmajfaults: u64,
    /// Microseconds in which some task waited for memory.
    pub psi_mem_some_us: Option<u64>,
    /// Microseconds in which all tasks waited for memory.
    pub psi_mem_full_us: Option<u64>,
    /// Pages read from swap.
    pub pswpin: u64,
    /// Pages written to swap.
    pub pswpout: u64,
    /// Huge pages allocated at faults.
    pub thp_fault_alloc: Option<u64>,
    /// Huge pages collapsed from small ones.
    pub thp_collapse_alloc: Option<u64>,
    /// Huge pages split.
    pub thp_split_page: Option<u64>,
    /// CPU time of Isotherm, percent of one CPU.
    pub monitor_cpu_percent: Option<f64>,
    /// Estimated CPU time that Isotherm took from the workload, percent of one CPU.
    pub induced_cpu_percent: Option<f64>,
    /// Maximum resident memory of Isotherm, KiB.
    pub monitor_rss_kib: Option<f64>,
    /// Resident memory of the workload's processes in the last sample, KiB.
    pub rss_end_kib: Option<f64>,
    /// Mean growth of the compressed swap's pool since the start, KiB.
    pub pool_kib: Option<f64>,
    /// Major faults of the workload's processes.
    pub majflt: Option<u64>,
    /// Minor faults of the workload's processes.
    pub minflt: Option<u64>,
    /// Anonymous refaults of the system.
    pub refault_anon: Option<u64>,
    /// Refaulted pages that swap readahead had brought into the swap cache (`swap_ra_hit`): minor refaults.
    pub swap_cache_hits: Option<u64>,
    /// CPU time of acting, seconds.
    pub acting_cpu_s: Option<f64>,
    /// Number of times that the guard stopped the schemes.
    pub guard_stops: Option<u64>,
    /// Time that the workload lost by acting, as measured by the guard, seconds.
    pub guard_lost_s: Option<f64>,
    /// MemTotal - MemFree in the last sample, less free pages on lists of single processors, KiB.
    pub memused_end_kib: Option<f64>,
    /// Measures that the workload reported, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_line_at_the_end_counts_for_nothing() {
        let run = Entry::Run(Box::new(RunEntry {
            workload: "w".into(),
            configuration: "orig".into(),
            repeat: 1,
            fingerprint: "f".into(),
            time_s: 1,
            outcome: RunResult::Failed("x".into()),
            monitor: None,
        }));
        let mut text = Vec::new();
        append(&mut text, &Entry::Machine(RunMachine::default())).expect("memory");
        append(&mut text, &run).expect("memory");
        let text = String::from_utf8(text).expect("JSON");
        let read = read::<Entry>;
        assert_eq!(read(&text).expect("whole").len(), 2);
        assert_eq!(read(&text[..text.len() - 5]).expect("cut").len(), 1);
        let broken = format!("{{\n{text}");
        assert!(read(&broken).expect_err("broken").starts_with("line 1: "));
    }
}
