//! x86-64: Intel SDM vol. 3A, 4.5; arch/x86/include/asm/pgtable_types.h.

use std::fs;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};

use super::{TableFormat, entry};

/// It has `bpf_loop`.
pub(crate) const OLDEST_KERNEL: (u32, u32) = (5, 17);

/// The direct map starts at a multiple of this: arch/x86/mm/kaslr.c aligns it to PUD_SIZE.
pub(crate) const DIRECT_MAP_ALIGNMENT: u64 = 1 << 30;

pub(crate) type UnwindCache = CacheX86_64;
pub(crate) type UnwindTables<D> = UnwinderX86_64<D>;
/// Registers from which the caller is found.
pub(crate) type CallRegisters = UnwindRegsX86_64;

/// Returns the possible formats of the page tables, here the only one. Falls back to 4 levels and 52 bits if
/// `/proc/cpuinfo` does not show them.
pub(crate) fn table_formats() -> Vec<TableFormat> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    vec![table_format(&cpuinfo, &cmdline)]
}

fn table_format(cpuinfo: &str, cmdline: &str) -> TableFormat {
    let value = |name: &str| {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim())
    };
    let la57 = value("flags").is_some_and(|flags| flags.split_whitespace().any(|f| f == "la57"));
    let is_disabled = cmdline.split_whitespace().any(|word| word == "no5lvl");
    // Bits above these in an entry are flags, encryption among them.
    let physical_bits: u32 = value("address sizes")
        .and_then(|sizes| sizes.split_whitespace().next())
        .and_then(|bits| bits.parse().ok())
        .filter(|bits| (32..=52).contains(bits))
        .unwrap_or(52);
    TableFormat {
        page_shift: 12,
        top_shift: if la57 && !is_disabled { 48 } else { 39 },
        frame_mask: ((1 << physical_bits) - 1) & !0xfff,
        absent: entry::ABSENT,
    }
}

/// Returns the end of the addresses that a program may have: half of what the tables map.
pub(crate) fn user_end(format: TableFormat) -> u64 {
    1 << (format.top_shift + 8)
}

/// Returns the bits that mark absent pages, given the entry of a page of ours without permissions.
pub(crate) fn absent_bits(_of_ours: u64) -> u64 {
    entry::ABSENT
}

/// Returns an entry in the form of [`entry`], here as it is.
pub(crate) fn canonical(entry: u64, _format: TableFormat) -> u64 {
    entry
}

/// Converts neighbouring entries to the form of [`entry`].
pub(crate) fn canonical_all(_entries: &mut [u64], _format: TableFormat) {}

/// Returns how many entries before that of a page a run of entries has.
pub(crate) fn entries_before(_address: u64) -> usize {
    0
}

/// Whether this machine is emulated by QEMU in software.
pub(crate) fn is_emulated() -> bool {
    use std::arch::x86_64::__cpuid;
    // The hypervisor's leaf; "TCGTCGTCGTCG" is QEMU's without KVM.
    const TCG: u32 = u32::from_le_bytes(*b"TCGT");
    __cpuid(1).ecx >> 31 == 1 && __cpuid(0x4000_0000).ebx == TCG
}

/// Returns the registers of a call. The return address is on the stack.
pub(crate) fn call_registers(ip: u64, sp: u64, fp: u64, _lr: u64) -> CallRegisters {
    UnwindRegsX86_64::new(ip, sp, fp)
}

/// Returns the stack pointer and the frame pointer.
pub(crate) fn frame_of(registers: &CallRegisters) -> (u64, u64) {
    (registers.sp(), registers.bp())
}

/// Sets the registers to those of the caller; `fp` only if it is known.
pub(crate) fn enter_caller(registers: &mut CallRegisters, ip: u64, sp: u64, fp: Option<u64>) {
    registers.set_ip(ip);
    registers.set_sp(sp);
    if let Some(fp) = fp {
        registers.set_bp(fp);
    }
}

/// Returns a return address as it is.
pub(crate) fn return_address(word: u64) -> u64 {
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cpuinfo: &str, cmdline: &str, levels: u32, physical_bits: u32) {
        let format = table_format(cpuinfo, cmdline);
        assert_eq!(format.levels(), levels);
        assert_eq!(format.frame_mask, ((1 << physical_bits) - 1) & !0xfff);
    }

    #[test]
    fn levels_and_bits_are_read_from_cpuinfo() {
        let five = "flags\t\t: fpu la57 lm\naddress sizes\t: 46 bits physical, 57 bits virtual\n";
        check(five, "quiet", 5, 46);
        check(five, "quiet no5lvl", 4, 46);
        let four = "flags : fpu lm\naddress sizes : 48 bits physical, 48 bits virtual\n";
        check(four, "", 4, 48);
        check("", "", 4, 52);
        check("address sizes : 99 bits physical\n", "", 4, 52);
    }
}
