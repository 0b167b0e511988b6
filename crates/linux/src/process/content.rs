//! What a process's memory holds, and may become.

use super::Process;

impl Process {
    /// Whether it lets nobody make huge pages of its memory (`THP_enabled` of `/proc/PID/status`, since Linux 5.0);
    /// `None` where that is not known.
    pub fn refuses_huge(&self) -> Option<bool> {
        let status = self.read("status", "read the status").ok()?;
        let enabled = status
            .lines()
            .find_map(|line| line.strip_prefix("THP_enabled:"))?;
        Some(enabled.trim() == "0")
    }

    /// Copies what is at `address`; whether all of it could be read.
    pub fn copy(&self, address: u64, into: &mut [u8]) -> bool {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: into.len(),
        };
        let pid = self.pid as libc::pid_t;
        // SAFETY: process_vm_readv(2) writes no more than `iov_len` bytes to `into`; the other address is another
        // process's and is not dereferenced here.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        read == into.len() as isize && self.is_alive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
