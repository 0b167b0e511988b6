//! Page-cache pages that no process maps, and the times of their accesses.
//!
//! Problem: a page that is read with read(2) has no accessed bit in any page table.
//!
//! Approach: the kernel marks a page of a file when it is read. It sets `PG_referenced`, and `PG_active` the second
//! time (folio_mark_accessed() in mm/swap.c). All frames are scanned in rounds; a page whose mark is clear has not been
//! read since it was last seen so. After a first read the second one is seen as well, as the page becomes active.
//! Therefore only marks of active pages hide later accesses ([`FolioState::hides_next`]). These are cleared, and the
//! next scan sees accesses again. If a mark cannot be cleared, later accesses are unknown.
//!
//! Limits: under memory pressure reclaim also clears marks, of pages that it then takes or makes active. Accesses that
//! leave no trace between two scans are missed. A page is not marked if the same open file read from the same place
//! just before (filemap_read() in mm/filemap.c). Ages are exact to a round.

mod account;
mod ages;
mod layout;
mod plan;
mod returned;

use serde::{Deserialize, Serialize};

pub use account::{CacheAccount, CachedBytes};
pub use ages::{FolioAges, SeenFolio};
pub use layout::{CacheLayout, CachedRegion, PAGE_CACHE};
pub use plan::{ClearCost, order_clears};
pub use returned::{DroppedFile, FileId, ReturnedFiles};

/// The kernel's flags of a folio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FolioState(pub u16);

impl FolioState {
    /// The folio was accessed since this flag was cleared.
    pub const REFERENCED: u16 = 1;
    /// It is on an active list.
    pub const ACTIVE: u16 = 1 << 1;
    /// It was on an active list when it went out of memory or was deactivated.
    pub const WORKINGSET: u16 = 1 << 2;
    /// It has not been written to its file.
    pub const DIRTY: u16 = 1 << 3;
    /// It is being written.
    pub const WRITEBACK: u16 = 1 << 4;
    /// It cannot be reclaimed: locked in memory.
    pub const UNEVICTABLE: u16 = 1 << 5;
    /// A process maps it.
    pub const MAPPED: u16 = 1 << 6;
    /// It is being read, or otherwise worked on.
    pub const LOCKED: u16 = 1 << 7;

    /// Returns whether one of these flags is set.
    pub const fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }

    /// Returns whether one more access would leave no trace. A marked page on an inactive list becomes active; one that
    /// is active already, or locked in memory, stays as it is.
    pub fn hides_next(self, lru: Lru) -> bool {
        let stays = lru == Lru::MultiGen || self.has(Self::ACTIVE | Self::UNEVICTABLE);
        stays && self.has(Self::REFERENCED)
    }
}

/// The kernel's kind of LRU, which decides the trace of an access (folio_mark_accessed() in mm/swap.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lru {
    /// An active and an inactive list.
    Classic,
    /// Multi-gen LRU: accesses after the first are counted in bits that differ between kernels, and are not read here.
    #[default]
    MultiGen,
}

/// A folio of a file: pages that the kernel caches together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedFolio {
    /// Its first frame.
    pub frame: u64,
    /// It has 1 << `order` pages.
    pub order: u8,
    pub state: FolioState,
    /// Number that identifies its file among those in memory.
    pub file: u64,
    /// Its first page's place in the file, in pages.
    pub index: u64,
    /// Number that identifies its control group.
    pub group: u64,
}

impl CachedFolio {
    /// Returns the number of its pages.
    pub const fn nr_pages(&self) -> u64 {
        1 << self.order
    }
}

/// The kind of a file in the page cache.
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
