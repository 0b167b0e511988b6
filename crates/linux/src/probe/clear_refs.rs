//! Clears all accessed bits of a process at once.
//!
//! Source: Documentation/filesystems/proc.rst, "clear_refs".

use isotherm_engine::Nanos;

use crate::arch::is_emulated;
use crate::clock::thread_cpu;
use crate::process::Process;

/// Method of clearing bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearMethod {
    /// `process_madvise(MADV_COLD)`.
    Madvise,
    /// `/proc/PID/clear_refs`.
    ClearRefs,
}

/// Cost of `/proc/PID/clear_refs`, by which it stalls a process.
#[derive(Debug)]
pub(super) struct ClearRefs {
    ns_per_page: f64,
    /// Whether accesses after such a clear, which flushes nothing, would not be seen: QEMU's TLB keeps entries that a
    /// processor would evict.
    is_blind: bool,
}

impl Default for ClearRefs {
    fn default() -> Self {
        Self {
            ns_per_page: Self::NS_PER_PAGE,
            is_blind: is_emulated(),
        }
    }
}

impl ClearRefs {
    /// Initial value until it is measured: 30 to 58 ns were measured, on a quiet and on a busy machine. A much higher
    /// value would prevent any attempt on half a million pages.
    const NS_PER_PAGE: f64 = 40.0;

    /// Clears the accessed bits of all memory that a process with `nr_pages` resident pages maps. Returns `false` if
    /// that is refused, or would stall the process for longer than `hold_max`.
    pub(super) fn clear(&mut self, process: &Process, nr_pages: u64, hold_max: Nanos) -> bool {
        let hold = Nanos((self.ns_per_page * nr_pages as f64) as u64);
        if self.is_blind || hold > hold_max {
            return false;
        }
        // CPU time, not elapsed time: on busy processors the target may run instead, which is no stall.
        let before = thread_cpu();
        let is_cleared = process.clear_refs().unwrap_or(false);
        let took = thread_cpu().since(before);
        // For small processes the cost of the call itself dominates.
        if is_cleared && nr_pages >= 4096 {
            let seen = took.0 as f64 / nr_pages as f64;
            self.ns_per_page += (seen - self.ns_per_page) * 0.25;
        }
        is_cleared
    }
}
