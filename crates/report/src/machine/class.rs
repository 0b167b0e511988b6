//! Classes of memory by use.

use serde::Serialize;

/// The use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// Heaps, stacks, written pages of private mappings.
    Anonymous,
    /// Pages of files that processes map.
    MappedFiles,
    /// Memory of tmpfs, memfd and System V; mapped or not.
    SharedMemory,
    /// Pages of files that no process maps.
    PageCache,
    /// Slab caches.
    Slab,
    /// Page tables.
    PageTables,
    /// Kernel stacks.
    KernelStacks,
    /// Memory of zram or zswap with swapped-out pages.
    CompressedSwap,
    /// Pages of hugetlbfs.
    Hugetlb,
    /// Memory that the kernel does not report under any name.
    Other,
    /// Unused memory.
    Free,
}

impl MemoryClass {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 11] = [
        Self::Anonymous,
        Self::MappedFiles,
        Self::SharedMemory,
        Self::PageCache,
        Self::Slab,
        Self::PageTables,
        Self::KernelStacks,
        Self::CompressedSwap,
        Self::Hugetlb,
        Self::Other,
        Self::Free,
    ];

    /// Returns the name for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::MappedFiles => "mapped files",
            Self::SharedMemory => "shared memory",
            Self::PageCache => "page cache",
            Self::Slab => "slab",
            Self::PageTables => "page tables",
            Self::KernelStacks => "kernel stacks",
            Self::CompressedSwap => "compressed swap",
            Self::Hugetlb => "hugetlbfs",
            Self::Other => "other",
            Self::Free => "free",
        }
    }

    /// Returns whether it is user memory, which may be idle.
    pub const fn is_user(self) -> bool {
        matches!(
            self,
            Self::Anonymous | Self::MappedFiles | Self::SharedMemory | Self::PageCache
        )
    }
}
