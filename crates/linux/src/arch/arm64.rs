//! arm64: Arm Architecture Reference Manual, D8.3; arch/arm64/include/asm/pgtable-hwdef.h, pgtable-prot.h and
//! pgtable.h.
//!
//! Limits: physical addresses of 51 and 52 bits (of 49 and more with pages of 64 KiB), which lie elsewhere in an entry,
//! are not read.

use std::fs;
use std::sync::OnceLock;

use framehop::aarch64::{CacheAarch64, PtrAuthMask, UnwindRegsAarch64, UnwinderAarch64};

use super::{TableFormat, entry};

/// Older ones keep swap types elsewhere.
pub(crate) const OLDEST_KERNEL: (u32, u32) = (5, 19);

/// The direct map starts at a multiple of this (ARM64_MEMSTART_ALIGN in asm/kernel-pgtable.h; 1 GiB but for pages of
/// 64 KiB).
pub(crate) const DIRECT_MAP_ALIGNMENT: u64 = 1 << 29;

pub(crate) type UnwindCache = CacheAarch64;
pub(crate) type UnwindTables<D> = UnwinderAarch64<D>;
/// Registers from which the caller is found.
pub(crate) type CallRegisters = UnwindRegsAarch64;

const VALID: u64 = 1;
/// A table above the lowest level, a page at the lowest.
const TABLE: u64 = 1 << 1;
const READ_ONLY: u64 = 1 << 7;
const ACCESS_FLAG: u64 = 1 << 10;
/// The hardware makes the entry writable when it is written to.
const DIRTY_BIT_MODIFIER: u64 = 1 << 51;
const SOFTWARE_DIRTY: u64 = 1 << 55;
const SPECIAL: u64 = 1 << 56;
/// The entry is one of several that map memory in one piece: 16 of 4 KiB; with larger pages, those of 2 MiB.
const CONTIGUOUS_HINT: u64 = 1 << 52;
const CONTIGUOUS: usize = 16;
/// PTE_PROT_NONE and PMD_PRESENT_INVALID of older kernels.
const ABSENT_OLD: u64 = 1 << 58 | 1 << 59;
/// PTE_PRESENT_INVALID of newer kernels.
const ABSENT_NEW: u64 = 1 << 11;

/// Returns the possible formats of the page tables: no file of the kernel says which it is.
pub(crate) fn table_formats() -> Vec<TableFormat> {
    let page_shift = super::page_bytes().trailing_zeros();
    let (top_shifts, frame_bits): (&[u32], u32) = match page_shift {
        // Addresses of 47, 48 and 36 bits.
        14 => (&[36, 47, 25], 50),
        // Addresses of 48 and 52 bits, and of 42.
        16 => (&[42, 29], 48),
        // Addresses of 48, 52 and 39 bits.
        _ => (&[39, 48, 30], 50),
    };
    let of = |top_shift: &u32| TableFormat {
        page_shift,
        top_shift: *top_shift,
        frame_mask: ((1 << frame_bits) - 1) & !((1 << page_shift) - 1),
        absent: 0,
    };
    top_shifts.iter().map(of).collect()
}

/// Returns the end of the addresses that a program may have.
pub(crate) fn user_end(format: TableFormat) -> u64 {
    1 << (format.top_shift + format.level_bits()).min(52)
}

/// Returns the bits that mark absent pages, given the entry of a page of ours without permissions. The kernel moved
/// them in 2024; older kernels set both.
pub(crate) fn absent_bits(of_ours: u64) -> u64 {
    if of_ours & ABSENT_OLD != 0 {
        ABSENT_OLD
    } else {
        ABSENT_NEW
    }
}

/// Returns an entry in the form of [`entry`].
pub(crate) fn canonical(raw: u64, format: TableFormat) -> u64 {
    let is_valid = raw & VALID != 0;
    if !is_valid && raw & format.absent == 0 {
        return swap_entry(raw, format);
    }
    let is_written = raw & DIRTY_BIT_MODIFIER != 0 && raw & READ_ONLY == 0;
    let flags = [
        (is_valid, entry::PRESENT),
        (!is_valid, entry::ABSENT),
        (raw & TABLE == 0, entry::LEAF),
        (raw & ACCESS_FLAG != 0, entry::ACCESSED),
        (raw & SPECIAL != 0, entry::SPECIAL),
        (
            raw & (READ_ONLY | DIRTY_BIT_MODIFIER) != READ_ONLY,
            entry::WRITABLE,
        ),
        (raw & SOFTWARE_DIRTY != 0 || is_written, entry::DIRTY),
    ];
    let frame = if is_valid { raw } else { !raw } & format.frame_mask;
    let set = |(is_set, bit): (bool, u64)| if is_set { bit } else { 0 };
    flags.map(set).iter().fold(frame, |all, bit| all | bit)
}

/// Converts neighbouring entries, from a multiple of the contiguous ones on, to the form of [`entry`]. The hardware may
/// set the access flag of contiguous entries in any of them.
pub(crate) fn canonical_all(entries: &mut [u64], format: TableFormat) {
    const MARKED: u64 = VALID | CONTIGUOUS_HINT;
    let contiguous = if format.page_shift > 12 {
        format.entries_of_block()
    } else {
        CONTIGUOUS
    };
    for group in entries.chunks_mut(contiguous) {
        let is_marked = |raw: &u64| raw & MARKED == MARKED;
        let marked = group.iter().filter(|raw| is_marked(raw));
        let flag = marked.fold(0, |all, raw| all | raw) & ACCESS_FLAG;
        for raw in group {
            let flag = if is_marked(raw) { flag } else { 0 };
            *raw = canonical(*raw | flag, format);
        }
    }
}

/// Returns how many entries before that of a page a run of entries has.
pub(crate) fn entries_before(address: u64) -> usize {
    (address / super::page_bytes()) as usize % CONTIGUOUS
}

/// Returns an entry without a page: its swap type, and something that is not 0 in place of the offset.
fn swap_entry(raw: u64, format: TableFormat) -> u64 {
    if raw == 0 {
        return 0;
    }
    let type_shift = if format.absent == ABSENT_OLD { 3 } else { 6 };
    (raw >> type_shift & 31) << entry::SWAP_TYPE_SHIFT | 1 << 12
}

/// Whether this machine is, or may be, emulated by QEMU in software. Its processor of all features has the part number
/// Q. With other processors only the machine shows, which is the same under KVM.
pub(crate) fn is_emulated() -> bool {
    let says = |path: &str, word: &str| fs::read_to_string(path).is_ok_and(|of| of.contains(word));
    says("/proc/cpuinfo", "CPU part\t: 0x051")
        || says(
            "/sys/firmware/devicetree/base/compatible",
            "linux,dummy-virt",
        )
}

/// Returns the bits of an address, without those that sign one. A stack lies at the end of the addresses.
fn address_bits() -> u64 {
    static BITS: OnceLock<u64> = OnceLock::new();
    *BITS.get_or_init(|| {
        let local = 0_u8;
        let address = &raw const local as u64;
        u64::MAX >> address.leading_zeros()
    })
}

/// Returns the registers of a call. The return address is in `lr`, or on the stack.
pub(crate) fn call_registers(_ip: u64, sp: u64, fp: u64, lr: u64) -> CallRegisters {
    UnwindRegsAarch64::new_with_ptr_auth_mask(PtrAuthMask(address_bits()), lr, sp, fp)
}

/// Returns the stack pointer and the frame pointer.
pub(crate) fn frame_of(registers: &CallRegisters) -> (u64, u64) {
    (registers.sp(), registers.fp())
}

/// Sets the registers to those of the caller; `fp` only if it is known.
pub(crate) fn enter_caller(registers: &mut CallRegisters, ip: u64, sp: u64, fp: Option<u64>) {
    registers.set_lr(ip);
    registers.set_sp(sp);
    if let Some(fp) = fp {
        registers.set_fp(fp);
    }
}

/// Returns a return address without its signature.
pub(crate) fn return_address(word: u64) -> u64 {
    word & address_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: TableFormat = TableFormat {
        page_shift: 12,
        top_shift: 39,
        frame_mask: ((1 << 50) - 1) & !0xfff,
        absent: ABSENT_NEW,
    };
    const OLD: TableFormat = TableFormat {
        absent: ABSENT_OLD,
        ..NEW
    };
    const FRAME: u64 = 0x1_2345_6000;

    fn check(raw: u64, format: TableFormat, wanted: u64) {
        let found = canonical(raw, format);
        assert_eq!(found, wanted, "{raw:#x}: {found:#x}");
    }

    #[test]
    fn entries_are_told_by_both_layouts_of_the_kernel() {
        let page = FRAME | VALID | TABLE | ACCESS_FLAG | READ_ONLY;
        check(page, NEW, FRAME | entry::PRESENT | entry::ACCESSED);
        check(page & !ACCESS_FLAG, OLD, FRAME | entry::PRESENT);
        let huge = FRAME | VALID | DIRTY_BIT_MODIFIER;
        let flags = entry::PRESENT | entry::LEAF | entry::WRITABLE | entry::DIRTY;
        check(huge, NEW, FRAME | flags);
        let inverted = !FRAME & NEW.frame_mask;
        let none = FRAME | TABLE | READ_ONLY | ABSENT_NEW;
        check(none, NEW, inverted | entry::ABSENT);
        check(none | 1 << 58, OLD, inverted | entry::ABSENT);
        check(0, NEW, 0);
    }

    #[test]
    fn one_access_flag_counts_for_all_contiguous_entries() {
        let page = FRAME | VALID | TABLE | READ_ONLY;
        let mut entries = [page | CONTIGUOUS_HINT; 32];
        entries[3] |= ACCESS_FLAG;
        entries[20] = page | ACCESS_FLAG;
        canonical_all(&mut entries, NEW);
        let accessed = entries.map(|entry| entry & entry::ACCESSED != 0);
        let wanted: [bool; 32] = std::array::from_fn(|at| at < 16 || at == 20);
        assert_eq!(accessed, wanted);
    }

    /// A huge page of 16 KiB pages is one of 32 MiB; 128 of these map a block, and are contiguous if any is marked so.
    #[test]
    fn levels_and_blocks_follow_from_the_size_of_pages() {
        let of = |page_shift, top_shift| TableFormat {
            page_shift,
            top_shift,
            frame_mask: ((1 << 50) - 1) & !((1 << page_shift) - 1),
            absent: ABSENT_NEW,
        };
        let facts = |format: TableFormat| (format.levels(), format.block_shift(), user_end(format));
        assert_eq!(facts(of(12, 39)), (4, 21, 1 << 48));
        assert_eq!(facts(of(14, 36)), (3, 25, 1 << 47));
        assert_eq!(facts(of(14, 47)), (4, 25, 1 << 52));
        assert_eq!(facts(of(16, 29)), (2, 29, 1 << 42));
        let format = of(14, 36);
        let mut entries = [FRAME & !0x3fff | VALID | TABLE | CONTIGUOUS_HINT; 128];
        entries[100] |= ACCESS_FLAG;
        canonical_all(&mut entries, format);
        assert!(entries.iter().all(|entry| entry & entry::ACCESSED != 0));
    }

    #[test]
    fn swap_types_are_where_the_kernel_keeps_them() {
        let of_type = |number: u64| number << entry::SWAP_TYPE_SHIFT | 1 << 12;
        check(77 << 12 | 5 << 6 | 4, NEW, of_type(5));
        check(77 << 8 | 30 << 3 | 4, OLD, of_type(30));
        // The offset may have the bit that newer kernels reserve.
        check(0xff << 8 | 1 << 3, OLD, of_type(1));
    }
}
