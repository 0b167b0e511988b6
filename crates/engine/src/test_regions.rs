//! Regions and ranges as text, for tests: `[0,4)=9@3 [4,8)=?` is pages 0 to 3 with nine accesses of age 3, then four
//! pages with unknown accesses. Addresses are in pages. Also times.

use crate::address::{AddressRange, Nanos, PAGE_SIZE};
use crate::monitor::region::Region;

/// Returns the time `n` seconds after the beginning.
pub(crate) fn second(n: u64) -> Nanos {
    Nanos(n * 1_000_000_000)
}

fn range_of(text: &str) -> AddressRange {
    let (start, end) = text
        .trim_matches(['[', ')'])
        .split_once(',')
        .expect("a picture");
    let page = |number: &str| number.parse::<u64>().expect("a page number") * PAGE_SIZE;
    AddressRange::new(page(start), page(end))
}

pub(crate) fn ranges_of(picture: &str) -> Vec<AddressRange> {
    picture.split_whitespace().map(range_of).collect()
}

/// Returns regions whose interval has just ended; the previous interval was equal.
pub(crate) fn regions_of(picture: &str) -> Vec<Region> {
    let region_of = |text: &str| {
        let (range, rest) = text.split_once('=').unwrap_or((text, "0"));
        let (nr, age) = rest.split_once('@').unwrap_or((rest, "0"));
        let mut region = Region::new(range_of(range));
        region.known = nr != "?";
        region.nr_accesses = nr.parse().unwrap_or(0);
        region.last_nr_accesses = region.nr_accesses;
        region.age = age.parse().expect("an age");
        region
    };
    picture.split_whitespace().map(region_of).collect()
}

pub(crate) fn of_ranges(ranges: &[AddressRange]) -> String {
    let one = |r: &AddressRange| format!("[{},{})", r.start / PAGE_SIZE, r.end / PAGE_SIZE);
    ranges.iter().map(one).collect::<Vec<_>>().join(" ")
}

pub(crate) fn of_regions(regions: &[Region]) -> String {
    let one = |region: &Region| {
        let nr = if region.known {
            region.nr_accesses.to_string()
        } else {
            "?".to_owned()
        };
        let age = if region.age > 0 {
            format!("@{}", region.age)
        } else {
            String::new()
        };
        format!("{}={nr}{age}", of_ranges(&[region.range]))
    };
    regions.iter().map(one).collect::<Vec<_>>().join(" ")
}
