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
//! Limits: a page that is walked more than some thousand times a second counts as walked so often.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_policy::scheme::huge::BlockUse;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::every_cpu::RealTime;
use super::huge_page::MADV_COLLAPSE;
use super::{ProcessActuator, bits};
use crate::clock::thread_cpu;
use crate::meminfo::Meminfo;
use crate::probe::Result;

/// Times of the reads after the clear, in microseconds.
const READS_US: [u64; 4] = [500, 1_000, 2_000, 4_000];
/// Share of the pages walked, after which later reads show little.
const MOST: f64 = 0.7;
/// Page walks that are timed: a few milliseconds.
const WALKS: usize = 200_000;

impl ProcessActuator {
    /// Passes the page walks a second of each of `blocks` to a closure. Blocks that are huge, or whose accessed bits
    /// cannot be cleared, are left out. It takes 4 ms, nearly all of it asleep.
    pub fn page_walks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut look: impl FnMut(u64, f64),
    ) -> Result<()> {
        self.read_areas([target])?;
        let ranges: Vec<AddressRange> = blocks
            .iter()
            .map(|block| AddressRange::new(*block, block + BLOCK_SIZE))
            .filter(|range| self.is_private(target, *range))
            .collect();
        let Some(process) = self.probe.process(target) else {
            return Ok(());
        };
        // A refused range stays as it is, which shows no walks.
        if { process.advise(&ranges, libc::MADV_COLD, &mut self.advised) }.is_err() {
            return Ok(());
        }
        // Sleeps and reads must not last longer than they are meant to. It is asleep for nearly all of the time.
        let real_time = RealTime::begin();
        let blocks: Vec<u64> = ranges.iter().map(|range| range.start).collect();
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
            look(block, walks_per_s(&reads));
        }
        Ok(())
    }

    /// Returns the time of a page walk that nothing hides, in seconds: of a program that follows pointers through `bytes` of
    /// memory (at most 16 GiB). It is measured on 64 MiB of our own, mapped as often as that takes. The page tables then
    /// have the size of such a program's, but its data are in the caches. Returns `None` if memory is short.
    pub fn longest_walk(bytes: u64) -> Option<f64> {
        const FILE: u64 = 64 << 20;
        let available = Meminfo::read().get("MemAvailable")?;
        (available > 16 * FILE).then_some(())?;
        let file = memfd_create("isotherm", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, FILE).ok()?;
        let nr = bytes.div_ceil(FILE).clamp(1, 256).next_power_of_two();
        let length = (nr * FILE) as usize;
        let (none, both) = (
            MapFlags::PRIVATE,
            MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE,
        );
        // SAFETY: new memory, of no content; it is unmapped below and used nowhere else.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ, none) }.ok()?;
        let is_mapped = (0..nr).all(|part| {
            let at = start.wrapping_byte_add((part * FILE) as usize);
            // SAFETY: it replaces a part of the memory that was just mapped.
            unsafe { mmap(at, FILE as usize, ProtFlags::READ, both, &file, 0) }.is_ok()
        });
        let steps = |pages: usize| {
            let (mut page, before) = (0_usize, thread_cpu());
            for _ in 0..WALKS {
                // One line of each page, another one for each. The next address depends on what was read, which is zero. All
                // pages have their turn (Hull and Dobell, 1962).
                let at = page * PAGE_SIZE as usize + page % 64 * 64;
                // SAFETY: within the mapped memory; the file is zeroed and nobody else has it.
                let read = unsafe { start.cast::<u64>().byte_add(at).read_volatile() } as usize;
                page = (page * 1_229 + 45_007 + read) & (pages - 1);
            }
            black_box(page);
            thread_cpu().since(before)
        };
        let took = is_mapped.then(|| {
            let all = length / PAGE_SIZE as usize;
            let few = 256;
            let times = [few, few, all, all].map(steps);
            times[3].since(times[1])
        });
        // SAFETY: no reference to it is left.
        unsafe { munmap(start, length) }.ok()?;
        Some(took?.as_secs_f64() / WALKS as f64)
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

/// Returns the walks a second of a block: from the first read to the last one at which enough pages were not walked yet.
fn walks_per_s(reads: &[Read]) -> f64 {
    let [first, second, later @ ..] = reads else {
        return 0.0;
    };
    let shows_more = |read: &&Read| read.walked <= MOST * read.present;
    let last = later.iter().rev().find(shows_more).unwrap_or(second);
    // One page counts as not walked, so that the result is finite.
    let left = |read: &Read| (read.present - read.walked).max(1.0);
    let seconds = last.after.saturating_sub(first.after).as_secs_f64();
    let per_page = (left(first) / left(last)).ln().max(0.0) / seconds.max(1e-6);
    per_page * last.present
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the walks a second by reads at which `walked` pages were walked, after so many milliseconds.
    fn walks(walked: impl Fn(f64) -> f64) -> f64 {
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
            let wanted = per_ms * 1e3 * 512.0;
            assert!((found / wanted - 1.0).abs() < 0.01, "{found}, not {wanted}");
        }
        assert!(walks(|_| 300.0) == 0.0, "these stay in the TLB");
        let most = walks(|ms| if ms < 0.7 { 0.0 } else { 512.0 });
        assert!((6e6..7e6).contains(&most), "{most}");
    }
}
