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

    pub(crate) fn entries(&mut self, range: AddressRange) -> io::Result<Vec<Entry>> {
        let mut bytes = vec![0; (range.len() / PAGE_SIZE * 8) as usize];
        self.0.seek(SeekFrom::Start(range.start / PAGE_SIZE * 8))?;
        self.0.read_exact(&mut bytes)?;
        let (entries, _) = bytes.as_chunks();
        Ok(entries
            .iter()
            .map(|entry| Entry(u64::from_le_bytes(*entry)))
            .collect())
    }
}
