//! Sets of a block's pages, and counts of pages by state.

use crate::address::PAGES_PER_BLOCK;
use crate::monitor::bits::{Bitmap, NONE, and, count, mask_of};

/// The touched and the unsampled pages of a block in an interval.
pub(super) struct Seen {
    pub(super) touched: Bitmap,
    pub(super) unsampled: Bitmap,
}

/// Some of a block's pages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pages {
    All,
    /// Pages of a mask in one word of the bitmaps, for example of a granule.
    Word(usize, u64),
    Mask(Bitmap),
}

impl Pages {
    /// Returns the pages `range`, by index in the block.
    pub(super) fn of(range: std::ops::Range<usize>) -> Self {
        let (word, last) = (range.start / 64, (range.end - 1) / 64);
        if range == (0..PAGES_PER_BLOCK) {
            Self::All
        } else if word == last {
            let low = u64::MAX << (range.start % 64);
            Self::Word(word, low & u64::MAX >> (63 - (range.end - 1) % 64))
        } else {
            Self::Mask(mask_of(range))
        }
    }

    /// Returns the pages of `map` that belong to the set.
    pub(super) fn of_map(&self, map: &Bitmap) -> Bitmap {
        match self {
            Self::All => *map,
            Self::Word(word, mask) => {
                let mut part = NONE;
                part[*word] = map[*word] & mask;
                part
            }
            Self::Mask(mask) => and(map, mask),
        }
    }

    #[inline]
    pub(super) fn count(&self, map: &Bitmap) -> u32 {
        match self {
            Self::All => count(map),
            Self::Word(word, mask) => (map[*word] & mask).count_ones(),
            Self::Mask(mask) => count(&and(map, mask)),
        }
    }
}

/// Numbers of pages by state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) resident: f64,
    pub(super) touched: f64,
    pub(super) unknown: f64,
    pub(super) swapped: f64,
}
