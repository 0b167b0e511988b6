//! The monitor on a made-up memory whose pages are touched with known probabilities.

use std::collections::BTreeMap;

use super::*;
use crate::address::{BLOCK_SIZE, PAGE_SIZE};
use crate::snapshot::RegionSnapshot;

/// Memory of `probabilities.len()` blocks; each page of block `b` is touched in a window with
/// probability `rate(page)`.
struct Memory<'a> {
    nr_pages: u64,
    rate: &'a dyn Fn(u64) -> f64,
    accessed: Vec<bool>,
    random: u64,
}

impl Memory<'_> {
    fn window(&mut self) {
        for page in 0..self.nr_pages {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let roll = (self.random >> 33) as f64 / (1u64 << 31) as f64;
            if roll < (self.rate)(page) {
                self.accessed[page as usize] = true;
            }
        }
    }

    fn facts(&self, block: u64) -> BlockFacts {
        let mut accessed = [0; 8];
        for page in 0..512 {
            let set = self.accessed[(block / PAGE_SIZE) as usize + page];
            accessed[page / 64] |= u64::from(set) << (page % 64);
        }
        BlockFacts {
            address: block,
            huge: false,
            present: [u64::MAX; 8],
            accessed,
        }
    }

    fn clear(&mut self, range: AddressRange) {
        self.accessed[(range.start / PAGE_SIZE) as usize..(range.end / PAGE_SIZE) as usize]
            .fill(false);
    }
}

const TARGET: TargetId = TargetId(0);

/// Runs the monitor for `windows`, at the costs of a busy virtual machine; yields the last snapshot and
/// the share of a CPU that was spent.
fn run(nr_blocks: u64, windows: u64, rate: &dyn Fn(u64) -> f64) -> (Snapshot, f64) {
    let nr_pages = nr_blocks * 512;
    let mut memory = Memory {
        nr_pages,
        rate,
        accessed: vec![true; nr_pages as usize],
        random: 1,
    };
    let attributes = TableAttributes::default();
    let mut now = Nanos(1_000_000_000);
    let mut monitor = TableMonitor::new(attributes, now);
    let mut cost = Cost::default();
    let mut armed: Vec<Sample> = Vec::new();
    let mut last = BTreeMap::new();
    let mapping = MappedRange {
        range: AddressRange::new(0, nr_blocks * BLOCK_SIZE),
    };
    let blocks: Vec<u64> = (0..nr_blocks).map(|b| b * BLOCK_SIZE).collect();
    let mut wake_at = now;
    for _ in 0..windows {
        memory.window();
        now = now + attributes.window;
        if now < wake_at {
            continue;
        }
        cost.monitor_cpu = cost.monitor_cpu + Nanos(60_000);
        let touches: Vec<Touch> = armed
            .iter()
            .map(|s| {
                let first = (s.address / PAGE_SIZE) as usize;
                let busy = memory.accessed[first..first + s.nr_pages as usize]
                    .iter()
                    .filter(|a| **a)
                    .count();
                Touch::Seen {
                    observed: s.nr_pages,
                    accessed: busy as u32,
                }
            })
            .collect();
        if monitor.reading_due(now, &cost) {
            monitor.set_layout(TARGET, &[mapping], &blocks, now);
            for _ in 0..4 {
                let blocks = monitor.blocks_to_read(TARGET);
                for block in &blocks {
                    monitor.look(TARGET, &memory.facts(*block), now);
                }
                cost.monitor_cpu = cost.monitor_cpu + Nanos(blocks.len() as u64 * 1_200);
            }
        }
        let plan = monitor.tick(now, &touches, &cost);
        for snapshot in plan.snapshots {
            last.insert(snapshot.target, snapshot);
        }
        for order in &plan.arms {
            memory.clear(order.range);
            monitor.armed(TARGET, &memory.facts(block_of(order.range.start)), now);
        }
        for sample in &plan.samples {
            let end = sample.address + u64::from(sample.nr_pages) * PAGE_SIZE;
            memory.clear(AddressRange::new(sample.address, end));
        }
        cost.monitor_cpu = cost.monitor_cpu
            + Nanos((plan.samples.len() * 25_000 + plan.arms.len() * 60_000) as u64);
        armed = plan.samples;
        wake_at = plan.wake_at;
    }
    let share = cost.monitor_cpu.as_secs_f64() / (windows as f64 * 0.02);
    (last.remove(&TARGET).expect("a snapshot"), share)
}

/// Precision and recall, by bytes, of "hot": a rate of at least a quarter.
fn accuracy(snapshot: &Snapshot, is_hot: &dyn Fn(u64) -> bool) -> (f64, f64) {
    let (mut said, mut right, mut hot) = (0u64, 0u64, 0u64);
    for region in &snapshot.regions {
        let says_hot = snapshot
            .access_rate(region)
            .is_some_and(|rate| rate >= 0.25);
        for page in region.range.start / PAGE_SIZE..region.range.end / PAGE_SIZE {
            said += u64::from(says_hot);
            hot += u64::from(is_hot(page));
            right += u64::from(says_hot && is_hot(page));
        }
    }
    (
        right as f64 / said.max(1) as f64,
        right as f64 / hot.max(1) as f64,
    )
}

fn check(nr_blocks: u64, seconds: u64, is_hot: &dyn Fn(u64) -> bool) {
    let rate = |page| if is_hot(page) { 0.9 } else { 0.0 };
    let (snapshot, share) = run(nr_blocks, seconds * 50, &rate);
    let (precision, recall) = accuracy(&snapshot, is_hot);
    assert!(
        precision >= 0.95 && recall >= 0.95,
        "precision {precision:.3} recall {recall:.3}"
    );
    assert!(share <= 0.0131, "spent {:.2} % of a CPU", share * 100.0);
    let sum: u64 = snapshot.regions.iter().map(|r| r.range.len()).sum();
    assert_eq!(sum, nr_blocks * BLOCK_SIZE, "regions cover the memory");
    assert!(
        snapshot
            .regions
            .windows(2)
            .all(|w| w[0].range.end <= w[1].range.start)
    );
}

#[test]
fn a_hot_tenth_in_one_piece_is_found() {
    check(512, 10, &|page| (100_000..126_000).contains(&page));
}

#[test]
fn a_hot_tenth_in_scattered_unaligned_pieces_is_found() {
    // 512 pages hot from page 300 on, in every tenth block's stretch.
    check(512, 20, &|page| (300..812).contains(&(page % 5120)));
}

#[test]
fn a_small_area_in_a_large_memory_is_found_within_ten_seconds() {
    // 200 MiB in 4 GiB here, 1 % of a CPU.
    check(2048, 10, &|page| (300_000..351_200).contains(&page));
}

#[test]
fn same_input_same_result() {
    let rate = |page: u64| if page.is_multiple_of(3) { 0.3 } else { 0.001 };
    assert_eq!(run(32, 300, &rate), run(32, 300, &rate));
}

#[test]
fn what_was_hot_and_went_cold_is_cold_with_its_age() {
    let (snapshot, _) = run(64, 500, &|_| 0.0);
    for region in &snapshot.regions {
        assert_eq!(region.nr_accesses, Some(0.0), "{region:?}");
        assert!(region.age_ns > Nanos(5_000_000_000), "{region:?}");
    }
}

/// Segments that cannot be armed go back to being sampled; they were lost from the queue once, and
/// kept their rate for ever.
#[test]
fn warm_memory_that_turns_cold_is_seen_to() {
    let (nr_blocks, warm_windows) = (8, 500);
    let calls = std::cell::Cell::new(0);
    let rate = |_| {
        let window = calls.replace(calls.get() + 1) / (nr_blocks * 512);
        if window < warm_windows { 0.05 } else { 0.0 }
    };
    let (snapshot, _) = run(nr_blocks, 2000, &rate);
    let warm = |region: &&RegionSnapshot| region.nr_accesses != Some(0.0);
    assert_eq!(snapshot.regions.iter().find(warm), None);
}
