//! `/proc/PID/pagemap`: the kernel's facts about a process's pages (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use isotherm_engine::{AddressRange, PAGE_SIZE};

/// Bits of an entry.
const EXCLUSIVE: u64 = 1 << 56;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// Mask of the frame number in an entry.
const FRAME: u64 = (1 << 55) - 1;

/// Returns the frame at an address of this process; `None` if the kernel does not show it.
pub(crate) fn frame_of(address: u64) -> io::Result<Option<u64>> {
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, address / PAGE_SIZE * 8)?;
    let entry = u64::from_ne_bytes(entry);
    let is_shown = entry & PRESENT != 0 && entry & FRAME != 0;
    Ok(is_shown.then_some(entry & FRAME))
}

/// The open page map of a process, for the address space that it had when opened.
#[derive(Debug)]
pub(crate) struct PageMap(pub(crate) File);

impl PageMap {
    /// Whether all pages of `range` are in memory, and none is mapped by another process.
    pub(crate) fn is_exclusive(&self, range: AddressRange) -> bool {
        let mut entries = vec![0; (range.len() / PAGE_SIZE * 8) as usize];
        let read = self
            .0
            .read_exact_at(&mut entries, range.start / PAGE_SIZE * 8);
        let (entries, _) = entries.as_chunks::<8>();
        read.is_ok()
            && entries.iter().all(|entry| {
                let wanted = EXCLUSIVE | PRESENT;
                u64::from_ne_bytes(*entry) & wanted == wanted
            })
    }

    /// Whether the page at an address is in memory; `false` if that cannot be read.
    pub(crate) fn is_present(&self, address: u64) -> bool {
        let mut entry = [0; 8];
        let read = self.0.read_exact_at(&mut entry, address / PAGE_SIZE * 8);
        read.is_ok() && u64::from_ne_bytes(entry) & PRESENT != 0
    }

    /// Appends the addresses of those of `nr` pages from `start` on that are in swap.
    pub(crate) fn swapped(&self, start: u64, nr: u64, pages: &mut Vec<u64>) -> io::Result<()> {
        let mut entries = vec![0; (nr * 8) as usize];
        self.0.read_exact_at(&mut entries, start / PAGE_SIZE * 8)?;
        let (entries, _) = entries.as_chunks::<8>();
        let addresses = (start..).step_by(PAGE_SIZE as usize);
        let found = addresses
            .zip(entries)
            .filter(|(_, entry)| u64::from_ne_bytes(**entry) & (SWAPPED | PRESENT) == SWAPPED);
        pages.extend(found.map(|(address, _)| address));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    #[test]
    fn what_is_ours_alone_is_told_from_what_is_not_there() {
        let memory = vec![1u8; 4 * PAGE_SIZE as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_SIZE);
        let me = Process::open(std::process::id()).expect("we exist");
        let map = me.page_map().expect("our own");
        assert!(map.is_exclusive(AddressRange::new(start, start + 2 * PAGE_SIZE)));
        assert!(!map.is_exclusive(AddressRange::new(PAGE_SIZE, 2 * PAGE_SIZE)));
    }
}
