//! Memory that a control group is charged for.

use serde::{Deserialize, Serialize};

/// Bytes that a control group and its descendants are charged for (`memory.stat`); `None` where the kernel does not
/// report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupCharge {
    /// All memory, without swap.
    pub total: Option<u64>,
    /// Anonymous memory.
    pub anonymous: Option<u64>,
    /// Shared memory: tmpfs, memfd, System V.
    pub shared: Option<u64>,
    /// Page cache, mapped or not; without shared memory.
    pub page_cache: Option<u64>,
    /// Memory of the kernel: slab, page tables, stacks, sockets, and others.
    pub kernel: Option<u64>,
    /// Swapped-out memory.
    pub swap: Option<u64>,
}
