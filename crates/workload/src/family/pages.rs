//! Sets of page numbers that count the members of any range quickly.

use std::ops::Range;

/// A set of numbers below a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
    /// Number of members below each word and in all; empty until [`PageSet::index`].
    below: Vec<u32>,
}

impl PageSet {
    /// Creates an empty set of numbers below `limit`.
    pub fn new(limit: usize) -> Self {
        Self {
            words: vec![0; limit.div_ceil(64)],
            below: Vec::new(),
        }
    }

    /// Adds a number.
    pub fn insert(&mut self, page: usize) {
        self.words[page / 64] |= 1 << (page % 64);
    }

    /// Whether it holds `page`.
    pub fn contains(&self, page: usize) -> bool {
        self.words[page / 64] >> (page % 64) & 1 == 1
    }

    /// Adds all of `other`, which has the same limit.
    pub fn add(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Removes all of `other`, which has the same limit.
    pub fn remove(&mut self, other: &Self) {
        for (word, less) in self.words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
    }

    /// Adds all members of each block of `len` numbers, a multiple of 64, that has a member.
    pub fn fill_blocks(&mut self, len: usize) {
        assert_eq!(len % 64, 0, "blocks are whole words");
        for block in self.words.chunks_mut(len / 64) {
            if block.iter().any(|word| *word != 0) {
                block.fill(u64::MAX);
            }
        }
    }

    /// Prepares [`PageSet::count`]; must be called again after a change.
    pub fn index(&mut self) {
        let mut sum = 0;
        self.below = vec![sum];
        self.below.extend(self.words.iter().map(|word| {
            sum += word.count_ones();
            sum
        }));
    }

    /// Number of members in `range`.
    pub fn count(&self, range: Range<usize>) -> u64 {
        self.rank(range.end) - self.rank(range.start)
    }

    /// Number of members.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn rank(&self, page: usize) -> u64 {
        assert!(!self.below.is_empty(), "the set is indexed");
        let word = (page / 64).min(self.words.len());
        let within = self
            .words
            .get(word)
            .map_or(0_u64, |bits| bits & ((1 << (page % 64)) - 1));
        u64::from(self.below[word] + within.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_any_range_are_counted() {
        let mut set = PageSet::new(200);
        for page in [0, 1, 63, 64, 130, 199] {
            set.insert(page);
        }
        set.index();
        for start in 0..=200 {
            for end in start..=200 {
                let slow = (start..end).filter(|page| set.contains(*page)).count();
                assert_eq!(set.count(start..end), slow as u64, "{start}..{end}");
            }
        }
        assert_eq!(set.len(), 6);
    }

    #[test]
    fn a_block_with_a_member_is_filled() {
        let mut set = PageSet::new(256);
        set.insert(130);
        set.fill_blocks(128);
        set.index();
        assert_eq!((set.count(0..128), set.count(128..256)), (0, 128));
    }
}
