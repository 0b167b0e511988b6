//! Ticks, the unit of stored ages.

use crate::address::Nanos;

/// Ages are counted in 1/64 s from the start of monitoring: 776 days fit.
const TICK: u64 = 1_000_000_000 / 64;

pub(in crate::monitor) fn ticks(time: Nanos) -> u32 {
    u32::try_from(time.0 / TICK).unwrap_or(u32::MAX)
}

pub(in crate::monitor) fn nanos_of(ticks: u32) -> Nanos {
    Nanos(u64::from(ticks) * TICK)
}
