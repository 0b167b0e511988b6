//! Sets of a block's pages: granules that share an age, counts of pages by state.

use crate::address::{PAGE_SIZE, PAGES_PER_BLOCK};
use crate::monitor::bits::{Bitmap, NONE, and, count, mask_of};

/// Pages that share an age.
pub(super) const GRANULE_PAGES: usize = 16;
pub(super) const GRANULES: usize = PAGES_PER_BLOCK / GRANULE_PAGES;
pub(super) const GRANULE_BYTES: u64 = GRANULE_PAGES as u64 * PAGE_SIZE;

/// Ticks since which the granules of a block are in their states. One value suffices while all are the same.
#[derive(Clone, Debug)]
pub(super) enum Since {
    All(u32),
    Each(Box<[u32; GRANULES]>),
}

impl Default for Since {
    fn default() -> Self {
        Self::All(0)
    }
}

impl Since {
    pub(super) fn of(&self, granule: usize) -> u32 {
        match self {
            Self::All(since) => *since,
            Self::Each(each) => each[granule],
        }
    }

    pub(super) fn mean(&self) -> f64 {
        match self {
            Self::All(since) => f64::from(*since),
            Self::Each(each) => each.iter().map(|s| f64::from(*s)).sum::<f64>() / GRANULES as f64,
        }
    }

    pub(super) fn set(&mut self, granules: impl Iterator<Item = usize>, now: u32) {
        if let Self::All(since) = *self {
            *self = Self::Each(Box::new([since; GRANULES]));
        }
        if let Self::Each(each) = self {
            granules.for_each(|granule| each[granule] = now);
        }
    }
}

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

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) resident: f64,
    pub(super) touched: f64,
    pub(super) unknown: f64,
    pub(super) swapped: f64,
}
