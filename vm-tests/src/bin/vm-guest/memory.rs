//! Anonymous memory at a chosen place and with advice: the system calls that safe Rust does not have.

#![expect(
    unsafe_code,
    reason = "the standard library maps no memory at a chosen address, and advises nothing of it"
)]

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use isotherm_engine::PAGE_SIZE;

/// Hint for high mappings: above the 47 bits that four levels of tables give to users.
const HIGH: usize = 1 << 50;
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Maps `len` zero bytes, which are never unmapped. With `high` they lie above 47 bits, which fails if the processor's
/// page tables have four levels.
pub(crate) fn map(len: usize, high: bool) -> io::Result<&'static [AtomicU8]> {
    let hint = std::ptr::without_provenance_mut(if high { HIGH } else { 0 });
    // SAFETY: a new private anonymous mapping without MAP_FIXED replaces nothing; mmap(2) returns
    // `len` readable and writable zero bytes, or MAP_FAILED. It is never unmapped, so `'static`
    // holds, and atomics may be shared.
    let bytes = unsafe {
        let address = libc::mmap(
            hint,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        std::slice::from_raw_parts(address.cast::<AtomicU8>(), len)
    };
    // The kernel need not follow a hint: with four levels it maps lower instead of failing.
    if high && bytes.as_ptr().addr() >> 47 == 0 {
        return Err(io::Error::other("no addresses above 47 bits"));
    }
    Ok(bytes)
}

/// Maps `len` bytes as [`map`] does, aligned to huge pages, and advises the kernel to use huge pages for them.
pub(crate) fn map_huge(len: usize) -> io::Result<&'static [AtomicU8]> {
    let memory = map(len + HUGE_PAGE, false)?;
    let skip = memory.as_ptr().addr().next_multiple_of(HUGE_PAGE) - memory.as_ptr().addr();
    let memory = &memory[skip..skip + len];
    advise(memory, libc::MADV_HUGEPAGE)?;
    Ok(memory)
}

pub(crate) fn page_out(memory: &'static [AtomicU8]) -> io::Result<()> {
    advise(memory, libc::MADV_PAGEOUT)
}

/// Touches each page. Inlined: a first-touch profile shall name the caller.
#[expect(clippy::inline_always, reason = "the profile depends on it")]
#[inline(always)]
pub(crate) fn touch(memory: &[AtomicU8]) {
    for page in memory.iter().step_by(PAGE_SIZE as usize) {
        // arm64 adds in a function of its own.
        page.store(
            page.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }
}

fn advise(memory: &'static [AtomicU8], advice: libc::c_int) -> io::Result<()> {
    let address = memory.as_ptr().cast_mut().cast();
    // SAFETY: a mapping of ours that is never unmapped; both kinds of advice that are given here (madvise(2)) keep its
    // content.
    match unsafe { libc::madvise(address, memory.len(), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
