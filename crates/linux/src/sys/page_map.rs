//! `/proc/PID/pagemap`: the kernel's facts about a process's pages (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use isotherm_engine::{AddressRange, PAGE_SIZE};

use crate::arch;

/// Bits of an entry.
const EXCLUSIVE: u64 = 1 << 56;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// Mask of the frame number in an entry.
const FRAME: u64 = (1 << 55) - 1;

/// Returns the frame at an address of this process; `None` if the kernel does not show it.
pub(crate) fn frame_of(address: u64) -> io::Result<Option<u64>> {
    let entry = PageMap(File::open("/proc/self/pagemap")?).entries(address, 1)?[0];
    let is_shown = entry & PRESENT != 0 && entry & FRAME != 0;
    Ok(is_shown.then_some(entry & FRAME))
}

/// The open page map of a process, for the address space that it had when opened.
#[derive(Debug)]
pub(crate) struct PageMap(pub(crate) File);

impl PageMap {
    /// Returns the entries of `nr` pages of 4 KiB. Those of a larger page are alike, with neighbouring frames.
    fn entries(&self, start: u64, nr: u64) -> io::Result<Vec<u64>> {
        let (shift, page) = (arch::frame_shift(), start / PAGE_SIZE);
        let first = page >> shift;
        let mut bytes = vec![0; (((page + nr.max(1) - 1) >> shift) - first + 1) as usize * 8];
        self.0.read_exact_at(&mut bytes, first * 8)?;
        let entries = bytes.as_chunks::<8>().0;
        let entry = |page: u64| {
            let entry = u64::from_ne_bytes(entries[((page >> shift) - first) as usize]);
            if entry & PRESENT == 0 || entry & FRAME == 0 {
                return entry;
            }
            let part = page & ((1 << shift) - 1);
            entry & !FRAME | ((entry & FRAME) << shift | part) & FRAME
        };
        Ok((page..page + nr).map(entry).collect())
    }

    /// Whether all pages of `range` are in memory, and none is mapped by another process.
    pub(crate) fn is_exclusive(&self, range: AddressRange) -> bool {
        let wanted = EXCLUSIVE | PRESENT;
        let entries = self.entries(range.start, range.len() / PAGE_SIZE);
        entries.is_ok_and(|entries| entries.iter().all(|entry| entry & wanted == wanted))
    }

    /// Whether the page at an address is in memory; `false` if that cannot be read.
    pub(crate) fn is_present(&self, address: u64) -> bool {
        let entries = self.entries(address, 1);
        entries.is_ok_and(|entries| entries[0] & PRESENT != 0)
    }

    /// Appends those of `nr` pages from `start` on that are in memory. Neighbours form one range.
    pub(crate) fn present(
        &self,
        start: u64,
        nr: u64,
        ranges: &mut Vec<AddressRange>,
    ) -> io::Result<()> {
        let addresses = (start..).step_by(PAGE_SIZE as usize);
        for (address, entry) in addresses.zip(self.entries(start, nr)?) {
            match ranges.last_mut() {
                _ if entry & PRESENT == 0 => {}
                Some(last) if last.end == address => last.end += PAGE_SIZE,
                _ => ranges.push(AddressRange::new(address, address + PAGE_SIZE)),
            }
        }
        Ok(())
    }

    /// Appends the addresses of those of `nr` pages from `start` on that are in swap.
    pub(crate) fn swapped(&self, start: u64, nr: u64, pages: &mut Vec<u64>) -> io::Result<()> {
        let addresses = (start..).step_by(PAGE_SIZE as usize);
        let found = addresses
            .zip(self.entries(start, nr)?)
            .filter(|(_, entry)| entry & (SWAPPED | PRESENT) == SWAPPED);
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
