//! Distances of made-up scans, and the misses of an LRU.

use isotherm_engine::BLOCK_SIZE;
use isotherm_engine::monitor::bits;
use proptest::prelude::*;

use super::*;

const TARGET: TargetId = TargetId(0);

/// Ends scans of targets whose CPU times are not known.
fn settle(distances: &mut Distances) {
    distances.settle(&BTreeMap::new(), [Nanos(5_000), Nanos(100_000)]);
}

fn scan(number: u64, present: &[usize], accessed: &[usize]) -> PageSnapshot {
    let bits = |pages: &[usize]| {
        let mut bits = NONE;
        for page in pages {
            bits::set(&mut bits, *page);
        }
        bits
    };
    let block = PageBlock {
        block: BLOCK_SIZE,
        present: bits(present),
        accessed: bits(accessed),
        ..PageBlock::default()
    };
    let times = [number, number + 1].map(|second| Nanos::from_millis(1000 * second));
    PageSnapshot::new(TARGET, times.into(), vec![block])
}

fn of(scans: &[Vec<usize>], nr_pages: usize) -> Distances {
    let present: Vec<usize> = (0..nr_pages).collect();
    let mut distances = Distances::default();
    distances.scan(&scan(0, &present, &[]), |_| BlockFacts::default());
    for (number, accessed) in scans.iter().enumerate() {
        let number = number as u64 + 1;
        distances.scan(&scan(number, &present, accessed), |_| BlockFacts::default());
    }
    distances
}

/// Returns the misses of an LRU of `limit` pages that is full of the first of `scans`.
fn misses(scans: &[Vec<usize>], nr_pages: usize, limit: usize) -> usize {
    assert_eq!(scans[0].len(), nr_pages);
    let mut order = scans[0].clone();
    let mut missed = 0;
    for page in scans[1..].iter().flatten() {
        let at = order.iter().rposition(|of| of == page).expect("there");
        missed += usize::from(order.len() - at > limit);
        order.remove(at);
        order.push(*page);
    }
    missed
}

proptest! {
    /// Whatever the order within the scans, the misses of every LRU lie between the bounds.
    #[test]
    fn misses_of_an_lru_lie_within_the_bounds(
        scans in prop::collection::vec(
            prop::collection::vec(any::<bool>(), 20).prop_map(|accessed| {
                (0..20).filter(|page| accessed[*page]).collect::<Vec<usize>>()
            }).prop_shuffle(),
            1..12,
        ),
        all in Just((0..20).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let scans = [vec![all], scans].concat();
        let found = of(&scans, 20);
        for limit in 1..=20 {
            let missed = misses(&scans, 20, limit) as f64;
            let (least, greatest) = (&found.all.least, &found.all.greatest);
            prop_assert!(least.beyond(limit as u64)[0] <= missed + 1e-9);
            prop_assert!(greatest.beyond(limit as u64)[0] + 1e-9 >= missed);
        }
    }
}

#[test]
fn likely_misses_are_near_those_of_an_lru_that_ran_before() {
    // Zipf's law over 400 pages: 300 accesses in each of 300 intervals, of which the last 60 are scanned.
    let mut state = 1_u64;
    let mut page = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        400_f64.powf((state >> 11) as f64 / (1_u64 << 53) as f64) as usize
    };
    let accesses: Vec<Vec<usize>> = (0..300)
        .map(|_| (0..300).map(|_| page()).collect())
        .collect();
    let scans: Vec<Vec<usize>> = { accesses[240..].iter() }
        .map(|of| {
            let pages: std::collections::BTreeSet<usize> = of.iter().copied().collect();
            pages.into_iter().collect()
        })
        .collect();
    let found = of(&scans, 400).all;
    for limit in [200, 250, 300, 350] {
        let mut order: Vec<usize> = (0..400).collect();
        let mut missed = 0.0;
        for (interval, of) in accesses.iter().enumerate() {
            for page in of {
                let at = order.iter().rposition(|of| of == page).expect("there");
                missed += f64::from(u8::from(interval >= 240 && order.len() - at > limit));
                order.remove(at);
                order.push(*page);
            }
        }
        let likely = found.likely(400).beyond(limit as u64)[0];
        let greatest = found.greatest.beyond(limit as u64)[0];
        assert!(
            (0.9..1.1).contains(&(likely / missed)),
            "{limit}: {missed} missed, likely {likely}, at most {greatest}"
        );
        assert!(found.least.beyond(limit as u64)[0] <= likely && likely <= greatest);
    }
}

#[test]
fn idle_pages_of_another_target_take_no_place() {
    let other = |number: u64| PageSnapshot {
        target: TargetId(1),
        ..scan(number, &(0..500).collect::<Vec<_>>(), &[])
    };
    let own: Vec<usize> = (0..20).collect();
    let mut distances = Distances::default();
    for number in 0..60 {
        distances.scan(&scan(number, &own, &own), |_| BlockFacts::default());
        distances.scan(&other(number), |_| BlockFacts::default());
    }
    let costs = [1.0, 1.0, 1000.0];
    assert_eq!(distances.all.greatest.least_for(1.0, costs), 20);
    assert_eq!(distances.all.likely(520).least_for(1.0, costs), 20);
}

/// Another process touches 400 pages once: the program keeps its 20 meanwhile.
#[test]
fn what_one_interval_alone_uses_does_not_have_to_fit() {
    let pages: Vec<usize> = (0..400).collect();
    let mut distances = Distances::default();
    for number in 0..60 {
        let touched = if number == 30 { &pages[..] } else { &[] };
        let other = PageSnapshot {
            target: TargetId(1),
            ..scan(number, &pages, touched)
        };
        distances.scan(&other, |_| BlockFacts::default());
        let own = scan(number, &pages[..20], &pages[..20]);
        distances.scan(&own, |_| BlockFacts::default());
    }
    settle(&mut distances);
    let likely = distances.all.likely(420).beyond(40);
    let greatest = distances.all.greatest.beyond(40);
    assert!(likely[2] < 0.1 && greatest[2] > 0.9, "{likely:?}");
    assert!((300.0..410.0).contains(&likely[0]), "{likely:?}");
}

#[test]
fn a_buffer_that_is_freed_before_it_is_seen_again_has_to_fit() {
    let all: Vec<usize> = (0..300).collect();
    let mut distances = Distances::default();
    for number in 0..60 {
        let present = if number % 3 == 1 { &all } else { &all[..20] };
        distances.scan(&scan(number, present, &all[..20]), |_| {
            BlockFacts::default()
        });
    }
    settle(&mut distances);
    let lost = distances.all.likely(300).beyond(290);
    assert!((19.0..=20.0).contains(&lost[2]), "{lost:?}");
}

#[test]
fn all_memory_of_a_short_life_has_to_fit() {
    let pages: Vec<usize> = (0..300).collect();
    let mut distances = Distances::default();
    for number in 0..20 {
        let short = PageSnapshot {
            target: TargetId(10 + number as u32),
            ..scan(number, &pages, &[])
        };
        distances.scan(&scan(number, &[0, 1], &[0]), |_| BlockFacts::default());
        distances.scan(&short, |_| BlockFacts::default());
        distances.end(short.target);
    }
    settle(&mut distances);
    let lost = distances.all.likely(302).beyond(250);
    assert!((lost[2] - 20.0).abs() < 1e-9, "{lost:?}");
    assert_eq!(distances.all.greatest.beyond(310)[2] as u64, 0);
}

#[test]
fn a_sweep_needs_all_of_its_pages_and_idle_ones_need_nothing() {
    let found = of(&vec![(0..10).collect(); 5], 20);
    let least_for = |most| found.all.greatest.least_for(most, [1.0, 1.0, 0.0]);
    assert_eq!([0.0, 39.0, 40.0].map(least_for), [10, 10, 0]);
}

#[test]
fn unknown_pages_stay_and_gone_ones_leave() {
    let all: Vec<usize> = (0..8).collect();
    let mut distances = Distances::default();
    let kept = |_| BlockFacts {
        kept: bits::mask_of(4..8),
        ..BlockFacts::default()
    };
    for number in 0..5 {
        distances.scan(&scan(number, &all, &all[..2]), kept);
    }
    settle(&mut distances);
    let lost = distances.all.greatest.beyond(0).map(|lost| lost as u64);
    assert_eq!(lost, [6, 0, 4]);
    assert_eq!(
        distances.all.greatest.least_for(3.0, [1.0, 1.0, 0.0]),
        6,
        "two hot pages, four that stay"
    );
    let after = distances.scan(&scan(5, &all[..2], &[]), kept);
    assert_eq!(after.pages, 2);
    distances.end(TARGET);
    assert_eq!(distances.all.last_seen.sum(0..distances.ends.len()), 0);
}
