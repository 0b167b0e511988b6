//! Counts of the pages of a block that were read back after a page-out.

use crate::monitor::bits::{Bitmap, NONE, and, or};

/// Number of times that each page was read back, up to three: the lower and the upper bit of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returns {
    low: Bitmap,
    high: Bitmap,
}

impl Returns {
    pub(super) const NONE: Self = Self {
        low: NONE,
        high: NONE,
    };

    /// Adds one read-back for each of `pages`.
    pub(super) fn add(&mut self, pages: &Bitmap) {
        for (at, pages) in pages.iter().enumerate() {
            let (low, high) = (self.low[at], self.high[at]);
            self.high[at] = high | pages & low;
            self.low[at] = low ^ pages | pages & low & high;
        }
    }

    /// Forgets all pages but `pages`.
    pub(super) fn keep(&mut self, pages: &Bitmap) {
        self.low = and(&self.low, pages);
        self.high = and(&self.high, pages);
    }

    pub(super) fn is_empty(&self) -> bool {
        or(&self.low, &self.high) == NONE
    }

    /// Returns how many times `page` was read back, up to three.
    pub(super) fn of(&self, page: usize) -> u32 {
        let bit = |map: &Bitmap| (map[page / 64] >> (page % 64) & 1) as u32;
        bit(&self.low) + 2 * bit(&self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::bits::mask_of;

    #[test]
    fn returns_are_counted_up_to_three() {
        let mut returns = Returns::NONE;
        for first in 1..6 {
            returns.add(&mask_of(first..8));
        }
        let counts: Vec<u32> = (0..9).map(|page| returns.of(page)).collect();
        assert_eq!(counts, [0, 1, 2, 3, 3, 3, 3, 3, 0]);
        returns.keep(&mask_of(0..2));
        assert_eq!((returns.of(1), returns.of(5)), (1, 0));
        returns.keep(&NONE);
        assert!(returns.is_empty());
    }
}
