//! The page-granular scan reads the accessed bit of every page of a process, exactly, at every scan.
//!
//! The approach: read all page tables in bulk, clear the bits that are set, then read the cleared bits again. So the
//! next scan knows for each page whether it was touched in between. Bits are cleared with `process_madvise(MADV_COLD)`
//! in chunks. Their size is measured so that the target's mmap lock is held no longer than the caller allows.
//!
//! If MADV_COLD cannot clear much of the memory because it is shared, `/proc/PID/clear_refs` can follow it. That holds
//! the lock for writing over the whole process, and is refused if it would take longer than allowed. Its duration is
//! measured beforehand on memory of our own. It does not flush the TLB, so a page with a TLB entry may look idle. So
//! the scan reads private pages between the two: whatever is in the TLB by then has set its bit after the flush by
//! MADV_COLD. The next scan reports these pages as accessed. Shared pages are without a flush.
//!
//! Source: Park's page-granularity idleness (mm/damon/pgidle.c of RFC v10, 2020: docs/reference/references.md), and
//! Documentation/filesystems/proc.rst for clear_refs.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::statistics::median;
use isotherm_engine::table::BlockFacts;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use thiserror::Error;

use super::clear_refs::ClearMethod;
use super::page_table::{PageTableProbe, ProbeError};
use crate::clock::process_cpu;
use crate::process::resident_bytes;

const BLOCK_PAGES: u64 = BLOCK_SIZE / PAGE_SIZE;
/// Bytes of our own memory on which clear_refs is measured.
const CALIBRATION_BYTES: usize = 32 << 20;
/// Maximum gap, in pages, between set bits that is cleared with them: a call's fixed cost is higher.
const BRIDGED_PAGES: u64 = 16;
/// Time in which a target touches again what is in constant use.
const SETTLES: Duration = Duration::from_millis(2);

/// Reason why a scan is refused or failed.
#[derive(Debug, Error)]
pub enum ScanError {
    #[error(
        "a scan would hold process {pid} up for about {stall_ms:.1} ms (clearing by {method:?}), longer than the {limit_ms:.1} ms allowed; raise --max-stall, or record without --pages"
    )]
    TooLong {
        pid: u32,
        /// Predicted, from measurements or an estimate.
        stall_ms: f64,
        limit_ms: f64,
        method: ClearMethod,
    },
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("cannot write /proc/{pid}/clear_refs: {source}; use --clear-by madvise")]
    ClearRefs { pid: u32, source: std::io::Error },
}

/// Result of one scan for one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedBlock {
    /// The block's page tables as the scan read them.
    pub facts: BlockFacts,
    /// Pages in an unknown state: their bits could not be cleared at the last scan.
    pub unknown: Bitmap,
}

/// Cost of scanning so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScanCost {
    pub scans: u64,
    /// Present bytes scanned, over all scans.
    pub bytes: u64,
    /// CPU time of all scans together.
    pub cpu: Nanos,
    /// Longest single hold of the target's mmap lock.
    pub longest_hold: Nanos,
}

impl ScanCost {
    /// Returns the CPU milliseconds per GiB of present memory and scan.
    pub fn cpu_ms_per_gib(&self) -> f64 {
        self.cpu.0 as f64 / 1e6 / (self.bytes.max(1) as f64 / f64::from(1 << 30))
    }
}

/// State in which a scan left the pages of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Pages whose bits were clear.
    clear: Bitmap,
    /// Pages that were accessed between a flush of the TLB and the last clear, which does not flush it.
    accessed: Bitmap,
}

impl Left {
    /// A block that was not there before: all its pages have appeared, so they were accessed.
    const NEW: Self = Self {
        clear: bits::ALL,
        accessed: bits::NONE,
    };
}

/// Scans targets, and records for each which bits it cleared.
#[derive(Debug)]
pub struct Scanner {
    /// Pages as the last scan left them, by target and block.
    last: BTreeMap<TargetId, BTreeMap<u64, Left>>,
    max_hold: Nanos,
    method: ClearMethod,
    pace: Pace,
    clear_refs_ns_per_byte: Option<f64>,
    cost: ScanCost,
}

impl Scanner {
    /// Returns a scanner that holds a target's mmap lock for at most `max_hold` at a time.
    pub fn new(method: ClearMethod, max_hold: Nanos) -> Self {
        Self {
            last: BTreeMap::new(),
            max_hold,
            method,
            pace: Pace::default(),
            clear_refs_ns_per_byte: None,
            cost: ScanCost::default(),
        }
    }

    /// Returns the cost of scanning so far.
    pub fn cost(&self) -> ScanCost {
        self.cost
    }

    /// Returns the current method of clearing bits.
    pub fn method(&self) -> ClearMethod {
        self.method
    }

    /// Changes the method of clearing bits from the next scan on.
    pub fn set_method(&mut self, method: ClearMethod) {
        self.method = method;
    }

    /// Removes the state of a target that ended.
    pub fn forget(&mut self, target: TargetId) {
        self.last.remove(&target);
    }

    /// Returns the milliseconds that clear_refs would stall a process of `rss` bytes, as measured on our own memory.
    pub fn clear_refs_hold_ms(&mut self, rss: u64) -> f64 {
        let ns_per_byte = *self
            .clear_refs_ns_per_byte
            .get_or_insert_with(measure_clear_refs);
        ns_per_byte * rss as f64 / 1e6
    }

    /// Scans the parts of `target` that lie in `ranges`. The first scan of a target only clears, and returns no blocks.
    /// Returns `None` if the target is gone.
    pub fn scan(
        &mut self,
        probe: &mut PageTableProbe,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<ScannedBlock>>, ScanError> {
        let started = process_cpu();
        let Some(blocks) = probe.occupied_blocks(target, ranges)? else {
            return Ok(None);
        };
        let mut seen: Vec<BlockFacts> = Vec::with_capacity(blocks.len());
        if !probe.read_blocks(target, &blocks, |facts| seen.push(facts))? {
            return Ok(None);
        }
        seen.retain(|facts| facts.present != [0; 8]);
        limit_to(&mut seen, ranges);
        let result = self.last.get(&target).map(|last| {
            let scanned = seen.iter().map(|facts| {
                let left = last.get(&facts.address).copied().unwrap_or(Left::NEW);
                scanned(facts, &left)
            });
            scanned.collect()
        });
        let Some(accessed) = self.clear(probe, target, &seen)? else {
            return Ok(None);
        };
        let left = self.verify(probe, target, &seen, &accessed)?;
        self.last.insert(target, left);
        self.cost.scans += 1;
        self.cost.cpu = self.cost.cpu + process_cpu().since(started);
        let pages: u64 = seen
            .iter()
            .map(|facts| u64::from(bits::count(&facts.present)))
            .sum();
        self.cost.bytes += pages * PAGE_SIZE;
        Ok(Some(result.unwrap_or_default()))
    }

    /// Clears the accessed bits of `seen`. Returns, by block, pages that were accessed after the last flush of the TLB
    /// and have been cleared since; `None` if the target is gone.
    fn clear(
        &mut self,
        probe: &mut PageTableProbe,
        target: TargetId,
        seen: &[BlockFacts],
    ) -> Result<Option<BTreeMap<u64, Bitmap>>, ScanError> {
        let Some(process) = probe.process(target) else {
            return Ok(None);
        };
        let pid = process.pid();
        if self.method == ClearMethod::ClearRefs {
            let rss = process.usage().map(|usage| usage.rss).unwrap_or_default();
            let stall_ms = self.clear_refs_hold_ms(rss);
            self.refuse_if_longer(stall_ms, pid)?;
        }
        let mut batch = Vec::new();
        let mut pages = 0;
        for range in ranges_to_clear(seen, probe.folio_pages) {
            pages += range.len() / PAGE_SIZE;
            batch.push(range);
            if self.pace.fills(pages, self.max_hold) {
                self.clear_batch(probe, target, pid, &batch, pages)?;
                batch.clear();
                pages = 0;
            }
        }
        self.clear_batch(probe, target, pid, &batch, pages)?;
        if self.method == ClearMethod::Madvise {
            return Ok(Some(BTreeMap::new()));
        }
        thread::sleep(SETTLES);
        let before = read_again(probe, target, seen)?;
        if !self.clear_refs(probe, target)? {
            return Ok(None);
        }
        // Not earlier: accesses between the read and the clear are lost.
        let mut cleared = BTreeMap::new();
        for facts in &before {
            let (_, clearable) = still_set(probe, target, facts, ClearMethod::Madvise)?;
            cleared.insert(facts.address, clearable);
        }
        Ok(Some(cleared))
    }

    /// Clears all accessed bits of the process. Returns `false` if it is gone.
    fn clear_refs(&mut self, probe: &PageTableProbe, target: TargetId) -> Result<bool, ScanError> {
        let Some(process) = probe.process(target) else {
            return Ok(false);
        };
        let started = Instant::now();
        let is_cleared = process
            .clear_refs()
            .map_err(|source| ScanError::ClearRefs {
                pid: process.pid(),
                source,
            })?;
        self.held(started);
        Ok(is_cleared)
    }

    fn clear_batch(
        &mut self,
        probe: &mut PageTableProbe,
        target: TargetId,
        pid: u32,
        batch: &[AddressRange],
        pages: u64,
    ) -> Result<(), ScanError> {
        if batch.is_empty() {
            return Ok(());
        }
        // Even the smallest batch, one block, may be too long on this machine.
        let smallest_ms = self.pace.ns_per_page().unwrap_or(0.0) * BLOCK_PAGES as f64 / 1e6;
        self.refuse_if_longer(smallest_ms, pid)?;
        let started = Instant::now();
        probe.clear(target, batch)?;
        let elapsed = self.held(started);
        self.pace.add(elapsed, pages);
        Ok(())
    }

    fn held(&mut self, started: Instant) -> Nanos {
        let elapsed = Nanos::from(started.elapsed());
        self.cost.longest_hold = self.cost.longest_hold.max(elapsed);
        elapsed
    }

    fn refuse_if_longer(&self, stall_ms: f64, pid: u32) -> Result<(), ScanError> {
        let limit_ms = self.max_hold.0 as f64 / 1e6;
        if stall_ms > limit_ms {
            return Err(ScanError::TooLong {
                pid,
                stall_ms,
                limit_ms,
                method: self.method,
            });
        }
        Ok(())
    }

    /// Reads the cleared bits again. Pages count as clear if they are, or if they are clearable and were touched at
    /// once: the next scan rightly finds these accessed.
    fn verify(
        &self,
        probe: &mut PageTableProbe,
        target: TargetId,
        seen: &[BlockFacts],
        accessed: &BTreeMap<u64, Bitmap>,
    ) -> Result<BTreeMap<u64, Left>, ScanError> {
        let mut left = BTreeMap::new();
        let after = read_again(probe, target, seen)?;
        for facts in &after {
            let (set, clearable) = still_set(probe, target, facts, self.method)?;
            let clear = bits::or(&bits::and_not(&bits::ALL, &set), &clearable);
            let accessed = accessed.get(&facts.address).copied().unwrap_or_default();
            left.insert(facts.address, Left { clear, accessed });
        }
        Ok(left)
    }
}

/// Returns what a scan tells of a block that the last scan left in the state `left`.
fn scanned(facts: &BlockFacts, left: &Left) -> ScannedBlock {
    let mut facts = *facts;
    let set = bits::and(&facts.present, &facts.accessed);
    let since = bits::and(&facts.present, &left.accessed);
    let unknown = bits::and_not(&bits::and_not(&set, &left.clear), &since);
    facts.accessed = bits::or(&facts.accessed, &since);
    ScannedBlock { facts, unknown }
}

fn read_again(
    probe: &mut PageTableProbe,
    target: TargetId,
    seen: &[BlockFacts],
) -> Result<Vec<BlockFacts>, ScanError> {
    let blocks: Vec<u64> = seen.iter().map(|facts| facts.address).collect();
    let mut after = Vec::with_capacity(blocks.len());
    probe.read_blocks(target, &blocks, |facts| after.push(facts))?;
    Ok(after)
}

/// Returns the pages of a block whose bits are set, and those of them that `method` can clear.
fn still_set(
    probe: &mut PageTableProbe,
    target: TargetId,
    facts: &BlockFacts,
    method: ClearMethod,
) -> Result<(Bitmap, Bitmap), ScanError> {
    let set = bits::and(&facts.present, &facts.accessed);
    let clearable = probe.clearable(target, facts.address, &set, method)?;
    Ok((set, clearable))
}

/// Clears the bits of `seen` for pages outside `ranges` (both in address order).
fn limit_to(seen: &mut [BlockFacts], ranges: &[AddressRange]) {
    for facts in seen {
        let block = AddressRange::new(facts.address, facts.address + BLOCK_SIZE);
        let first = ranges.partition_point(|range| range.end <= block.start);
        let parts = ranges[first..]
            .iter()
            .take_while(|range| range.start < block.end);
        let inside = parts.fold(bits::NONE, |inside, range| {
            bits::or(&inside, &bits::mask(block.start, *range))
        });
        if !facts.huge {
            facts.present = bits::and(&facts.present, &inside);
            facts.accessed = bits::and(&facts.accessed, &inside);
        }
    }
}

/// Recent time per page of clearing.
///
/// The median of some batches is used: in a single one this thread may have lost the processor for longer than the
/// whole clearing takes. Such a batch does not predict the next.
#[derive(Debug, Default)]
struct Pace {
    recent: VecDeque<f64>,
}

impl Pace {
    const KEPT: usize = 9;
    const ENOUGH: usize = 3;

    /// Adds a batch. A call has a fixed cost, so small batches are ignored: their time per page does not apply to large
    /// ones.
    fn add(&mut self, elapsed: Nanos, pages: u64) {
        if pages < BLOCK_PAGES / 4 {
            return;
        }
        if self.recent.len() == Self::KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(elapsed.0 as f64 / pages as f64);
    }

    /// Whether `pages` pages make a batch, if the target may be stalled for `max_hold`.
    fn fills(&self, pages: u64, max_hold: Nanos) -> bool {
        match self.ns_per_page() {
            None => pages >= BLOCK_PAGES,
            Some(ns) => ns * pages as f64 >= max_hold.0 as f64 / 3.0,
        }
    }

    /// Returns `None` until there are some batches; these are the smallest, of one block.
    fn ns_per_page(&self) -> Option<f64> {
        if self.recent.len() < Self::ENOUGH {
            return None;
        }
        median(self.recent.iter().copied().collect())
    }
}

/// Returns ranges that hold every set bit and its whole folio, short gaps included.
fn ranges_to_clear(seen: &[BlockFacts], folio_pages: usize) -> Vec<AddressRange> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    let mut add = |start: u64, end: u64| match ranges.last_mut() {
        Some(last)
            if start - last.end <= BRIDGED_PAGES * PAGE_SIZE
                && last.start / BLOCK_SIZE == start / BLOCK_SIZE =>
        {
            last.end = end;
        }
        _ => ranges.push(AddressRange::new(start, end)),
    };
    for facts in seen {
        if facts.huge {
            if facts.accessed[0] != 0 {
                add(facts.address, facts.address + BLOCK_SIZE);
            }
            continue;
        }
        let accessed = bits::and(&facts.present, &facts.accessed);
        let accessed = bits::and(&facts.present, &bits::in_parts_of(&accessed, folio_pages));
        for page in bits::each(&accessed) {
            let start = facts.address + page as u64 * PAGE_SIZE;
            add(start, start + PAGE_SIZE);
        }
    }
    ranges
}

/// Measures the nanoseconds per byte that clear_refs takes on this process.
fn measure_clear_refs() -> f64 {
    let memory = vec![1u8; CALIBRATION_BYTES];
    black_box(
        memory
            .iter()
            .step_by(PAGE_SIZE as usize)
            .map(|b| u64::from(*b))
            .sum::<u64>(),
    );
    let started = Instant::now();
    if fs::write("/proc/self/clear_refs", "1").is_err() {
        return f64::INFINITY;
    }
    let elapsed = started.elapsed().as_nanos() as f64;
    let bytes = resident_bytes(std::process::id()).max(CALIBRATION_BYTES as u64);
    drop(memory);
    elapsed / bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_batch_is_not_the_pace() {
        let mut pace = Pace::default();
        let mut add = |ns_per_page: u64, pages: u64| {
            pace.add(Nanos(ns_per_page * pages), pages);
            pace.ns_per_page()
        };
        add(60_000, 512);
        assert_eq!(add(150, 512), None);
        assert_eq!(add(160, 1024), Some(160.0));
        (0..9).for_each(|_| _ = add(30_000, 512));
        assert_eq!(add(30_000, 512), Some(30_000.0));
    }

    /// Three calls for a page each, on a busy machine, made a block seem to take 16 ms.
    #[test]
    fn what_a_few_pages_take_is_not_the_pace() {
        let mut pace = Pace::default();
        (0..9).for_each(|_| pace.add(Nanos(32_000), 1));
        assert_eq!(pace.ns_per_page(), None);
        let limit = Nanos::from_millis(10);
        assert!(!pace.fills(511, limit) && pace.fills(512, limit));
        (0..3).for_each(|_| pace.add(Nanos(512 * 100), 512));
        assert!(!pace.fills(33_333, limit) && pace.fills(33_334, limit));
    }

    fn block(pages: &[usize]) -> BlockFacts {
        let mut accessed = [0; 8];
        for page in pages {
            bits::set(&mut accessed, *page);
        }
        BlockFacts {
            address: 0,
            huge: false,
            present: [u64::MAX; 8],
            accessed,
            swapped: [0; 8],
        }
    }

    #[test]
    fn short_gaps_are_bridged_and_long_ones_are_not() {
        let page = |n: u64| n * PAGE_SIZE;
        let ranges = ranges_to_clear(&[block(&[0, 1, 10, 100, 511])], 1);
        let expected = [
            AddressRange::new(0, page(11)),
            AddressRange::new(page(100), page(101)),
            AddressRange::new(page(511), page(512)),
        ];
        assert_eq!(ranges, expected);
    }

    #[test]
    fn pages_that_were_read_before_the_last_clear_are_accessed() {
        let facts = block(&[0, 1]);
        let bitmap = |pages: &[usize]| block(pages).accessed;
        // Page 0's bit was clear and is set. Page 1's was never cleared. Page 2 was accessed before the clear.
        let left = Left {
            clear: bitmap(&[0, 2, 3]),
            accessed: bitmap(&[2]),
        };
        let scanned = scanned(&facts, &left);
        assert_eq!(scanned.facts.accessed, bitmap(&[0, 1, 2]));
        assert_eq!(scanned.unknown, bitmap(&[1]));
    }

    #[test]
    fn pages_outside_the_ranges_are_blanked() {
        let mut seen = [block(&[0, 1, 2, 3])];
        limit_to(&mut seen, &[AddressRange::new(PAGE_SIZE, 3 * PAGE_SIZE)]);
        assert_eq!((seen[0].present[0], seen[0].accessed[0]), (0b110, 0b110));
    }
}
