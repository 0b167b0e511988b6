//! Tests of regions as pictures, and of their invariants for random inputs.

use proptest::prelude::*;

use super::{Rng, *};
use crate::test_regions::{of_regions, ranges_of, regions_of};

fn check(before: &str, change: impl FnOnce(&mut Vec<Region>), wanted: &str) {
    let mut regions = regions_of(before);
    change(&mut regions);
    assert_eq!(of_regions(&regions), wanted, "from {before}");
}

fn merging(threshold: u32, pages_max: u64) -> impl Fn(&mut Vec<Region>) {
    let like = Likeness {
        threshold,
        size_limit: pages_max * PAGE_SIZE,
        forced: false,
    };
    move |regions| merge(regions, like)
}

fn setting(ranges: &str) -> impl Fn(&mut Vec<Region>) {
    move |regions| set_ranges(regions, &mut Vec::new(), &ranges_of(ranges))
}

#[test]
fn alike_neighbours_become_one() {
    check("[0,4)=9 [4,8)=9", merging(1, 99), "[0,8)=9");
    check("[0,4)=9 [4,8)=7", merging(1, 99), "[0,4)=9 [4,8)=7");
    check("[0,4)=9 [5,8)=9", merging(1, 99), "[0,4)=9 [5,8)=9");
    check("[0,4)=9 [4,8)=9 [8,9)=9", merging(0, 8), "[0,8)=9 [8,9)=9");
    // From mm/damon/tests/core-kunit.h: damon_test_merge_two, damon_test_merge_regions_of.
    check("[0,100)=10 [100,300)=20", merging(10, 999), "[0,300)=16");
    check(
        "[0,100)=0 [100,114)=0 [114,122)=10 [122,130)=10 [130,156)=20 [156,170)=30 \
         [170,184)=1 [184,230)=2",
        merging(9, 9999),
        "[0,114)=0 [114,130)=10 [130,156)=20 [156,170)=30 [170,230)=1",
    );
}

#[test]
fn merged_ages_are_weighted_by_size() {
    check("[0,1)=5@10 [1,4)=5@2", merging(0, 99), "[0,4)=5@4");
}

#[test]
fn unknown_stays_apart_from_known() {
    check("[0,4)=0 [4,8)=? [8,9)=?", merging(9, 99), "[0,4)=0 [4,9)=?");
    let forced = |regions: &mut Vec<Region>| {
        let like = Likeness {
            threshold: u32::MAX,
            size_limit: u64::MAX,
            forced: true,
        };
        merge(regions, like);
    };
    check("[0,4)=7 [4,8)=?", forced, "[0,8)=7");
}

#[test]
fn age_tells_for_how_long_the_frequency_has_been_the_same() {
    let aged = |last: u32, now: &str, wanted: &str| {
        let grow = |regions: &mut Vec<Region>| {
            regions[0].last_nr_accesses = last;
            regions[0].age(2, Nanos(1));
        };
        check(now, grow, wanted);
    };
    aged(9, "[0,1)=9@5", "[0,1)=9@6");
    aged(9, "[0,1)=7@5", "[0,1)=7@6");
    aged(9, "[0,1)=6@5", "[0,1)=6");
    aged(0, "[0,1)=1@5", "[0,1)=1");
    aged(1, "[0,1)=0@5", "[0,1)=0");
    aged(0, "[0,1)=?@5", "[0,1)=?@5");
}

#[test]
fn counts_are_scaled_to_the_checks_of_the_interval() {
    let counted = |observed: u32, accessed: u32, wanted: &str| {
        let count = |regions: &mut Vec<Region>| {
            (0..observed).for_each(|check| regions[0].count(check < accessed));
            regions[0].estimate(20);
        };
        check("[0,1)=0", count, wanted);
    };
    counted(20, 7, "[0,1)=7");
    counted(10, 7, "[0,1)=14");
    counted(0, 0, "[0,1)=?");
}

#[test]
fn new_ranges_reshape_regions_as_in_the_kernel() {
    // From mm/damon/tests/core-kunit.h (damon_test_set_regions) and vaddr-kunit.h.
    let wanted = "[8,16)=1 [16,24)=? [24,28)=2";
    check("[4,16)=1 [24,32)=2", setting("[8,28)"), wanted);
    let before = "[10,20)=1 [20,30)=2 [50,55)=3 [55,57)=4 [57,59)=5 [70,80)=6 [80,90)=7 \
                  [90,100)=8";
    let wanted = "[5,20)=1 [20,27)=2 [45,55)=3 [73,80)=6 [80,90)=7 [90,104)=8";
    check(before, setting("[5,27) [45,55) [73,104)"), wanted);
    let wanted = "[5,20)=1 [20,27)=2 [56,57)=4 [65,80)=6 [80,90)=7 [90,104)=8";
    check(before, setting("[5,27) [56,57) [65,104)"), wanted);
    let wanted = "[5,20)=1 [20,27)=2 [61,63)=? [65,80)=6 [80,90)=7 [90,104)=8";
    check(before, setting("[5,27) [61,63) [65,104)"), wanted);
    check("[0,9)=4", setting("[1,2) [4,5)"), "[1,2)=4 [4,5)=4");
    check("[0,9)=4", setting(""), "");
}

#[test]
fn large_regions_are_divided_evenly() {
    let dividing = |regions: &mut Vec<Region>| divide(regions, &mut Vec::new(), 4 * PAGE_SIZE);
    let wanted = "[0,3)=3 [3,6)=3 [6,10)=3 [20,24)=1";
    check("[0,10)=3 [20,24)=1", dividing, wanted);
}

#[test]
fn splits_leave_every_part_like_the_whole() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut regions = regions_of("[0,100)=3@7 [100,102)=1 [102,103)=2");
        split(&mut regions, &mut Vec::new(), 3, &mut rng);
        let picture = of_regions(&regions);
        assert!((4..=5).contains(&regions.len()), "{picture}");
        let rest = "=3@7 [100,102)=1 [102,103)=2";
        assert!(picture.ends_with(rest), "{picture}");
        let right = regions[regions.len() - 3].range;
        assert!((10..=90).contains(&(right.start / PAGE_SIZE)), "{picture}");
        let has_no_gap = regions.is_sorted_by(|a, b| a.range.end == b.range.start);
        assert!(has_no_gap, "{picture}");
    }
}

/// Regions with gaps here and there.
fn any_regions() -> impl Strategy<Value = Vec<Region>> {
    let one = (0..3_u64, 1..2000_u64, 0..=20_u32, 0..=20_u32, any::<bool>());
    prop::collection::vec(one, 0..60).prop_map(|all| {
        let mut at = 0;
        let region = |(gap, pages, nr, last, known): (u64, u64, u32, u32, bool)| {
            let start = at + gap / 2 * PAGE_SIZE;
            at = start + pages * PAGE_SIZE;
            let mut region = Region::new(AddressRange::new(start, at));
            (region.nr_accesses, region.last_nr_accesses, region.known) = (nr, last, known);
            region
        };
        all.into_iter().map(region).collect()
    })
}

/// Returns the ranges that the regions cover, without their inner borders.
fn covered(regions: &[Region]) -> Vec<AddressRange> {
    let mut all: Vec<AddressRange> = Vec::new();
    for region in regions {
        match all.last_mut() {
            Some(last) if last.end == region.range.start => last.end = region.range.end,
            Some(last) => {
                assert!(last.end < region.range.start, "{regions:?} overlap");
                all.push(region.range);
            }
            None => all.push(region.range),
        }
    }
    all
}

proptest! {
    #[test]
    fn merging_keeps_the_memory_and_the_size_limit(
        before in any_regions(), threshold in 0..=20_u32, pages_max in 1..6000_u64, forced: bool,
    ) {
        let size_limit = pages_max * PAGE_SIZE;
        let mut after = before.clone();
        merge(&mut after, Likeness { threshold, size_limit, forced });
        prop_assert_eq!(covered(&before), covered(&after));
        for region in &after {
            let old = before.iter().any(|b| b.range == region.range);
            prop_assert!(old || region.range.len() <= size_limit);
            prop_assert!(region.nr_accesses <= 20);
        }
    }

    #[test]
    fn splitting_and_dividing_keep_the_memory(
        before in any_regions(), nr_parts in 2..=3_u32, pages_max in 1..3000_u64, seed: u64,
    ) {
        let (mut after, mut spare) = (before.clone(), Vec::new());
        split(&mut after, &mut spare, nr_parts, &mut Rng::new(seed));
        prop_assert_eq!(covered(&before), covered(&after));
        prop_assert!(after.len() <= before.len() * nr_parts as usize);
        divide(&mut after, &mut spare, pages_max * PAGE_SIZE);
        prop_assert_eq!(covered(&before), covered(&after));
        prop_assert!(after.iter().all(|region| region.range.len() <= pages_max * PAGE_SIZE));
    }

    #[test]
    fn new_ranges_are_covered_exactly(before in any_regions(), wanted in any_regions()) {
        let mut after = before;
        let ranges = covered(&wanted);
        set_ranges(&mut after, &mut Vec::new(), &ranges);
        prop_assert_eq!(covered(&after), ranges);
    }
}
