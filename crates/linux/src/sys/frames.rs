//! The kernel's facts about physical frames: `/proc/kpageflags` and `/proc/kpagecount`
//! (Documentation/admin-guide/mm/pagemap.rst). Frames are counted in 4 KiB; a larger page of the kernel has several.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::arch;

/// Bits of a `/proc/kpageflags` word (include/uapi/linux/kernel-page-flags.h).
mod bit {
    pub(crate) const LRU: u64 = 1 << 5;
    pub(crate) const ACTIVE: u64 = 1 << 6;
    pub(crate) const ANON: u64 = 1 << 12;
    pub(crate) const SWAP_BACKED: u64 = 1 << 14;
    pub(crate) const COMPOUND_HEAD: u64 = 1 << 15;
    pub(crate) const COMPOUND_TAIL: u64 = 1 << 16;
    pub(crate) const HUGETLB: u64 = 1 << 17;
    pub(crate) const UNEVICTABLE: u64 = 1 << 18;
    pub(crate) const NO_PAGE: u64 = 1 << 20;
    pub(crate) const ZERO_PAGE: u64 = 1 << 24;
}

/// Size of the largest folio, in pages of the kernel, that is searched around a page.
const MAX_FOLIO_PAGES: u64 = 512;

/// The kernel's facts about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameFacts {
    flags: u64,
    /// Number of page table entries that map the frame.
    pub mappings: u64,
}

impl FrameFacts {
    /// Whether the frame is neither on an LRU list nor reclaimable: locked, hugetlb, or not ordinary memory.
    pub(crate) fn is_special(self) -> bool {
        let special = bit::HUGETLB | bit::UNEVICTABLE | bit::NO_PAGE | bit::ZERO_PAGE;
        self.flags & special != 0
    }

    /// Whether the frame is anonymous memory.
    pub(crate) fn is_anonymous(self) -> bool {
        self.flags & bit::ANON != 0
    }

    /// Whether the frame is paged out to swap when it is reclaimed: anonymous or shared memory.
    pub(crate) fn is_swap_backed(self) -> bool {
        self.flags & (bit::ANON | bit::SWAP_BACKED) != 0
    }

    /// Whether the frame is on an active list.
    pub(crate) fn is_active(self) -> bool {
        self.flags & bit::ACTIVE != 0
    }
}

/// The files about frames, kept open.
#[derive(Debug)]
pub struct Frames {
    flags: File,
    counts: File,
    /// Control groups of frames; absent without CONFIG_MEMCG.
    groups: Option<File>,
}

impl Frames {
    /// Opens the files; needs CONFIG_PROC_PAGE_MONITOR and root.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            flags: File::open("/proc/kpageflags")?,
            counts: File::open("/proc/kpagecount")?,
            groups: File::open("/proc/kpagecgroup").ok(),
        })
    }

    /// Returns the kernel's facts about `frame`. Kernels before 6.10 tell the list of a large folio at its first page
    /// only.
    pub(crate) fn facts(&self, frame: u64) -> io::Result<FrameFacts> {
        let mut flags = read_word(&self.flags, frame)?;
        if flags & (bit::COMPOUND_TAIL | bit::LRU) == bit::COMPOUND_TAIL
            && let Some((first, _)) = self.folio(frame)?
        {
            flags = read_word(&self.flags, first)?;
        }
        let mappings = read_word(&self.counts, frame)?;
        Ok(FrameFacts { flags, mappings })
    }

    /// Whether `frame` holds a page on a reclaim list.
    pub fn is_on_lru(&self, frame: u64) -> io::Result<bool> {
        Ok(read_word(&self.flags, frame)? & bit::LRU != 0)
    }

    /// Returns the inode number of the control group to which `frame` is charged.
    pub fn group(&self, frame: u64) -> io::Result<u64> {
        match &self.groups {
            Some(groups) => read_word(groups, frame),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether MADV_COLD can clear the accessed bit of this frame's mapping. The frame must be mapped once, on an LRU
    /// list, and neither locked nor special (mm/madvise.c, madvise_cold_or_pageout).
    pub fn is_clearable(&self, frame: u64) -> io::Result<bool> {
        let facts = self.facts(frame)?;
        Ok(!facts.is_special() && facts.flags & bit::LRU != 0 && facts.mappings <= 1)
    }

    /// Whether `clear_refs` can clear the accessed bit of this frame's mapping, including shared and locked pages. It
    /// clears all but special and hugetlb pages (fs/proc/task_mmu.c, clear_refs_pte_range).
    pub fn is_clearable_by_clear_refs(&self, frame: u64) -> io::Result<bool> {
        let flags = read_word(&self.flags, frame)?;
        Ok(flags & (bit::HUGETLB | bit::NO_PAGE | bit::ZERO_PAGE) == 0)
    }

    /// Returns the frames `[first, end)` of the large folio that holds `frame`; `None` for a single page.
    pub fn folio(&self, frame: u64) -> io::Result<Option<(u64, u64)>> {
        let flags = read_word(&self.flags, frame)?;
        let shift = arch::frame_shift();
        let frame = frame >> shift;
        if flags & (bit::COMPOUND_HEAD | bit::COMPOUND_TAIL) == 0 {
            return Ok(None);
        }
        let lowest = frame.saturating_sub(MAX_FOLIO_PAGES - 1);
        let mut words = vec![0u8; (frame + MAX_FOLIO_PAGES - lowest) as usize * 8];
        let read = self.flags.read_at(&mut words, lowest * 8)?;
        let words = words[..read].as_chunks::<8>().0;
        let word = |at: u64| {
            let word = words.get((at - lowest) as usize);
            word.map_or(0, |word| u64::from_ne_bytes(*word))
        };
        let mut first = frame;
        while first > lowest && word(first) & bit::COMPOUND_TAIL != 0 {
            first -= 1;
        }
        let mut end = frame + 1;
        while end < frame + MAX_FOLIO_PAGES && word(end) & bit::COMPOUND_TAIL != 0 {
            end += 1;
        }
        Ok(Some((first << shift, end << shift)))
    }
}

fn read_word(file: &File, frame: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, (frame >> arch::frame_shift()) * 8)?;
    Ok(u64::from_ne_bytes(word))
}
