//! A set of small numbers that finds its next member fast, however sparse it is.
//!
//! It is a tree of words: a bit of a level says whether the word below it is empty. A billion bits are five levels, so
//! each operation touches at most five words.

/// A set whose members are less than its length.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    /// Levels of the tree: the members, then the words of the level before that are not empty, and so on. The last
    /// level is one word.
    levels: Vec<Vec<u64>>,
}

impl Bits {
    pub(crate) fn new(length: u64) -> Self {
        let mut levels = Vec::new();
        let mut words = length.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words as usize]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    /// Extends the set to numbers less than `length`, which is not less than before.
    pub(crate) fn grow(&mut self, length: u64) {
        let mut words = length.div_ceil(64).max(1) as usize;
        let mut height = 0;
        loop {
            if height == self.levels.len() {
                let mut level = vec![0; words];
                let below = self.levels[height - 1].iter().enumerate();
                for (i, _) in below.filter(|(_, word)| **word != 0) {
                    level[i / 64] |= 1 << (i % 64);
                }
                self.levels.push(level);
            } else {
                self.levels[height].resize(words, 0);
            }
            if words == 1 {
                return;
            }
            words = words.div_ceil(64);
            height += 1;
        }
    }

    pub(crate) fn contains(&self, member: u64) -> bool {
        let word = self.levels[0].get((member / 64) as usize);
        word.is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, mut member: u64) {
        for level in &mut self.levels {
            let word = &mut level[(member / 64) as usize];
            let was_empty = *word == 0;
            *word |= 1 << (member % 64);
            if !was_empty {
                return;
            }
            member /= 64;
        }
    }

    pub(crate) fn remove(&mut self, mut member: u64) {
        for level in &mut self.levels {
            let word = &mut level[(member / 64) as usize];
            *word &= !(1 << (member % 64));
            if *word != 0 {
                return;
            }
            member /= 64;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels.last().is_none_or(|top| top[0] == 0)
    }

    /// The least member that is not less than `from`.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get((at / 64) as usize)?;
            let rest = word & (u64::MAX << (at % 64));
            if rest != 0 {
                let found = at / 64 * 64 + u64::from(rest.trailing_zeros());
                let below = self.levels[..height].iter().rev();
                let first = |at: u64, level: &Vec<u64>| {
                    at * 64 + u64::from(level[at as usize].trailing_zeros())
                };
                return Some(below.fold(found, first));
            }
            at = at / 64 + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            length in 1_u64..20_000,
            growths in prop::collection::vec(0_u64..5_000, 0..4),
            changes in prop::collection::vec((any::<bool>(), any::<u64>()), 0..200),
            at in any::<u64>(),
        ) {
            let (mut bits, mut set) = (Bits::new(length), BTreeSet::new());
            let (mut length, mut growths) = (length, growths.into_iter());
            for (insert, member) in changes {
                length += growths.next().unwrap_or(0);
                bits.grow(length);
                let member = member % length;
                if insert {
                    bits.insert(member);
                    set.insert(member);
                } else {
                    bits.remove(member);
                    set.remove(&member);
                }
                prop_assert_eq!(bits.contains(member), insert);
            }
            let at = at % length;
            prop_assert_eq!(bits.first_from(at), set.range(at..).next().copied());
        }
    }
}
