//! Measures the page walks of a target's blocks: what huge pages would save.
//!
//! The problem: how much a huge page saves depends on the TLB misses of the program. Virtual machines often have no
//! counters for these. Accessed bits seen after a second are all set, for a page that was walked once and for one that
//! was walked a thousand times.
//!
//! The approach: the processor sets an accessed bit when it walks the page table, at a TLB miss. So the bits of the
//! blocks are cleared, and read after half a millisecond and three times later. From the pages that were walked between
//! two reads the rate of walks of each page follows, as walks of a page are about independent of each other (a Poisson
//! process). Clearing flushes the TLB. Pages that stay in the TLB are therefore walked once before the first read, and
//! do not count.
//!
//! Limits: a page that is walked more than some thousand times a second counts as walked so often. A monitor that reads
//! the bits later misses accesses before the clear.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_policy::scheme::huge::BlockUse;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::every_cpu::RealTime;
use super::huge_page::MADV_COLLAPSE;
use super::{ProcessActuator, bits};
use crate::clock::thread_cpu;
use crate::meminfo::Meminfo;
use crate::probe::Result;
use crate::process::Advised;

/// Times of the reads after the clear, in microseconds.
const READS_US: [u64; 4] = [500, 1_000, 2_000, 4_000];
/// Share of walked pages above which the pages in use give an estimate of their own.
const MOST: f64 = 0.3;

impl ProcessActuator {
    /// Passes the page walks per second of each of `blocks` to a closure. Huge blocks are left out, and those whose bits
    /// cannot be cleared or are set again at once. It takes 4 ms, nearly all of it asleep.
    pub fn page_walks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut look: impl FnMut(u64, f64),
    ) -> Result<()> {
        let blocks = self.clear_accessed(target, blocks)?;
        // A real-time priority keeps the sleeps exact. This thread sleeps nearly all the time.
        let real_time = RealTime::begin();
        let cleared = Instant::now();
        let mut reads: BTreeMap<u64, Vec<Read>> = BTreeMap::new();
        for at in READS_US.map(Duration::from_micros) {
            thread::sleep(at.saturating_sub(cleared.elapsed()));
            let after = cleared.elapsed();
            self.probe.read_blocks(target, &blocks, |facts| {
                if !facts.huge {
                    let [present, walked] = [&facts.present, &facts.accessed]
                        .map(|pages| f64::from(bits::count(pages)));
                    let of_block = reads.entry(facts.address).or_default();
                    of_block.push(Read {
                        after,
                        present,
                        walked,
                    });
                }
            })?;
        }
        drop(real_time);
        for (block, reads) in reads {
            if let Some(walks) = walks_per_s(&reads) {
                look(block, walks);
            }
        }
        Ok(())
    }

    /// Clears the accessed bits of the private ones of `blocks`, and returns those whose bits were cleared.
    pub fn clear_accessed(&mut self, target: TargetId, blocks: &[u64]) -> Result<Vec<u64>> {
        self.read_areas([target])?;
        let ranges: Vec<AddressRange> = blocks
            .iter()
            .map(|block| AddressRange::new(*block, block + BLOCK_SIZE))
            .filter(|range| self.is_private(target, *range))
            .collect();
        let Some(process) = self.probe.process(target) else {
            return Ok(Vec::new());
        };
        if { process.advise(&ranges, libc::MADV_COLD, &mut self.advised) }.is_err() {
            return Ok(Vec::new());
        }
        let taken = { ranges.iter().zip(&self.advised) }
            .filter(|(_, advised)| **advised == Advised::Taken)
            .map(|(range, _)| range.start);
        Ok(taken.collect())
    }

    /// Returns the time of a page walk, in seconds, of dependent accesses to `bytes` of memory (at most 16 GiB). A file
    /// of 64 MiB is mapped repeatedly: the page tables have full size, and the data stay in the caches. Returns `None` if
    /// less than 1 GiB is available.
    pub fn longest_walk(bytes: u64) -> Option<f64> {
        const FILE: u64 = 64 << 20;
        let available = Meminfo::read().get("MemAvailable")?;
        (available > 16 * FILE).then_some(())?;
        let file = memfd_create("isotherm", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, FILE).ok()?;
        let nr = bytes.div_ceil(FILE).clamp(1, 256).next_power_of_two();
        let length = (nr * FILE) as usize;
        let both = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: new memory, of no content; it is unmapped below and used nowhere else.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE) };
        let start = start.ok()?;
        let is_mapped = (0..nr).all(|part| {
            let at = start.wrapping_byte_add((part * FILE) as usize);
            // SAFETY: it replaces a part of the memory that was just mapped.
            unsafe { mmap(at, FILE as usize, ProtFlags::READ, both, &file, 0) }.is_ok()
        });
        // SAFETY: advice about our own memory; the second reads it in.
        let is_small = is_mapped
            && unsafe {
                madvise(start, length, Advice::LinuxNoHugepage).is_ok()
                    && madvise(start, length, Advice::LinuxPopulateRead).is_ok()
            };
        let mut page = 0_usize;
        let mut steps = |nr: usize, pages: usize| {
            let before = thread_cpu();
            for _ in 0..nr {
                // A cache line of each page, at varying offsets. Each address depends on the last read, a zero. The
                // generator visits all pages (Hull and Dobell, 1962).
                let at = page * PAGE_SIZE as usize + page % 64 * 64;
                // SAFETY: within the mapped memory; the file is private to this function.
                let read = unsafe { start.cast::<u64>().byte_add(at).read_volatile() } as usize;
                page = (page * 1_229 + 45_007 + read) & (pages - 1);
            }
            black_box(page);
            thread_cpu().since(before).as_secs_f64() / nr as f64
        };
        let took = is_small.then(|| {
            let (all, few) = (length / PAGE_SIZE as usize, 256);
            // Other pages follow those of the first half, which warm the caches.
            let nr = all / 2;
            let times = [(nr, few), (nr, few), (nr, all), (nr, all)].map(|(nr, of)| steps(nr, of));
            (times[3] - times[1]).max(0.0)
        });
        // SAFETY: no reference to it is left.
        unsafe { munmap(start, length) }.ok()?;
        took
    }

    /// Returns the blocks of private anonymous memory that are in memory, wholly or in part.
    pub fn private_blocks(&mut self, target: TargetId) -> Result<Vec<BlockUse>> {
        self.read_areas([target])?;
        let areas = super::areas_of(&self.areas, target).iter();
        let aligned = areas
            .filter(|area| area.is_private_anonymous())
            .filter_map(|area| {
                let start = area.range.start.next_multiple_of(BLOCK_SIZE);
                let end = area.range.end & !(BLOCK_SIZE - 1);
                (start < end).then(|| AddressRange::new(start, end))
            });
        let aligned: Vec<AddressRange> = aligned.collect();
        let blocks = self.probe.occupied_blocks(target, &aligned)?;
        let mut uses = Vec::new();
        self.block_uses(target, &blocks.unwrap_or_default(), false, |found| {
            uses.push(found);
        })?;
        Ok(uses)
    }

    /// Makes `blocks` huge pages, or splits them. Returns the number of them that are huge then.
    pub fn set_huge(&mut self, target: TargetId, blocks: &[u64], is_huge: bool) -> Result<usize> {
        let (length, advice) = if is_huge {
            (BLOCK_SIZE, MADV_COLLAPSE)
        } else {
            // Advice about a part of a huge page splits it.
            (PAGE_SIZE, libc::MADV_COLD)
        };
        let ranges = blocks
            .iter()
            .map(|start| AddressRange::new(*start, start + length));
        let ranges: Vec<AddressRange> = ranges.collect();
        let Some(process) = self.probe.process(target) else {
            return Ok(0);
        };
        process.advise(&ranges, advice, &mut self.advised)?;
        let mut nr = 0;
        self.probe
            .read_blocks(target, blocks, |facts| nr += usize::from(facts.huge))?;
        Ok(nr)
    }
}

/// The pages of a block at one read.
#[derive(Clone, Copy, Debug)]
struct Read {
    after: Duration,
    present: f64,
    walked: f64,
}

/// Returns the walks a second of a block; `None` if nearly all pages were walked before the first read. Where some pages
/// are in use and others are not, the pages walked by the end are all that are in use. So the larger of two estimates
/// counts: by all pages, and by these.
fn walks_per_s(reads: &[Read]) -> Option<f64> {
    let [first, .., end] = reads else {
        return None;
    };
    if first.walked >= 0.98 * first.present {
        return None;
    }
    let by = |pages: f64, last: &Read| {
        // One page counts as not walked, so that the result is finite.
        let left = |read: &Read| (pages - read.walked).max(1.0);
        let seconds = last.after.saturating_sub(first.after).as_secs_f64();
        (left(first) / left(last)).ln().max(0.0) / seconds.max(1e-6) * pages
    };
    let by_all = reads[1..].iter().map(|read| by(read.present, read));
    let in_use = reads[1..reads.len() - 1]
        .iter()
        .map(|read| by(end.walked, read));
    // The estimate of pages in use needs many: a few differ by chance.
    let in_use = in_use.filter(|_| end.walked > MOST * end.present);
    Some(by_all.chain(in_use).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the walks a second by reads at which `walked` pages were walked, after so many milliseconds.
    fn walks(walked: impl Fn(f64) -> f64) -> Option<f64> {
        let reads = READS_US.map(|us| Read {
            after: Duration::from_micros(us),
            present: 512.0,
            walked: walked(us as f64 / 1e3),
        });
        walks_per_s(&reads)
    }

    #[test]
    fn a_walk_takes_some_nanoseconds() {
        let Some(seconds) = ProcessActuator::longest_walk(1 << 30) else {
            println!("SKIP a_walk_takes_some_nanoseconds: less than 1 GiB is available");
            return;
        };
        println!("{:.1} ns", seconds * 1e9);
        assert!((0.0..1e-6).contains(&seconds));
    }

    #[test]
    fn only_walks_between_the_reads_count() {
        for per_ms in [0.001, 0.037, 0.6] {
            let found = walks(|ms| 512.0 * (1.0 - (-per_ms * ms).exp()));
            let (found, wanted) = (found.expect("known"), per_ms * 1e3 * 512.0);
            let is_near = (0.99..1.3).contains(&(found / wanted));
            assert!(is_near, "{found}, not {wanted}");
        }
        // Half of the pages are walked 2,000 times a second, the others never.
        let half = walks(|ms| 256.0 * (1.0 - (-2.0 * ms).exp())).expect("known");
        assert!((0.9..1.3).contains(&(half / 512e3)), "{half}");
        assert_eq!(walks(|_| 300.0), Some(0.0), "these stay in the TLB");
        assert_eq!(walks(|_| 510.0), None, "all were walked at once");
    }
}
