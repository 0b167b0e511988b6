//! What memory is used for.

use serde::Serialize;

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// Heaps, stacks, written pages of private mappings.
    Anonymous,
    /// Pages of files that processes map.
    MappedFiles,
    /// tmpfs, memfd, System V; mapped or not.
    SharedMemory,
    /// Pages of files that no process maps.
    PageCache,
    /// Slab caches.
    Slab,
    /// Page tables.
    PageTables,
    /// Kernel stacks.
    KernelStacks,
    /// What zram or zswap takes for what is swapped out.
    CompressedSwap,
    /// Pages of hugetlbfs.
    Hugetlb,
    /// What the kernel tells of nowhere.
    Other,
    /// Memory that nobody uses.
    Free,
}

impl MemoryClass {
    /// All of them, as they are told.
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

    /// Its name for a person.
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

    /// Whether it is memory of users, which may be idle.
    pub const fn is_user(self) -> bool {
        matches!(
            self,
            Self::Anonymous | Self::MappedFiles | Self::SharedMemory | Self::PageCache
        )
    }
}
