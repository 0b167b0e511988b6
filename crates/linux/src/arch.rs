//! Differences between processors: the format of page tables, the registers of a call, the signs of emulation.
//!
//! The rest of the crate reads entries in one form, [`entry`], which is x86-64's. Bits that the BPF programs look at
//! are in `probe/bpf/arch.h`.

use isotherm_engine::{AddressRange, PAGE_SIZE, PAGES_PER_BLOCK};

#[cfg(any(target_arch = "aarch64", test))]
#[cfg_attr(
    not(target_arch = "aarch64"),
    expect(dead_code, reason = "tested on every architecture")
)]
mod arm64;
#[cfg(target_arch = "aarch64")]
pub(crate) use arm64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// Returns the size of a page of this kernel: 4, 16 or 64 KiB. Isotherm counts in pages of 4 KiB everywhere. A larger one
/// is several of them, which are accessed, cleared and reclaimed together.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns by how many bits the number of a frame of the kernel's is shifted to count in 4 KiB.
pub(crate) fn frame_shift() -> u32 {
    page_bytes().trailing_zeros() - PAGE_SIZE.trailing_zeros()
}

/// Returns the range widened to whole pages of the kernel.
pub(crate) fn whole_pages(range: AddressRange) -> AddressRange {
    let bytes = page_bytes();
    AddressRange::new(
        range.start & !(bytes - 1),
        range.end.next_multiple_of(bytes),
    )
}

/// Bits of an entry as [`canonical`] returns it.
pub(crate) mod entry {
    pub(crate) const PRESENT: u64 = 1;
    pub(crate) const WRITABLE: u64 = 1 << 1;
    pub(crate) const ACCESSED: u64 = 1 << 5;
    pub(crate) const DIRTY: u64 = 1 << 6;
    /// A huge page, above the lowest level.
    pub(crate) const LEAF: u64 = 1 << 7;
    /// In a page that only the processor treats as absent, with inverted frame bits: PROT_NONE, also by NUMA balancing.
    pub(crate) const ABSENT: u64 = 1 << 8;
    /// A page without a descriptor: the zero page, device memory.
    pub(crate) const SPECIAL: u64 = 1 << 9;
    /// The swap type of an entry without a page is in the bits from here on.
    pub(crate) const SWAP_TYPE_SHIFT: u32 = 59;
}

/// Format of this machine's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableFormat {
    /// Shift of a page's size.
    pub(crate) page_shift: u32,
    /// Shift of an address that yields the index into the top-level table.
    pub(crate) top_shift: u32,
    /// Bits of an entry that hold a frame's address.
    pub(crate) frame_mask: u64,
    /// Bits of an entry that mark a page which only the processor treats as absent.
    pub(crate) absent: u64,
}

impl TableFormat {
    /// Returns the number of levels of tables.
    pub(crate) fn levels(self) -> u32 {
        (self.top_shift - self.page_shift).div_ceil(self.level_bits()) + 1
    }

    /// Returns the bits of an address that a level resolves.
    pub(crate) fn level_bits(self) -> u32 {
        self.page_shift - 3
    }

    /// Returns the shift of the level of huge pages: 2 MiB, or 32 or 512 MiB of larger pages.
    pub(crate) fn block_shift(self) -> u32 {
        self.page_shift + self.level_bits()
    }

    /// Returns the number of entries of the lowest level that map a block of 2 MiB.
    pub(crate) fn entries_of_block(self) -> usize {
        PAGES_PER_BLOCK >> (self.page_shift - PAGE_SIZE.trailing_zeros())
    }

    /// Returns the bits of an entry in the form of [`entry`] that hold a frame's address, in units of 4 KiB.
    pub(crate) fn unit_mask(self) -> u64 {
        self.frame_mask | (((1 << self.page_shift) - 1) & !(PAGE_SIZE - 1))
    }
}
