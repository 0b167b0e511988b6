//! A BPF array map's memory, shared with the BPF program.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// `len` values of `T` in memory that a BPF program also reads and writes.
///
/// The kernel runs our programs only inside our own `BPF_PROG_RUN` and iterator reads, on the
/// calling thread; the map is private to this process. So while Rust code holds a reference, no
/// program runs.
pub(crate) struct MappedArray<T: Copy> {
    start: NonNull<T>,
    len: usize,
    bytes: usize,
    _owned: PhantomData<T>,
}

// SAFETY: the mapping is plain memory, owned by this value alone.
unsafe impl<T: Copy + Send> Send for MappedArray<T> {}

impl<T: Copy> MappedArray<T> {
    /// Maps the whole map of `fd`, which holds `len` values laid out like `T`.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        assert!(
            align_of::<T>() <= 8,
            "BPF array values are aligned to 8 bytes"
        );
        let bytes = (len * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new shared mapping of a file descriptor we hold; the kernel (map_mmap in
        // kernel/bpf/syscall.c) refuses a length beyond the map's.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap does not return null");
        Ok(Self {
            start,
            len,
            bytes,
            _owned: PhantomData,
        })
    }

    /// Maps `len` values in locked private memory of our own.
    pub(crate) fn anonymous_locked(len: usize) -> io::Result<Self> {
        let bytes = (len * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new private anonymous mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap does not return null");
        let array = Self {
            start,
            len,
            bytes,
            _owned: PhantomData,
        };
        // SAFETY: the mapping just made.
        if unsafe { libc::mlock(start.as_ptr().cast(), bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(array)
    }

    /// Returns the values.
    pub(crate) fn get(&self) -> &[T] {
        // SAFETY: mapped for `len` values, zeroed by the kernel, `T: Copy` has no invalid bit patterns among those the
        // programs write; no program writes while the borrow lasts (see above).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the values for modification.
    pub(crate) fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `get`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
