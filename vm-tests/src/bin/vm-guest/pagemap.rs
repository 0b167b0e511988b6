//! `/proc/PID/pagemap`: eight bytes for each page (`Documentation/admin-guide/mm/pagemap.rst`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use isotherm_engine::{AddressRange, PAGE_SIZE};

#[derive(Clone, Copy)]
pub(crate) struct Entry(u64);

impl Entry {
    /// Returns the page's frame if the page is in memory.
    pub(crate) fn frame(self) -> Option<u64> {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        (self.0 & PRESENT != 0).then_some(self.0 & FRAME)
    }

    pub(crate) fn is_swapped(self) -> bool {
        self.0 & 1 << 62 != 0
    }
}

pub(crate) struct Pagemap(File);

impl Pagemap {
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/pagemap")).map(Self)
    }

    /// Returns an entry for each 4 KiB of `range`. The kernel's pages may be larger.
    pub(crate) fn entries(&mut self, range: AddressRange) -> io::Result<Vec<Entry>> {
        let page_size = rustix::param::page_size() as u64;
        let (first, end) = (range.start / page_size, range.end.div_ceil(page_size));
        let mut bytes = vec![0; ((end - first) * 8) as usize];
        self.0.seek(SeekFrom::Start(first * 8))?;
        self.0.read_exact(&mut bytes)?;
        let (entries, _) = bytes.as_chunks();
        let entry = |page: u64| {
            let at = (page * PAGE_SIZE / page_size - first) as usize;
            Entry(u64::from_le_bytes(entries[at]))
        };
        let pages = range.start / PAGE_SIZE..range.end / PAGE_SIZE;
        Ok(pages.map(entry).collect())
    }
}
