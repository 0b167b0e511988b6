//! Having the kernel map pages of a process, as if it had accessed them.

use isotherm_engine::PAGE_SIZE;

use super::{MAX_VECTORS, Process, ProcessError};

/// Pages that are looked at in one read: of 128 MiB.
const PAGES_PER_READ: u64 = 32 << 10;
/// Pages that are read in before the caller is asked whether to go on: 1 MiB.
const PAGES_PER_STEP: usize = 256;

impl Process {
    /// Reads a byte of each page, so that the kernel maps for the processor what it had hidden from it to see
    /// who uses it (NUMA balancing). Pages that cannot be read are left out. They count as accessed then.
    pub fn fault_in(&self, pages: &[u64]) {
        let mut bytes = [0_u8; MAX_VECTORS];
        let mut rest = pages;
        while !rest.is_empty() && self.is_alive() {
            let count = rest.len().min(MAX_VECTORS);
            let remote: Vec<libc::iovec> = rest[..count]
                .iter()
                .map(|page| libc::iovec {
                    iov_base: *page as *mut libc::c_void,
                    iov_len: 1,
                })
                .collect();
            let local = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: count,
            };
            // SAFETY: `local` is as long as all of `remote`, whose addresses are another process's.
            let read = unsafe {
                libc::process_vm_readv(
                    self.memory_thread() as libc::pid_t,
                    &raw const local,
                    1,
                    remote.as_ptr(),
                    count as libc::c_ulong,
                    0,
                )
            };
            // It stops at the first page that cannot be read.
            let done = usize::try_from(read).unwrap_or(0);
            rest = &rest[count.min(done + usize::from(done < count))..];
        }
    }

    /// Has every page that is in swap read in and mapped, as if the process had accessed it; those that it may not read
    /// itself stay where they are. Yields how many were found in swap. Looks at all that it maps, which takes some
    /// 10 ms for a GiB. After each MiB `goes_on` is told how many pages were read; `false` ends it.
    ///
    /// # Errors
    /// The process has ended, or must not be looked at.
    pub fn swap_in(&self, mut goes_on: impl FnMut(u64) -> bool) -> Result<u64, ProcessError> {
        let refused = |source| ProcessError::Refused {
            what: "look at the page map",
            pid: self.pid(),
            source,
        };
        let map = self.page_map().map_err(refused)?;
        let mut nr_left = self.usage()?.swap / PAGE_SIZE;
        let mut nr_found = 0;
        let mut pages = Vec::new();
        for area in self.mappings()? {
            let mut address = area.range.start;
            while address < area.range.end && nr_left > 0 {
                let nr = ((area.range.end - address) / PAGE_SIZE).min(PAGES_PER_READ);
                pages.clear();
                // What was unmapped meanwhile is no longer in swap.
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
