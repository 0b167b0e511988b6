//! Selection of blocks that are worth a huge page, under a limit on the waste.
//!
//! Problem: a huge page saves translations, one for each of its pages that is used. It costs the pages of its block
//! that are never written: its waste. Programs that use part of every 2 MiB (grids with padded rows, slab heaps) grow
//! by half and more if all hot memory becomes huge. Some of their blocks save ten times as much as others, for the same
//! waste.
//!
//! Approach: blocks are ranked by waste per translation saved ([`rank`]). They are taken from the best on, while the
//! waste of all schemes' huge pages stays below a share of the targets' memory ([`MAX_WASTE`]). Accessed bits give the
//! savings: the number of the block's pages that were touched in an interval. `nohugepage` is the counterpart: it frees
//! the waste of idle huge pages.
//!
//! Limits: a page that is touched once in an interval counts as much as one that is touched a thousand times. A scan
//! counts as much as random accesses, which miss the TLB far more often. Only the waste of huge pages that schemes have
//! made counts; `isotherm report machine` reports that of others.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use isotherm_engine::address::PAGES_PER_BLOCK;
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::snapshot::TargetId;
use isotherm_engine::units::format_bytes;

/// Least number of wasted pages for which a huge page is split. Below it, the loss of its data (one translation for all
/// of it) outweighs the waste.
pub const UNUSED_MIN: u32 = 16;
/// Default share of the targets' memory that huge pages of schemes may waste.
pub const MAX_WASTE: f64 = 0.1;
/// Least number of translations that a huge page must save in an interval: fewer are not worth the copying.
pub const SAVED_MIN: f64 = 8.0;

/// State of a block, as reported by the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// Address of the block.
    pub block: u64,
    /// Whether one 2 MiB leaf maps it.
    pub is_huge: bool,
    /// Pages in memory.
    pub present: Bitmap,
    /// Number of pages in memory that the program has not written; `None` if their content was not checked.
    pub unused: Option<u32>,
}

impl BlockUse {
    /// Returns the number of pages that a huge page would add.
    pub fn missing(&self) -> u32 {
        PAGES_PER_BLOCK as u32 - bits::count(&self.present)
    }
}

/// A block that may become a huge page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Target that the block belongs to.
    pub target: TargetId,
    /// Address of the block.
    pub block: u64,
    /// Number of translations that a huge page saves in an interval.
    pub saved: f64,
    /// Number of pages that a huge page adds.
    pub waste: u32,
}

impl Candidate {
    /// Compares two candidates: less waste per translation comes first; among equals, more translations saved.
    fn order(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| f64::from(one.waste) * other.saved;
        cross(self, other)
            .total_cmp(&cross(other, self))
            .then(other.saved.total_cmp(&self.saved))
            .then((self.target, self.block).cmp(&(other.target, other.block)))
    }
}

/// Sorts candidates, the best first, and removes those that save next to nothing.
pub fn rank(candidates: &mut Vec<Candidate>) {
    candidates.retain(|candidate| candidate.saved >= SAVED_MIN);
    candidates.sort_unstable_by(Candidate::order);
}

/// Returns the ranked `candidates` whose waste fits into `room` pages, the best first. A block without waste always
/// fits.
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

/// Result of a trial: the gain in speed of a target by a few huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrialStatus {
    /// Bytes of these huge pages.
    pub huge: u64,
    /// Share by which the target became faster: lower bound, mean and upper bound (95 %).
    pub gain: [f64; 3],
}

impl fmt::Display for TrialStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, mean, high] = self.gain.map(|gain| 100.0 * gain);
        let huge = format_bytes(self.huge);
        write!(
            f,
            "trial: {huge} of huge pages changed the speed by {mean:+.1} % ({low:+.1} to {high:+.1}, 95 %)"
        )
    }
}

/// State of the huge pages that schemes have made under a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WasteStatus {
    /// Limit: a share of the targets' memory.
    pub max_share: f64,
    /// Trial whether huge pages pay back, once it has a result; of several targets, the one that gained most.
    #[serde(default)]
    pub trial: Option<TrialStatus>,
    /// Limit in bytes, of their current memory.
    pub max: u64,
    /// Bytes of the huge pages that schemes have made and that are still huge.
    pub huge: u64,
    /// Bytes of them that were never written. Where that was not checked yet, all added pages count.
    pub wasted: u64,
    /// Bytes that match the schemes' pattern and that the limit keeps in small pages.
    pub kept_small: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the blocks of (translations saved, waste) that are taken, if `room` pages may be wasted.
    fn taken(blocks: &[(f64, u32)], room: u64) -> Vec<u64> {
        let candidate = |(block, &(saved, waste)): (u64, &(f64, u32))| Candidate {
            target: TargetId(0),
            block,
            saved,
            waste,
        };
        let mut all: Vec<Candidate> = (0..).zip(blocks).map(candidate).collect();
        rank(&mut all);
        fitting(&all, room).map(|c| c.block).collect()
    }

    #[test]
    fn blocks_that_waste_least_for_what_they_save_come_first() {
        let blocks = [(256.0, 256), (512.0, 0), (400.0, 112), (100.0, 0)];
        assert_eq!(taken(&blocks, 1000), [1, 3, 2, 0]);
        // The last one does not fit any more.
        assert_eq!(taken(&blocks, 300), [1, 3, 2]);
        // A block without waste is always taken.
        assert_eq!(taken(&blocks, 0), [1, 3]);
        // A smaller one may fit where a better one does not.
        assert_eq!(taken(&[(400.0, 112), (20.0, 50)], 60), [1]);
        // What is hardly touched is not worth the copying.
        assert_eq!(taken(&[(7.0, 0), (8.0, 0)], 0), [1]);
    }
}
