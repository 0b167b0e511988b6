//! Finds the frames that hold page cache, and their files, from the kernel's frame descriptors (`struct page`).
//!
//! Problem: `/proc/kpageflags` shows a frame's flags for 60 ns each, but neither its file nor the page's offset.
//! Approach: a BPF program (`../probe/bpf/page_cache.bpf.c`) reads the descriptors, skips free blocks and large folios
//! at once, and reports only pages of files. The address of the descriptors is found without any symbol. The kernel's
//! page cache of a memory file of ours holds the address of its page's descriptor, and `/proc/self/pagemap` shows its
//! frame. Several such pages must agree.
//!
//! Frames, orders and indices are in units of 4 KiB, also where the kernel's pages are larger.
//!
//! Limits: a virtually contiguous memory map (SPARSEMEM_VMEMMAP, as in distributions), BTF, `bpf_loop` (5.17). The
//! descriptors change while they are read: after a file is opened, its inode must be compared. Pages that move between
//! the kernel's lists are not seen, some tens a processor.

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::page_cache::{CachedFolio, FolioState};
use thiserror::Error;

use super::window::{Toucher, file_in_memory, window};
use crate::arch;
use crate::mapped::MappedArray;
use crate::page_map::frame_of;
use crate::probe::object;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page_cache.bpf.o"));
/// `MAX_FOLIOS` and `MAX_FILES` in `page_cache.bpf.c`.
const MAX_FOLIOS: usize = 8192;
const MAX_FILES: usize = 64;
const PATH_BYTES: usize = 4032;
/// Frames that are scanned in one BPF run, during which other threads may wait for the processor: 1 ms.
const FRAMES_AT_ONCE: u64 = 1 << 14;
/// Pages of the kernel of which one represents all, if they are assumed to be anonymous memory (`CHUNK`).
pub const SCANNED_TOGETHER: u64 = 64;
const _: () = assert!(
    FRAMES_AT_ONCE == SCANNED_TOGETHER * 64 * 4,
    "a bit for each"
);
/// Number of pages that must agree on the address of the descriptors.
const PROOFS: usize = 4;
/// Lowest address of the kernel's half.
const KERNEL: u64 = 1 << 63;

/// `struct control`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    memmap: u64,
    next: u64,
    end: u64,
    mapping: u64,
    first: u64,
    fd: u32,
    unit: u32,
    nr: u32,
    nr_read: u32,
    most: u32,
    tried: u32,
    anonymous: [u64; 4],
}
const _: () = assert!(size_of::<Control>() == 96, "the layout in page_cache.bpf.c");

/// `struct folio_words`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FolioWords {
    frame: u64,
    mapping: u64,
    index: u64,
    group: u64,
}
const _: () = assert!(
    size_of::<FolioWords>() == 32,
    "the layout in page_cache.bpf.c"
);

/// `struct file_words`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FileWords {
    mapping: u64,
    inode: u64,
    magic: u64,
    size: u64,
    nr_pages: u64,
    device: u32,
    own_device: u32,
    generation: u32,
    links: u32,
    mode: u32,
    path_bytes: u32,
    path: [u8; PATH_BYTES],
}
const _: () = assert!(
    size_of::<FileWords>() == 4096,
    "the layout in page_cache.bpf.c"
);

/// `struct group_words`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GroupWords {
    group: u64,
    id: u64,
}

/// Reason why page cache cannot be found from the kernel's frame descriptors.
#[derive(Debug, Error)]
pub enum MemmapError {
    #[error("cannot load the BPF program that reads the memory map: {cause}")]
    Load { cause: String },
    #[error("cannot {what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    #[error(
        "cannot find where the kernel describes memory: pages of our own are at {found:x?}; the kernel may have no virtually contiguous memory map"
    )]
    NotFound {
        /// Address of frame 0's descriptor according to each page.
        found: Vec<u64>,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> MemmapError {
    move |source| MemmapError::System { what, source }
}

/// Facts that the kernel holds about a file in its page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    pub inode: u64,
    /// Generation, which distinguishes the inode from former ones with its number.
    pub generation: u32,
    /// Device of the file system, as in stat(2).
    pub device: u64,
    /// Own number of a block device.
    pub own_device: u64,
    /// Type of the file system, as in statfs(2).
    pub magic: u64,
    pub size: u64,
    /// Number of names; 0 for a deleted file.
    pub nr_links: u32,
    /// Type and permissions, as in stat(2).
    pub mode: u32,
    pub nr_pages: u64,
    /// Path within the file system, if the kernel has it in memory.
    pub path: Option<Vec<u8>>,
}

/// The loaded BPF programs, and the address of the descriptors.
pub struct Memmap {
    scan: OwnedFd,
    list: OwnedFd,
    look: OwnedFd,
    describe: OwnedFd,
    tell_groups: OwnedFd,
    find: OwnedFd,
    control: MappedArray<Control>,
    folios: MappedArray<FolioWords>,
    files: MappedArray<FileWords>,
    groups: MappedArray<GroupWords>,
}

impl Memmap {
    /// Loads the programs and finds the descriptors.
    pub fn new() -> Result<Self, MemmapError> {
        let object = object::load(OBJECT).map_err(|cause| MemmapError::Load { cause })?;
        let program = |name| object::program(&object, name).map_err(system("keep a BPF program"));
        let map = system("map a BPF array");
        let mut memmap = Self {
            scan: program("scan")?,
            list: program("list")?,
            look: program("look")?,
            describe: program("describe")?,
            tell_groups: program("tell_groups")?,
            find: program("find")?,
            control: object::map_array(&object, "control", 1).map_err(&map)?,
            folios: object::map_array(&object, "folios", MAX_FOLIOS).map_err(&map)?,
            files: object::map_array(&object, "files", MAX_FILES).map_err(&map)?,
            groups: object::map_array(&object, "groups", MAX_FILES).map_err(&map)?,
        };
        drop(object);
        let found: Result<Vec<u64>, _> = (0..PROOFS).map(|_| memmap.base_by_a_page()).collect();
        let found = found?;
        let base = found[0];
        if base < KERNEL || found.iter().any(|other| *other != base) {
            return Err(MemmapError::NotFound { found });
        }
        memmap.control().memmap = base;
        Ok(memmap)
    }

    fn control(&mut self) -> &mut Control {
        &mut self.control.get_mut()[0]
    }

    fn run(&mut self, program: fn(&Self) -> &OwnedFd) -> Result<(), MemmapError> {
        object::run(program(self).as_fd()).map_err(system("run a BPF program"))
    }

    /// Finds the descriptor of frame 0 by a new page of ours.
    fn base_by_a_page(&mut self) -> Result<u64, MemmapError> {
        let file = file_in_memory().map_err(system("make a file in memory"))?;
        file.write_all_at(&[1; PAGE_SIZE as usize], 0)
            .map_err(system("write to a file in memory"))?;
        let frame = frame_of_first_page(&file).map_err(system("find the frame of our own page"))?;
        self.find(file.as_fd())?;
        let Control { first, unit, .. } = *self.control();
        let frame = frame >> arch::frame_shift();
        Ok(first.wrapping_sub(frame.wrapping_mul(u64::from(unit))))
    }

    fn find(&mut self, file: BorrowedFd<'_>) -> Result<(), MemmapError> {
        self.control().fd = file.as_raw_fd().cast_unsigned();
        self.run(|memmap| &memmap.find)
    }

    /// Returns the mapping that folios of this open file have.
    pub fn mapping_of(&mut self, file: BorrowedFd<'_>) -> Result<u64, MemmapError> {
        self.find(file)?;
        Ok(self.control().mapping)
    }

    /// Passes every folio of a file in `frames` to `see`, in their order. Returns the number of descriptors read. If
    /// `was_anonymous` says that all of [`SCANNED_TOGETHER`] pages were anonymous memory lately, only one of them is
    /// read: memory is mostly freed together.
    pub fn scan(
        &mut self,
        frames: Range<u64>,
        was_anonymous: impl Fn(Range<u64>) -> bool,
        mut see: impl FnMut(CachedFolio),
    ) -> Result<u64, MemmapError> {
        let shift = arch::frame_shift();
        let frames = frames.start >> shift..frames.end.div_ceil(1 << shift);
        self.control().next = frames.start;
        self.control().tried = self.control().tried.wrapping_add(1);
        let mut nr_read = 0;
        while self.control().next < frames.end {
            let control = self.control();
            let first = control.next / SCANNED_TOGETHER;
            control.end = frames.end.min(first * SCANNED_TOGETHER + FRAMES_AT_ONCE);
            control.anonymous = [0; 4];
            for chunk in first..control.end / SCANNED_TOGETHER {
                let [first, end] = [chunk, chunk + 1].map(|at| (at * SCANNED_TOGETHER) << shift);
                let bit = u64::from(was_anonymous(first..end)) << (chunk % 64);
                control.anonymous[chunk as usize / 64 % 4] |= bit;
            }
            control.nr_read = 0;
            self.run(|memmap| &memmap.scan)?;
            let Control {
                nr, nr_read: read, ..
            } = *self.control();
            nr_read += u64::from(read);
            let found = &self.folios.get()[..nr as usize];
            for words in found {
                see(folio(words));
            }
        }
        Ok(nr_read)
    }

    /// Passes to `see` the cached folios of a file that have a page in `pages`, in order of their offsets. Passes
    /// `at_once` at a time or some thousands, until `see` breaks off.
    pub fn list(
        &mut self,
        file: u64,
        pages: Range<u64>,
        at_once: usize,
        mut see: impl FnMut(&[CachedFolio]) -> ControlFlow<()>,
    ) -> Result<(), MemmapError> {
        let shift = arch::frame_shift();
        let pages = pages.start >> shift..pages.end.div_ceil(1 << shift);
        self.control().mapping = file;
        self.control().next = pages.start;
        self.control().end = pages.end;
        self.control().most = at_once.clamp(1, MAX_FOLIOS) as u32;
        let mut found = Vec::new();
        while self.control().next < pages.end {
            self.run(|memmap| &memmap.list)?;
            let nr = self.control().nr as usize;
            found.clear();
            found.extend(self.folios.get()[..nr].iter().map(folio));
            if see(&found).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Passes to `see` the current content of the first frames of these folios, with their indices. Skips folios that
    /// are gone.
    pub fn look(
        &mut self,
        folios: &[CachedFolio],
        mut see: impl FnMut(usize, CachedFolio),
    ) -> Result<(), MemmapError> {
        for (round, chunk) in folios.chunks(MAX_FOLIOS).enumerate() {
            for (words, folio) in self.folios.get_mut().iter_mut().zip(chunk) {
                words.frame = folio.frame >> arch::frame_shift();
                words.mapping = folio.file;
            }
            self.control().nr = chunk.len() as u32;
            self.run(|memmap| &memmap.look)?;
            for (at, before) in chunk.iter().enumerate() {
                let now = folio(&self.folios.get()[at]);
                if (now.file, now.index, now.order) == (before.file, before.index, before.order) {
                    see(round * MAX_FOLIOS + at, now);
                }
            }
        }
        Ok(())
    }

    /// Describes the files of these mappings; `None` for a mapping that no longer belongs to a file.
    pub fn describe(&mut self, mappings: &[u64]) -> Result<Vec<Option<FileFacts>>, MemmapError> {
        let mut all = Vec::with_capacity(mappings.len());
        for chunk in mappings.chunks(MAX_FILES) {
            for (words, mapping) in self.files.get_mut().iter_mut().zip(chunk) {
                words.mapping = *mapping;
            }
            self.control().nr = chunk.len() as u32;
            self.run(|memmap| &memmap.describe)?;
            all.extend(self.files.get()[..chunk.len()].iter().map(facts));
        }
        Ok(all)
    }

    /// Returns the inode numbers of the control groups' directories; `None` for one that is gone.
    pub fn group_ids(&mut self, groups: &[u64]) -> Result<Vec<Option<u64>>, MemmapError> {
        let mut all = Vec::with_capacity(groups.len());
        for chunk in groups.chunks(MAX_FILES) {
            for (words, group) in self.groups.get_mut().iter_mut().zip(chunk) {
                words.group = *group;
            }
            self.control().nr = chunk.len() as u32;
            self.run(|memmap| &memmap.tell_groups)?;
            let reported = &self.groups.get()[..chunk.len()];
            all.extend(
                reported
                    .iter()
                    .map(|words| (words.id != 0).then_some(words.id)),
            );
        }
        Ok(all)
    }
}

fn folio(words: &FolioWords) -> CachedFolio {
    let shift = arch::frame_shift();
    CachedFolio {
        frame: (words.frame & ((1 << 40) - 1)) << shift,
        order: (words.frame >> 40) as u8 + shift as u8,
        state: FolioState((words.frame >> 48) as u16),
        file: words.mapping,
        index: words.index << shift,
        // The lowest bits are flags (include/linux/memcontrol.h).
        group: words.group & !0xf,
    }
}

fn facts(words: &FileWords) -> Option<FileFacts> {
    // The kernel's own form has 20 bits for the minor number (include/linux/kdev_t.h).
    let device = |number: u32| libc::makedev(number >> 20, number & 0xf_ffff);
    (words.inode != 0).then(|| FileFacts {
        inode: words.inode,
        generation: words.generation,
        device: device(words.device),
        own_device: device(words.own_device),
        magic: words.magic,
        size: words.size,
        nr_links: words.links,
        mode: words.mode,
        nr_pages: words.nr_pages << arch::frame_shift(),
        path: path(&words.path[..(words.path_bytes as usize).min(PATH_BYTES)]),
    })
}

/// Returns the path formed by these names, the last of which comes first.
fn path(names: &[u8]) -> Option<Vec<u8>> {
    let names = names.strip_suffix(&[0])?;
    let mut path = Vec::with_capacity(names.len() + 1);
    for name in names.rsplit(|byte| *byte == 0) {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Some(path)
}

fn frame_of_first_page(file: &File) -> io::Result<u64> {
    let window = window(file, 0, 1)?;
    Toucher::new()?.touch(std::iter::once(window.range().start))?;
    frame_of(window.range().start)?.ok_or_else(|| {
        io::Error::other(
            "/proc/self/pagemap shows no frame number; run as root or with CAP_SYS_ADMIN",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_made_of_names() {
        let check = |names: &[u8], wanted: Option<&str>| {
            let path = path(names).map(|path| String::from_utf8(path).expect("text"));
            assert_eq!(path.as_deref(), wanted, "{names:?}");
        };
        check(b"file\0dir\0top\0", Some("/top/dir/file"));
        check(b"file\0", Some("/file"));
        check(b"", None);
    }
}
