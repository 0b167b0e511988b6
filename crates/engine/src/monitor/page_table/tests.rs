//! The monitor on a made-up memory whose pages are touched with known probabilities.

use std::convert::Infallible;

use super::*;
use crate::address::{BLOCK_SIZE, PAGE_SIZE};
use crate::monitor::bits::{self, Bitmap};
use crate::snapshot::RegionSnapshot;

/// Memory of `nr_pages` pages; each page is touched in a window with probability `rate(page)`.
struct Memory<'a> {
    nr_pages: u64,
    rate: &'a dyn Fn(u64) -> f64,
    accessed: Vec<bool>,
    shared: Shared<'a>,
    random: u64,
}

/// Memory that other processes map too.
#[derive(Clone, Copy)]
struct Shared<'a> {
    has: &'a dyn Fn(u64) -> bool,
    /// Whether clearing the whole address space, which reaches it, would take too long.
    is_large: bool,
}

impl Memory<'_> {
    fn window(&mut self) {
        for page in 0..self.nr_pages {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
            self.random = self.random.wrapping_add(1);
            let roll = (self.random >> 33) as f64 / (1u64 << 31) as f64;
            if roll < (self.rate)(page) {
                self.accessed[page as usize] = true;
            }
        }
    }

    fn facts(&self, block: u64) -> BlockFacts {
        let mut accessed = bits::NONE;
        for page in 0..512 {
            let is_set = self.accessed[(block / PAGE_SIZE) as usize + page];
            bits::put(&mut accessed, page, is_set);
        }
        BlockFacts {
            address: block,
            accessed,
            ..UNTOUCHED
        }
    }

    fn clear(&mut self, range: AddressRange) {
        for page in range.start / PAGE_SIZE..range.end / PAGE_SIZE {
            if !(self.shared.has)(page) {
                self.accessed[page as usize] = false;
            }
        }
    }
}

const TARGET: TargetId = TargetId(0);

/// The first block, with all pages present and none accessed.
const UNTOUCHED: BlockFacts = BlockFacts {
    address: 0,
    huge: false,
    present: bits::ALL,
    accessed: bits::NONE,
    swapped: bits::NONE,
};

/// Returns a monitor of the first `nr_blocks` blocks.
fn monitor(now: Nanos, nr_blocks: u64) -> TableMonitor {
    let attributes = TableAttributes::default();
    let mut monitor = TableMonitor::new(attributes, BudgetShares::PROCESSES, now);
    let mapping = AddressRange::new(0, nr_blocks * BLOCK_SIZE);
    let blocks: Vec<u64> = (0..nr_blocks).map(|b| b * BLOCK_SIZE).collect();
    monitor.update_layout(TARGET, &[mapping], now);
    monitor.set_blocks(TARGET, &blocks, now);
    monitor
}

/// Runs the monitor for `windows`, at the costs of a busy virtual machine. Returns the last snapshot and the used share
/// of a CPU.
fn run(nr_blocks: u64, windows: u64, rate: &dyn Fn(u64) -> f64) -> (Snapshot, f64) {
    let none = Shared {
        has: &|_| false,
        is_large: false,
    };
    run_shared(nr_blocks, windows, rate, none)
}

/// Runs the monitor as [`run`] does, on memory that is `shared` in part.
fn run_shared(
    nr_blocks: u64,
    windows: u64,
    rate: &dyn Fn(u64) -> f64,
    shared: Shared<'_>,
) -> (Snapshot, f64) {
    let nr_pages = nr_blocks * 512;
    let mut memory = Memory {
        nr_pages,
        rate,
        accessed: vec![true; nr_pages as usize],
        shared,
        random: 1,
    };
    let attributes = TableAttributes::default();
    let mut now = Nanos(1_000_000_000);
    let mut monitor = monitor(now, nr_blocks);
    let mut cost = Cost::default();
    let mut last = None;
    let spend = |cost: &mut Cost, ns: u64| cost.monitor_cpu = cost.monitor_cpu + Nanos(ns);
    for _ in 0..windows {
        memory.window();
        now = now + attributes.window;
        match monitor.due(now) {
            Due::Nothing => continue,
            Due::Window => {
                spend(&mut cost, 60_000);
                for block in watched(&monitor) {
                    monitor.look_after_window(TARGET, &memory.facts(block));
                    spend(&mut cost, 1_200);
                }
                monitor.end_window();
                continue;
            }
            Due::End => spend(&mut cost, 60_000),
        }
        for block in monitor.blocks(TARGET) {
            monitor.take_answers(TARGET, &memory.facts(block));
            spend(&mut cost, 700);
        }
        last = monitor.end_interval(now).pop().or(last);
        monitor.begin_interval(now, &cost);
        let plan = monitor.plan_samples(now, &cost, 1);
        let by_range = watched(&monitor);
        let before = cost;
        if shared.is_large {
            plan.spaces
                .iter()
                .for_each(|(target, _)| monitor.spare_space(*target, now));
        } else if !plan.spaces.is_empty() {
            memory.accessed.fill(false);
            let blocks = monitor.blocks(TARGET);
            spend(&mut cost, blocks.len() as u64 * (1_200 + 512 * 30));
            take_cleared(&mut monitor, &memory, now, ClearedBy::Space, &blocks);
        }
        monitor.note_other_work(&before, &cost);
        let before = cost;
        for (_, range) in plan.ranges {
            memory.clear(range);
            spend(&mut cost, 7_000 + range.len() / PAGE_SIZE * 90);
        }
        spend(&mut cost, by_range.len() as u64 * 1_200);
        take_cleared(&mut monitor, &memory, now, ClearedBy::Range, &by_range);
        monitor.clears_done(&before, &cost);
    }
    let share = cost.monitor_cpu.as_secs_f64() / (windows as f64 * 0.02);
    (last.expect("a snapshot"), share)
}

fn take_cleared(
    monitor: &mut TableMonitor,
    memory: &Memory<'_>,
    now: Nanos,
    by: ClearedBy,
    blocks: &[u64],
) {
    let cleared = blocks.iter().map(|block| (TARGET, memory.facts(*block)));
    let cleared: Vec<(TargetId, BlockFacts)> = cleared.collect();
    let clearable = |_, block: u64, pages: &Bitmap| {
        let mut clearable = bits::NONE;
        let own = |page: &usize| !(memory.shared.has)(block / PAGE_SIZE + *page as u64);
        bits::each(pages)
            .filter(own)
            .for_each(|page| bits::set(&mut clearable, page));
        Ok(clearable)
    };
    let Ok(()) = monitor.take_cleared::<Infallible>(now, by, &cleared, clearable);
}

fn watched(monitor: &TableMonitor) -> Vec<u64> {
    let groups = monitor.watched_blocks().into_iter();
    groups.flat_map(|(_, blocks)| blocks).collect()
}

/// Precision and recall, by bytes, of "hot": a rate of at least a quarter.
fn accuracy(snapshot: &Snapshot, is_hot: &dyn Fn(u64) -> bool) -> (f64, f64) {
    let (mut said, mut right, mut hot) = (0u64, 0u64, 0u64);
    for region in &snapshot.regions {
        let says_hot = snapshot.access_rate(region) >= Some(0.25);
        for page in region.range.start / PAGE_SIZE..region.range.end / PAGE_SIZE {
            said += u64::from(says_hot);
            hot += u64::from(is_hot(page));
            right += u64::from(says_hot && is_hot(page));
        }
    }
    let part_of = |all: u64| right as f64 / all.max(1) as f64;
    (part_of(said), part_of(hot))
}

fn check(nr_blocks: u64, seconds: u64, is_hot: &dyn Fn(u64) -> bool) {
    let rate = |page| if is_hot(page) { 0.9 } else { 0.0 };
    let (snapshot, share) = run(nr_blocks, seconds * 50, &rate);
    let (precision, recall) = accuracy(&snapshot, is_hot);
    let result = format!("precision {precision:.3} recall {recall:.3}");
    assert!(precision.min(recall) >= 0.95, "{result}");
    assert!(share <= 0.0131, "spent {:.2} % of a CPU", share * 100.0);
    let sum: u64 = snapshot.regions.iter().map(|r| r.range.len()).sum();
    assert_eq!(sum, nr_blocks * BLOCK_SIZE, "regions cover the memory");
    let regions = &snapshot.regions;
    assert!(regions.is_sorted_by(|a, b| a.range.end <= b.range.start));
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
fn what_was_hot_and_went_cold_is_cold_with_its_age() {
    let (snapshot, _) = run(64, 500, &|_| 0.0);
    for region in &snapshot.regions {
        assert_eq!(region.nr_accesses, Some(0.0), "{region:?}");
        assert!(region.age_ns > Nanos(5_000_000_000), "{region:?}");
    }
}

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

/// Returns the touched memory in the snapshot, in MiB.
fn touched_mib(snapshot: &Snapshot) -> f64 {
    snapshot.totals().touched as f64 / f64::from(1 << 20)
}

/// Issue 9: a segment that was untouched in a window of 20 ms was reported as idle for 400 ms.
#[test]
fn the_working_set_is_what_was_touched_at_all_in_the_interval() {
    for (chance, wanted) in [(0.9, 100.0), (0.1, 87.8), (0.02, 33.2)] {
        let is_touched = |page: u64| (10_000..35_600).contains(&page);
        let rate = |page: u64| if is_touched(page) { chance } else { 0.0 };
        let (snapshot, share) = run(200, 1000, &rate);
        let reported = touched_mib(&snapshot);
        let error = (reported - wanted).abs() / wanted;
        assert!(error <= 0.1, "{chance}: {reported} MiB of {wanted}");
        assert!(share <= 0.0125, "spent {share}");
    }
}

#[test]
fn densely_scattered_pages_are_told_one_by_one() {
    // 384 MiB of which a third is touched all the time, in some 65,000 stretches.
    let is_hot = |page: u64| page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < 1_431_655_765;
    let (snapshot, _) = run(192, 400, &|page| f64::from(u8::from(is_hot(page))));
    assert!(snapshot.regions.len() <= 40_000);
    assert_eq!(snapshot.blocks.len(), 192);
    for region in &snapshot.clone().by_page().regions {
        let pages = region.range.start / PAGE_SIZE..region.range.end / PAGE_SIZE;
        let touched = pages.filter(|page| is_hot(*page)).count() as u64 * PAGE_SIZE;
        assert_eq!(region.touched(), touched, "{region:?}");
        let is_idle_long = region.age_ns >= Nanos::from_millis(3000);
        assert!(touched > 0 || is_idle_long, "{region:?}");
    }
}

/// Issue 9: only the accesses of its host are known for a block of a KVM guest.
#[test]
fn what_is_not_seen_is_unknown_where_accesses_are_hidden() {
    let mut block = block::Block::new(0, 0);
    let mut facts = UNTOUCHED;
    block.look(&facts, &bits::ALL, false);
    facts.accessed[0] = 1;
    block.look(&facts, &bits::ALL, false);
    block.update_states(1, true);
    assert_eq!(block.state(0), block::State::Busy);
    assert_eq!(block.state(5), block::State::Unknown);
    let counts = block.counts(pages::Pages::All, &block.seen(), true);
    assert_eq!((counts.touched, counts.unknown), (1.0, 511.0));
    block.update_states(2, false);
    assert_eq!(block.state(5), block::State::Idle);
}

/// Issue 9: holes and swapped-out pages were reported as cold memory.
#[test]
fn only_memory_that_is_there_is_told() {
    let mut monitor = monitor(Nanos(0), 1);
    // A quarter is present, a quarter is swapped out, half is a hole.
    let mut facts = UNTOUCHED;
    facts.present = bits::mask_of(0..128);
    facts.swapped = bits::mask_of(128..256);
    for n in 0..4 {
        monitor.take_answers(TARGET, &facts);
        let now = Nanos::from_millis(400 * n);
        let snapshots = monitor.end_interval(now);
        monitor.begin_interval(now, &Cost::default());
        for snapshot in snapshots {
            let totals = snapshot.totals();
            assert_eq!(totals.resident, BLOCK_SIZE / 4);
            assert_eq!(totals.swapped, BLOCK_SIZE / 4);
            assert_eq!(totals.addresses, BLOCK_SIZE / 2, "{snapshot:?}");
            let idle: u64 = snapshot.regions.iter().map(RegionSnapshot::idle).sum();
            assert_eq!(idle, BLOCK_SIZE / 4);
        }
    }
}

/// Idle pages near pages in use are reported as idle: acting on the cold pages of a scattered heap needs it.
#[test]
fn untouched_pages_among_touched_ones_are_idle_with_an_age() {
    // One page in 32, another in each block.
    let is_hot = |page: u64| page % 32 == page / 512 % 32;
    let rate = |page: u64| if is_hot(page) { 0.9 } else { 0.0 };
    let (snapshot, _) = run(400, 2000, &rate);
    let pages = 400 * 512;
    let touched = touched_mib(&snapshot) * 256.0 / (f64::from(pages) / 32.0);
    assert!((touched - 1.0).abs() < 0.1, "touched: {touched}");
    let old = |region: &&RegionSnapshot| region.age_ns > Nanos(5_000_000_000);
    let old = snapshot.regions.iter().filter(old);
    let idle: u64 = old.map(RegionSnapshot::idle).sum();
    let share = idle as f64 / f64::from(pages - pages / 32) / PAGE_SIZE as f64;
    assert!(share > 0.9, "idle for 5 s: {share}");
    let nr_regions = snapshot.regions.len();
    assert!(nr_regions <= 40_000, "{nr_regions} regions");
}

/// Issue 9: accesses to the shared memory of a forked process stayed unknown for good.
#[test]
fn shared_memory_is_known_by_clearing_the_whole_address_space() {
    let hot = 10_000..14_000;
    let rate = |page: u64| if hot.contains(&page) { 0.5 } else { 0.0 };
    let shared = Shared {
        has: &|_| true,
        is_large: false,
    };
    let (snapshot, share) = run_shared(64, 1500, &rate, shared);
    let reported = touched_mib(&snapshot) * 256.0;
    let error = (reported - 4000.0).abs();
    assert!(error < 200.0, "{reported} pages touched");
    assert_eq!(snapshot.totals().unknown, 0);
    assert!(share <= 0.0125, "spent {share}");
}

/// Issue 48: after fork, pages that were written to are a process's own; those around them were reported as accessed.
#[test]
fn shared_pages_among_accessed_ones_are_unknown() {
    let own = |page: u64| page % 4 == 1;
    let shared = Shared {
        has: &|page| !own(page),
        is_large: true,
    };
    let (snapshot, _) = run_shared(16, 500, &|page| f64::from(u8::from(own(page))), shared);
    let totals = snapshot.totals();
    assert_eq!(totals.touched, 16 * BLOCK_SIZE / 4);
    assert_eq!(totals.unknown, 16 * BLOCK_SIZE / 4 * 3);
}

/// Issue 11: in a heap that mixes hot and cold pages no region is idle, but single pages are.
#[test]
fn idle_pages_are_told_with_their_ages_and_who_was_accessed_waits_longer() {
    let mut monitor = monitor(Nanos(0), 1);
    monitor.tell_idle_pages(PageAgeRule::ByEnds);
    let range = AddressRange::new(0, BLOCK_SIZE);
    let mut facts = UNTOUCHED;
    let mut reported = Vec::new();
    for second in 1..=41u64 {
        let now = Nanos(second * 1_000_000_000);
        // Other pages of each 64 KiB are in use, every other second.
        let is_in_use = second % 2 == 0;
        facts.accessed = [u64::from(is_in_use) * 0x5555_5555_5555_5555; 8];
        // Page 1 is paged out for a time and read back; the others stay.
        let is_out = (5..10).contains(&second);
        facts.present[0] = if is_out { !2 } else { u64::MAX };
        facts.swapped[0] = if is_out { 2 } else { 0 };
        facts.accessed[0] |= if second == 10 { 2 } else { 0 };
        monitor.take_answers(TARGET, &facts);
        reported = monitor.end_interval(now);
        monitor.begin_interval(now, &Cost::default());
        let ends = reported[0].age_ends.as_ref().expect("asked for");
        let long = ends.after(Nanos(8_000_000_000)) > 0.0;
        // Page 1 was idle and out until then.
        assert_eq!(long, second == 10, "{second}");
    }
    let idle = &reported[0].idle_pages;
    let of_age = |seconds: u64| {
        let age = Nanos(seconds * 1_000_000_000);
        idle[0].of_age(range, age, Nanos(u64::MAX))
    };
    assert_eq!(of_age(38)[1], 0xAAAA_AAAA_AAAA_AAAA);
    assert_eq!(of_age(41)[1], 0);
    assert_eq!(of_age(38)[0], 0xAAAA_AAAA_AAAA_AAA8);
    // It has been idle for 30 s, and counts as a quarter of it.
    assert_eq!(of_age(7)[0], 0xAAAA_AAAA_AAAA_AAAA);
    assert_eq!(of_age(8)[0], 0xAAAA_AAAA_AAAA_AAA8);
}
