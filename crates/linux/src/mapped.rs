//! Mappings of this process: new memory, parts of files, and the memory of BPF array maps.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use isotherm_engine::AddressRange;

use crate::system_call::checked;

/// A mapping of this process, which is removed on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, owned by this value alone.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn anonymous(bytes: usize, flags: i32) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        Self::new(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Maps a part of a file, which is shared with all others that map it.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        offset: i64,
        bytes: usize,
        protection: i32,
    ) -> io::Result<Self> {
        let fd = file.as_raw_fd();
        Self::new(bytes, protection, libc::MAP_SHARED, fd, offset)
    }

    fn new(bytes: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; nothing but this value refers to it.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).expect("mmap does not return null");
        Ok(Self { start, bytes })
    }

    pub(crate) fn range(&self) -> AddressRange {
        let start = self.start.as_ptr() as u64;
        AddressRange::new(start, start + self.bytes as u64)
    }

    /// Takes all permissions from the mapping, which is not used any more.
    pub(crate) fn forbid(&self) -> io::Result<()> {
        // SAFETY: our own mapping; no reference to its content exists.
        checked(unsafe { libc::mprotect(self.start.as_ptr(), self.bytes, libc::PROT_NONE) })
            .map(drop)
    }

    /// Gives the kernel `advice` about the whole mapping: one that changes no content.
    pub(crate) fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: our own mapping, whose content stays.
        checked(unsafe { libc::madvise(self.start.as_ptr(), self.bytes, advice) }).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// `len` values of `T` in memory of its own, or that a BPF program also reads and writes.
///
/// The kernel runs our programs only inside our own `BPF_PROG_RUN` and iterator reads, on the
/// calling thread; the map is private to this process. So while Rust code holds a reference, no
/// program runs.
pub(crate) struct MappedArray<T: Copy> {
    mapping: Mapping,
    len: usize,
    _owned: PhantomData<T>,
}

impl<T: Copy> MappedArray<T> {
    /// Maps the whole map of `fd`, which holds `len` values laid out like `T`. The kernel (`map_mmap` in
    /// kernel/bpf/syscall.c) refuses a length beyond the map's.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        assert!(
            align_of::<T>() <= 8,
            "BPF array values are aligned to 8 bytes"
        );
        let bytes = (len * size_of::<T>()).next_multiple_of(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Ok(Self {
            mapping: Mapping::of_file(fd, 0, bytes, protection)?,
            len,
            _owned: PhantomData,
        })
    }

    /// Maps new memory, whose values are zero.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Ok(Self {
            mapping: Mapping::anonymous(len * size_of::<T>(), 0)?,
            len,
            _owned: PhantomData,
        })
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn get(&self) -> &[T] {
        // SAFETY: mapped for `len` values, zeroed by the kernel, `T: Copy` has no invalid bit patterns among those the
        // programs write; no program writes while the borrow lasts (see above).
        unsafe { std::slice::from_raw_parts(self.mapping.start.cast::<T>().as_ptr(), self.len) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `get`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start.cast::<T>().as_ptr(), self.len) }
    }
}
