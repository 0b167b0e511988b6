//! Drops clean pages of a file from the page cache (`posix_fadvise(POSIX_FADV_DONTNEED)`).
//!
//! The kernel drops folios that lie wholly in the range, are clean, and are not mapped or in use (mm/fadvise.c,
//! mapping_try_invalidate). It would start writing dirty pages of the range, and wait for all processors if it could
//! not drop some. So callers name ranges of droppable pages, and check the result afterwards.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::page_cache::CachedFolio;
use rustix::fs::{Advice, fadvise};

/// Asks the kernel to drop these folios of `file`, which are in order of their offsets.
pub fn discard(file: &File, folios: &[CachedFolio]) -> io::Result<()> {
    let is_next = |a: &CachedFolio, b: &CachedFolio| a.index + a.nr_pages() == b.index;
    for run in folios.chunk_by(is_next) {
        let pages: u64 = run.iter().map(CachedFolio::nr_pages).sum();
        let bytes = NonZeroU64::new(pages * PAGE_SIZE);
        fadvise(file, run[0].index * PAGE_SIZE, bytes, Advice::DontNeed)?;
    }
    Ok(())
}
