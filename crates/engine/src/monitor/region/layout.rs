//! The monitored address ranges of a target, derived from its mappings.
//!
//! Problem: a process's address space is 128 TiB, almost all of it unmapped.
//!
//! Approach: DAMON's (`mm/damon/vaddr.c`). The region monitor leaves out the two largest unmapped gaps (below and above
//! the memory maps, usually); its adaptive regions must find the smaller ones.
//!
//! Limits: with a large reservation that is mostly not populated, most samples hit nothing.

use crate::address::{AddressRange, PAGE_SIZE};

/// Extends a range to whole pages; returns `None` if that leaves the address space.
fn whole_pages(range: AddressRange) -> Option<AddressRange> {
    let start = range.start / PAGE_SIZE * PAGE_SIZE;
    AddressRange::checked(start, range.end.checked_next_multiple_of(PAGE_SIZE)?)
}

/// Returns the union of ranges, extended to whole pages.
pub(crate) fn in_whole_pages(ranges: &[AddressRange]) -> Vec<AddressRange> {
    AddressRange::union(ranges.iter().filter_map(|range| whole_pages(*range)))
}

/// Returns the ranges around the two largest gaps between `mappings`, which are in any order. With fewer gaps there are
/// fewer ranges; the kernel would give up on such a process.
pub(crate) fn three_ranges(mappings: &[AddressRange]) -> Vec<AddressRange> {
    let mappings = in_whole_pages(mappings);
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
    use crate::test_pictures::of_ranges;
    use crate::test_regions::ranges_of;

    fn check(layout: &str, how: fn(&[AddressRange]) -> Vec<AddressRange>, wanted: &str) {
        assert_eq!(of_ranges(&how(&ranges_of(layout))), wanted, "from {layout}");
    }

    #[test]
    fn three_ranges_leave_out_the_two_largest_gaps() {
        // The kernel's own example (mm/damon/tests/vaddr-kunit.h).
        let layout = "[10,20) [20,25) [200,210) [210,220) [300,305) [307,330)";
        check(layout, three_ranges, "[10,25) [200,220) [300,330)");
        let sorted = "[0,10) [12,20) [300,330)";
        check("[300,330) [0,10) [12,20)", three_ranges, sorted);
        check("[0,10) [20,30)", three_ranges, "[0,10) [20,30)");
        check("[0,10)", three_ranges, "[0,10)");
        check("", three_ranges, "");
        check("[0,1) [2,3) [4,5) [6,7)", three_ranges, "[0,1) [2,3) [4,7)");
    }

    #[test]
    fn ranges_given_by_hand_stay() {
        check("[4,6) [0,2) [1,3)", in_whole_pages, "[0,3) [4,6)");
        check("[0,2) [2,4)", in_whole_pages, "[0,4)");
    }

    #[test]
    fn odd_addresses_are_extended_to_pages() {
        let ranges = [
            AddressRange::new(1, 2),
            AddressRange::new(u64::MAX - 1, u64::MAX),
        ];
        assert_eq!(in_whole_pages(&ranges), [AddressRange::new(0, 4096)]);
    }
}
