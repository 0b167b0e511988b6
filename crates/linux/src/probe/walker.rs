//! Reads page tables of other processes through an eBPF program.
//!
//! The problem: the processor records accesses in the accessed bits of a process's page tables. The kernel does not
//! export these bits to user space (without CONFIG_IDLE_PAGE_TRACKING or DAMON). The approach: a small BPF program
//! (`bpf/page_table.bpf.c`) finds the target's top-level table with a task iterator and reads its tables through the
//! direct map. The start of the direct map is found without any symbol. Candidates 1 GiB apart below the address of our
//! own top-level table are tried. A candidate is right if a walk to a page of ours yields the frame number that
//! `/proc/self/pagemap` shows for it.
//!
//! Pages of 16 and 64 KiB are shown as pages of 4 KiB, whose bits and neighbouring frames are those of the page.
//!
//! Limits: needs BTF (CONFIG_DEBUG_INFO_BTF), `bpf_loop` (5.17), CAP_BPF, CAP_PERFMON and, for pagemap,
//! CAP_SYS_ADMIN. A table that is replaced while it is copied is reported as [`TableLookup::Changed`]. A target that
//! exits or calls exec meanwhile fails the whole batch.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use isotherm_engine::{BLOCK_SIZE, PAGE_SIZE};
use libbpf_rs::libbpf_sys;
use thiserror::Error;

use super::entry::{ENTRIES_PER_TABLE, Leaf, RawTable, TableCopy, spread};
use super::object;
use crate::arch::{self, TableFormat, entry};
use crate::mapped::{MappedArray, Mapping};
use crate::page_map::frame_of;
use crate::process::in_initial_pid_namespace;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page_table.bpf.o"));

/// Maximum slots and tables of one BPF run: `MAX_SLOTS` and `MAX_TABLES` in `page_table.bpf.c`.
const MAX_SLOTS: usize = 8192;
const MAX_TABLES: usize = 512;
/// Neighbouring pages of one slot of a walk: `PAGES_PER_RUN`.
const PAGES_PER_RUN: usize = 16;
/// Starts of the direct map that are tried: 256 TiB of physical addresses.
const CANDIDATES_MAX: u64 = (256 << 40) / arch::DIRECT_MAP_ALIGNMENT;

/// `struct control` of `page_table.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    space: AddressSpace,
    page_offset: u64,
    frame_mask: u64,
    absent: u64,
    nr_slots: u32,
    top_shift: u32,
    table_shift: u32,
    found: u32,
    gone: u32,
    notified: u32,
    total_vm: u64,
    map_count: u64,
    locked_vm: u64,
    page_shift: u32,
    chunk: u32,
}
const _: () = assert!(
    size_of::<Control>() == 120,
    "the layout in page_table.bpf.c"
);

type RawRun = [u64; PAGES_PER_RUN];

/// Reason why page tables cannot be read.
#[derive(Debug, Error)]
pub enum WalkerError {
    #[error(
        "cannot load the BPF program that reads page tables: {cause}; `isotherm doctor` says what is missing"
    )]
    Load { cause: String },
    #[error("cannot {what}: {source}")]
    Bpf {
        what: &'static str,
        source: io::Error,
    },
    #[error(
        "cannot find where the kernel maps physical memory ({tried} candidates tried); please report this machine's kernel and CPU"
    )]
    NoDirectMap { tried: u64 },
    #[error(
        "cannot read frame numbers from /proc/self/pagemap: {cause}; run as root or with CAP_SYS_ADMIN"
    )]
    NoFrameNumbers { cause: String },
    /// The process does not exist, or has no memory (a kernel thread, a zombie).
    #[error("process {pid} has no address space; is it still running?")]
    NoAddressSpace { pid: u32 },
    /// The process exited or called exec since [`Walker::locate`], or the kernel was short of memory. Locating it again
    /// shows which.
    #[error("the process exited or became another program")]
    Gone,
}

impl WalkerError {
    /// Whether a retry may succeed: the kernel was short of a resource, or interrupted.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Bpf { source, .. } if is_passing(source))
    }
}

/// Whether a system call that failed with this error may succeed the next time.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
    )
}

/// Result of [`Walker::tables`] for an address.
pub(crate) enum TableLookup<'a> {
    /// No table or leaf is present.
    Absent,
    /// A larger leaf (2 MiB or 1 GiB) in place of the table.
    Leaf(Leaf),
    Copy(TableCopy<'a>),
    /// The table was replaced while it was read, or could not be read; a retry may succeed.
    Changed,
}

/// Location of a process's page tables. Valid until the process exits or calls exec, which every use checks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressSpace {
    task: u64,
    mm: u64,
    pgd: u64,
    exec_id: u64,
    tgid: u32,
}

impl AddressSpace {
    /// Returns the address of the `mm_struct` and the number of the task's exec calls, as the kernel reuses such
    /// addresses.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.mm, self.exec_id)
    }
}

/// Facts about an address space besides its tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFacts {
    /// Mapped pages, number of mappings, and locked pages. If none of these has changed, the mappings most likely have
    /// not.
    pub size: (u64, u64, u64),
    /// Whether MMU notifiers are registered: a hypervisor or a driver has its own tables of this memory. Accesses
    /// through these are not seen here.
    pub notified: bool,
}

/// The loaded BPF program and the memory it shares with us.
pub(crate) struct Walker {
    locate: OwnedFd,
    walk: OwnedFd,
    copy_tables: OwnedFd,
    pub(super) find_zeros: OwnedFd,
    pub(super) find_unreclaimable: OwnedFd,
    control: MappedArray<Control>,
    pub(super) slots: MappedArray<u64>,
    runs: MappedArray<RawRun>,
    tables: MappedArray<RawTable>,
    pub(crate) format: TableFormat,
    /// Whether process ids here are those of the initial pid namespace.
    pub(crate) sees_all_ids: bool,
}

impl Walker {
    /// Loads the program and finds the direct map.
    pub(crate) fn new() -> Result<Self, WalkerError> {
        let object = object::load(OBJECT).map_err(|cause| WalkerError::Load { cause })?;
        let program = |name: &str| {
            object::program(&object, name).map_err(|source| bpf("keep a BPF program", source))
        };
        let map_error = |source| bpf("map a BPF array", source);
        let formats = arch::table_formats();
        let mut walker = Self {
            locate: program("locate")?,
            walk: program("walk")?,
            copy_tables: program("copy_tables")?,
            find_zeros: program("find_zeros")?,
            find_unreclaimable: program("find_unreclaimable")?,
            control: object::map_array(&object, "control", 1).map_err(map_error)?,
            slots: object::map_array(&object, "slots", MAX_SLOTS).map_err(map_error)?,
            runs: object::map_array(&object, "runs", MAX_SLOTS).map_err(map_error)?,
            tables: object::map_array(&object, "tables", MAX_TABLES).map_err(map_error)?,
            format: formats[0],
            sees_all_ids: in_initial_pid_namespace(),
        };
        // Dropping the object frees its own memory (its copy of the BTF): the kernel keeps what the file descriptors
        // refer to.
        drop(object);
        walker.calibrate(&formats)?;
        Ok(walker)
    }

    fn control(&mut self) -> &mut Control {
        &mut self.control.get_mut()[0]
    }

    /// Returns the layout of page tables: the start of the direct map, the mask of an entry's address bits, the address
    /// bit at which the top level's index begins, and the shift of a page's size.
    pub(crate) fn layout(&mut self) -> [u64; 4] {
        let control = self.control();
        let shifts = [control.top_shift, control.page_shift].map(u64::from);
        [
            control.page_offset,
            control.frame_mask,
            shifts[0],
            shifts[1],
        ]
    }

    /// Finds the page tables of process `pid` (in our pid namespace).
    pub(crate) fn locate(&mut self, pid: u32) -> Result<AddressSpace, WalkerError> {
        let limits = [TaskLimit::Thread(pid), TaskLimit::Process(pid)];
        // The first thread usually has the address space. If it has exited before the others, any other thread has it.
        for limit in limits {
            let expected = if self.sees_all_ids { pid } else { 0 };
            let control = self.control();
            control.space.tgid = expected;
            control.found = 0;
            match run_iterator(self.locate.as_fd(), limit) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(source) => return Err(bpf("look for the process with a BPF iterator", source)),
                Ok(()) => {}
            }
            let control = self.control();
            if control.found != 0 {
                return Ok(control.space);
            }
        }
        Err(WalkerError::NoAddressSpace { pid })
    }

    /// Reads the facts of the address space if it is still the process's. This is far cheaper than locating it again.
    pub(crate) fn facts(&mut self, space: &AddressSpace) -> Result<SpaceFacts, WalkerError> {
        self.select(space, 0);
        self.run(|walker| &walker.walk)?;
        let control = self.control();
        Ok(SpaceFacts {
            size: (control.total_vm, control.map_count, control.locked_vm),
            notified: control.notified != 0,
        })
    }

    /// Walks `spans` (first page, number of pages) in order and returns one leaf for each page.
    pub(crate) fn walk(
        &mut self,
        space: &AddressSpace,
        spans: &[(u64, u32)],
        leaves: &mut Vec<Leaf>,
    ) -> Result<(), WalkerError> {
        leaves.clear();
        if arch::frame_shift() > 0 {
            return self.walk_blocks(space, spans, leaves);
        }
        let mut runs = spans
            .iter()
            .flat_map(|&(address, pages)| runs_of(address, pages))
            .peekable();
        let mut lengths = [(0u8, 0u8); MAX_SLOTS];
        while runs.peek().is_some() {
            let mut nr = 0;
            let slots = self.slots.get_mut();
            while nr < MAX_SLOTS
                && let Some((address, pages)) = runs.next()
            {
                slots[nr] = address | u64::from(pages - 1);
                lengths[nr] = (arch::entries_before(address) as u8, pages);
                nr += 1;
            }
            self.select(space, nr);
            self.run(|walker| &walker.walk)?;
            let format = self.format;
            let found = self.slots.get()[..nr]
                .iter()
                .zip(self.runs.get_mut())
                .zip(&lengths);
            for ((&slot, entries), &(before, pages)) in found {
                if slot & Leaf::TABLE != 0 {
                    arch::canonical_all(entries, format);
                    let own = entries.iter().skip(before.into()).take(usize::from(pages));
                    leaves.extend(own.map(|&entry| Leaf::of_entry(entry, format)));
                } else {
                    leaves.extend(std::iter::repeat_n(Leaf(slot), usize::from(pages)));
                }
            }
        }
        Ok(())
    }

    /// Works like `walk` by copies of tables: larger pages are contiguous for a whole block.
    fn walk_blocks(
        &mut self,
        space: &AddressSpace,
        spans: &[(u64, u32)],
        leaves: &mut Vec<Leaf>,
    ) -> Result<(), WalkerError> {
        let pages = spans.iter().flat_map(|&(address, nr)| {
            let first = address & !(PAGE_SIZE - 1);
            (0..u64::from(nr)).map(move |page| first + page * PAGE_SIZE)
        });
        let block_of = |page: &u64| page & !(BLOCK_SIZE - 1);
        let mut blocks: Vec<u64> = pages.clone().map(|page| block_of(&page)).collect();
        blocks.dedup();
        let mut pages = pages.peekable();
        self.tables(space, &blocks, |at, table| {
            while let Some(page) = pages.next_if(|page| block_of(page) == blocks[at]) {
                leaves.push(match &table {
                    TableLookup::Copy(copy) => {
                        copy.leaf(((page % BLOCK_SIZE) / PAGE_SIZE) as usize)
                    }
                    TableLookup::Leaf(leaf) => *leaf,
                    TableLookup::Absent => Leaf(0),
                    TableLookup::Changed => Leaf(Leaf::CHANGED),
                });
            }
        })
    }

    /// Copies the lowest-level table that maps each of `addresses`, and passes it to `see` with the address's index.
    pub(crate) fn tables(
        &mut self,
        space: &AddressSpace,
        addresses: &[u64],
        mut see: impl FnMut(usize, TableLookup<'_>),
    ) -> Result<(), WalkerError> {
        let format = self.format;
        for (round, chunk) in addresses.chunks(MAX_TABLES).enumerate() {
            self.copy_chunk(space, chunk, format.page_shift)?;
            for (i, &slot) in self.slots.get()[..chunk.len()].iter().enumerate() {
                let leaf = Leaf(slot);
                let table = if slot & Leaf::TABLE != 0 {
                    let entries = &mut self.tables.get_mut()[i];
                    arch::canonical_all(&mut entries[..format.entries_of_block()], format);
                    spread(entries, format);
                    TableLookup::Copy(TableCopy { entries, format })
                } else if leaf.is_unreadable() {
                    TableLookup::Changed
                } else if leaf.is_present() {
                    TableLookup::Leaf(leaf)
                } else {
                    TableLookup::Absent
                };
                see(round * MAX_TABLES + i, table);
            }
        }
        Ok(())
    }

    /// Passes to `see` the start of every block that has a table or a leaf, and the entry that maps it, as `entries`.
    pub(super) fn blocks(
        &mut self,
        space: &AddressSpace,
        starts: &[u64],
        mut see: impl FnMut(u64, u64),
    ) -> Result<(), WalkerError> {
        let shift = self.format.block_shift();
        self.entries(space, shift, starts, |start, entry| {
            let blocks = (start..start + (1 << shift)).step_by(BLOCK_SIZE as usize);
            blocks.for_each(|block| see(block, entry));
        })
    }

    /// Passes to `see` the start of every part of 1 << `shift` bytes (with pages of 4 KiB 21: blocks, 30: gigabytes) that
    /// has a table or a leaf, and its entry; 0 where a larger leaf covers it. Covers the 512 neighbouring entries of that
    /// level to which each of the addresses `starts` belongs.
    pub(super) fn entries(
        &mut self,
        space: &AddressSpace,
        shift: u32,
        starts: &[u64],
        mut see: impl FnMut(u64, u64),
    ) -> Result<(), WalkerError> {
        for chunk in starts.chunks(MAX_TABLES) {
            self.copy_chunk(space, chunk, shift)?;
            for (i, &start) in chunk.iter().enumerate() {
                let slot = self.slots.get()[i];
                let first = start & !((1 << (shift + 9)) - 1);
                if slot & Leaf::TABLE == 0 {
                    if Leaf(slot).is_present() {
                        (0..ENTRIES_PER_TABLE as u64)
                            .for_each(|part| see(first + (part << shift), 0));
                    }
                    continue;
                }
                for (part, &entry) in self.tables.get()[i].iter().enumerate() {
                    let entry = arch::canonical(entry, self.format);
                    if entry & (entry::PRESENT | entry::ABSENT) != 0 {
                        see(first + ((part as u64) << shift), entry);
                    }
                }
            }
        }
        Ok(())
    }

    fn copy_chunk(
        &mut self,
        space: &AddressSpace,
        addresses: &[u64],
        table_shift: u32,
    ) -> Result<(), WalkerError> {
        self.slots.get_mut()[..addresses.len()].copy_from_slice(addresses);
        self.select(space, addresses.len());
        let format = self.format;
        let nr = if table_shift == format.page_shift {
            format.entries_of_block()
        } else {
            ENTRIES_PER_TABLE
        };
        let control = self.control();
        control.table_shift = table_shift;
        control.chunk = nr as u32;
        self.run(|walker| &walker.copy_tables)
    }

    pub(super) fn select(&mut self, space: &AddressSpace, nr_slots: usize) {
        let control = self.control();
        control.space = *space;
        control.gone = 0;
        control.nr_slots = u32::try_from(nr_slots).expect("at most MAX_SLOTS");
    }

    pub(super) fn run(&mut self, which: fn(&Self) -> &OwnedFd) -> Result<(), WalkerError> {
        match object::run(which(self).as_fd()) {
            Ok(()) if self.control().gone == 0 => Ok(()),
            Ok(()) => Err(WalkerError::Gone),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Err(WalkerError::Gone),
            Err(error) => Err(bpf("run the BPF program", error)),
        }
    }

    /// Finds `page_offset` and the format: see the module's documentation.
    fn calibrate(&mut self, formats: &[TableFormat]) -> Result<(), WalkerError> {
        // A locked page of ours stays in its frame.
        let page = Mapping::anonymous(
            arch::page_bytes() as usize,
            libc::MAP_POPULATE | libc::MAP_LOCKED,
        )
        .map_err(|source| bpf("lock a page of memory for calibration", source))?;
        let address = page.range().start;
        let hidden = |cause| WalkerError::NoFrameNumbers { cause };
        let frame = frame_of(address).map_err(|error| hidden(error.to_string()))?;
        let frame = frame.ok_or_else(|| hidden("the kernel shows frame number 0".into()))?;
        let space = self.locate(std::process::id())?;
        let highest = space.pgd & !(arch::DIRECT_MAP_ALIGNMENT - 1);
        let physical = formats[0].frame_mask / arch::DIRECT_MAP_ALIGNMENT + 1;
        let tried = physical.min(CANDIDATES_MAX);
        let mut leaves = Vec::with_capacity(1);
        for candidate in 0..tried {
            for format in formats {
                self.set_format(*format);
                self.control().page_offset =
                    highest.wrapping_sub(candidate * arch::DIRECT_MAP_ALIGNMENT);
                self.walk(&space, &[(address, 1)], &mut leaves)?;
                if leaves[0].is_present() && leaves[0].frame() == frame {
                    return self.find_absent_bits(&space, &page);
                }
            }
        }
        Err(WalkerError::NoDirectMap { tried })
    }

    fn set_format(&mut self, format: TableFormat) {
        self.format = format;
        let control = self.control();
        control.page_shift = format.page_shift;
        control.top_shift = format.top_shift;
        control.frame_mask = format.frame_mask;
        control.absent = format.absent;
    }

    /// Finds the bits of absent pages by a page of ours, which has no permissions from now on.
    fn find_absent_bits(
        &mut self,
        space: &AddressSpace,
        page: &Mapping,
    ) -> Result<(), WalkerError> {
        page.forbid()
            .map_err(|source| bpf("take the permissions from a page of memory", source))?;
        let address = page.range().start;
        self.slots.get_mut()[0] = address;
        self.select(space, 1);
        self.run(|walker| &walker.walk)?;
        if self.slots.get()[0] & Leaf::TABLE == 0 {
            let source = io::Error::other("its page table cannot be read");
            return Err(bpf("look at a page without permissions", source));
        }
        let raw = self.runs.get()[0][arch::entries_before(address)];
        self.set_format(TableFormat {
            absent: arch::absent_bits(raw),
            ..self.format
        });
        Ok(())
    }
}

/// Cuts a span into runs of at most [`PAGES_PER_RUN`] pages, each within one table.
fn runs_of(address: u64, pages: u32) -> impl Iterator<Item = (u64, u8)> {
    let mut at = address & !(PAGE_SIZE - 1);
    let end = at + u64::from(pages) * PAGE_SIZE;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let table_end = (at & !(BLOCK_SIZE - 1)) + BLOCK_SIZE;
        let run = (PAGES_PER_RUN - arch::entries_before(at)) as u64;
        let run_end = end.min(table_end).min(at + run * PAGE_SIZE);
        let run = (at, ((run_end - at) / PAGE_SIZE) as u8);
        at = run_end;
        Some(run)
    })
}

fn bpf(what: &'static str, source: io::Error) -> WalkerError {
    WalkerError::Bpf { what, source }
}

#[derive(Clone, Copy)]
pub(super) enum TaskLimit {
    Thread(u32),
    Process(u32),
}

fn run_iterator(program: BorrowedFd<'_>, limit: TaskLimit) -> io::Result<()> {
    let iterator = open_iterator(program, limit)?;
    io::copy(&mut File::from(iterator), &mut io::sink()).map(drop)
}

/// Opens an iterator program. Reading the descriptor runs it and yields its output.
pub(super) fn open_iterator(program: BorrowedFd<'_>, limit: TaskLimit) -> io::Result<OwnedFd> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    match limit {
        TaskLimit::Thread(tid) => info.task.tid = tid,
        TaskLimit::Process(pid) => info.task.pid = pid,
    }
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: &raw mut info,
        iter_info_len: size_of_val(&info) as u32,
        ..Default::default()
    };
    // SAFETY: valid descriptors and structs that outlive the calls; a non-negative result is a new descriptor without
    // another owner.
    let owned = |result: i32| match result {
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    };
    // SAFETY: as above.
    let link = owned(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            &raw const options,
        )
    })?;
    // SAFETY: as above.
    owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_at_tables_and_at_sixteen_pages() {
        let cut = |address, pages| runs_of(address, pages).collect::<Vec<_>>();
        assert_eq!(cut(0x1000, 1), [(0x1000, 1)]);
        assert_eq!(cut(0x1f_e000, 4), [(0x1f_e000, 2), (0x20_0000, 2)]);
        assert_eq!(cut(0, 20), [(0, 16), (0x1_0000, 4)]);
    }
}
