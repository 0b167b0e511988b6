//! A part of a file, mapped into our own address space. The frames of its cached pages can be read there, and their
//! accessed bits cleared.
//!
//! Mapping causes no read from disk: only cached pages are looked up, and there is no read-ahead (`MADV_RANDOM`). A
//! page that is dropped meanwhile is read alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use isotherm_engine::PAGE_SIZE;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::mapped::Mapping;
use crate::process::vector;

/// Buffers in one system call (UIO_MAXIOV).
const MAX_BUFFERS: usize = 1024;

/// Reads a byte of pages of windows, which maps them in our page tables.
///
/// `MADV_POPULATE_READ` would do that as well, but counts as an access of each page (FOLL_TOUCH in mm/gup.c). A page
/// fault of ours does not. In a system call the fault fails if a file was truncated, and kills no process.
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

    /// Reads a byte at each of the addresses, which lie in existing windows. A page that is not in memory is read from
    /// disk.
    pub(crate) fn touch(&mut self, addresses: impl Iterator<Item = u64>) -> io::Result<()> {
        self.buffers.clear();
        self.buffers
            .extend(addresses.map(|address| vector(address, 1)));
        let mut at = 0;
        while at < self.buffers.len() {
            let buffers = &self.buffers[at..];
            let nr = buffers.len().min(MAX_BUFFERS);
            // SAFETY: `nr` buffers; an address that cannot be read makes the call fail, as copying from user space does
            // (copy_from_user).
            let written =
                unsafe { libc::pwritev(self.sink.as_raw_fd(), buffers.as_ptr(), nr as i32, 0) };
            match usize::try_from(written) {
                // The next address cannot be read.
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

pub(crate) fn file_in_memory() -> io::Result<File> {
    Ok(memfd_create("isotherm", MemfdFlags::CLOEXEC)?.into())
}

/// Maps `nr_pages` of `file` from page `first` on, for reading.
pub(crate) fn window(file: &File, first: u64, nr_pages: u64) -> io::Result<Mapping> {
    let bytes = (nr_pages * PAGE_SIZE) as usize;
    let offset = i64::try_from(first * PAGE_SIZE).map_err(io::Error::other)?;
    let mapping = Mapping::of_file(file.as_fd(), offset, bytes, libc::PROT_READ)?;
    mapping.advise(libc::MADV_RANDOM)?;
    Ok(mapping)
}
