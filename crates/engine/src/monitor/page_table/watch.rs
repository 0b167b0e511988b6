//! Blocks whose accessed bits are cleared, and the method.

use crate::address::Nanos;
use crate::monitor::bits::{Bitmap, NONE, is_empty};
use crate::snapshot::TargetId;

/// Longest time for which a target may be held up.
pub const HOLD_MAX: Nanos = Nanos::from_millis(25);

/// The method by which accessed bits are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearedBy {
    /// A range of addresses, except for memory that other processes map too.
    Range,
    /// The whole address space.
    Space,
}

/// A block with pages to clear, and the result.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) target: TargetId,
    pub(super) address: u64,
    /// All unsampled pages of the block are cleared.
    pub(super) is_whole: bool,
    pub(super) by: ClearedBy,
    pub(super) pages: Bitmap,
    /// Pages whose bit was clear afterwards: they are watched.
    pub(super) watched: Bitmap,
    /// Pages that were cleared and touched at once.
    pub(super) touched_at_once: Bitmap,
    /// Number of pages that were touched by the end of the window.
    pub(super) touched_in_window: Option<u32>,
}

impl Watch {
    /// Returns a watch of pages that are not cleared yet, of the block at `place`: its target and address.
    pub(super) fn new(
        place: (TargetId, u64),
        by: ClearedBy,
        is_whole: bool,
        pages: Bitmap,
    ) -> Self {
        Self {
            target: place.0,
            address: place.1,
            is_whole,
            by,
            pages,
            watched: NONE,
            touched_at_once: NONE,
            touched_in_window: None,
        }
    }

    /// Returns its place in the order of watches.
    pub(super) fn place(&self) -> (TargetId, u64) {
        (self.target, self.address)
    }

    /// Returns whether no page of the block was there to be cleared.
    pub(super) fn is_empty(&self) -> bool {
        is_empty(&self.watched) && is_empty(&self.touched_at_once)
    }
}
