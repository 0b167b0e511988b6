//! Content of a process's memory, and restrictions on it.

use isotherm_engine::AddressRange;

use super::{Process, vector};
use crate::areas::MappedArea;
use crate::text;

impl Process {
    /// Whether the process disables huge pages for its memory (`THP_enabled` of `/proc/PID/status`, since Linux 5.0);
    /// `None` where that is unknown.
    pub fn refuses_huge(&self) -> Option<bool> {
        let status = self.read("status", "read the status").ok()?;
        Some(text::value(&status, "THP_enabled:")? == "0")
    }

    /// Returns the mappings that other processes map for the most part as well, according to `/proc/PID/smaps`. Takes
    /// some ms per GiB. Returns `None` if the file cannot be read.
    pub fn shared_mappings(&self) -> Option<Vec<AddressRange>> {
        let smaps = self.read("smaps", "read the memory use").ok()?;
        Some(shared(&smaps))
    }

    /// Copies the memory at `address`. Returns whether all of it could be read.
    pub fn copy(&self, address: u64, into: &mut [u8]) -> bool {
        let remote = vector(address, into.len());
        self.read_memory(&[remote], into) == into.len() && self.is_alive()
    }

    /// Reads parts of the memory, one after the other, until one cannot be read. Returns the number of bytes read.
    pub(super) fn read_memory(&self, parts: &[libc::iovec], into: &mut [u8]) -> usize {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let pid = self.memory_thread() as libc::pid_t;
        let nr = parts.len() as libc::c_ulong;
        // SAFETY: process_vm_readv(2) writes no more than `iov_len` bytes to `into`; the other addresses are another
        // process's and are not dereferenced here.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, parts.as_ptr(), nr, 0) };
        usize::try_from(read).unwrap_or(0)
    }
}

/// Parses `/proc/PID/smaps`: a line per mapping as in `maps`, followed by a line for each figure.
fn shared(smaps: &str) -> Vec<AddressRange> {
    // The range of each mapping, and its resident and shared memory in KiB.
    let mut all: Vec<(Option<AddressRange>, u64, u64)> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let kib: Option<u64> = words.next().and_then(|kib| kib.parse().ok());
        match (name, all.last_mut()) {
            ("Rss:", Some((_, resident, _))) => *resident = kib.unwrap_or(0),
            ("Shared_Clean:" | "Shared_Dirty:", Some((.., by_others))) => {
                *by_others += kib.unwrap_or(0);
            }
            _ if name.ends_with(':') => {}
            _ => all.push((MappedArea::parse(line).map(|area| area.range), 0, 0)),
        }
    }
    all.retain(|(_, resident, by_others)| 2 * by_others > *resident);
    all.into_iter().filter_map(|(range, ..)| range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_map_as_well_is_told_by_the_figures() {
        let mapping = |(start, rss, shared): (u64, u64, u64)| {
            format!(
                "{start:x}-{:x} rw-s 00000000 00:01 5 /dev/zero (deleted)\nSize: 8 kB\nRss: {rss} kB\n\
                 Shared_Clean: 0 kB\nShared_Dirty: {shared} kB\nPrivate_Dirty: 0 kB\nVmFlags: rd wr\n",
                start + 0x2000
            )
        };
        let smaps = [
            (0x1000, 8, 8),
            (0x4000, 8, 4),
            (0x8000, 0, 0),
            (0xc000, 4, 4),
        ];
        let smaps: String = smaps.map(mapping).concat();
        let starts: Vec<u64> = shared(&smaps).iter().map(|range| range.start).collect();
        assert_eq!(starts, [0x1000, 0xc000]);
    }

    #[test]
    fn our_own_memory_is_copied_and_what_is_not_there_is_not() {
        let me = Process::open(std::process::id()).expect("we exist");
        let (held, mut copy) = (*b"what is held", [0; 12]);
        assert!(me.copy(held.as_ptr() as u64, &mut copy));
        assert_eq!(copy, held);
        assert!(!me.copy(8, &mut copy), "nothing is mapped there");
        assert_eq!(me.refuses_huge(), Some(false));
    }
}
