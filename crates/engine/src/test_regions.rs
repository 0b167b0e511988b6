//! Regions of the region monitor as text, for tests ([`crate::test_pictures`]).

use crate::address::AddressRange;
use crate::monitor::region::Region;
use crate::test_pictures::{of_ranges, parts_of, range_of};

pub(crate) fn ranges_of(picture: &str) -> Vec<AddressRange> {
    picture.split_whitespace().map(range_of).collect()
}

/// Returns regions whose interval has just ended; the previous interval was equal.
pub(crate) fn regions_of(picture: &str) -> Vec<Region> {
    let region_of = |(range, nr, age): (AddressRange, Option<u32>, u32)| {
        let mut region = Region::new(range);
        region.known = nr.is_some();
        region.nr_accesses = nr.unwrap_or(0);
        region.last_nr_accesses = region.nr_accesses;
        region.age = age;
        region
    };
    parts_of(picture).map(region_of).collect()
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
