//! Estimates the cost of clears for the targets.
//!
//! Problem: after a clear the processor sets the bit again by a locked update of the page table entry. The clear has
//! also flushed the page from the TLB. Under nested paging both take longer. An arm64 processor without FEAT_HAFDBS
//! faults instead, and the kernel sets the bit. The kernel has no counter for this.
//!
//! Approach: pages of this process are read in a chain, each at the address that the previous one holds, alternately
//! with and without a clear before. The median difference is used.
//!
//! Limits: a program that reads independent addresses at once hides a part of the cost, so it loses less.

use std::sync::OnceLock;

use isotherm_engine::PAGE_SIZE;

use crate::arch;
use crate::clock::thread_cpu;
use crate::cpu::thread_usage;
use crate::mapped::Mapping;

/// Number of pages that are read: the capacity of a second-level TLB.
const NR_PAGES: usize = 1024;
const NR_TURNS: usize = 9;
/// The stride has no factor in common with the number of pages, so each is read once.
const STRIDE: usize = 389;
/// Value used if the memory for measuring cannot be mapped.
const DEFAULT_NS: f64 = 50.0;

/// Estimates the CPU time that clears take from a running target.
///
/// A clear is slower while the target runs, because the caller waits for the other processors to flush their TLBs. The
/// time beyond the fastest clear ever seen is that wait. The target spends about 0.6 of it in the flush and in
/// refilling. Measured on the machines of docs/results/overhead.md: 5.9 us against 0.85 us, and 3 us stolen from the
/// target. Setting a cleared bit again costs the target as much as this process ([`access_flags`]). The result is an
/// estimate, and named so wherever it is shown.
#[derive(Debug, Default)]
pub(super) struct Induced {
    fastest_clear_ns: Option<f64>,
    pub(super) total_ns: f64,
}

impl Induced {
    const SHARE_OF_WAIT: f64 = 0.6;

    /// Returns an empty estimate, after measuring the part that does not depend on the targets.
    pub(super) fn measured() -> Self {
        access_flags();
        Self::default()
    }

    pub(super) fn add(&mut self, clears: usize, elapsed_ns: f64) {
        if clears == 0 {
            return;
        }
        let each = elapsed_ns / clears as f64;
        let fastest = self.fastest_clear_ns.map_or(each, |f| f.min(each));
        self.fastest_clear_ns = Some(fastest);
        self.total_ns += (each - fastest) * clears as f64 * Self::SHARE_OF_WAIT;
    }

    pub(super) fn add_set_again(&mut self, nr_bits: u64) {
        self.total_ns += nr_bits as f64 * access_flags().set_again_ns;
    }
}

/// Way in which accessed bits are set on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AccessFlags {
    /// Additional nanoseconds of a page's next access after its bit was cleared.
    pub(crate) set_again_ns: f64,
    /// Whether the kernel sets them, in a fault.
    pub(crate) by_faults: bool,
}

/// Returns how accessed bits are set, as measured once.
pub(crate) fn access_flags() -> AccessFlags {
    static MEASURED: OnceLock<AccessFlags> = OnceLock::new();
    let unknown = AccessFlags {
        set_again_ns: DEFAULT_NS,
        by_faults: false,
    };
    *MEASURED.get_or_init(|| measure().unwrap_or(unknown))
}

fn measure() -> Option<AccessFlags> {
    let memory = Mapping::anonymous(NR_PAGES * PAGE_SIZE as usize, 0).ok()?;
    memory.advise(libc::MADV_NOHUGEPAGE).ok();
    let words = memory.range().start as *mut usize;
    let page = |at: usize| {
        // SAFETY: within the mapping, as `at` is below `NR_PAGES`.
        unsafe { words.add(at * PAGE_SIZE as usize / size_of::<usize>()) }
    };
    for at in 0..NR_PAGES {
        // SAFETY: as above.
        unsafe { page(at).write_volatile((at + STRIDE) % NR_PAGES) };
    }
    let chase = || {
        let before = thread_cpu();
        let mut at = 0;
        for _ in 0..NR_PAGES {
            // SAFETY: as above; the loop before wrote the value that is read.
            at = unsafe { page(at).read_volatile() };
        }
        thread_cpu().since(before).0 as f64
    };
    let mut nr_faults = 0;
    let mut differences: Vec<f64> = (0..NR_TURNS)
        .filter_map(|_| {
            chase();
            let without = chase();
            let faults_before = thread_usage().ru_minflt;
            let with = memory.advise(libc::MADV_COLD).is_ok().then(chase)?;
            nr_faults += thread_usage().ru_minflt - faults_before;
            Some((with - without) / NR_PAGES as f64)
        })
        .collect();
    differences.sort_unstable_by(f64::total_cmp);
    let median = differences.get(differences.len() / 2)?;
    Some(AccessFlags {
        set_again_ns: median.max(0.0),
        by_faults: nr_faults as usize > (NR_PAGES >> arch::frame_shift()) * differences.len() / 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_less_than_a_fault() {
        let ns = access_flags().set_again_ns;
        assert!((0.0..100_000.0).contains(&ns), "{ns}");
    }
}
