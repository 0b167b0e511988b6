//! Filters: which memory, of that with a scheme's pattern, the action is for.

use serde::{Deserialize, Serialize};

use crate::address::AddressRange;
use crate::snapshot::TargetId;

/// One rule. The first that matches decides; if none does, the opposite of the last one's `allow`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// What it looks at.
    pub kind: FilterKind,
    /// Whether it matches memory that is so, or memory that is not.
    pub matching: bool,
    /// Whether matching memory is acted on, or left alone.
    pub allow: bool,
}

/// What a filter looks at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterKind {
    /// Lies in this range. Handled by the engine: what it leaves out is not even tried.
    Addr(AddressRange),
    /// Belongs to this target. Handled by the engine.
    Target(TargetId),
    /// Something only the world knows, page by page: counts as tried.
    Ops(OpsFilter),
}

/// What is known of pages only where they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpsFilter {
    /// Anonymous memory.
    Anon,
    /// On an active list.
    Active,
    /// Charged to this control group.
    Memcg {
        /// Path below the cgroup file system.
        path: String,
    },
    /// Accessed since the last check; the check itself clears the bit.
    Young,
    /// In a folio of a size within these bounds, in bytes.
    HugepageSize {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// File pages that nobody maps.
    Unmapped,
}
