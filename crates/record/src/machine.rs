//! What the machine's memory is used for, and by whom.

use isotherm_engine::frames::{AgeBytes, MappedClass};
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{GroupCharge, Nanos, TargetId};
use serde::{Deserialize, Serialize};

/// Memory of the machine at a moment: what the kernel says of each node, and of what processes map, whose it is
/// and when it was accessed. In a record of several processes it is their memory alone: it has no nodes then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineSample {
    pub time: Nanos,
    /// By node.
    pub nodes: Vec<NodeMemory>,
    /// By zone; none in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneMemory>,
    /// By who maps it, node and class; each page of memory counts once.
    pub mapped: Vec<MappedMemory>,
    /// The control group of each target, where it has one: that which its memory is charged to.
    pub groups: Vec<TargetGroup>,
    /// Private anonymous memory in huge pages, by target. Not in records of before it was told.
    #[serde(default)]
    pub huge: Vec<HugeMemory>,
    /// Files' pages that no process maps, when all of them have been looked at since the last sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_cache: Option<CacheSample>,
    /// Charge of the control group whose processes are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<ChargedMemory>,
}

impl MachineSample {
    /// All mapped memory.
    pub fn mapped_once(&self) -> AgeBytes {
        self.mapped.iter().map(|memory| &memory.bytes).sum()
    }

    /// Whether it is about the targets alone, and not about the machine.
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

/// Files' pages that no process maps, as they were found by looking at all of memory once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CacheSample {
    /// When that ended; how old pages are is of when they were looked at.
    pub time: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// By node and control group.
    pub memory: Vec<CachedMemory>,
    /// The largest files.
    pub files: Vec<CachedFile>,
    /// Files that there are.
    pub nr_files: u64,
}

/// Cached pages of files that a control group is charged for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedMemory {
    pub node: u32,
    /// The group's path within the hierarchy; `None` where it has been removed or is not known.
    pub group: Option<String>,
    pub bytes: CachedBytes,
}

/// What a file in the page cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CachedKind {
    /// A file.
    #[default]
    File,
    /// A file that was deleted and is still open.
    Deleted,
    /// A block device: mostly the tables of the file system on it.
    BlockDevice,
    /// A directory or another thing of a file system.
    Other,
}

/// A file's cached pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedFile {
    /// Where it is, as Isotherm sees it; within its file system, where that is mounted nowhere that it sees.
    /// `None` where the kernel does not have its name at hand.
    pub path: Option<String>,
    pub kind: CachedKind,
    /// The device of its file system, as `MAJOR:MINOR`; a block device's own.
    pub device: String,
    /// Its inode's number.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    pub bytes: CachedBytes,
}

impl CachedFile {
    /// What it is called, for a person.
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

/// A node's memory in bytes, as the kernel has it (`/sys/devices/system/node/nodeN/meminfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeMemory {
    /// The NUMA node; 0 on a machine without.
    pub node: u32,
    /// All of it (MemTotal): without what the kernel reserved when it started.
    pub total: u64,
    /// Free memory: MemFree, and what is on lists of single processors, which the kernel does not count.
    pub free: u64,
    /// Anonymous memory, mapped or about to be swapped out.
    pub anonymous: u64,
    /// Shared memory: tmpfs, memfd, System V; mapped or not.
    pub shared: u64,
    /// Files' pages in the page cache, block devices' as well, mapped or not; without shared memory.
    pub files: u64,
    /// Of `files`, those on the kernel's active list.
    pub active_files: u64,
    /// Pages that processes map, of files and shared memory.
    pub mapped: u64,
    /// Slab caches.
    pub slab: u64,
    /// Of `slab`, what the kernel can reclaim.
    pub reclaimable_slab: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Kernel stacks.
    pub kernel_stacks: u64,
    /// What compressed swap (zram, zswap) takes, by its zones; 0 where the kernel does not tell.
    #[serde(default)]
    pub compressed_swap: u64,
    /// Huge pages of hugetlbfs, in use or not.
    pub hugetlb: u64,
}

/// A zone's memory in bytes, as the kernel has it (`/proc/zoneinfo`), and what processes map of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ZoneMemory {
    /// Its node.
    pub node: u32,
    /// Its name: `DMA`, `DMA32`, `Normal`, `Movable`, ...
    pub zone: String,
    /// All that there is.
    pub present: u64,
    /// Without what the kernel reserved when it started.
    pub managed: u64,
    /// Free memory.
    pub free: u64,
    /// What watched processes map, by when it was accessed; each page of memory counts once.
    pub mapped: AgeBytes,
}

/// Memory that page tables map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappedMemory {
    /// The only target that maps it; `None` where several do.
    pub target: Option<TargetId>,
    pub node: u32,
    pub class: MappedClass,
    /// How much, by when it was accessed.
    pub bytes: AgeBytes,
}

/// A target's huge pages, whoever made them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HugeMemory {
    pub target: TargetId,
    /// Private anonymous memory in huge pages.
    pub bytes: u64,
    /// What of it was read so far.
    pub read: u64,
    /// What of that is pages of zeros: never written.
    pub unused: u64,
}

impl HugeMemory {
    /// What of all of it was never written, if the rest is like what was read; `None` where nothing was.
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
    /// Its path within the hierarchy, as `/proc/PID/cgroup` has it.
    pub group: String,
}
