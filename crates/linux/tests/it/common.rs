//! Code shared by the tests: a lock for tests that must run alone, skipped tests, and operations on memory of this
//! process. The state of that memory is read from the kernel (pagemap, smaps), not from the probe or actuator under
//! test.

#![expect(unsafe_code, reason = "maps, locks and forks memory")]

use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;
use isotherm_policy::scheme::Action;
use isotherm_policy::{Actuator, Operation, Outcome};

pub(crate) const ME: TargetId = TargetId(0);
pub(crate) const BLOCKS: u64 = 8;
/// Bytes of a [`Memory`].
pub(crate) const SIZE: u64 = BLOCKS * BLOCK_SIZE;
/// Pages of a block.
pub(crate) const PAGES: u64 = BLOCK_SIZE / PAGE_SIZE;

/// Lock of the tests, which are threads of one process. A child that one of them forks shares the pages of all of them,
/// and the kernel may merge neighbouring mappings of two of them. Swap is shared by the whole machine.
static TURN: RwLock<()> = RwLock::new(());

/// Locks out all other tests, for a test that acts on memory.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a shared lock, for a test that only reads and clears accessed bits: similar tests run meanwhile.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Prints SKIP with the name of the test, which is its thread's.
pub(crate) fn skip(why: &impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("linux").rsplit("::").next();
    eprintln!("SKIP {}: {why}", name.unwrap_or_default());
}

/// Returns the value; prints SKIP and returns `None` if there is none.
pub(crate) fn or_skip<T>(result: Result<T, impl Display>) -> Option<T> {
    result.inspect_err(skip).ok()
}

/// Memory of this process, aligned to 2 MiB, in a mapping of its own.
pub(crate) struct Memory {
    start: u64,
}

impl Memory {
    /// Maps anonymous memory, and writes to every page a content of its own.
    pub(crate) fn new() -> Self {
        let memory = Self::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        memory.write_all(|_, _| true);
        memory
    }

    /// Maps anonymous memory in huge pages, and writes the pages of each block that `is_written` selects.
    pub(crate) fn huge(is_written: impl Fn(u64, u64) -> bool) -> Self {
        let memory = Self::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        assert!(memory.advise(memory.range(), libc::MADV_HUGEPAGE));
        // The first fault allocates a huge page, whatever is written.
        (0..BLOCKS).for_each(|block| memory.write(block * PAGES, 0));
        memory.write_all(is_written);
        memory
    }

    pub(crate) fn map(flags: i32, fd: i32) -> Self {
        let length = (SIZE + 2 * BLOCK_SIZE) as usize;
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new mappings; the second replaces a part of the first, which keeps other mappings away from it.
        unsafe {
            let around = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, none, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            let start = (around as u64 + 1).next_multiple_of(BLOCK_SIZE);
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED);
            let place = start as *mut libc::c_void;
            let at = libc::mmap(place, SIZE as usize, access, flags, fd, 0);
            assert_eq!(at, place);
            Self { start }
        }
    }

    pub(crate) fn range(&self) -> AddressRange {
        self.pages(0, BLOCKS * PAGES)
    }

    pub(crate) fn pages(&self, first: u64, end: u64) -> AddressRange {
        AddressRange::new(self.start + first * PAGE_SIZE, self.start + end * PAGE_SIZE)
    }

    /// Advises the kernel of a part, and returns whether it took the advice.
    pub(crate) fn advise(&self, part: AddressRange, advice: i32) -> bool {
        assert_eq!(self.range().intersection(part), Some(part));
        // SAFETY: a part of our mapping, which holds numbers only.
        unsafe { libc::madvise(part.start as *mut libc::c_void, part.len() as usize, advice) == 0 }
    }

    pub(crate) fn lock(&self, part: AddressRange) {
        assert_eq!(self.range().intersection(part), Some(part));
        // SAFETY: a part of our mapping.
        let done = unsafe { libc::mlock(part.start as *const libc::c_void, part.len() as usize) };
        assert_eq!(done, 0);
    }

    /// Returns a word of a page, elsewhere in each page.
    pub(crate) fn word(&self, page: u64) -> &AtomicU64 {
        assert!(page < BLOCKS * PAGES);
        // SAFETY: a page of our mapping, aligned.
        unsafe { &*((self.start + page * PAGE_SIZE + 8 * (page % PAGES)) as *const AtomicU64) }
    }

    pub(crate) fn read(&self, page: u64) -> u64 {
        self.word(page).load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self, page: u64, value: u64) {
        self.word(page).store(value, Ordering::Relaxed);
    }

    /// Writes the pages of each block that `is_written` selects.
    pub(crate) fn write_all(&self, is_written: impl Fn(u64, u64) -> bool) {
        let pages = 0..BLOCKS * PAGES;
        let written = pages.filter(|page| is_written(page / PAGES, page % PAGES));
        written.for_each(|page| self.write(page, page + 1));
    }

    /// Fails unless the pages that `is_written` selects have the content of [`Self::write_all`], and others none.
    pub(crate) fn assert_content(&self, is_written: impl Fn(u64, u64) -> bool) {
        for page in 0..BLOCKS * PAGES {
            let is_written = is_written(page / PAGES, page % PAGES);
            let wanted = if is_written { page + 1 } else { 0 };
            assert_eq!(self.read(page), wanted, "page {page}");
        }
    }

    /// Returns the resident bytes and the bytes in swap, according to pagemap.
    pub(crate) fn placed(&self) -> (u64, u64) {
        let pagemap = File::open("/proc/self/pagemap").expect("our own pagemap");
        let mut entries = vec![0; (SIZE / PAGE_SIZE) as usize * 8];
        let read = pagemap.read_exact_at(&mut entries, self.start / PAGE_SIZE * 8);
        read.expect("pagemap");
        let entries = entries.as_chunks::<8>().0.iter();
        let entries = entries.map(|entry| u64::from_ne_bytes(*entry));
        entries.fold((0, 0), |(present, swapped), entry| {
            let bytes = |bit: u32| (entry >> bit & 1) * PAGE_SIZE;
            (present + bytes(63), swapped + bytes(62))
        })
    }

    /// Returns the resident bytes and those in huge pages, according to smaps.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("our own smaps");
        let address = |word| u64::from_str_radix(word, 16).ok();
        let (mut is_ours, mut resident, mut huge) = (false, 0_u64, 0_u64);
        for line in smaps.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let bytes = match name {
                "Rss:" if is_ours => &mut resident,
                "AnonHugePages:" | "ShmemPmdMapped:" if is_ours => &mut huge,
                _ => {
                    let bounds = name.split_once('-');
                    if let Some(start) = bounds.and_then(|(start, _)| address(start)) {
                        is_ours = self.range().contains(start);
                    }
                    continue;
                }
            };
            let kib = words.next().and_then(|kib| kib.parse::<u64>().ok());
            *bytes += kib.expect("a size in kB") << 10;
        }
        (resident, huge)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`; the rest of the mapping around it stays, without memory.
        unsafe { libc::munmap(self.start as *mut libc::c_void, SIZE as usize) };
    }
}

/// Calls `act` while a child shares all memory of this process.
pub(crate) fn beside_a_child<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: the child only sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no memory is used.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    let result = act();
    // SAFETY: our own child, not yet waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    result
}

/// Returns a probe on this process; prints SKIP and returns `None` if BPF is not allowed.
pub(crate) fn probe() -> Option<PageTableProbe> {
    let mut probe = or_skip(PageTableProbe::new())?;
    let me = Process::open(std::process::id()).expect("we exist");
    probe.add(ME, me).expect("our own tables");
    Some(probe)
}

/// Returns an actuator on this process; prints SKIP and returns `None` if it is not allowed.
pub(crate) fn actuator(options: ActOptions) -> Option<ProcessActuator> {
    let mut actuator = or_skip(ProcessActuator::new(options))?;
    let me = Process::open(std::process::id()).expect("we exist");
    actuator.add(ME, me).expect("our own tables");
    Some(actuator)
}

pub(crate) fn operation(action: Action, range: AddressRange) -> Operation {
    Operation::on(action, ME, range)
}

pub(crate) fn act(actuator: &mut ProcessActuator, action: Action, range: AddressRange) -> Outcome {
    execute(actuator, operation(action, range))
}

pub(crate) fn execute(actuator: &mut ProcessActuator, operation: Operation) -> Outcome {
    let mut outcomes = Vec::new();
    actuator.act(&[operation], &mut outcomes).expect("acts");
    outcomes.remove(0)
}
