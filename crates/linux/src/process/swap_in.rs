//! Faults in pages of a process, as if the process had accessed them.

use isotherm_engine::{AddressRange, PAGE_SIZE};

use super::{MAX_VECTORS, Process, ProcessError, vector};

/// Pages whose page map entries are read at once (128 MiB).
const PAGES_PER_READ: u64 = 32 << 10;
/// Pages that are read in before the caller is asked whether to continue (1 MiB).
const PAGES_PER_STEP: usize = 256;

impl Process {
    /// Reads a byte of each page, so that the kernel maps pages again that NUMA balancing has unmapped to see their
    /// user. Skips pages that cannot be read. The pages count as accessed afterwards.
    pub fn fault_in(&self, pages: &[u64]) {
        let mut bytes = [0_u8; MAX_VECTORS];
        let mut rest = pages;
        while !rest.is_empty() && self.is_alive() {
            let count = rest.len().min(MAX_VECTORS);
            let parts = rest[..count].iter().map(|page| vector(*page, 1));
            let parts: Vec<libc::iovec> = parts.collect();
            // The call stops at the first page that cannot be read.
            let done = self.read_memory(&parts, &mut bytes[..count]);
            rest = &rest[count.min(done + usize::from(done < count))..];
        }
    }

    /// Returns the pages of `ranges` that are in memory and mapped, by address; neighbours form one range. Ranges that
    /// were unmapped meanwhile have none.
    pub fn present(&self, ranges: &[AddressRange]) -> Result<Vec<AddressRange>, ProcessError> {
        let refused = |source| ProcessError::refused("look at the page map", self.pid(), source);
        let map = self.page_map().map_err(refused)?;
        let mut present = Vec::new();
        for range in ranges {
            let mut address = range.start;
            while address < range.end {
                let nr = ((range.end - address) / PAGE_SIZE).min(PAGES_PER_READ);
                let _ = map.present(address, nr, &mut present);
                address += nr.max(1) * PAGE_SIZE;
            }
        }
        Ok(present)
    }

    /// Reads in and maps every page that is in swap, as if the process had accessed it. Pages that the process may not
    /// read itself stay in swap. Returns the number of pages found in swap. Scans all mappings, which takes some 10 ms
    /// per GiB. After each MiB calls `goes_on` with the number of pages read; `false` ends the scan.
    pub fn swap_in(&self, mut goes_on: impl FnMut(u64) -> bool) -> Result<u64, ProcessError> {
        let refused = |source| ProcessError::refused("look at the page map", self.pid, source);
        let map = self.page_map().map_err(refused)?;
        let mut nr_left = self.usage()?.swap / PAGE_SIZE;
        let mut nr_found = 0;
        let mut pages = Vec::new();
        for area in self.mappings()? {
            let mut address = area.range.start;
            while address < area.range.end && nr_left > 0 {
                let nr = ((area.range.end - address) / PAGE_SIZE).min(PAGES_PER_READ);
                pages.clear();
                // A range that was unmapped meanwhile is no longer in swap.
                let _ = map.swapped(address, nr, &mut pages);
                nr_found += pages.len() as u64;
                for step in pages.chunks(PAGES_PER_STEP) {
                    self.fault_in(step);
                    if !goes_on(step.len() as u64) {
                        return Ok(nr_found);
                    }
                }
                nr_left = nr_left.saturating_sub(pages.len() as u64);
                address += nr * PAGE_SIZE;
            }
        }
        Ok(nr_found)
    }
}
