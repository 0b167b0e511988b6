//! The format of the processor's page tables (levels and address bits, from `/proc/cpuinfo`), and CPU time.

use std::fs;

use isotherm_engine::Nanos;

/// Facts about paging that are needed to read page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuFacts {
    /// Number of page table levels: 4 or 5.
    pub levels: u32,
    /// Bits of a physical address; bits above these in an entry are flags (encryption among them).
    pub physical_bits: u32,
}

impl CpuFacts {
    /// Reads the facts of this machine. Falls back to 4 levels and 52 bits if `/proc/cpuinfo` does not show them.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cmdline = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        Self::parse(&cpuinfo, &cmdline)
    }

    fn parse(cpuinfo: &str, cmdline: &str) -> Self {
        let value = |name: &str| {
            cpuinfo
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim())
        };
        let la57 =
            value("flags").is_some_and(|flags| flags.split_whitespace().any(|f| f == "la57"));
        let disabled = cmdline.split_whitespace().any(|word| word == "no5lvl");
        let physical_bits = value("address sizes")
            .and_then(|sizes| sizes.split_whitespace().next())
            .and_then(|bits| bits.parse().ok())
            .filter(|bits| (32..=52).contains(bits))
            .unwrap_or(52);
        Self {
            levels: if la57 && !disabled { 5 } else { 4 },
            physical_bits,
        }
    }

    /// Returns the shift of an address that yields the index into the top-level table.
    pub(crate) fn top_shift(self) -> u32 {
        12 + 9 * (self.levels - 1)
    }

    /// Returns the mask of an entry's bits that hold a frame's address.
    pub(crate) fn frame_mask(self) -> u64 {
        ((1 << self.physical_bits) - 1) & !0xfff
    }
}

/// Returns the CPU time that a thread has used, including kernel threads (`/proc/PID/schedstat`). Returns `None` if it
/// has ended or the kernel does not report it.
pub fn task_cpu(pid: u32) -> Option<Nanos> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let ns = text.split_whitespace().next()?.parse().ok()?;
    Some(Nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cpuinfo: &str, cmdline: &str, levels: u32, physical_bits: u32) {
        let facts = CpuFacts::parse(cpuinfo, cmdline);
        assert_eq!(facts.levels, levels);
        assert_eq!(facts.physical_bits, physical_bits);
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
