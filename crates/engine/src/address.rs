//! Addresses, ranges of addresses, and durations: the units that all other modules use.
//!
//! An address is a plain `u64`, virtual or physical according to the target it belongs to; a
//! duration or a point in time is [`Nanos`]. Ranges are half open, as everywhere in the kernel.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Bytes in a base page: of x86-64, and of arm64 kernels with pages of 4 KiB.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes that one lowest-level page table maps, and the size of the usual huge page.
pub const BLOCK_SIZE: u64 = 2 << 20;
/// Base pages in a [`BLOCK_SIZE`] block.
pub const PAGES_PER_BLOCK: usize = (BLOCK_SIZE / PAGE_SIZE) as usize;

/// Whether a file backs mappings of this name. Shared memory also has a name, but is paged out to swap.
pub fn is_name_of_file(name: &str) -> bool {
    let shared_memory = ["/dev/shm/", "/memfd:", "/dev/zero", "/SYSV"];
    name.starts_with('/') && !shared_memory.iter().any(|p| name.starts_with(p))
}

/// Nanoseconds: a duration, or a point in time since the Unix epoch on a clock that never steps back.
///
/// The engine only subtracts and compares; it never reads a clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// `us` microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// Returns the duration in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl From<std::time::Duration> for Nanos {
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The half-open range of addresses `[start, end)`. Never empty, never backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddressRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl AddressRange {
    /// Returns `[start, end)`.
    ///
    /// # Panics
    /// If `start >= end`: a caller's bug. Use [`AddressRange::checked`] for input.
    pub const fn new(start: u64, end: u64) -> Self {
        assert!(start < end, "a range ends after it starts");
        Self { start, end }
    }

    /// Returns `[start, end)`, or `None` if that holds no byte.
    pub const fn checked(start: u64, end: u64) -> Option<Self> {
        if start < end {
            Some(Self { start, end })
        } else {
            None
        }
    }

    /// Size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns whether `address` lies in the range.
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Returns the union of `ranges` in address order; adjacent ranges become one.
    pub fn union(ranges: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut union: Vec<Self> = ranges.into_iter().collect();
        union.sort_unstable();
        union.dedup_by(|next, last| {
            let is_joined = next.start <= last.end;
            if is_joined {
                last.end = last.end.max(next.end);
            }
            is_joined
        });
        union
    }

    /// Returns the parts of `ranges` that lie in `limits`, range by range; all of `ranges` if there are no limits.
    pub fn within(ranges: impl IntoIterator<Item = Self>, limits: &[Self]) -> Vec<Self> {
        let ranges = ranges.into_iter();
        if limits.is_empty() {
            return ranges.collect();
        }
        let parts = |range: Self| limits.iter().filter_map(move |l| range.intersection(*l));
        ranges.flat_map(parts).collect()
    }

    /// Returns the parts of the range that no range of `taken`, in address order, covers.
    pub fn without(self, taken: &[Self]) -> Vec<Self> {
        let mut gaps = Vec::new();
        let mut start = self.start;
        let first = taken.partition_point(|t| t.end <= self.start);
        for taken in taken[first..].iter().take_while(|t| t.start < self.end) {
            gaps.extend(Self::checked(start, taken.start));
            start = start.max(taken.end);
        }
        gaps.extend(Self::checked(start, self.end));
        gaps
    }

    /// Returns the part that both ranges share.
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::checked(self.start.max(other.start), self.end.min(other.end))
    }
}

/// Returns the start of the 2 MiB block that `address` lies in.
pub const fn block_of(address: u64) -> u64 {
    address & !(BLOCK_SIZE - 1)
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x},{:#x})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_left() {
        let range = AddressRange::new;
        let taken = [range(2, 4), range(6, 8)];
        let wanted = [range(0, 2), range(4, 6), range(8, 10)];
        assert_eq!(range(0, 10).without(&taken), wanted);
        assert_eq!(range(3, 7).without(&taken), [range(4, 6)]);
        assert_eq!(range(2, 4).without(&taken), []);
    }
}
