//! A check of what snapshots claim.

use isotherm_engine::RegionSnapshot;

/// Checks the memory that a region claims: it must not exceed the addresses, nor the parts the whole. Returns a
/// description of the fault.
pub(crate) fn check_memory(region: &RegionSnapshot) -> Result<(), String> {
    let Some(memory) = region.memory else {
        return Ok(());
    };
    let is_within = |sum: Option<u64>, whole: u64| sum.is_some_and(|sum| sum <= whole);
    let parts = memory.touched.checked_add(memory.unknown);
    let all = memory.resident.checked_add(memory.swapped);
    if is_within(parts, memory.resident) && is_within(all, region.range.len()) {
        return Ok(());
    }
    Err(format!(
        "has a region of {} bytes with {} resident ({} touched, {} unknown) and {} swapped out",
        region.range.len(),
        memory.resident,
        memory.touched,
        memory.unknown,
        memory.swapped
    ))
}
