//! Ages of the idle pages of a block in which other pages are in use.

use crate::address::{AddressRange, BLOCK_SIZE, Nanos, PAGES_PER_BLOCK};
use crate::monitor::bits::{self, Bitmap};

/// The unit of the pages' ages, half a second; ages are rounded down.
const UNIT: Nanos = Nanos(500_000_000);

/// The definition of a page's age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAgeRule {
    /// The time for which the page has been idle.
    Idle,
    /// The idle time, divided by the square of one plus the number of idle times of the page that ended
    /// ([`COUNTED_FROM`], [`ENDS_HALVE_AFTER`]). The oldest pages by this rule stay away longest, and schemes with an age
    /// condition need no change.
    ByEnds,
}

/// Shortest idle time whose end is counted for a page.
pub const COUNTED_FROM: Nanos = Nanos(8_000_000_000);
/// Largest number of ended idle times that is counted for a page.
pub const ENDS_MAX: u32 = 15;
/// Time after which the numbers of ended idle times are halved. A page that is idle for good is thus not held against
/// what it did long ago.
pub const ENDS_HALVE_AFTER: Nanos = Nanos(256_000_000_000);

impl PageAgeRule {
    /// Returns the age of a page that has been idle for `idle_for`, and of which `nr_ends` idle times ended before.
    pub fn age(self, idle_for: Nanos, nr_ends: u32) -> Nanos {
        match self {
            Self::Idle => idle_for,
            Self::ByEnds => Nanos(idle_for.0 / u64::from((1 + nr_ends) * (1 + nr_ends))),
        }
    }
}

/// The pages of a block that are known to be idle, each with its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdlePages {
    /// Start address of the block, a multiple of its size.
    pub block: u64,
    /// The pages.
    pub pages: Bitmap,
    /// The least and the greatest age of all pages.
    youngest: u16,
    oldest: u16,
    ages: Box<[u16; PAGES_PER_BLOCK]>,
}

impl IdlePages {
    /// Creates an empty set for the block at `block`.
    pub fn new(block: u64) -> Self {
        Self {
            block,
            pages: bits::NONE,
            youngest: u16::MAX,
            oldest: 0,
            ages: Box::new([0; PAGES_PER_BLOCK]),
        }
    }

    /// Adds `page` with its age.
    pub fn add(&mut self, page: usize, age: Nanos) {
        bits::set(&mut self.pages, page);
        let age = u16::try_from(age.0 / UNIT.0).unwrap_or(u16::MAX);
        self.ages[page] = age;
        self.youngest = self.youngest.min(age);
        self.oldest = self.oldest.max(age);
    }

    /// Returns the pages in `range` with an age from `min` to `max`.
    pub fn of_age(&self, range: AddressRange, min: Nanos, max: Nanos) -> Bitmap {
        // The true age lies between this number of units and one more.
        let units = |age: u64| u16::try_from(age).unwrap_or(u16::MAX);
        let (min, max) = (units(min.0.div_ceil(UNIT.0)), units(max.0 / UNIT.0));
        if self.oldest < min || max < self.youngest {
            return bits::NONE;
        }
        let mut of_age = bits::and(&self.pages, &bits::mask(self.block, range));
        if min <= self.youngest && self.oldest <= max {
            return of_age;
        }
        // Plans ask about every part of a mixed block, and each time about a few pages only.
        for (word, ages) in of_age.iter_mut().zip(self.ages.as_chunks::<64>().0) {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let is_of_age = (min..=max).contains(&ages[bit as usize]);
                *word &= !(u64::from(!is_of_age) << bit);
            }
        }
        of_age
    }

    /// Returns the mean age of `pages`, all of which must be in the set.
    pub fn mean_age(&self, pages: &Bitmap) -> Nanos {
        let ages = bits::each(pages).map(|page| u64::from(self.ages[page]));
        let sum: u64 = ages.sum();
        Nanos(sum * UNIT.0 / u64::from(bits::count(pages)).max(1))
    }

    /// Returns the addresses of the block.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.block, self.block + BLOCK_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PAGE_SIZE;

    #[test]
    fn pages_are_found_by_age() {
        let mut idle = IdlePages::new(BLOCK_SIZE);
        for page in 0..8 {
            let age = PageAgeRule::ByEnds.age(Nanos::from_millis(40_400), page as u32 / 2);
            idle.add(page, age);
        }
        let of_age = |min_s: u64, max_s: u64| {
            let max = Nanos::from_millis(max_s * 1000);
            idle.of_age(idle.range(), Nanos::from_millis(min_s * 1000), max)[0]
        };
        assert_eq!(of_age(40, 100), 0b11);
        assert_eq!(of_age(41, 100), 0);
        assert_eq!(of_age(10, 100), 0b1111);
        assert_eq!(of_age(10, 20), 0b1100);
        assert_eq!(of_age(0, 1_000_000), 0xFF);
        let part = AddressRange::new(BLOCK_SIZE + PAGE_SIZE, BLOCK_SIZE + 3 * PAGE_SIZE);
        assert_eq!(idle.of_age(part, Nanos(0), Nanos(u64::MAX))[0], 0b110);
        let mean = idle.mean_age(&[0b110, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mean, Nanos(25_000_000_000));
    }
}
