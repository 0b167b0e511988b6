//! A block of which accessed bits are cleared, and how.

use crate::address::Nanos;
use crate::monitor::bits::Bitmap;
use crate::snapshot::TargetId;

/// Longest that a target may be held up.
pub const HOLD_MAX: Nanos = Nanos::from_millis(25);

/// How accessed bits are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearedBy {
    /// A range of addresses, but for memory that others map, too.
    Range,
    /// The whole address space.
    Space,
}

/// A block of which pages are cleared, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) target: TargetId,
    pub(super) address: u64,
    /// All blind pages of the block are cleared.
    pub(super) is_whole: bool,
    pub(super) by: ClearedBy,
    /// The pages to clear.
    pub(super) pages: Bitmap,
    /// Of these, the ones that came clear: they are watched.
    pub(super) watched: Bitmap,
    /// The ones that did not.
    pub(super) uncleared: Bitmap,
    /// The uncleared ones were touched at once; else they cannot be cleared.
    pub(super) is_uncleared_touched: bool,
    /// How many were touched by the end of the window.
    pub(super) touched_in_window: Option<u32>,
}
