//! Tests that the waste of huge pages is freed on this machine's kernel, and nothing else.

#![expect(unsafe_code, reason = "makes a file in memory")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::monitor::bits;
use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::host::split_gives_back;
use isotherm_policy::Refusal;
use isotherm_policy::scheme::Action;

use crate::common::{self, BLOCKS, ME, Memory, PAGES, SIZE, act, alone, beside_a_child, skip};

/// Advice of madvise(2) since Linux 6.1.
const MADV_COLLAPSE: i32 = 25;

/// Returns an actuator if this machine has the privilege and huge pages.
fn actuator() -> Option<ProcessActuator> {
    if !split_gives_back() {
        skip(&"before Linux 6.12 it takes swap");
        return None;
    }
    common::actuator(ActOptions::default())
}

/// Returns memory in huge pages; collapses it if the kernel has none at the first fault.
fn huge(actuator: &mut ProcessActuator, is_written: impl Fn(u64, u64) -> bool) -> Memory {
    let memory = Memory::huge(is_written);
    let (_, huge) = memory.sizes();
    if huge < SIZE {
        let options = ActOptions {
            collapse_min_present: 0.0,
            ..ActOptions::default()
        };
        let mut collapsing = common::actuator(options).expect("as before");
        act(&mut collapsing, Action::Collapse, memory.range());
    }
    // The mappings made since are known after this delay.
    std::thread::sleep(Duration::from_millis(110));
    act(actuator, Action::Stat, memory.range());
    assert_eq!(memory.sizes(), (SIZE, SIZE), "all of it is huge");
    memory
}

/// Calls `check` with an actuator and such memory, alone on this machine.
fn on_huge(
    is_written: impl Fn(u64, u64) -> bool,
    check: impl FnOnce(&mut ProcessActuator, &Memory),
) {
    let _turn = alone();
    if let Some(mut actuator) = actuator() {
        let memory = huge(&mut actuator, is_written);
        check(&mut actuator, &memory);
    }
}

#[test]
fn exactly_what_was_never_written_is_given_back_and_data_stay_in_memory() {
    // Nothing of the first block is written, an eighth of the next, and so on, in scattered pages.
    let is_written = |block: u64, page: u64| page % 8 < block;
    on_huge(is_written, |actuator, memory| {
        let outcome = act(actuator, Action::Nohugepage, memory.range());
        let written = (0..BLOCKS).map(|block| block * PAGES / 8 * PAGE_SIZE).sum();
        assert_eq!(outcome.applied, SIZE - written, "{outcome:?}");
        let refused = outcome.refused.get(&Refusal::Written);
        assert_eq!(refused, Some(&written), "{outcome:?}");
        assert_eq!(memory.sizes(), (written, 0));
        memory.assert_content(is_written);
        // The memory is present again after a write.
        memory.write_all(|_, _| true);
        memory.assert_content(|_, _| true);
        let again = act(actuator, Action::Nohugepage, memory.range());
        assert_eq!(again.applied, 0, "{again:?}");
        assert_eq!(memory.sizes().0, SIZE);
    });
}

/// Name, written pages of each block, and why so many bytes are refused.
type Case = (&'static str, fn(u64, u64) -> bool, Refusal, u64);

#[test]
fn huge_pages_without_waste_stay_and_so_do_locked_ones() {
    let _turn = alone();
    let Some(mut actuator) = actuator() else {
        return;
    };
    let unused = BLOCKS * (PAGES - 100) * PAGE_SIZE;
    let cases: [Case; 2] = [
        (
            "without waste",
            |block, page| block.is_multiple_of(2) || page >= 15,
            Refusal::Written,
            SIZE,
        ),
        ("locked", |_, page| page < 100, Refusal::Locked, unused),
    ];
    for (name, is_written, why, refused) in cases {
        let memory = huge(&mut actuator, is_written);
        if why == Refusal::Locked {
            memory.lock(memory.range());
        }
        let outcome = act(&mut actuator, Action::Nohugepage, memory.range());
        assert_eq!(outcome.applied, 0, "{name}: {outcome:?}");
        let found = outcome.refused.get(&why);
        assert_eq!(found, Some(&refused), "{name}: {outcome:?}");
        assert_eq!(memory.sizes(), (SIZE, SIZE), "{name}");
        memory.assert_content(is_written);
    }
}

#[test]
fn what_is_written_while_it_is_given_back_is_not_lost() {
    let is_written = |_: u64, page: u64| page.is_multiple_of(2);
    on_huge(is_written, |actuator, memory| {
        let is_over = &AtomicBool::new(false);
        let given_back = std::thread::scope(|scope| {
            let write = |writer| scope.spawn(move || write_at_random(memory, is_over, writer));
            let writers = [0, 1].map(write);
            let started = Instant::now();
            let mut given_back = 0;
            while started.elapsed() < Duration::from_millis(1500) {
                given_back += act(actuator, Action::Nohugepage, memory.range()).applied;
                act(actuator, Action::Collapse, memory.range());
            }
            is_over.store(true, Ordering::Relaxed);
            for writer in writers {
                writer.join().expect("no write was lost");
            }
            given_back
        });
        assert!(given_back > 0);
    });
}

/// Writes to pages that were never written, zeros them again, and checks their content.
fn write_at_random(memory: &Memory, is_over: &AtomicBool, writer: u64) {
    let mut seed = writer + 1;
    let mut known = vec![0; (BLOCKS * PAGES) as usize];
    while !is_over.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // The odd pages; each writer has half of them.
        let page = (seed >> 33) % (BLOCKS * PAGES / 4) * 4 + 1 + 2 * writer;
        assert_eq!(memory.read(page), known[page as usize], "page {page}");
        let value = if seed >> 62 == 0 { seed | 1 } else { 0 };
        memory.write(page, value);
        known[page as usize] = value;
    }
    for (page, value) in (0..).zip(known) {
        if page % 4 == 1 + 2 * writer {
            assert_eq!(memory.read(page), value, "page {page}");
        }
    }
}

#[test]
fn huge_pages_that_a_child_shares_stay_until_it_has_ended() {
    let is_written = |_, page: u64| page < 100;
    on_huge(is_written, |actuator, memory| {
        let range = memory.range();
        let shared = beside_a_child(|| act(actuator, Action::Nohugepage, range));
        let unused = BLOCKS * (PAGES - 100) * PAGE_SIZE;
        assert_eq!(shared.applied, 0, "{shared:?}");
        let refused = shared.refused.get(&Refusal::Shared);
        assert_eq!(refused, Some(&unused), "{shared:?}");
        let alone = act(actuator, Action::Nohugepage, range);
        assert_eq!(alone.applied, unused, "{alone:?}");
        memory.assert_content(is_written);
    });
}

#[test]
fn huge_pages_of_shared_memory_stay() {
    let _turn = alone();
    let Some(mut actuator) = actuator() else {
        return;
    };
    // SAFETY: a new file in memory, closed with the process.
    let fd = unsafe { libc::memfd_create(c"huge".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: our own file.
    assert_eq!(unsafe { libc::ftruncate(fd, SIZE as i64) }, 0);
    let memory = Memory::map(libc::MAP_SHARED, fd);
    let is_written = |_, page: u64| page < 100;
    memory.write_all(is_written);
    let is_done = memory.advise(memory.range(), MADV_COLLAPSE);
    let (_, huge) = memory.sizes();
    if !is_done || huge < SIZE {
        skip(&"this kernel makes no huge pages of shared memory");
        return;
    }
    let outcome = act(&mut actuator, Action::Nohugepage, memory.range());
    assert_eq!(outcome.applied, 0, "{outcome:?}");
    let refused = outcome.refused.get(&Refusal::Unsupported);
    assert_eq!(refused, Some(&SIZE), "{outcome:?}");
    assert_eq!(memory.sizes().1, SIZE);
    memory.assert_content(is_written);
    // SAFETY: our own file.
    unsafe { libc::close(fd) };
}

#[test]
fn looking_for_zeros_finds_them_and_leaves_accessed_bits_alone() {
    let is_written = |block: u64, page: u64| page % 8 < block;
    on_huge(is_written, |_, memory| {
        let mut probe = common::probe().expect("as the actuator's");
        let range = memory.range();
        let blocks = (0..BLOCKS).map(|block| range.start + block * BLOCK_SIZE);
        let blocks: Vec<u64> = blocks.collect();
        probe.clear(ME, &[range]).expect("cleared");
        let mut found = Vec::new();
        let mut best = Duration::MAX;
        for _ in 0..20 {
            found.clear();
            let started = Instant::now();
            let read = probe.contents(ME, &blocks, |contents| found.push(contents));
            read.expect("read");
            best = best.min(started.elapsed());
        }
        println!("{BLOCKS} blocks, half of them zeros: {best:?} at best");
        for (block, contents) in (0..).zip(&found) {
            assert!(contents.is_huge && bits::is_empty(&contents.unreadable));
            let zeros = bits::each(&contents.zeros).map(|page| page as u64);
            let wanted = (0..PAGES).filter(|page| !is_written(block, *page));
            assert!(zeros.eq(wanted), "block {block}");
        }
        let mut accessed = 0;
        let read = probe.read_blocks(ME, &blocks, |facts| {
            accessed += bits::count(&facts.accessed);
        });
        read.expect("read");
        assert_eq!(accessed, 0);
    });
}
