//! Measures the cost of reading a page back from swap, with pages of our own.
//!
//! Problem: if delay accounting is off, the guard counts refaults and needs the cost of one. Adjacent pages that were
//! paged out a moment ago are read back about twice as fast as a program's. Their compressed data, page table entries
//! and kernel data are still in the processor's caches. (Measured: 3.5 us for these; 5.9 to 7.1 us of a redis' CPU time
//! a refault.)
//!
//! Approach: 64 pages, far from each other, are paged out ([`RefaultSample::page_out`]). They are touched in another
//! order a second or more later ([`RefaultSample::bring_back`]), after other programs have used the caches. Their
//! content is costly to compress, so that the guard overestimates rather than underestimates. On swap that is not
//! memory the pages are adjacent, as read-ahead is part of a page's cost there.
//!
//! Limits: the mean of a few pages at one moment; on a quiet machine the caches stay warm.

use std::time::{Duration, Instant};

use isotherm_engine::{AddressRange, Nanos};

use crate::arch;
use crate::clock;
use crate::cpu::thread_usage;
use crate::pressure::{progress, swapped_in};
use crate::process::Process;
use crate::swap::{self, SwapArea};

/// Pages of a sample.
pub const PAGES: u64 = 64;
/// Distance of neighbouring sample pages, in pages, if they are apart.
const APART: usize = 16;
/// Step of the order of touching. It has no factor in common with the number of pages, so neighbours do not follow each
/// other.
const STEP: u64 = 37;

/// Pages of our own that are paged out.
#[derive(Debug)]
pub struct RefaultSample {
    memory: Vec<u64>,
    /// Index of the first page, in words.
    first: usize,
    /// Distance from a page to the next, in words.
    stride: usize,
}

impl RefaultSample {
    /// Pages out the sample. Returns `None` if there is no swap to measure, or the kernel refuses.
    pub fn page_out() -> Option<Self> {
        swap::facts().refusal().is_none().then_some(())?;
        let apart = if SwapArea::are_in_memory() { APART } else { 1 };
        let stride = apart * words_per_page();
        // Zeroed memory is only allocated once it is written.
        let mut memory = vec![0_u64; (PAGES as usize + 1) * stride];
        let start = (memory.as_ptr() as u64).next_multiple_of(arch::page_bytes());
        let first = (start - memory.as_ptr() as u64) as usize / 8;
        let page = |at: u64| first + at as usize * stride;
        for at in 0..PAGES {
            fill(&mut memory[page(at)..][..words_per_page()], at);
        }
        let address = |at: u64| start + at * stride as u64 * 8;
        let range = |at| AddressRange::new(address(at), address(at) + arch::page_bytes());
        let ranges = (0..PAGES).map(range);
        let ranges: Vec<AddressRange> = ranges.collect();
        let me = Process::open(std::process::id()).ok()?;
        me.advise(&ranges, libc::MADV_PAGEOUT, &mut Vec::new())
            .ok()?;
        Some(Self {
            memory,
            first,
            stride,
        })
    }

    /// Returns the mean cost of reading 4 KiB of them back. Returns `None` if too few of them were paged out.
    pub fn bring_back(mut self) -> Option<Nanos> {
        let me = Process::open(std::process::id()).ok()?;
        let before = (progress(&me)?.major_faults, swapped_in()?, sleeps());
        let (started, cpu) = (Instant::now(), clock::thread_cpu());
        for at in 0..PAGES {
            let at = if self.stride == words_per_page() {
                at
            } else {
                at * STEP % PAGES
            };
            let word = &mut self.memory[self.first + at as usize * self.stride];
            *word = std::hint::black_box(*word).wrapping_add(1);
        }
        let (wall, cpu) = (started.elapsed(), clock::thread_cpu().since(cpu));
        let after = (progress(&me)?.major_faults, swapped_in()?, sleeps());
        // The kernel may have kept some. Read-ahead makes one fault of many pages.
        let came_back = (after.0 - before.0).max(after.1.saturating_sub(before.1).min(PAGES));
        // A thread that never slept has waited only for a processor, which is no property of a page.
        let took = if after.2 == before.2 {
            cpu
        } else {
            Nanos::from(wall)
        };
        (came_back >= PAGES / 2 && after.0 > before.0)
            .then_some(Nanos(took.0 / (PAGES << arch::frame_shift())))
    }
}

/// Measures the cost without a delay. The result is lower than the later cost, as caches still hold the data.
pub fn refault_cost_now() -> Option<Nanos> {
    let sample = RefaultSample::page_out()?;
    std::thread::sleep(Duration::from_millis(50));
    sample.bring_back()
}

fn words_per_page() -> usize {
    arch::page_bytes() as usize / 8
}

/// Fills a page: one word in eight is random, the others count. No two pages are the same, and compressing them takes
/// work.
fn fill(page: &mut [u64], seed: u64) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (at, word) in (seed..).zip(page) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        *word = if at % 8 == 0 { random } else { at };
    }
}

/// Returns the number of times that this thread has slept.
fn sleeps() -> i64 {
    thread_usage().ru_nvcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_sample_differ_and_are_no_run_of_one_value() {
        let mut pages = vec![vec![0; words_per_page()]; 2];
        for (seed, page) in (7..).zip(&mut pages) {
            fill(page, seed);
        }
        assert_ne!(pages[0], pages[1]);
        let random = pages[0].iter().filter(|word| **word >> 32 != 0).count();
        assert_eq!(random, words_per_page() / 8);
    }

    #[test]
    fn every_page_comes_back_once() {
        let mut order: Vec<u64> = (0..PAGES).map(|at| at * STEP % PAGES).collect();
        assert!(order.windows(2).all(|two| two[0].abs_diff(two[1]) > 1));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..PAGES));
    }
}
