//! Granules of a block: pages that share an age.

use crate::address::{PAGE_SIZE, PAGES_PER_BLOCK};

/// Pages that share an age.
pub(super) const GRANULE_PAGES: usize = 16;
pub(super) const GRANULES: usize = PAGES_PER_BLOCK / GRANULE_PAGES;
/// Bytes of a granule.
pub(super) const GRANULE_BYTES: u64 = GRANULE_PAGES as u64 * PAGE_SIZE;

/// Ticks since which the granules of a block are in their states. One value suffices while all are the same.
#[derive(Clone, Debug)]
pub(super) enum Since {
    All(u32),
    Each(Box<[u32; GRANULES]>),
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

    /// Sets the time of `granules` to `now`.
    pub(super) fn set(&mut self, granules: impl Iterator<Item = usize>, now: u32) {
        if let Self::All(since) = *self {
            *self = Self::Each(Box::new([since; GRANULES]));
        }
        if let Self::Each(each) = self {
            granules.for_each(|granule| each[granule] = now);
        }
    }
}
