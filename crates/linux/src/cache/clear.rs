//! Clears the kernel's mark of accesses (`PG_referenced`) on cached pages of files.
//!
//! Problem: the mark is set when a page is read, and by user space never cleared directly. Approach: the pages
//! are mapped into our own address space for a moment, and `/proc/self/clear_refs` is told to clear what mapped
//! pages of files have (fs/proc/task_mmu.c, clear_refs_pte_range: `folio_clear_referenced`). Of a large folio
//! one page needs to be mapped, and it is not split. Unlike `MADV_COLD`, pages stay where they are on the
//! kernel's lists.
//!
//! Side effects: reclaim, which gives referenced pages a second turn, takes a page that was read once for one
//! that was not read since; a page must be read twice again to become active. Some MiB are mapped at a time.
//!
//! Limits: files that can be opened for reading, and mapped. What is not in memory any more is read, a page at
//! a time: callers name what was cached a moment ago.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::page_cache::CachedFolio;

use super::window::{Toucher, Window};

/// Pages mapped at once: they count as memory of ours.
const BATCH_PAGES: u64 = 4096;
/// Parts of files mapped at once.
const BATCH_WINDOWS: usize = 256;
/// The kernel maps cached pages around one that is accessed, up to so many (`fault_around_bytes`).
const AROUND_PAGES: u64 = 16;
/// Largest part of a file that is mapped as one: 1 GiB of addresses.
const WINDOW_PAGES: u64 = 1 << 18;

/// Clears them in batches.
#[derive(Debug)]
pub struct Clearer {
    clear_refs: File,
    toucher: Toucher,
    windows: Vec<Window>,
    nr_mapped: u64,
}

impl Clearer {
    /// Opens what it needs.
    pub fn new() -> io::Result<Self> {
        let clear_refs = OpenOptions::new()
            .write(true)
            .open("/proc/self/clear_refs")?;
        Ok(Self {
            clear_refs,
            toucher: Toucher::new()?,
            windows: Vec::new(),
            nr_mapped: 0,
        })
    }

    /// Clears the marks of folios of `file`, in order of their places there; they are cleared when
    /// [`Clearer::flush`] returns. An error is of this file alone.
    pub fn add(&mut self, file: &File, folios: &[CachedFolio]) -> io::Result<()> {
        let mut rest = folios;
        while let Some(first) = rest.first() {
            let mut nr_pages = 0;
            let fits = |folio: &&CachedFolio| {
                nr_pages += folio.nr_pages().min(AROUND_PAGES);
                folio.index + folio.nr_pages() - first.index <= WINDOW_PAGES
                    && nr_pages <= BATCH_PAGES
            };
            let nr = rest.iter().take_while(fits).count().max(1);
            let (of_window, others) = rest.split_at(nr);
            self.map(file, of_window)?;
            rest = others;
        }
        Ok(())
    }

    fn map(&mut self, file: &File, folios: &[CachedFolio]) -> io::Result<()> {
        let (Some(first), Some(last)) = (folios.first(), folios.last()) else {
            return Ok(());
        };
        let pages: u64 = { folios.iter() }
            .map(|folio| folio.nr_pages().min(AROUND_PAGES))
            .sum();
        if self.nr_mapped + pages > BATCH_PAGES || self.windows.len() >= BATCH_WINDOWS {
            self.flush()?;
        }
        let span = last.index + last.nr_pages() - first.index;
        let window = Window::new(file, first.index, span)?;
        let start = window.range().start;
        let addresses =
            { folios.iter() }.map(|folio| start + (folio.index - first.index) * PAGE_SIZE);
        let touched = self.toucher.touch(addresses);
        self.windows.push(window);
        self.nr_mapped += pages;
        touched
    }

    /// Clears what was added.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.windows.is_empty() {
            return Ok(());
        }
        // 3: of mapped files.
        let cleared = self.clear_refs.write_at(b"3", 0);
        self.windows.clear();
        self.nr_mapped = 0;
        cleared.map(drop)
    }
}
