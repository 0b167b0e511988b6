//! Differences between processors: the format of page tables, the registers of a call, the signs of emulation.
//!
//! The rest of the crate reads entries in one form, [`entry`], which is x86-64's. Bits that the BPF programs look at
//! are in `probe/bpf/arch.h`.

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

/// The direct map starts at a multiple of this (x86-64: arch/x86/mm/kaslr.c aligns it to PUD_SIZE; arm64:
/// ARM64_MEMSTART_ALIGN in asm/kernel-pgtable.h).
pub(crate) const DIRECT_MAP_ALIGNMENT: u64 = 1 << 30;

/// Returns the size of a page of this kernel.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
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
        (self.top_shift - 12) / 9 + 1
    }
}
