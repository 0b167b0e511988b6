//! The order in which pages return.

use isotherm_engine::{AddressRange, PAGE_SIZE};

/// Pages by the time of their return, the first one first; neighbours that returned together form one range.
pub(crate) type Order = Vec<AddressRange>;

/// Returns the parts of `all` that no range of `taken` covers. Both are in the order of addresses.
pub(crate) fn without(all: &[AddressRange], taken: &[AddressRange]) -> Vec<AddressRange> {
    let mut left = Vec::new();
    let mut taken = taken.iter().peekable();
    for range in all {
        let mut start = range.start;
        while let Some(next) = taken.next_if(|next| next.end <= range.start) {
            debug_assert!(next.end <= range.start);
        }
        while let Some(next) = taken.peek().filter(|next| next.start < range.end) {
            if start < next.start {
                left.push(AddressRange::new(start, next.start));
            }
            start = start.max(next.end);
            if next.end > range.end {
                break;
            }
            taken.next();
        }
        if start < range.end {
            left.push(AddressRange::new(start, range.end));
        }
    }
    left
}

/// Returns ranges by address, neighbours as one.
pub(crate) fn sorted(ranges: &[AddressRange]) -> Vec<AddressRange> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the address of each page.
pub(crate) fn pages(ranges: &[AddressRange]) -> impl Iterator<Item = u64> {
    let pages = |range: &AddressRange| (range.start..range.end).step_by(PAGE_SIZE as usize);
    ranges.iter().flat_map(pages)
}

pub(crate) fn bytes(ranges: &[AddressRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[(u64, u64)]) -> Vec<AddressRange> {
        let range =
            |(start, end): &(u64, u64)| AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
        of.iter().map(range).collect()
    }

    #[test]
    fn what_is_left_is_what_no_range_covers() {
        let check = |all: &[(u64, u64)], taken: &[(u64, u64)], wanted: &[(u64, u64)]| {
            assert_eq!(
                without(&ranges(all), &ranges(taken)),
                ranges(wanted),
                "{all:?} {taken:?}"
            );
        };
        check(&[(0, 10)], &[], &[(0, 10)]);
        check(&[(0, 10)], &[(2, 3), (5, 7)], &[(0, 2), (3, 5), (7, 10)]);
        check(&[(0, 4), (6, 10)], &[(3, 7)], &[(0, 3), (7, 10)]);
        check(&[(2, 4), (6, 10)], &[(0, 1), (2, 10)], &[]);
        check(&[(2, 4)], &[(0, 3), (8, 9)], &[(3, 4)]);
    }

    #[test]
    fn neighbours_become_one() {
        let merged = sorted(&ranges(&[(5, 6), (0, 2), (2, 3), (6, 8)]));
        assert_eq!(merged, ranges(&[(0, 3), (5, 8)]));
        assert_eq!(bytes(&merged), 6 * PAGE_SIZE);
        assert_eq!(pages(&merged).count(), 6);
    }
}
