//! Actions on this machine's kernel, on memory of this process. The state of the pages before and after is read from
//! the kernel (pagemap), not from the actuator.

#![expect(unsafe_code, reason = "maps and locks memory")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use isotherm_engine::scheme::{Action, OpsFilter};
use isotherm_engine::{
    Actuator, AddressRange, BLOCK_SIZE, Operation, PAGE_SIZE, Refusal, TargetId,
};
use isotherm_linux::act::ActOptions;
use isotherm_linux::process::Process;
use isotherm_linux::swap;

use crate::common::{act, actuator, alone, operation};

const BLOCKS: u64 = 4;
const SIZE: u64 = BLOCKS * BLOCK_SIZE;
/// madvise(2) advice and its numbers.
const MADV_HUGEPAGE: i32 = 14;

/// Private memory of this process, aligned to 2 MiB, every page with its own content.
struct Memory {
    start: u64,
    mapped: (u64, usize),
}

impl Memory {
    fn new() -> Self {
        let length = (SIZE + BLOCK_SIZE) as usize;
        // SAFETY: a new private mapping.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        } as u64;
        let memory = Self {
            start: mapped.next_multiple_of(BLOCK_SIZE),
            mapped: (mapped, length),
        };
        for page in 0..SIZE / PAGE_SIZE {
            memory.write(page, page + 1);
        }
        memory
    }

    fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.start + SIZE)
    }

    fn pages(&self, first: u64, end: u64) -> AddressRange {
        AddressRange::new(self.start + first * PAGE_SIZE, self.start + end * PAGE_SIZE)
    }

    fn write(&self, page: u64, value: u64) {
        let address = (self.start + page * PAGE_SIZE) as *mut u64;
        // SAFETY: a page of our mapping.
        unsafe { address.write_volatile(value) };
    }

    fn read(&self, page: u64) -> u64 {
        let address = (self.start + page * PAGE_SIZE) as *const u64;
        // SAFETY: a page of our mapping.
        unsafe { address.read_volatile() }
    }

    fn assert_content(&self) {
        for page in 0..SIZE / PAGE_SIZE {
            assert_eq!(self.read(page), page + 1, "page {page}");
        }
    }

    /// Returns the resident bytes and the bytes in swap, according to /proc/self/pagemap.
    fn placed(&self) -> (u64, u64) {
        let pagemap = File::open("/proc/self/pagemap").expect("our own pagemap");
        let mut words = vec![0u8; (SIZE / PAGE_SIZE) as usize * 8];
        pagemap
            .read_exact_at(&mut words, self.start / PAGE_SIZE * 8)
            .expect("pagemap");
        let words = words
            .as_chunks::<8>()
            .0
            .iter()
            .map(|w| u64::from_ne_bytes(*w));
        words.fold((0, 0), |(present, swapped), word| {
            (
                present + (word >> 63) * PAGE_SIZE,
                swapped + (word >> 62 & 1) * PAGE_SIZE,
            )
        })
    }

    /// Returns the bytes in huge pages, according to smaps.
    fn huge(&self) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("our own smaps");
        let mut inside = false;
        let mut bytes = 0;
        for line in smaps.lines() {
            let bounds = line
                .split_whitespace()
                .next()
                .and_then(|w| w.split_once('-'));
            if let Some((Ok(start), Ok(end))) =
                bounds.map(|(a, b)| (u64::from_str_radix(a, 16), u64::from_str_radix(b, 16)))
            {
                inside = start < self.start + SIZE && self.start < end;
            } else if inside && let Some(kib) = line.strip_prefix("AnonHugePages:") {
                let kib: u64 = kib.trim().trim_end_matches(" kB").parse().expect("kB");
                bytes += kib << 10;
            }
        }
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped.
        unsafe { libc::munmap(self.mapped.0 as *mut libc::c_void, self.mapped.1) };
    }
}

/// Swap for a test, removed at its end.
struct Swap {
    ours: Option<PathBuf>,
}

impl Swap {
    fn new(test: &str) -> Option<Self> {
        if swap::facts().total > 0 {
            return Some(Self { ours: None });
        }
        match swap::set_up_zram(256 << 20) {
            Ok(device) => Some(Self { ours: Some(device) }),
            Err(error) => {
                eprintln!("SKIP {test}: {error}");
                None
            }
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Some(device) = &self.ours {
            swap::take_down_zram(device).expect("our own swap");
        }
    }
}

#[test]
fn swap_is_taken_away_device_by_device() {
    const TEST: &str = "swap_is_taken_away_device_by_device";
    let _turn = alone();
    let before = swap::facts().total;
    let (first, second) = match (swap::set_up_zram(8 << 20), swap::set_up_zram(16 << 20)) {
        (Ok(first), Ok(second)) => (first, second),
        (first, second) => {
            for device in [&first, &second].into_iter().flatten() {
                swap::take_down_zram(device).expect("our own swap");
            }
            let why = first.and(second).expect_err("one of them failed");
            eprintln!("SKIP {TEST}: {why}");
            return;
        }
    };
    // One page of each holds the header.
    let sizes = |mib: u64| (mib << 20) - PAGE_SIZE;
    let both = swap::facts().total - before;
    swap::take_down_zram(&first).expect("our own swap");
    let one = swap::facts().total - before;
    let again = swap::take_down_zram(&first);
    swap::take_down_zram(&second).expect("our own swap");
    assert_eq!((both, one), (sizes(8) + sizes(16), sizes(16)));
    assert!(
        matches!(again, Err(swap::SwapError::NotOurDevice(_))),
        "{again:?}"
    );
    assert_eq!(swap::facts().total, before);
}

#[test]
fn pageout_swaps_out_just_what_it_is_asked_for_and_nothing_is_lost() {
    const TEST: &str = "pageout_swaps_out_just_what_it_is_asked_for_and_nothing_is_lost";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let Some(_swap) = Swap::new(TEST) else { return };
    let memory = Memory::new();
    let outcome = act(
        &mut actuator,
        operation(Action::Pageout, memory.pages(100, 1124)),
    );
    let (present, swapped) = memory.placed();
    assert_eq!(outcome.applied, swapped, "{outcome:?}");
    assert!(swapped >= 1000 * PAGE_SIZE, "{outcome:?}");
    assert_eq!(present + swapped, SIZE);
    assert!(outcome.took.0 > 0);
    let again = act(
        &mut actuator,
        operation(Action::Pageout, memory.pages(100, 1124)),
    );
    assert!(
        again.refused[&Refusal::NotPresent] >= 1000 * PAGE_SIZE,
        "{again:?}"
    );
    memory.assert_content();
}

#[test]
fn memory_that_does_not_compress_is_not_paged_out_twice() {
    const TEST: &str = "memory_that_does_not_compress_is_not_paged_out_twice";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let Some(_swap) = Swap::new(TEST) else { return };
    if !std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.contains("/dev/zram")) {
        eprintln!("SKIP {TEST}: swap is no zram");
        return;
    }
    let memory = Memory::new();
    let noise = memory.pages(0, 1024);
    // SAFETY: pages of our mapping.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(noise.start as *mut u8, noise.len() as usize) };
    File::open("/dev/urandom")
        .and_then(|mut random| std::io::Read::read_exact(&mut random, bytes))
        .expect("random bytes");
    for (range, is_kept) in [(noise, true), (memory.pages(1024, 2048), false)] {
        let first = act(&mut actuator, operation(Action::Pageout, range));
        assert!(first.applied >= range.len() / 10 * 9, "{first:?}");
        for page in range.start / PAGE_SIZE..range.end / PAGE_SIZE {
            memory.read(page - memory.start / PAGE_SIZE);
        }
        let second = act(&mut actuator, operation(Action::Pageout, range));
        let refused = second.refused.get(&Refusal::Incompressible);
        let refused = refused.copied().unwrap_or(0);
        assert_eq!(refused >= range.len() / 10 * 9, is_kept, "{second:?}");
        assert_eq!(
            second.applied >= range.len() / 10 * 9,
            !is_kept,
            "{second:?}"
        );
    }
}

#[test]
fn without_swap_nothing_is_tried_and_huge_pages_stay_huge() {
    const TEST: &str = "without_swap_nothing_is_tried_and_huge_pages_stay_huge";
    let _turn = alone();
    if swap::facts().total > 0 {
        eprintln!("SKIP {TEST}: this machine has swap of its own");
        return;
    }
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let memory = Memory::new();
    let collapsed = act(&mut actuator, operation(Action::Collapse, memory.range()));
    assert_eq!(collapsed.applied, SIZE, "{collapsed:?}");
    let outcome = act(&mut actuator, operation(Action::Pageout, memory.range()));
    assert_eq!(
        outcome.refused.get(&Refusal::NoSwap),
        Some(&SIZE),
        "{outcome:?}"
    );
    assert_eq!((memory.huge(), memory.placed()), (SIZE, (SIZE, 0)));
}

#[test]
fn collapse_makes_huge_pages_where_enough_is_in_use() {
    const TEST: &str = "collapse_makes_huge_pages_where_enough_is_in_use";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let memory = Memory::new();
    // Only a quarter of the last block is left.
    let emptied = memory.pages(BLOCKS * 512 - 384, BLOCKS * 512);
    // SAFETY: our own mapping; the content is not read again.
    let done = unsafe {
        libc::madvise(
            emptied.start as *mut libc::c_void,
            emptied.len() as usize,
            libc::MADV_DONTNEED,
        )
    };
    assert_eq!(done, 0);
    let outcome = act(&mut actuator, operation(Action::Hugepage, memory.range()));
    assert_eq!(outcome.applied, (BLOCKS - 1) * BLOCK_SIZE, "{outcome:?}");
    assert_eq!(outcome.refused[&Refusal::Sparse], 128 * PAGE_SIZE);
    assert_eq!(memory.huge(), outcome.applied);
}

#[test]
fn part_of_a_huge_page_is_not_split() {
    const TEST: &str = "part_of_a_huge_page_is_not_split";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let memory = Memory::new();
    act(&mut actuator, operation(Action::Collapse, memory.range()));
    let outcome = act(
        &mut actuator,
        operation(Action::Nohugepage, memory.pages(10, 1000)),
    );
    assert_eq!(outcome.applied, 0, "{outcome:?}");
    assert_eq!(memory.huge(), SIZE);
}

#[test]
fn cold_clears_accessed_bits_and_leaves_the_memory_where_it_is() {
    const TEST: &str = "cold_clears_accessed_bits_and_leaves_the_memory_where_it_is";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let memory = Memory::new();
    let outcome = act(&mut actuator, operation(Action::Cold, memory.range()));
    assert!(outcome.applied >= SIZE - 16 * PAGE_SIZE, "{outcome:?}");
    assert_eq!(memory.placed(), (SIZE, 0));
}

#[test]
fn locked_and_shared_memory_is_refused_by_name() {
    const TEST: &str = "locked_and_shared_memory_is_refused_by_name";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let Some(_swap) = Swap::new(TEST) else { return };
    let memory = Memory::new();
    let locked = memory.pages(0, 10);
    // SAFETY: our own mapping.
    let done = unsafe { libc::mlock(locked.start as *const libc::c_void, locked.len() as usize) };
    assert_eq!(done, 0);
    let outcome = act(
        &mut actuator,
        operation(Action::Pageout, memory.pages(0, 512)),
    );
    assert_eq!(
        outcome.refused.get(&Refusal::Locked),
        Some(&locked.len()),
        "{outcome:?}"
    );
    assert!(outcome.applied > 490 * PAGE_SIZE, "{outcome:?}");

    // A child that sleeps shares every page with us until one of us writes.
    // SAFETY: the child only calls pause and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: async-signal-safe calls.
        unsafe {
            libc::pause();
            libc::_exit(0);
        }
    }
    let outcome = act(
        &mut actuator,
        operation(Action::Pageout, memory.pages(1024, 1536)),
    );
    // SAFETY: our own child, not yet waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(
        outcome.refused.get(&Refusal::Shared),
        Some(&BLOCK_SIZE),
        "{outcome:?}"
    );
    memory.assert_content();
}

#[test]
fn filters_leave_out_what_they_are_told_to() {
    const TEST: &str = "filters_leave_out_what_they_are_told_to";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let Some(_swap) = Swap::new(TEST) else { return };
    let memory = Memory::new();
    act(&mut actuator, operation(Action::Cold, memory.range()));
    for page in (0..512).step_by(4) {
        memory.write(page, page + 1);
    }
    let mut young = operation(Action::Pageout, memory.pages(0, 512));
    young.filters = [(OpsFilter::Young, true, false)].into();
    let outcome = act(&mut actuator, young);
    let passed = 384 * PAGE_SIZE;
    assert!(
        outcome.filter_passed.abs_diff(passed) <= 8 * PAGE_SIZE,
        "{outcome:?}"
    );
    assert!(
        outcome.applied.abs_diff(passed) <= 8 * PAGE_SIZE,
        "{outcome:?}"
    );
    // The filter clears accessed bits: pages not touched since pass the next time.
    let mut again = operation(Action::Pageout, memory.pages(0, 512));
    again.filters = [(OpsFilter::Young, true, false)].into();
    let outcome = act(&mut actuator, again);
    let rest = 128 * PAGE_SIZE;
    assert!(
        outcome.applied.abs_diff(rest) <= 8 * PAGE_SIZE,
        "{outcome:?}"
    );
    let mut anonymous = operation(Action::Pageout, memory.pages(512, 1024));
    anonymous.filters = [(OpsFilter::Anon, true, false)].into();
    let outcome = act(&mut actuator, anonymous);
    assert_eq!(
        (outcome.filter_passed, outcome.applied),
        (0, 0),
        "{outcome:?}"
    );
    memory.assert_content();
}

#[test]
fn what_was_touched_is_spared_if_asked() {
    const TEST: &str = "what_was_touched_is_spared_if_asked";
    let _turn = alone();
    let options = ActOptions {
        spare_accessed: true,
        ..ActOptions::default()
    };
    let Some(mut actuator) = actuator(TEST, options) else {
        return;
    };
    let Some(_swap) = Swap::new(TEST) else { return };
    let memory = Memory::new();
    // SAFETY: our own mapping.
    let done = unsafe {
        libc::madvise(
            memory.start as *mut libc::c_void,
            BLOCK_SIZE as usize,
            libc::MADV_COLD,
        )
    };
    assert_eq!(done, 0);
    memory.write(7, 8);
    let outcome = act(
        &mut actuator,
        operation(Action::Pageout, memory.pages(0, 512)),
    );
    assert!(outcome.refused[&Refusal::Kept] >= PAGE_SIZE, "{outcome:?}");
    assert!(outcome.applied >= 500 * PAGE_SIZE, "{outcome:?}");
}

#[test]
fn a_target_that_has_gone_is_said_to_have() {
    const TEST: &str = "a_target_that_has_gone_is_said_to_have";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .expect("sleep(1)");
    let target = TargetId(1);
    let process = Process::open(child.id()).expect("just started");
    actuator.add(target, process).expect("it has memory");
    child.kill().expect("our child");
    child.wait().expect("our child");
    let gone = Operation {
        target,
        ..operation(Action::Pageout, AddressRange::new(0, 1 << 30))
    };
    let outcome = act(&mut actuator, gone);
    assert_eq!(outcome.refused.get(&Refusal::Exited), Some(&(1 << 30)));
}

#[test]
fn unmapped_ranges_are_not_there_and_large_ones_come_in_parts() {
    const TEST: &str = "unmapped_ranges_are_not_there_and_large_ones_come_in_parts";
    let _turn = alone();
    let Some(mut actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    let memory = Memory::new();
    // SAFETY: our own mapping; the advice for huge pages is optional.
    unsafe {
        libc::madvise(
            memory.start as *mut libc::c_void,
            SIZE as usize,
            MADV_HUGEPAGE,
        )
    };
    let around = AddressRange::new(memory.start - (300 << 20), memory.start + (300 << 20));
    let outcome = act(&mut actuator, operation(Action::Stat, around));
    assert!(outcome.filter_passed >= SIZE, "{outcome:?}");
    let accounted: u64 = outcome.refused.values().sum::<u64>() + outcome.filter_passed;
    assert_eq!(accounted, around.len(), "{outcome:?}");
}

#[test]
fn what_this_machine_cannot_do_is_said_beforehand() {
    const TEST: &str = "what_this_machine_cannot_do_is_said_beforehand";
    let Some(actuator) = actuator(TEST, ActOptions::default()) else {
        return;
    };
    assert!(actuator.lacks(Action::LruPrio).is_some());
    assert!(actuator.lacks(Action::Pageout).is_none());
    if isotherm_linux::node::count() < 2 {
        assert!(actuator.lacks(Action::MigrateHot).is_some());
    }
}
