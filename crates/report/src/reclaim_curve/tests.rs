//! Tests of the reclaim curve: with pictures of scans, and against a policy that runs scan by scan.

use proptest::prelude::*;

use isotherm_engine::monitor::bits;
use isotherm_policy::Unreclaimable;
use isotherm_record::item::{Mapping, MappingChange};

use super::*;
use crate::test_records::{at, header, mapping};

/// Builds a report of scans of one block, a second each. Each page has a character: `#` accessed, `.` idle, `?`
/// unknown, a space absent.
fn report(scans: &[&str], max_slowdown: Option<f64>) -> ReclaimCurveReport {
    report_of(scans, max_slowdown, Vec::new())
}

/// Builds a report of scans and mappings.
fn report_of(scans: &[&str], max_slowdown: Option<f64>, added: Vec<Mapping>) -> ReclaimCurveReport {
    let options = ReclaimCurveOptions {
        refault_cost: Some(Nanos(1_000_000)),
        max_slowdown,
    };
    let mut curve = ReclaimCurve::new(&header(), Scope::default(), options);
    let mappings = MappingChange::adding(Nanos(0), TargetId(0), added);
    curve.push(&Item::Mappings(mappings));
    for (second, picture) in scans.iter().enumerate() {
        let mask = |letters: &str| {
            let pages = picture.chars().enumerate();
            let set = pages.filter(|(_, letter)| letters.contains(*letter));
            let mut pages = NONE;
            set.for_each(|(page, _)| bits::set(&mut pages, page));
            pages
        };
        let mut blocks = vec![PageBlock {
            block: 0x20_0000,
            huge: false,
            present: mask("#.?"),
            accessed: mask("#"),
            unknown: mask("?"),
        }];
        if picture.trim().is_empty() {
            blocks.clear();
        }
        let second = second as u64 * 1000;
        let times = (at(second), at(second + 1000));
        let scan = PageSnapshot::new(TargetId(0), times, blocks);
        curve.push(&Item::Pages(scan));
    }
    curve.finish().expect("there are scans")
}

/// Returns the saved page-seconds and the refaults at a threshold in seconds.
fn at_threshold(report: &ReclaimCurveReport, seconds: u64) -> (f64, f64) {
    let point = report.at(Nanos::from_millis(seconds * 1000));
    let saved = point.saved_byte_seconds / PAGE_SIZE as f64;
    let refaults = point.refaults_per_s * report.duration_ns.as_secs_f64();
    (saved, refaults.round())
}

#[test]
fn the_steady_share_leaves_out_the_time_in_which_nothing_could_be_idle_yet() {
    let report = report(&["##", "#.", "#.", "#."], None);
    let steady = |seconds: u64| report.at(Nanos::from_millis(seconds * 1000)).steady_share;
    // The share is two of six page-seconds that exist from the first second on.
    assert!(steady(1).is_some_and(|share| (share - 1.0 / 3.0).abs() < 1e-9));
    assert_eq!(steady(2).map(|share| (share * 100.0).round()), Some(25.0));
    assert_eq!(steady(3), None);
}

#[test]
fn what_goes_away_saves_until_then() {
    let report = report(&["#", ".", ".", " ", " "], None);
    assert_eq!(at_threshold(&report, 1), (1.0, 0.0));
}

#[test]
fn unknown_is_not_cold() {
    let report = report(&["#", "?", "?", "?", "#"], None);
    assert_eq!(at_threshold(&report, 1), (0.0, 0.0));
    assert_eq!(report.unknown_mean_bytes, PAGE_SIZE * 3 / 5);
}

#[test]
fn unreclaimable_memory_is_never_taken() {
    let first = AddressRange::new(0x20_0000, 0x20_1000);
    let mut locked = mapping(first, "");
    locked.unreclaimable = Some(Unreclaimable::Locked);
    let scans = ["##", "..", "..", "##"];
    let report = report_of(&scans, None, vec![locked]);
    assert_eq!(at_threshold(&report, 1), (1.0, 1.0), "the other page's");
    assert_eq!(report.unreclaimable_mean_bytes, PAGE_SIZE);
    assert_eq!(report.resident_mean_bytes, 2 * PAGE_SIZE);
}

#[test]
fn the_least_threshold_within_the_limit_is_chosen() {
    // One page refaults after 1 s, one after 3 s; each refault costs 1 ms of 8 s.
    let scans = ["##", "..", "#.", "..", "##", "..", "..", ".."];
    let chosen = |limit| {
        let chosen = report(&scans, Some(limit)).chosen;
        chosen.map(|point| point.threshold_ns.as_secs_f64())
    };
    assert_eq!(chosen(1.0), Some(1.0));
    assert_eq!(chosen(0.0002), Some(3.0));
    assert_eq!(report(&scans, None).chosen, None);
}

#[test]
fn nothing_is_told_of_less_than_a_scan_interval() {
    let report = report(&["##", "#.", "##"], None);
    assert_eq!(report.points[0].threshold_ns, Nanos(1_000_000_000));
    let backed_off = &report.backoff_points;
    assert_eq!(backed_off[0].threshold_ns, Nanos(1_000_000_000));
}

#[test]
fn a_page_that_was_accessed_waits_longer() {
    // The page is idle for 9 s repeatedly. It is reclaimed after 2 s the first time, and after 8 s then; the third time
    // it would be after 18 s.
    let idle = ["."; 9];
    let scans = [&["#"], &idle[..], &["#"], &idle, &["#"], &idle, &["#"]].concat();
    let report = report(&scans, None);
    assert_eq!(at_threshold(&report, 2), (21.0, 3.0));
    let two = Nanos(2_000_000_000);
    let mut backed_off = report.backoff_points.iter();
    let backed_off = backed_off.find(|point| point.threshold_ns == two);
    let backed_off = backed_off.expect("reported");
    let saved = (backed_off.saved_byte_seconds / PAGE_SIZE as f64).round();
    let refaults = (backed_off.refaults_per_s * 31.0).round();
    assert_eq!((saved, refaults), (8.0, 2.0));
    assert_eq!(backed_off.idle_pages, 2);
}

/// Reclaims after `threshold` scans without an access, scan by scan.
fn by_hand(scans: &[Vec<bool>], threshold: u64) -> (f64, f64) {
    let (mut saved, mut refaults) = (0.0, 0.0);
    for page in 0..scans[0].len() {
        let mut idle = 0;
        for scan in scans {
            if scan[page] {
                refaults += f64::from(u8::from(idle >= threshold && idle > 0));
                idle = 0;
            } else {
                saved += f64::from(u8::from(idle >= threshold));
                idle += 1;
            }
        }
    }
    (saved, refaults)
}

proptest! {
    #[test]
    fn one_pass_says_what_every_policy_would_have_done(
        scans in prop::collection::vec(prop::collection::vec(any::<bool>(), 5), 2..20),
        threshold in 1_u64..12,
    ) {
        // Every page is accessed at first, like any new page.
        let scans: Vec<Vec<bool>> = std::iter::once(vec![true; 5]).chain(scans).collect();
        let letter = |accessed: &bool| if *accessed { '#' } else { '.' };
        let pictures: Vec<String> = scans.iter().map(|scan| scan.iter().map(letter).collect()).collect();
        let pictures: Vec<&str> = pictures.iter().map(String::as_str).collect();
        let report = report(&pictures, None);
        let (saved, refaults) = at_threshold(&report, threshold);
        let (expected_saved, expected_refaults) = by_hand(&scans, threshold);
        prop_assert!((saved - expected_saved).abs() < 1e-6, "{saved} {expected_saved}");
        prop_assert!((refaults - expected_refaults).abs() < 1e-6, "{refaults} {expected_refaults}");
    }
}
