//! The use of the machine's memory, and its users.

use isotherm_engine::frames::{AgeBytes, MappedClass};
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{GroupCharge, Nanos, TargetId};
use serde::{Deserialize, Serialize};

pub use isotherm_engine::page_cache::CachedKind;

/// Memory of the machine at a moment. It combines the kernel's counters of each node with the owner and age of mapped
/// memory. A sample of a record of several processes covers their memory alone: it has no nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineSample {
    pub time: Nanos,
    /// Memory by node.
    pub nodes: Vec<NodeMemory>,
    /// Memory by zone; none in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneMemory>,
    /// Memory by mapping target, node and class; each page of memory counts once.
    pub mapped: Vec<MappedMemory>,
    /// The control group that each target's memory is charged to, where it has one.
    pub groups: Vec<TargetGroup>,
    /// Private anonymous memory in huge pages, by target. Older records lack it.
    #[serde(default)]
    pub huge: Vec<HugeMemory>,
    /// Page cache that no process maps, present when a full scan has ended since the last sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_cache: Option<CacheSample>,
    /// Charge of the control group whose processes are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<ChargedMemory>,
    /// The targets' context, in a record of several contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl MachineSample {
    /// Sums all mapped memory.
    pub fn mapped_once(&self) -> AgeBytes {
        self.mapped.iter().map(|memory| &memory.bytes).sum()
    }

    /// Returns whether the sample covers the targets alone, and not the machine.
    pub fn is_of_targets(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// A control group's charge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChargedMemory {
    /// Directory of the group.
    pub group: String,
    /// The charge.
    #[serde(flatten)]
    pub charge: GroupCharge,
}

/// Page cache that no process maps, as one scan of all memory found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CacheSample {
    /// Time at which the scan ended. The ages date from the moment when each page was scanned.
    pub time: Nanos,
    /// Duration of the scan.
    pub took: Nanos,
    /// Memory by node and control group.
    pub memory: Vec<CachedMemory>,
    /// The largest files.
    pub files: Vec<CachedFile>,
    /// Number of all files.
    pub nr_files: u64,
}

/// Page cache that a control group is charged for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedMemory {
    pub node: u32,
    /// The group's path within the hierarchy; `None` where it was removed or is unknown.
    pub group: Option<String>,
    pub bytes: CachedBytes,
}

/// A file's cached pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedFile {
    /// The path as Isotherm sees it, or the path within its file system, if that is not mounted in Isotherm's view.
    /// `None` where the kernel has no name for the file in memory.
    pub path: Option<String>,
    pub kind: CachedKind,
    /// The device of its file system, as `MAJOR:MINOR`; for a block device, its own number.
    pub device: String,
    /// Its inode's number.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    pub bytes: CachedBytes,
}

impl CachedFile {
    /// Returns a name for display.
    pub fn name(&self) -> String {
        let number = || format!("inode {} on {}", self.inode, self.device);
        let name = self.path.clone().unwrap_or_else(number);
        match self.kind {
            CachedKind::File => name,
            CachedKind::Deleted => format!("{name} (deleted)"),
            CachedKind::BlockDevice => format!("{name} (block device)"),
            CachedKind::Other => format!("{name} (directory or other)"),
        }
    }
}

/// A node's memory in bytes, as the kernel reports it (`/sys/devices/system/node/nodeN/meminfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeMemory {
    /// The NUMA node; 0 on a machine without NUMA.
    pub node: u32,
    /// All memory of the node (MemTotal), without the memory that the kernel reserved at boot.
    pub total: u64,
    /// Free memory: MemFree and the pages on per-CPU lists, which the kernel does not count there.
    pub free: u64,
    /// Anonymous memory, mapped or about to be swapped out.
    pub anonymous: u64,
    /// Shared memory: tmpfs, memfd, System V; mapped or not.
    pub shared: u64,
    /// Pages of files and block devices in the page cache, mapped or not; shared memory excluded.
    pub files: u64,
    /// Pages of `files` on the kernel's active list.
    pub active_files: u64,
    /// Pages of files and shared memory that processes map.
    pub mapped: u64,
    /// Slab caches.
    pub slab: u64,
    /// Slab memory that the kernel can reclaim; part of `slab`.
    pub reclaimable_slab: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Kernel stacks.
    pub kernel_stacks: u64,
    /// Memory of compressed swap (zram, zswap), by its zones; 0 where the kernel does not report it.
    #[serde(default)]
    pub compressed_swap: u64,
    /// Huge pages of hugetlbfs, in use or not.
    pub hugetlb: u64,
}

/// A zone's memory in bytes, as the kernel reports it (`/proc/zoneinfo`), and the part that processes map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ZoneMemory {
    /// Number of its node.
    pub node: u32,
    /// Name of the zone: `DMA`, `DMA32`, `Normal`, `Movable`, ...
    pub zone: String,
    /// All bytes present in the zone.
    pub present: u64,
    /// The present bytes without the memory that the kernel reserved at boot.
    pub managed: u64,
    /// Free memory.
    pub free: u64,
    /// Memory that watched processes map, by age; each page of memory counts once.
    pub mapped: AgeBytes,
}

/// Memory that page tables map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappedMemory {
    /// The only target that maps the memory; `None` where several do.
    pub target: Option<TargetId>,
    pub node: u32,
    pub class: MappedClass,
    /// The bytes by age.
    pub bytes: AgeBytes,
}

/// A target's huge pages, of any origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HugeMemory {
    pub target: TargetId,
    /// Private anonymous memory in huge pages.
    pub bytes: u64,
    /// Bytes that were read so far.
    pub read: u64,
    /// Read bytes in pages of zeros, which were never written.
    pub unused: u64,
}

impl HugeMemory {
    /// Estimates the bytes that were never written, as if the rest were like the read part. Returns `None` where
    /// nothing was read.
    pub fn estimate(&self) -> Option<u64> {
        let all = u128::from(self.unused) * u128::from(self.bytes);
        let all = all.checked_div(u128::from(self.read))?;
        u64::try_from(all).ok()
    }
}

/// A target's control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetGroup {
    pub target: TargetId,
    /// Path within the hierarchy, as `/proc/PID/cgroup` shows it.
    pub group: String,
}
