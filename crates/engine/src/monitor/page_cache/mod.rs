//! Pages of files that no process maps: what is known of when they were accessed.
//!
//! Problem: a page that is read with read(2) has no accessed bit in any page table.
//!
//! Approach: the kernel marks a page of a file when it is read (`PG_referenced`, and `PG_active` the second time;
//! folio_mark_accessed() in mm/swap.c). All frames are looked at in rounds; a page whose mark is clear has not
//! been read since it was last seen so. Of a page that was read once the second time is seen as well, as it becomes
//! active. So only marks of active pages hide what comes after ([`FolioState::hides_next`]). These are cleared, so that the
//! next look tells again; where one cannot be, what is accessed from then on is unknown.
//!
//! Limits: under memory pressure reclaim clears marks, too, of pages that it then takes or makes active; what
//! leaves no trace between two looks is missed. A page that is read again from where the same open file was read
//! just before is not marked (filemap_read() in mm/filemap.c). Ages are exact to a round.

mod account;
mod ages;
mod layout;
mod plan;
mod returned;

pub use account::{CacheAccount, CachedBytes};
pub use ages::{FolioAges, SeenFolio};
pub use layout::{CacheLayout, CachedRegion, PAGE_CACHE};
pub use plan::{ClearCost, order_clears};
pub use returned::{DroppedFile, FileId, ReturnedFiles};

/// What the kernel says of a folio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FolioState(pub u16);

impl FolioState {
    /// It was accessed since this was cleared.
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

    /// Whether one of these is the case.
    pub const fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }

    /// Whether one more access would leave no trace. A marked page on an inactive list becomes active; one that is
    /// active already, or locked in memory, stays as it is.
    pub fn hides_next(self, lru: Lru) -> bool {
        let stays = lru == Lru::MultiGen || self.has(Self::ACTIVE | Self::UNEVICTABLE);
        stays && self.has(Self::REFERENCED)
    }
}

/// How the kernel keeps its pages, which decides what an access leaves behind (folio_mark_accessed() in mm/swap.c).
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
    /// What tells its file from others that are in memory.
    pub file: u64,
    /// Its first page's place in the file, in pages.
    pub index: u64,
    /// What tells its control group from others.
    pub group: u64,
}

impl CachedFolio {
    /// Its pages.
    pub const fn nr_pages(&self) -> u64 {
        1 << self.order
    }
}
