//! What looks and samples make of a segment.

use super::*;

fn bits(pages: std::ops::Range<usize>) -> Bitmap {
    mask_of(pages)
}

fn armed_segment() -> Segment {
    let mut s = Segment::new(TargetId(0), AddressRange::new(0, BLOCK_SIZE), 0, Nanos(0));
    let idle = BlockFacts {
        address: 0,
        huge: false,
        present: [u64::MAX; 8],
        accessed: [0; 8],
    };
    assert!(s.arm(&idle, Nanos(0)));
    s
}

fn touched(pages: std::ops::Range<usize>) -> BlockFacts {
    BlockFacts {
        address: 0,
        huge: false,
        present: [u64::MAX; 8],
        accessed: bits(pages),
    }
}

#[test]
fn masks_hold_just_their_pages() {
    for pages in [0..0, 0..1, 3..64, 60..130, 0..512, 511..512] {
        let mask = mask_of(pages.clone());
        assert!(
            (0..512).all(|i| has(&mask, i) == pages.contains(&i)),
            "{pages:?}"
        );
    }
}

#[test]
fn an_armed_segment_is_cut_at_the_exact_page() {
    let mut s = armed_segment();
    let now = Nanos::from_millis(400);
    assert_eq!(
        s.look(&touched(100..333), now, Nanos::from_millis(20)),
        Verdict::Spent
    );
    let page = |n: u64| n * PAGE_SIZE;
    let expected = vec![
        (AddressRange::new(0, page(100)), false),
        (AddressRange::new(page(100), page(333)), true),
        (AddressRange::new(page(333), page(512)), false),
    ];
    assert_eq!(s.parts(), Some(expected));
}

#[test]
fn pages_that_were_touched_before_they_could_be_armed_are_busy() {
    let mut s = Segment::new(TargetId(0), AddressRange::new(0, BLOCK_SIZE), 0, Nanos(0));
    assert!(s.arm(&touched(0..64), Nanos(0)));
    let now = Nanos::from_millis(400);
    s.look(&touched(0..200), now, Nanos::from_millis(20));
    let page = |n: u64| n * PAGE_SIZE;
    let expected = vec![
        (AddressRange::new(0, page(200)), true),
        (AddressRange::new(page(200), page(512)), false),
    ];
    assert_eq!(s.parts(), Some(expected));
}

#[test]
fn few_touches_leave_a_segment_armed_with_a_small_rate() {
    let mut s = armed_segment();
    assert_eq!(
        s.look(
            &touched(7..9),
            Nanos::from_millis(400),
            Nanos::from_millis(20)
        ),
        Verdict::Keep
    );
    assert!(s.rate > 0.0 && s.rate < 0.001, "{}", s.rate);
    assert_eq!(
        s.look(
            &touched(7..9),
            Nanos::from_millis(800),
            Nanos::from_millis(20)
        ),
        Verdict::Keep
    );
    assert!(s.rate > 0.0 && s.rate < 0.0002, "on average: {}", s.rate);
    let (late, window) = (Nanos::from_millis(2_000), Nanos::from_millis(20));
    assert_eq!(s.look(&touched(7..9), late, window), Verdict::Stale);
    assert!(s.arm(&touched(0..0), late));
    let later = Nanos::from_millis(2_400);
    assert_eq!(s.look(&touched(0..0), later, window), Verdict::Keep);
    assert!(s.rate.abs() < f32::EPSILON, "idle again: {}", s.rate);
}

#[test]
fn pages_that_go_to_swap_were_not_touched_and_those_that_come_back_were() {
    let mut s = armed_segment();
    let window = Nanos::from_millis(20);
    let gone = BlockFacts {
        present: [0; 8],
        ..touched(0..0)
    };
    let at = |n: u64| Nanos::from_millis(400 * n);
    assert_eq!(s.look(&gone, at(1), window), Verdict::Keep);
    assert!(s.rate.abs() < f32::EPSILON, "{}", s.rate);
    let back = BlockFacts {
        present: mask_of(0..100),
        ..touched(0..100)
    };
    assert_eq!(s.look(&back, at(2), window), Verdict::Spent);
    assert!(s.rate > 0.1, "{}", s.rate);
}

#[test]
fn what_cannot_be_cleared_is_not_armed() {
    let mut s = Segment::new(TargetId(0), AddressRange::new(0, BLOCK_SIZE), 0, Nanos(0));
    assert!(!s.arm(&touched(0..512), Nanos(0)));
    assert_eq!(s.watch, Watch::Fresh);
}
