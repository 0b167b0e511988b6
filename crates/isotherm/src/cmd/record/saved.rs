//! The memory that acting has saved so far.

use isotherm_engine::units::format_bytes;

/// Memory that is saved by swapping out: the growth of the targets' swap since the start, less the memory that
/// compressed swap takes for it.
#[derive(Default)]
pub(super) struct Saved {
    /// Bytes in swap and in zram's pools at the first sample.
    first: Option<(u64, u64)>,
    swapped: u64,
    pool: u64,
}

impl Saved {
    pub(super) fn look(&mut self, swap: u64) {
        let pool = isotherm_linux::swap::pool_bytes();
        let (first_swap, first_pool) = *self.first.get_or_insert((swap, pool));
        self.swapped = swap.saturating_sub(first_swap);
        self.pool = pool.saturating_sub(first_pool);
    }

    pub(super) fn text(&self) -> String {
        format!(
            "saved {} ({} in swap, zram takes {})",
            format_bytes(self.swapped.saturating_sub(self.pool)),
            format_bytes(self.swapped),
            format_bytes(self.pool),
        )
    }
}
