//! The state of each page of a block.

use serde::{Deserialize, Serialize};

use super::bits::{Bitmap, and, and_not, has, is_empty};
use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};

/// The state of each page of a 2 MiB block in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlockPages {
    /// Start address of the block, a multiple of its size.
    pub block: u64,
    /// Pages in memory.
    pub resident: Bitmap,
    /// Resident pages that were touched.
    pub touched: Bitmap,
    /// Resident pages with unknown accesses; none of them is in `touched`.
    pub unknown: Bitmap,
    /// Pages swapped out; none is resident.
    pub swapped: Bitmap,
    /// Mean time since the last access to the untouched pages.
    pub untouched_for: Nanos,
}

impl BlockPages {
    /// Checks the bitmaps for contradictions.
    ///
    /// # Errors
    /// Fails if they contradict each other; the text continues a sentence that begins with "the block".
    pub fn check(&self) -> Result<(), &'static str> {
        let is_there = |pages: &Bitmap| is_empty(&and_not(pages, &self.resident));
        let are_apart = |a: &Bitmap, b: &Bitmap| is_empty(&and(a, b));
        if !self.block.is_multiple_of(BLOCK_SIZE) || self.block > u64::MAX - BLOCK_SIZE {
            Err("is not where a block can be")
        } else if !is_there(&self.touched) || !is_there(&self.unknown) {
            Err("has pages that are touched or unknown, but not there")
        } else if !are_apart(&self.touched, &self.unknown) {
            Err("has pages that are touched and unknown")
        } else if !are_apart(&self.resident, &self.swapped) {
            Err("has pages that are there and swapped out")
        } else {
            Ok(())
        }
    }

    pub(super) fn range(&self) -> AddressRange {
        AddressRange::new(self.block, self.block + BLOCK_SIZE)
    }

    fn page(&self, page: usize) -> Page {
        if has(&self.touched, page) {
            Page::Touched
        } else if has(&self.unknown, page) {
            Page::Unknown
        } else if has(&self.resident, page) {
            Page::Untouched
        } else if has(&self.swapped, page) {
            Page::Swapped
        } else {
            Page::Absent
        }
    }

    /// Returns its pages in `range`, as stretches of one state.
    pub(super) fn stretches(
        &self,
        range: AddressRange,
    ) -> impl Iterator<Item = (AddressRange, Page)> + '_ {
        let page = |address: u64| ((address - self.block) / PAGE_SIZE) as usize;
        let part = range.intersection(self.range());
        let (mut from, end) = part.map_or((0, 0), |part| (page(part.start), page(part.end)));
        std::iter::from_fn(move || {
            let state = (from < end).then(|| self.page(from))?;
            let first = from;
            let next = (from..end).find(|at| self.page(*at) != state);
            from = next.unwrap_or(end);
            let at = |page: usize| self.block + page as u64 * PAGE_SIZE;
            let stretch = AddressRange::new(at(first), at(from));
            Some((stretch.intersection(range)?, state))
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Absent,
    Touched,
    Untouched,
    Unknown,
    Swapped,
}
