//! Memory of regions to which actions can apply.

use super::Action;
use isotherm_engine::address::{AddressRange, PAGE_SIZE};
use isotherm_engine::snapshot::{RegionSnapshot, Snapshot};

/// Returns the index of the last region that holds a page.
pub(super) fn last_region(snapshot: &Snapshot) -> Option<usize> {
    let holds_page = |region: &RegionSnapshot| whole_pages(region.range).is_some();
    snapshot.regions.iter().rposition(holds_page)
}

/// Returns the bytes among `addresses`, a part of the region's, that `action` can apply to: memory, and for `willneed`
/// swapped-out memory as well. DAMON counts addresses; so does this where the monitor does not know what they hold.
pub(super) fn memory_in(action: Action, region: &RegionSnapshot, addresses: u64) -> u64 {
    let swapped = region.memory.map_or(0, |memory| memory.swapped);
    let bytes = match action {
        Action::Willneed => region.resident().saturating_add(swapped),
        _ => region.resident(),
    };
    let share = u128::from(bytes) * u128::from(addresses) / u128::from(region.range.len().max(1));
    // A region that was cut since its memory was counted may claim more than it has addresses.
    u64::try_from(share).map_or(addresses, |bytes| bytes.min(addresses))
}

/// Returns the whole pages in `range`. Records of other tools may have regions that begin or end within a page.
pub(super) fn whole_pages(range: AddressRange) -> Option<AddressRange> {
    let start = range.start.checked_next_multiple_of(PAGE_SIZE)?;
    AddressRange::checked(start, range.end / PAGE_SIZE * PAGE_SIZE)
}
