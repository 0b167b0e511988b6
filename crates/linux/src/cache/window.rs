//! A part of a file, mapped into our own address space: so far as it is in memory, its frames can be asked for
//! and its accessed bits cleared.
//!
//! Nothing is read from a disk for it: pages are looked up that are cached, there is no read-ahead
//! (`MADV_RANDOM`), and a page that goes meanwhile is read alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use isotherm_engine::{AddressRange, PAGE_SIZE};

/// Buffers in one system call (UIO_MAXIOV).
const MAX_BUFFERS: usize = 1024;

/// Takes a byte of pages of windows, by which these get into our page tables.
///
/// `MADV_POPULATE_READ` would do that as well, but counts as an access of each page (FOLL_TOUCH in mm/gup.c).
/// A fault of ours does not; in a system call it fails where a file was truncated, and ends nobody.
#[derive(Debug)]
pub(crate) struct Toucher {
    sink: File,
    buffers: Vec<libc::iovec>,
}

// SAFETY: the pointers are used within one call of `touch` only.
unsafe impl Send for Toucher {}

impl Toucher {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            sink: file_in_memory()?,
            buffers: Vec::new(),
        })
    }

    /// Takes a byte at each of the addresses, which lie in windows that are there. Where a page is not in
    /// memory, it is read.
    pub(crate) fn touch(&mut self, addresses: impl Iterator<Item = u64>) -> io::Result<()> {
        self.buffers.clear();
        self.buffers.extend(addresses.map(|address| libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: 1,
        }));
        let mut at = 0;
        while at < self.buffers.len() {
            let buffers = &self.buffers[at..];
            let nr = buffers.len().min(MAX_BUFFERS);
            // SAFETY: `nr` buffers; an address that cannot be read makes the call fail, as copying from user
            // space does (copy_from_user).
            let written =
                unsafe { libc::pwritev(self.sink.as_raw_fd(), buffers.as_ptr(), nr as i32, 0) };
            match usize::try_from(written) {
                // The next one cannot be read.
                Ok(written) if written < nr => at += written + 1,
                Ok(written) => at += written,
                Err(_) => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EFAULT) => at += 1,
                    error if error.raw_os_error() == Some(libc::EINTR) => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// A file without a name, in memory.
pub(crate) fn file_in_memory() -> io::Result<File> {
    // SAFETY: a name that ends with a 0; a non-negative result is a descriptor that nobody else owns.
    unsafe {
        match libc::memfd_create(c"isotherm".as_ptr(), libc::MFD_CLOEXEC) {
            fd if fd >= 0 => Ok(File::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The mapping; gone when dropped.
#[derive(Debug)]
pub(crate) struct Window {
    range: AddressRange,
}

impl Window {
    /// Maps `nr_pages` of `file` from page `first` on.
    pub(crate) fn new(file: &File, first: u64, nr_pages: u64) -> io::Result<Self> {
        let bytes = nr_pages * PAGE_SIZE;
        let offset = i64::try_from(first * PAGE_SIZE).map_err(io::Error::other)?;
        // SAFETY: a new mapping at a place of the kernel's choice; nothing but this value knows of it.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start as u64;
        let window = Self {
            range: AddressRange::new(start, start + bytes),
        };
        window.advise(0, nr_pages, libc::MADV_RANDOM)?;
        Ok(window)
    }

    /// Where it is.
    pub(crate) fn range(&self) -> AddressRange {
        self.range
    }

    fn advise(&self, first: u64, nr_pages: u64, advice: i32) -> io::Result<()> {
        let start = self.range.start + first * PAGE_SIZE;
        assert!(
            start + nr_pages * PAGE_SIZE <= self.range.end,
            "within the window"
        );
        // SAFETY: of our own mapping, which nothing is read from or written to through a reference.
        let result = unsafe {
            libc::madvise(
                start as *mut libc::c_void,
                (nr_pages * PAGE_SIZE) as usize,
                advice,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe {
            libc::munmap(
                self.range.start as *mut libc::c_void,
                self.range.len() as usize,
            )
        };
    }
}
