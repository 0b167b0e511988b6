//! Parts of a context as DAMON and damo describe them.

use serde::{Deserialize, Serialize};

use crate::address::AddressRange;

/// Kind of monitored memory and of its addresses, by DAMON's names: its operations set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operations {
    /// `vaddr`: virtual memory of processes, in all of their mappings, followed as these change.
    #[default]
    Vaddr,
    /// `fvaddr`: given ranges of virtual memory of processes.
    Fvaddr,
    /// `paddr`: physical memory.
    Paddr,
}

impl Operations {
    /// DAMON's names, in the order of [`Self::ALL`].
    pub const NAMES: [&str; 3] = ["vaddr", "fvaddr", "paddr"];
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Vaddr, Self::Fvaddr, Self::Paddr];

    /// Returns DAMON's name.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// A monitored target of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamonTarget {
    /// Process id; `None` for physical memory, or if a command line names the process.
    pub pid: Option<u32>,
    /// Initial regions (`vaddr`, empty for all), or all regions (`fvaddr`, `paddr`); sorted and disjoint.
    pub regions: Vec<AddressRange>,
    /// Whether the next commit removes it from a running context.
    pub is_obsolete: bool,
}

/// Monitoring settings that only the kernel's DAMON has (`probes` and `sample` of its `monitoring_attrs`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSettings {
    /// Attribute probes: each counts the samples of a region that pass its filters (Linux 7.2).
    pub probes: Vec<AttributeProbe>,
    /// Ways of sampling other than the accessed bits of page tables.
    pub samples: SampleControl,
}

/// A probe of an attribute of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttributeProbe {
    /// Actions before a sample is probed, by the kernel's names.
    pub preps: Vec<String>,
    /// Filters, as of schemes: the first that matches decides.
    pub filters: Vec<KernelFilter>,
    /// Weight of its hits in the sum that the filter `probe_hits_wsum` compares.
    pub weight: u32,
}

/// Control of how accesses are sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleControl {
    /// Sample by the accessed bits of page tables.
    pub page_table: bool,
    /// Sample by page faults.
    pub page_fault: bool,
    /// Filters of accesses.
    pub filters: Vec<KernelFilter>,
}

impl Default for SampleControl {
    fn default() -> Self {
        Self {
            page_table: true,
            page_fault: false,
            filters: Vec::new(),
        }
    }
}

/// A filter of a probe or of accesses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFilter {
    /// The kernel's name of the property that it checks.
    pub kind: String,
    /// Whether it matches what has the property, or what lacks it.
    pub matching: bool,
    /// Whether what matches passes.
    pub allow: bool,
    /// Files of the property, with their texts: `path`, `min` and `max`, `cpumask`, or `tid_arr`.
    pub details: Vec<(String, String)>,
}

impl KernelFilter {
    /// Properties that probes check, with the files of each.
    pub const OF_PROBES: [(&str, &[&str]); 5] = [
        ("anon", &[]),
        ("memcg", &["path"]),
        ("pgidle_unset", &[]),
        ("pgidle_set", &[]),
        ("hugepage_size", &["min", "max"]),
    ];
    /// Properties of accesses, with the files of each.
    pub const OF_SAMPLES: [(&str, &[&str]); 3] = [
        ("cpumask", &["cpumask"]),
        ("threads", &["tid_arr"]),
        ("write", &[]),
    ];
}
