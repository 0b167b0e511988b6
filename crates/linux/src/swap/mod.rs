//! Swap: its size, the usable part of it, its own memory use, and what is set up for it and removed again
//! ([`SwapSetup`]).

mod area;
mod note;
mod zram;
mod zswap;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use isotherm_policy::Refusal;

use crate::meminfo::Meminfo;
use crate::text;

pub(crate) use area::{PRIORITY_MAX, impossible, swap_off, swap_on};
pub use area::{SwapArea, SwapError};
pub(crate) use note::Part;
pub use note::{SwapSetup, TakenDown};
pub(crate) use zram::ZramDevice;
pub use zram::ZramOptions;
pub use zswap::ZswapOptions;
pub(crate) use zswap::{Setting, SwapFile};

/// Minimum bytes of swap that are left to the system ([`SwapFacts::reserve`]).
const RESERVE_MIN: u64 = 64 << 20;
/// Divisor of the total swap for the reserve: one part in this many is left to the system.
const RESERVE_PART: u64 = 20;

/// Swap of the whole system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapFacts {
    pub total: u64,
    pub free: u64,
}

impl SwapFacts {
    /// Returns the free swap below which this program pages nothing out: the kernel needs some when memory is short. It
    /// is the larger of 64 MiB and 5 %, but never more than an eighth.
    pub fn reserve(self) -> u64 {
        (self.total / RESERVE_PART)
            .max(RESERVE_MIN)
            .min(self.total / 8)
    }

    /// Returns the least swap that holds `bytes` beside the reserve.
    pub fn total_for(bytes: u64) -> u64 {
        let part = bytes / (RESERVE_PART - 1);
        bytes + part.max(RESERVE_MIN).min(bytes.div_ceil(7))
    }

    /// Returns the bytes that may still be paged out.
    pub fn room(self) -> u64 {
        self.free.saturating_sub(self.reserve())
    }

    /// Returns the reason why no anonymous memory can be swapped out, if none can.
    pub fn refusal(self) -> Option<Refusal> {
        if self.total == 0 {
            Some(Refusal::NoSwap)
        } else if self.room() == 0 {
            Some(Refusal::SwapFull)
        } else {
            None
        }
    }

    /// Returns the reason why the kernel left `bytes` of anonymous memory in place, although swap was available before.
    pub fn left_since(self, bytes: u64) -> Refusal {
        match self.refusal() {
            Some(Refusal::NoSwap) => Refusal::NoSwap,
            _ if self.free < bytes => Refusal::SwapFull,
            _ => Refusal::Kept,
        }
    }
}

/// Reads the current state of swap; zeros if it cannot be read.
pub fn facts() -> SwapFacts {
    let memory = Meminfo::read();
    let bytes = |name| memory.get(name).unwrap_or(0);
    SwapFacts {
        total: bytes("SwapTotal"),
        free: bytes("SwapFree"),
    }
}

/// Returns the bytes of memory that compressed swap takes at present: the pools of all zram devices, whichever program
/// made them, and of zswap. The saving of paging out is the bytes paged out minus the growth of this value. Zero if
/// there is neither, or if it cannot be read.
pub fn pool_bytes() -> u64 {
    let (_, zram) = held_and_taken();
    // /proc/meminfo shows it from 5.19 on; before, only debugfs, which a locked-down machine hides.
    let zswap = Meminfo::read().get("Zswap");
    let zswap = zswap.or_else(|| text::number("/sys/kernel/debug/zswap/pool_total_size"));
    zram.saturating_add(zswap.unwrap_or(0))
}

/// Describes the swap in use: `zram (lz4)`, or the name of a disk.
pub(crate) fn describe() -> String {
    let names = SwapArea::all().into_iter().map(|area| {
        if area.is_zram() {
            format!("zram ({})", SwapArea::compression_of(&area.path))
        } else {
            area.path.display().to_string()
        }
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names.join(", ")
}

/// Returns the bytes that all zram devices hold, and the memory they take for them.
pub(crate) fn held_and_taken() -> (u64, u64) {
    let numbers = zram_statistics().filter_map(|path| held_by(&path));
    numbers.fold((0, 0), |sum: (u64, u64), one: (u64, u64)| {
        (sum.0 + one.0, sum.1 + one.1)
    })
}

/// Returns the bytes that a zram device holds, and the memory it takes for them, from its `mm_stat`.
pub(crate) fn held_by(mm_stat: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(mm_stat).ok()?;
    let held = text.split_whitespace().next()?.parse().ok()?;
    Some((held, mem_used(&text)?))
}

/// Returns the same of zswap, which `/proc/meminfo` shows since Linux 5.19.
pub(crate) fn held_by_zswap() -> Option<(u64, u64)> {
    let memory = Meminfo::read();
    memory.get("Zswapped").zip(memory.get("Zswap"))
}

/// Returns the third number of zram's `mm_stat` (Documentation/admin-guide/blockdev/zram.rst).
fn mem_used(mm_stat: &str) -> Option<u64> {
    mm_stat.split_whitespace().nth(2)?.parse().ok()
}

/// Counter of the pages that all zram devices store uncompressed, as compression did not make them smaller.
#[derive(Debug)]
pub(crate) struct WholePages(Vec<File>);

impl WholePages {
    /// Opens the counters; returns `None` if no zram is in use, or it does not report them (before Linux 4.19).
    pub(crate) fn open() -> Option<Self> {
        let files = zram_statistics().filter_map(|path| File::open(path).ok());
        let files: Vec<File> = files.filter(|file| whole_pages(file).is_some()).collect();
        (!files.is_empty()).then_some(Self(files))
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().filter_map(whole_pages).sum()
    }
}

/// Returns the eighth number of `mm_stat`.
fn whole_pages(mm_stat: &File) -> Option<u64> {
    let mut text = [0; 256];
    // A read from the beginning makes sysfs generate the text again.
    let length = mm_stat.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.split_whitespace().nth(7)?.parse().ok()
}

fn zram_statistics() -> impl Iterator<Item = PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter(|device| device.file_name().as_encoded_bytes().starts_with(b"zram"))
        .map(|device| device.path().join("mm_stat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_left_is_laid_to_swap_only_where_that_is_too_small() {
        let check = |total, free, bytes, want| {
            assert_eq!(SwapFacts { total, free }.left_since(bytes), want);
        };
        check(0, 0, 1, Refusal::NoSwap);
        check(8192, 0, 1, Refusal::SwapFull);
        check(81_920, 40_960, 40_960, Refusal::Kept);
        check(81_920, 40_960, 45_056, Refusal::SwapFull);
    }

    #[test]
    fn a_reserve_of_swap_is_the_systems() {
        let room = |total: u64, free: u64| SwapFacts { total, free }.room();
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(room(gib, gib), gib - 64 * mib);
        assert_eq!(room(100 * gib, 6 * gib), gib);
        assert_eq!(room(100 * gib, 4 * gib), 0);
        assert_eq!(room(16 * mib, 16 * mib), 14 * mib);
        for bytes in [1, 14 * mib, gib, 100 * gib] {
            let total = SwapFacts::total_for(bytes);
            assert!(room(total, total) >= bytes && total <= bytes + bytes / 7 + 1);
        }
        let nearly_full = SwapFacts {
            total: gib,
            free: 63 * mib,
        };
        assert_eq!(nearly_full.refusal(), Some(Refusal::SwapFull));
    }

    #[test]
    fn the_pool_is_what_zram_takes_of_memory() {
        let text =
            "  1417216   356834   626688        0   626688        8        0        0        0\n";
        assert_eq!(mem_used(text), Some(626_688));
        assert_eq!(mem_used(""), None);
        assert_eq!(mem_used("1 2 x"), None);
    }
}
