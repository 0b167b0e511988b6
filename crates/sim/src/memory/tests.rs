//! Invariants of memory under any order of allocations, releases and moves.

use proptest::prelude::*;

use super::*;

/// The free blocks of the second zone, by order, while nothing is allocated.
const WHOLE: [u64; 11] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];

fn small() -> Memory {
    let zones = vec![("DMA32", 1024), ("Normal", 3 * 1024)];
    let more = vec![("Normal", 2 * 1024)];
    Memory::new(&[NodeSize { zones }, NodeSize { zones: more }])
}

#[test]
fn new_memory_is_free_in_the_largest_blocks() {
    let memory = small();
    memory.check().expect("nothing is lost");
    assert_eq!(memory.free_pages(), 6 * 1024);
    assert_eq!(memory.zones()[1].free_blocks, WHOLE);
    assert_eq!(memory.zones_of(1).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_block_is_split_and_joined_again() {
    let mut memory = small();
    let frame = memory.allocate_kernel(1, 0).expect("free");
    let split = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2];
    assert_eq!(memory.zones()[1].free_blocks, split);
    memory.free_kernel(frame, 0);
    assert_eq!(memory.zones()[1].free_blocks, WHOLE);
}

#[test]
fn a_watermark_is_kept() {
    let mut memory = small();
    memory.set_watermark(2, 1024);
    assert!(memory.allocate_kernel(2, 10).is_some());
    assert!(memory.allocate_kernel(2, 0).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_frame_is_in_one_place(
        steps in prop::collection::vec((0_u8..5, 0_usize..3, 0_u8..=10, any::<u16>()), 1..80)
    ) {
        let mut memory = small();
        let mut pages: Vec<(Page, u32)> = Vec::new();
        let mut kernel: Vec<(Pfn, u8)> = Vec::new();
        for (what, zone, order, which) in steps {
            match what {
                0 => {
                    let new = memory.add_pages(1 << order);
                    if memory.allocate_pages(zone, order, new.start).is_some() {
                        pages.push((new.start, 1 << order));
                    }
                }
                1 => kernel.extend(memory.allocate_kernel(zone, order).map(|f| (f, order))),
                2 if !pages.is_empty() => {
                    let (page, count) = pages.swap_remove(usize::from(which) % pages.len());
                    memory.free_run(page, count);
                }
                3 if !kernel.is_empty() => {
                    let (frame, order) = kernel.swap_remove(usize::from(which) % kernel.len());
                    memory.free_kernel(frame, order);
                }
                4 if !pages.is_empty() => {
                    // Three quarters of it are freed, page by page.
                    let (page, count) = pages.swap_remove(usize::from(which) % pages.len());
                    for i in 0..count * 3 / 4 {
                        memory.free_page(page + i);
                    }
                    for i in count * 3 / 4..count {
                        pages.push((page + i, 1));
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(memory.check(), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn a_run_is_migrated_as_page_by_page(
        holes in prop::collection::vec((0_u32..1024, 1_u64..100), 0..12),
        runs in prop::collection::vec((1024_u64..4096, 1_u64..600), 1..12),
    ) {
        let mut memory = small();
        let pages = memory.add_pages(4096);
        for page in pages.clone().step_by(512) {
            let zone = if page < 1024 { 2 } else { 1 };
            prop_assert!(memory.allocate_pages(zone, 9, page).is_some());
        }
        for (first, count) in holes {
            (first..(first + count as u32).min(1024)).for_each(|page| memory.free_page(page));
        }
        let mut slowly = memory.clone();
        for (frame, count) in runs {
            let (owner, count) = memory.owners_from(frame, (frame + count).min(4096));
            let (mut done, mut done_slowly) = (0, 0);
            if matches!(owner, Owner::Page(_)) {
                while done < count {
                    match memory.migrate_run(frame + done, count - done, 2) {
                        0 => break,
                        more => done += more,
                    }
                }
                done_slowly = (frame..frame + count).filter(|f| slowly.migrate(*f, 2)).count();
            }
            prop_assert_eq!(done, done_slowly as u64);
            memory.check().map_err(TestCaseError::fail)?;
            prop_assert!((0..6 * 1024).all(|frame| memory.owner(frame) == slowly.owner(frame)));
            for (zone, other) in memory.zones().iter().zip(slowly.zones()) {
                prop_assert_eq!(zone.free_blocks, other.free_blocks);
            }
        }
    }
}
