//! Ranges and regions as text, for tests: `[0,4)=9@3 [4,8)=?` is pages 0 to 3 with nine accesses of age 3, then four
//! pages with unknown accesses. Addresses are in pages. Also times.

use crate::address::{AddressRange, Nanos, PAGE_SIZE};

/// Returns the time `n` seconds after the beginning.
pub(crate) fn second(n: u64) -> Nanos {
    Nanos(n * 1_000_000_000)
}

pub(crate) fn range_of(text: &str) -> AddressRange {
    let text = text.trim_matches(['[', ')']);
    let (start, end) = text.split_once(',').expect("a picture");
    let page = |number: &str| number.parse::<u64>().expect("a page number") * PAGE_SIZE;
    AddressRange::new(page(start), page(end))
}

/// Returns the regions of a picture, each with its number of accesses and its age.
pub(crate) fn parts_of(picture: &str) -> impl Iterator<Item = (AddressRange, Option<u32>, u32)> {
    picture.split_whitespace().map(|text| {
        let (range, rest) = text.split_once('=').unwrap_or((text, "0"));
        let (nr, age) = rest.split_once('@').unwrap_or((rest, "0"));
        let age = age.parse().expect("an age");
        (range_of(range), nr.parse().ok(), age)
    })
}

pub(crate) fn of_ranges(ranges: &[AddressRange]) -> String {
    let one = |r: &AddressRange| format!("[{},{})", r.start / PAGE_SIZE, r.end / PAGE_SIZE);
    ranges.iter().map(one).collect::<Vec<_>>().join(" ")
}
