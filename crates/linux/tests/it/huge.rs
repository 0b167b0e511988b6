//! Tests that the waste of huge pages is freed on this machine's kernel, and nothing else. The size and content of this
//! process's memory are read through the kernel (smaps), not through the actuator.

#![expect(unsafe_code, reason = "maps, locks and forks memory")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isotherm_engine::monitor::bits;
use isotherm_engine::scheme::Action;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Outcome, PAGE_SIZE, Refusal};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::host::split_gives_back;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;

use crate::common::{self, ME, alone, operation};

const BLOCKS: u64 = 8;
const SIZE: u64 = BLOCKS * BLOCK_SIZE;
const PAGES: u64 = 512;

/// Huge pages of this process, in a mapping of their own.
struct Memory {
    start: u64,
}

impl Memory {
    /// Maps anonymous memory, and writes the pages of each block that `is_written` selects.
    fn written(is_written: impl Fn(u64, u64) -> bool) -> Self {
        let memory = Self::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        memory.advise(libc::MADV_HUGEPAGE);
        // The first fault allocates a huge page, whatever is written.
        (0..BLOCKS).for_each(|block| memory.word(block * PAGES).store(0, Ordering::Relaxed));
        memory.write_all(is_written);
        memory
    }

    fn map(flags: i32, fd: i32) -> Self {
        let length = (SIZE + 2 * BLOCK_SIZE) as usize;
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new mappings; the second replaces a part of the first, which keeps other mappings away from it.
        unsafe {
            let around = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, none, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            let start = (around as u64 + 1).next_multiple_of(BLOCK_SIZE);
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED);
            let at = libc::mmap(
                start as *mut libc::c_void,
                SIZE as usize,
                access,
                flags,
                fd,
                0,
            );
            assert_eq!(at as u64, start);
            Self { start }
        }
    }

    fn advise(&self, advice: i32) {
        // SAFETY: our own mapping; none of the advice used here removes content.
        let done = unsafe { libc::madvise(self.start as *mut libc::c_void, SIZE as usize, advice) };
        assert_eq!(done, 0);
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        // SAFETY: a page of our mapping, aligned.
        unsafe { &*((self.start + page * PAGE_SIZE + 8 * (page % PAGES)) as *const AtomicU64) }
    }

    fn write_all(&self, is_written: impl Fn(u64, u64) -> bool) {
        for page in 0..BLOCKS * PAGES {
            if is_written(page / PAGES, page % PAGES) {
                self.word(page).store(page + 1, Ordering::Relaxed);
            }
        }
    }

    fn assert_content(&self, is_written: impl Fn(u64, u64) -> bool) {
        for page in 0..BLOCKS * PAGES {
            let wanted = if is_written(page / PAGES, page % PAGES) {
                page + 1
            } else {
                0
            };
            assert_eq!(
                self.word(page).load(Ordering::Relaxed),
                wanted,
                "page {page}"
            );
        }
    }

    fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.start + SIZE)
    }

    /// Returns the resident bytes, and those in huge pages.
    fn sizes(&self) -> (u64, u64) {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("our own smaps");
        let first = format!("{:x}-", self.start);
        let of_ours = smaps
            .split_inclusive('\n')
            .skip_while(|line| !line.starts_with(&first));
        let kib = |name: &str| -> u64 {
            let line = of_ours.clone().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|n| n.parse().ok()).expect("a size in kB")
        };
        let huge = kib("AnonHugePages:") + kib("ShmemPmdMapped:");
        (kib("Rss:") << 10, huge << 10)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let (start, length) = (self.start - BLOCK_SIZE, SIZE + 2 * BLOCK_SIZE);
        let below = AddressRange::new(start, start + length);
        let ours = self.range();
        assert!(below.start < ours.start && ours.end <= below.end);
        // SAFETY: the mapping made by `map`; the rest of the mapping around it stays, without memory.
        unsafe { libc::munmap(self.start as *mut libc::c_void, SIZE as usize) };
    }
}

/// Returns an actuator if this machine has the privilege and huge pages.
fn actuator(test: &str) -> Option<ProcessActuator> {
    if !split_gives_back() {
        eprintln!("SKIP {test}: before Linux 6.12 it takes swap");
        return None;
    }
    common::actuator(test, ActOptions::default())
}

fn act(actuator: &mut ProcessActuator, action: Action, range: AddressRange) -> Outcome {
    common::act(actuator, operation(action, range))
}

/// Returns memory in huge pages; collapses it if the kernel has none at the first fault.
fn huge(actuator: &mut ProcessActuator, is_written: impl Fn(u64, u64) -> bool) -> Memory {
    let memory = Memory::written(is_written);
    let (_, huge) = memory.sizes();
    if huge < SIZE {
        let options = ActOptions {
            collapse_min_present: 0.0,
            ..ActOptions::default()
        };
        let mut collapsing = common::actuator("huge", options).expect("as before");
        act(&mut collapsing, Action::Collapse, memory.range());
    }
    // The mappings made since are known after this delay.
    std::thread::sleep(Duration::from_millis(110));
    act(actuator, Action::Stat, memory.range());
    assert_eq!(memory.sizes(), (SIZE, SIZE), "all of it is huge");
    memory
}

#[test]
fn exactly_what_was_never_written_is_given_back_and_data_stay_in_memory() {
    let _turn = alone();
    let Some(mut actuator) = actuator("exactly_what_was_never_written") else {
        return;
    };
    // Nothing of the first block is written, an eighth of the next, and so on, in scattered pages.
    let is_written = |block: u64, page: u64| page % 8 < block;
    let memory = huge(&mut actuator, is_written);
    let outcome = act(&mut actuator, Action::Nohugepage, memory.range());
    let written = (0..BLOCKS).map(|block| block * PAGES / 8 * PAGE_SIZE).sum();
    assert_eq!(outcome.applied, SIZE - written, "{outcome:?}");
    assert_eq!(
        outcome.refused.get(&Refusal::Written),
        Some(&written),
        "{outcome:?}"
    );
    assert_eq!(memory.sizes(), (written, 0));
    memory.assert_content(is_written);
    // The memory is present again after a write.
    memory.write_all(|_, _| true);
    memory.assert_content(|_, _| true);
    let again = act(&mut actuator, Action::Nohugepage, memory.range());
    assert_eq!(again.applied, 0, "{again:?}");
    let (resident, _) = memory.sizes();
    assert_eq!(resident, SIZE);
}

#[test]
fn huge_pages_without_waste_stay() {
    let _turn = alone();
    let Some(mut actuator) = actuator("huge_pages_without_waste_stay") else {
        return;
    };
    let is_written = |block: u64, page: u64| block.is_multiple_of(2) || page >= 15;
    let memory = huge(&mut actuator, is_written);
    let outcome = act(&mut actuator, Action::Nohugepage, memory.range());
    assert_eq!(outcome.applied, 0, "{outcome:?}");
    assert_eq!(
        outcome.refused.get(&Refusal::Written),
        Some(&SIZE),
        "{outcome:?}"
    );
    assert_eq!(memory.sizes(), (SIZE, SIZE));
}

#[test]
fn what_is_written_while_it_is_given_back_is_not_lost() {
    let _turn = alone();
    let Some(mut actuator) = actuator("what_is_written_while_it_is_given_back") else {
        return;
    };
    let memory = huge(&mut actuator, |_, page| page % 2 == 0);
    let is_over = AtomicBool::new(false);
    let given_back = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (memory, is_over) = (&memory, &is_over);
                scope.spawn(move || write_at_random(memory, is_over, writer))
            })
            .collect();
        let started = Instant::now();
        let mut given_back = 0;
        while started.elapsed() < Duration::from_millis(1500) {
            given_back += act(&mut actuator, Action::Nohugepage, memory.range()).applied;
            act(&mut actuator, Action::Collapse, memory.range());
        }
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("no write was lost");
        }
        given_back
    });
    assert!(given_back > 0);
}

/// Writes to pages that were never written, zeros them again, and checks their content.
fn write_at_random(memory: &Memory, is_over: &AtomicBool, writer: u64) {
    let mut seed = writer + 1;
    let mut known = vec![0; (BLOCKS * PAGES) as usize];
    while !is_over.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // The odd pages; each writer has half of them.
        let page = (seed >> 33) % (BLOCKS * PAGES / 4) * 4 + 1 + 2 * writer;
        let word = memory.word(page);
        let found = word.load(Ordering::Relaxed);
        assert_eq!(found, known[page as usize], "page {page}");
        let value = if seed >> 62 == 0 { seed | 1 } else { 0 };
        word.store(value, Ordering::Relaxed);
        known[page as usize] = value;
    }
    for (page, value) in known
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(page, _)| *page as u64 % 4 == 1 + 2 * writer)
    {
        assert_eq!(memory.word(page as u64).load(Ordering::Relaxed), *value);
    }
}

#[test]
fn locked_huge_pages_stay() {
    let _turn = alone();
    let Some(mut actuator) = actuator("locked_huge_pages_stay") else {
        return;
    };
    let is_written = |_, page: u64| page < 100;
    let memory = huge(&mut actuator, is_written);
    // SAFETY: our own mapping.
    let done = unsafe { libc::mlock(memory.start as *const libc::c_void, SIZE as usize) };
    assert_eq!(done, 0);
    let outcome = act(&mut actuator, Action::Nohugepage, memory.range());
    assert_eq!(outcome.applied, 0, "{outcome:?}");
    let unused = BLOCKS * (PAGES - 100) * PAGE_SIZE;
    assert_eq!(
        outcome.refused.get(&Refusal::Locked),
        Some(&unused),
        "{outcome:?}"
    );
    assert_eq!(memory.sizes(), (SIZE, SIZE));
    memory.assert_content(is_written);
}

#[test]
fn huge_pages_that_a_child_shares_stay_until_it_has_ended() {
    let _turn = alone();
    let Some(mut actuator) = actuator("huge_pages_that_a_child_shares") else {
        return;
    };
    let is_written = |_, page: u64| page < 100;
    let memory = huge(&mut actuator, is_written);
    // SAFETY: the child only sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no memory is used.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    let shared = act(&mut actuator, Action::Nohugepage, memory.range());
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    let unused = BLOCKS * (PAGES - 100) * PAGE_SIZE;
    assert_eq!(shared.applied, 0, "{shared:?}");
    assert_eq!(
        shared.refused.get(&Refusal::Shared),
        Some(&unused),
        "{shared:?}"
    );
    let alone = act(&mut actuator, Action::Nohugepage, memory.range());
    assert_eq!(alone.applied, unused, "{alone:?}");
    memory.assert_content(is_written);
}

#[test]
fn huge_pages_of_shared_memory_stay() {
    let _turn = alone();
    let Some(mut actuator) = actuator("huge_pages_of_shared_memory_stay") else {
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
    // SAFETY: our own mapping; MADV_COLLAPSE keeps content.
    let done = unsafe { libc::madvise(memory.start as *mut libc::c_void, SIZE as usize, 25) };
    let (_, huge) = memory.sizes();
    if done != 0 || huge < SIZE {
        eprintln!("SKIP huge_pages_of_shared_memory_stay: this kernel makes none");
        return;
    }
    let outcome = act(&mut actuator, Action::Nohugepage, memory.range());
    assert_eq!(outcome.applied, 0, "{outcome:?}");
    assert_eq!(
        outcome.refused.get(&Refusal::Unsupported),
        Some(&SIZE),
        "{outcome:?}"
    );
    let (_, huge) = memory.sizes();
    assert_eq!(huge, SIZE);
    memory.assert_content(is_written);
    // SAFETY: our own file.
    unsafe { libc::close(fd) };
}

#[test]
fn looking_for_zeros_finds_them_and_leaves_accessed_bits_alone() {
    let _turn = alone();
    let Some(mut actuator) = actuator("looking_for_zeros") else {
        return;
    };
    let is_written = |block: u64, page: u64| page % 8 < block;
    let memory = huge(&mut actuator, is_written);
    let mut probe = PageTableProbe::new().expect("as the actuator's");
    let me = Process::open(std::process::id()).expect("we exist");
    probe.add(ME, me).expect("our own tables");
    let blocks: Vec<u64> = (0..BLOCKS).map(|i| memory.start + i * BLOCK_SIZE).collect();
    probe.clear(ME, &[memory.range()]).expect("cleared");
    let mut found = Vec::new();
    let mut best = Duration::MAX;
    for _ in 0..20 {
        found.clear();
        let started = Instant::now();
        probe
            .contents(ME, &blocks, |contents| found.push(contents))
            .expect("read");
        best = best.min(started.elapsed());
    }
    println!("{BLOCKS} blocks, half of them zeros: {best:?} at best");
    for (block, contents) in (0..).zip(&found) {
        assert!(contents.is_huge && bits::is_empty(&contents.unreadable));
        let zeros: Vec<u64> = bits::each(&contents.zeros)
            .map(|page| page as u64)
            .collect();
        let wanted: Vec<u64> = (0..PAGES)
            .filter(|page| !is_written(block, *page))
            .collect();
        assert_eq!(zeros, wanted, "block {block}");
    }
    let mut accessed = 0;
    probe
        .read_blocks(ME, &blocks, |facts| {
            accessed += bits::count(&facts.accessed);
        })
        .expect("read");
    assert_eq!(accessed, 0);
}
