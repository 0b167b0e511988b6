//! Clears the kernel's accessed mark (`PG_referenced`) of page cache.
//!
//! Problem: the mark is set when a page is read, and user space cannot clear it directly. Approach: the pages are
//! mapped briefly into our own address space. Then `/proc/self/clear_refs` clears the marks of mapped file pages
//! (fs/proc/task_mmu.c, clear_refs_pte_range: `folio_clear_referenced`). One page of a large folio needs to be mapped,
//! and the folio is not split. Unlike with `MADV_COLD`, pages stay in their place on the kernel's lists.
//!
//! Side effects: reclaim gives referenced pages a second turn. It treats a page that was read once like one that was
//! not read since; a page must be read twice again to become active. Some MiB are mapped at a time.
//!
//! Limits: only files that can be opened for reading, and mapped. A page that is no longer in memory is read from disk,
//! one at a time. So callers should name pages that were cached a moment ago.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::page_cache::CachedFolio;

use super::window::{Toucher, window};
use crate::mapped::Mapping;

/// Maximum pages mapped at once: they count as memory of ours.
const BATCH_PAGES: u64 = 4096;
/// Maximum parts of files mapped at once.
const BATCH_WINDOWS: usize = 256;
/// Maximum cached pages that the kernel maps around an accessed one (`fault_around_bytes`).
const AROUND_PAGES: u64 = 16;
/// Largest part of a file that is mapped as one: 1 GiB of addresses.
const WINDOW_PAGES: u64 = 1 << 18;

/// Clears accessed marks in batches.
#[derive(Debug)]
pub struct Clearer {
    clear_refs: File,
    toucher: Toucher,
    windows: Vec<Mapping>,
    nr_mapped: u64,
}

impl Clearer {
    /// Opens the files that it needs.
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

    /// Adds folios of `file`, in order of their offsets. Their marks are cleared when [`Clearer::flush`] returns. An
    /// error concerns this file alone.
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
        let window = window(file, first.index, span)?;
        let start = window.range().start;
        let addresses =
            { folios.iter() }.map(|folio| start + (folio.index - first.index) * PAGE_SIZE);
        let touched = self.toucher.touch(addresses);
        self.windows.push(window);
        self.nr_mapped += pages;
        touched
    }

    /// Clears the marks of all added folios.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.windows.is_empty() {
            return Ok(());
        }
        // "3" is for mapped files.
        let cleared = self.clear_refs.write_at(b"3", 0);
        self.windows.clear();
        self.nr_mapped = 0;
        cleared.map(drop)
    }
}
