//! The monitored address ranges of a target, derived from its mappings for both monitors.
//!
//! Problem: a process's address space is 128 TiB, almost all of it unmapped. DAMON (`mm/damon/vaddr.c`) leaves out the
//! two largest unmapped gaps (below and above the memory maps, usually). The adaptive regions must find the smaller
//! ones. That is cheap and robust. With a large reservation that is mostly not populated, however, most samples hit
//! nothing.
//!
//! Approach: either DAMON's three ranges, or only the populated memory if the world can report it. That is coalesced
//! over gaps of less than a page table (2 MiB). Ranges given by the user are taken unchanged.
//!
//! Limits: populated memory is read once per update interval, and new memory is watched from the next update on. A very
//! scattered target is coalesced over larger gaps, so ranges alone never use up the regions.

use crate::address::{AddressRange, BLOCK_SIZE, PAGE_SIZE};

/// The known layout of a target's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A process's mappings, in any order.
    Mappings {
        /// Every mapping.
        mappings: Vec<AddressRange>,
        /// The populated parts of the mappings, if known.
        populated: Option<Vec<AddressRange>>,
    },
    /// Exactly these ranges: given by the user, or physical memory.
    Fixed(Vec<AddressRange>),
}

/// A mapping, by its range; its start identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    pub range: AddressRange,
}

impl Layout {
    /// Returns the ranges to monitor, ascending, in whole pages and apart from each other. There are about `nr_max` at
    /// most, unless the user named more.
    pub(crate) fn ranges(&self, populated_only: bool, nr_max: usize) -> Vec<AddressRange> {
        match self {
            Self::Fixed(ranges) => coalesce(ranges, 0),
            Self::Mappings {
                mappings,
                populated,
            } if populated_only => {
                let spans = populated.as_ref().unwrap_or(mappings);
                let mut gap = BLOCK_SIZE - 1;
                loop {
                    let ranges = coalesce(spans, gap);
                    if ranges.len() <= nr_max.max(1) {
                        return ranges;
                    }
                    gap = gap.saturating_mul(2);
                }
            }
            Self::Mappings { mappings, .. } => three_ranges(&coalesce(mappings, 0)),
        }
    }

    /// Returns the starts and ends of mappings, ascending.
    pub(crate) fn boundaries(&self) -> Vec<u64> {
        let (Self::Fixed(ranges)
        | Self::Mappings {
            mappings: ranges, ..
        }) = self;
        let mut boundaries: Vec<u64> = ranges
            .iter()
            .filter_map(|range| whole_pages(*range))
            .flat_map(|range| [range.start, range.end])
            .collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        boundaries
    }
}

/// Extends a range to whole pages; returns `None` if that leaves the address space.
fn whole_pages(range: AddressRange) -> Option<AddressRange> {
    let start = range.start / PAGE_SIZE * PAGE_SIZE;
    AddressRange::checked(start, range.end.checked_next_multiple_of(PAGE_SIZE)?)
}

/// Returns the union of ranges, extended to whole pages; ranges at most `gap` bytes apart become one.
fn coalesce(ranges: &[AddressRange], gap: u64) -> Vec<AddressRange> {
    AddressRange::union(ranges.iter().filter_map(|range| whole_pages(*range)), gap)
}

/// Returns the ranges around the two largest gaps between `mappings` (ascending and apart). With fewer gaps there are
/// fewer ranges; the kernel would give up on such a process.
fn three_ranges(mappings: &[AddressRange]) -> Vec<AddressRange> {
    let gap_after = |i: usize| mappings[i + 1].start - mappings[i].end;
    let mut largest: [Option<usize>; 2] = [None, None];
    for i in 0..mappings.len().saturating_sub(1) {
        let exceeds = |other: Option<usize>| other.is_none_or(|j| gap_after(i) > gap_after(j));
        if exceeds(largest[0]) {
            largest = [Some(i), largest[0]];
        } else if exceeds(largest[1]) {
            largest[1] = Some(i);
        }
    }
    largest.sort_unstable();
    let mut ranges = Vec::with_capacity(3);
    let mut from = 0;
    let last = mappings.len().checked_sub(1);
    for end in largest.into_iter().flatten().chain(last) {
        ranges.push(AddressRange::new(mappings[from].start, mappings[end].end));
        from = end + 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_regions::{self, ranges_of};

    fn check(layout: &str, how: fn(Vec<AddressRange>) -> Vec<AddressRange>, wanted: &str) {
        assert_eq!(
            test_regions::of_ranges(&how(ranges_of(layout))),
            wanted,
            "from {layout}"
        );
    }

    fn three(mappings: Vec<AddressRange>) -> Vec<AddressRange> {
        Layout::Mappings {
            mappings,
            populated: None,
        }
        .ranges(false, 100)
    }

    fn fixed(ranges: Vec<AddressRange>) -> Vec<AddressRange> {
        Layout::Fixed(ranges).ranges(true, 1)
    }

    fn populated(spans: Vec<AddressRange>) -> Vec<AddressRange> {
        let mappings = vec![AddressRange::new(0, 1 << 40)];
        Layout::Mappings {
            mappings,
            populated: Some(spans),
        }
        .ranges(true, 3)
    }

    #[test]
    fn three_ranges_leave_out_the_two_largest_gaps() {
        // The kernel's own example (mm/damon/tests/vaddr-kunit.h).
        check(
            "[10,20) [20,25) [200,210) [210,220) [300,305) [307,330)",
            three,
            "[10,25) [200,220) [300,330)",
        );
        check(
            "[300,330) [0,10) [12,20)",
            three,
            "[0,10) [12,20) [300,330)",
        );
        check("[0,10) [20,30)", three, "[0,10) [20,30)");
        check("[0,10)", three, "[0,10)");
        check("", three, "");
        check("[0,1) [2,3) [4,5) [6,7)", three, "[0,1) [2,3) [4,7)");
    }

    #[test]
    fn ranges_given_by_hand_stay() {
        check("[4,6) [0,2) [1,3)", fixed, "[0,3) [4,6)");
        check("[0,2) [2,4)", fixed, "[0,4)");
    }

    #[test]
    fn populated_spans_are_joined_over_less_than_a_page_table() {
        check(
            "[0,1) [512,513) [1025,1026)",
            populated,
            "[0,513) [1025,1026)",
        );
        // Four spans where three are allowed: the smaller gaps go.
        check(
            "[0,1) [600,601) [9000,9001) [99000,99001)",
            populated,
            "[0,601) [9000,9001) [99000,99001)",
        );
    }

    #[test]
    fn odd_addresses_are_extended_to_pages() {
        let ranges = vec![
            AddressRange::new(1, 2),
            AddressRange::new(u64::MAX - 1, u64::MAX),
        ];
        assert_eq!(fixed(ranges), [AddressRange::new(0, 4096)]);
    }
}
