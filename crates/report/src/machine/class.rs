//! Classes of memory by use.

use serde::Serialize;

isotherm_engine::named! {
    /// The use of memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum MemoryClass {
        /// Heaps, stacks, written pages of private mappings.
        Anonymous = "anonymous",
        /// Pages of files that processes map.
        MappedFiles = "mapped files",
        /// Memory of tmpfs, memfd and System V; mapped or not.
        SharedMemory = "shared memory",
        /// Pages of files that no process maps.
        PageCache = "page cache",
        /// Slab caches.
        Slab = "slab",
        /// Page tables.
        PageTables = "page tables",
        /// Kernel stacks.
        KernelStacks = "kernel stacks",
        /// Memory of zram or zswap with swapped-out pages.
        CompressedSwap = "compressed swap",
        /// Pages of hugetlbfs.
        Hugetlb = "hugetlbfs",
        /// Memory that the kernel does not report under any name.
        Other = "other",
        /// Unused memory.
        Free = "free",
    }

    /// Returns the name for display.
    fn name;
    all ALL;
}

impl MemoryClass {
    /// Returns whether it is user memory, which may be idle.
    pub const fn is_user(self) -> bool {
        matches!(
            self,
            Self::Anonymous | Self::MappedFiles | Self::SharedMemory | Self::PageCache
        )
    }
}
