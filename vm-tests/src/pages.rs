//! Places of a workload's memory, as `vm-guest pages` prints them and scenarios read them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::VmError;

/// Places of a workload's memory, in bytes.
#[derive(Serialize, Deserialize)]
pub struct Pages {
    pub hot: Part,
    pub cold: Part,
    /// Bytes of smaps' `AnonHugePages` in the mappings that hold the hot and cold ranges.
    pub anon_huge: u64,
    pub referenced: u64,
    /// Bytes of these mappings by node, from numa_maps.
    pub numa_maps: BTreeMap<u32, u64>,
}

/// Bytes of the hot or of the cold ranges, by place.
#[derive(Serialize, Deserialize, Default)]
pub struct Part {
    pub present: u64,
    pub swapped: u64,
    pub nodes: BTreeMap<u32, u64>,
    /// Bytes in mappings that are advised to have huge pages (MADV_HUGEPAGE), and not to (MADV_NOHUGEPAGE).
    pub advised_huge: u64,
    pub advised_small: u64,
    /// Bytes on the active list (PG_active), if `look NAME --active` counted them.
    pub active: Option<u64>,
    pub sum: Option<u64>,
}

impl Part {
    pub(crate) fn active(&self) -> Result<u64, VmError> {
        let wrong = || VmError::Wrong("active pages were not counted".to_owned());
        self.active.ok_or_else(wrong)
    }

    pub(crate) fn on(&self, node: u32) -> u64 {
        self.nodes.get(&node).copied().unwrap_or(0)
    }
}
