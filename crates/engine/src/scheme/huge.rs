//! Which blocks of memory are worth a huge page, and how much may be spent on them.
//!
//! Problem: a huge page saves translations, one for each page of it that is used, and costs the pages of its
//! block that nobody writes: its waste. Programs that use a part of every 2 MiB (grids with padded rows, slab
//! heaps) grow by half and more if all that is hot becomes huge; and some of their blocks save ten times
//! what others do, for the same waste.
//!
//! Approach: blocks are ranked by waste per translation saved ([`rank`]), and taken from the best on while
//! the waste of all huge pages that schemes have made stays below a share of the targets' memory
//! ([`MAX_WASTE`]). What is saved is what accessed bits tell: how many of its pages were touched in an
//! interval. `nohugepage` is the other half: it gives the waste of idle huge pages back.
//!
//! Limits: a page that is touched once in an interval counts as much as one that is touched a thousand
//! times, and a scan as much as random accesses, which miss the TLB far more often. Only the waste of huge
//! pages counts that schemes have made; `isotherm report machine` tells that of others.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::address::{PAGE_SIZE, PAGES_PER_BLOCK};
use crate::monitor::bits::{self, Bitmap};
use crate::snapshot::TargetId;

/// A huge page is split for its waste where that is so many pages at least: below, what its data lose (one
/// translation for all of it) is worth more.
pub const UNUSED_MIN: u32 = 16;
/// Share of the targets' memory that huge pages of schemes may waste, unless the user says otherwise.
pub const MAX_WASTE: f64 = 0.1;
/// Translations that a huge page must save in an interval at least: fewer are not worth the copying.
pub const SAVED_MIN: f64 = 8.0;

/// What the world tells of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// Its address.
    pub block: u64,
    /// One 2 MiB leaf maps it.
    pub is_huge: bool,
    /// Its pages in memory.
    pub present: Bitmap,
    /// Pages in memory that the program has not written, where its content was looked at.
    pub unused: Option<u32>,
}

impl BlockUse {
    /// Pages that a huge page would add.
    pub fn missing(&self) -> u32 {
        PAGES_PER_BLOCK as u32 - bits::count(&self.present)
    }
}

/// A block that may become a huge page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Whose memory.
    pub target: TargetId,
    /// Its address.
    pub block: u64,
    /// Translations that a huge page saves in an interval.
    pub saved: f64,
    /// Pages that it adds.
    pub waste: u32,
}

impl Candidate {
    /// Which one comes first: the one that wastes less for each translation; among equals, the one that saves
    /// more.
    fn order(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| f64::from(one.waste) * other.saved;
        cross(self, other)
            .total_cmp(&cross(other, self))
            .then(other.saved.total_cmp(&self.saved))
            .then((self.target, self.block).cmp(&(other.target, other.block)))
    }
}

/// Sorts candidates, the best first, without those that save next to nothing.
pub fn rank(candidates: &mut Vec<Candidate>) {
    candidates.retain(|candidate| candidate.saved >= SAVED_MIN);
    candidates.sort_unstable_by(Candidate::order);
}

/// Those of ranked `candidates` whose waste goes into `room` pages, the best first. A block without waste
/// always does.
pub fn fitting(candidates: &[Candidate], room: u64) -> impl Iterator<Item = &Candidate> {
    let mut left = room;
    candidates.iter().filter(move |candidate| {
        let waste = u64::from(candidate.waste);
        let fits = waste <= left;
        if fits {
            left -= waste;
        }
        fits
    })
}

/// How huge pages stand that schemes have made under a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WasteStatus {
    /// The bound: a share of the targets' memory.
    pub max_share: f64,
    /// The bound in bytes, of their memory as of now.
    pub max: u64,
    /// Memory in huge pages that schemes have made, and that still are.
    pub huge: u64,
    /// What of it nobody has written, as far as it was looked at: all that was added, where it was not yet.
    pub wasted: u64,
    /// Memory that the schemes' pattern fits and that the bound keeps in small pages.
    pub kept_small: u64,
}

/// Pages as bytes.
pub(crate) const fn bytes(pages: u64) -> u64 {
    pages * PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(block: u64, saved: f64, waste: u32) -> Candidate {
        Candidate {
            target: TargetId(0),
            block,
            saved,
            waste,
        }
    }

    /// Which blocks of (translations saved, waste) are taken, if so much may be wasted.
    fn taken(blocks: &[(f64, u32)], room: u64) -> Vec<u64> {
        let blocks = (0..).zip(blocks);
        let mut all: Vec<Candidate> = blocks
            .map(|(block, (saved, waste))| candidate(block, *saved, *waste))
            .collect();
        rank(&mut all);
        fitting(&all, room).map(|c| c.block).collect()
    }

    #[test]
    fn blocks_that_waste_least_for_what_they_save_come_first() {
        let blocks = [(256.0, 256), (512.0, 0), (400.0, 112), (100.0, 0)];
        assert_eq!(taken(&blocks, 1000), [1, 3, 2, 0]);
        // The last one fits no more.
        assert_eq!(taken(&blocks, 300), [1, 3, 2]);
        // What costs nothing is always taken.
        assert_eq!(taken(&blocks, 0), [1, 3]);
    }

    #[test]
    fn a_smaller_one_may_fit_where_a_better_one_does_not() {
        assert_eq!(taken(&[(400.0, 112), (20.0, 50)], 60), [1]);
    }

    #[test]
    fn what_is_hardly_touched_is_not_worth_the_copying() {
        assert_eq!(taken(&[(7.0, 0), (8.0, 0)], 0), [1]);
    }
}
