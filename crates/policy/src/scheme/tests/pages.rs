//! Idle pages of memory that is in use.

use std::sync::Arc;

use super::*;
use isotherm_engine::address::BLOCK_SIZE;
use isotherm_engine::monitor::bits::{self, Bitmap, mask_of};
use isotherm_engine::monitor::idle_pages::IdlePages;

/// Returns two blocks that are in use as a whole. In the first, pages 10 to 19 are idle for 10 s and 30 to 39 for 60 s;
/// in the second, 0 to 4 for 30 s.
fn in_use() -> Snapshot {
    let mut snapshot = snapshots_of("[0,1024)=9@3", 1).remove(0);
    let mut idle = [IdlePages::new(0), IdlePages::new(BLOCK_SIZE)];
    let of = |idle: &mut IdlePages, pages: std::ops::Range<usize>, seconds: u64| {
        pages.for_each(|page| idle.add(page, Nanos(seconds * SECOND.0)));
    };
    of(&mut idle[0], 10..20, 10);
    of(&mut idle[0], 30..40, 60);
    of(&mut idle[1], 0..5, 30);
    snapshot.idle_pages = Arc::new(idle.to_vec());
    snapshot
}

fn idle_for(seconds: u64, action: Action) -> Scheme {
    let mut scheme = idle(action);
    scheme.pattern.age.min = Age::Time(Nanos(seconds * SECOND.0));
    scheme
}

/// Returns the pages that `schemes` plan, by block.
fn plan(engine: &mut SchemeEngine, snapshot: Snapshot) -> Vec<(usize, u64, Bitmap)> {
    let operations = engine.plan(SECOND, &[snapshot], &SystemFacts::default());
    let outcomes: Vec<Outcome> = operations.iter().map(Outcome::assumed).collect();
    engine.done(&operations, &outcomes);
    let pages = |operation: &Operation| {
        let pages = **operation.pages.as_ref().expect("single pages");
        assert_eq!(operation.bytes, bits::bytes(&pages));
        let block = operation.range.start / BLOCK_SIZE;
        (operation.scheme, block, pages)
    };
    operations.iter().map(pages).collect()
}

/// Returns the target and the first page of each operation.
fn places(operations: &[Operation]) -> Vec<(u32, u64)> {
    let place = |o: &Operation| (o.target.0, o.range.start / PAGE_SIZE);
    operations.iter().map(place).collect()
}

fn engine(schemes: &[Scheme]) -> SchemeEngine {
    SchemeEngine::new(schemes.to_vec()).expect("good schemes")
}

#[test]
fn pages_that_are_idle_are_taken_the_oldest_first() {
    let mut engine = engine(&[idle_for(10, Action::Pageout)]);
    let wanted = [
        (0, 0, mask_of(30..40)),
        (0, 1, mask_of(0..5)),
        (0, 0, mask_of(10..20)),
    ];
    assert_eq!(plan(&mut engine, in_use()), wanted);
    let stats = engine.stats(0).expect("a scheme");
    assert_eq!((stats.nr_applied, stats.sz_applied), (3, 25 * PAGE_SIZE));
}

#[test]
fn what_is_idle_for_longest_is_paged_out_first_whosever_it_is() {
    // The second target's first region is idle for four times as long as the first's.
    let snapshots = snapshots_of("[0,10)=0@11 [10,20)=0@12|[0,4)=0@45 [4,9)=0@13", 100);
    let mut engine = engine(&[idle_for(10, Action::Pageout)]);
    let operations = engine.plan(SECOND, &snapshots, &SystemFacts::default());
    assert_eq!(places(&operations), [(1, 0), (0, 0), (0, 10), (1, 4)]);
}

#[test]
fn of_what_is_idle_for_as_long_whole_blocks_are_paged_out_first() {
    // In address order: some pages, two blocks, some pages that are idle for four times as long, a block.
    let memory = "[0,40)=0@12 [512,1536)=0@13 [1536,1600)=0@50 [2048,2560)=0@11";
    let snapshots = snapshots_of(memory, 100);
    let mut engine = engine(&[idle_for(10, Action::Pageout)]);
    let operations = engine.plan(SECOND, &snapshots, &SystemFacts::default());
    let wanted = [(0, 1536), (0, 512), (0, 2048), (0, 0)];
    assert_eq!(places(&operations), wanted);
}

#[test]
fn the_back_off_factor_asks_for_older_memory() {
    let snapshots = snapshots_of("[0,10)=0@60 [10,20)=0@15|[0,4)=0@20", 100);
    let planned = |action: Action, backoff: u32| {
        let facts = SystemFacts {
            backoff,
            ..SystemFacts::default()
        };
        places(&engine(&[idle_for(10, action)]).plan(SECOND, &snapshots, &facts))
    };
    let all = planned(Action::Pageout, 1);
    assert_eq!(all, [(0, 0), (1, 0), (0, 10)]);
    // From 20 s on.
    assert_eq!(planned(Action::Pageout, 2), [(0, 0), (1, 0)]);
    let others = planned(Action::Cold, 64);
    assert_eq!(others.len(), 3, "nothing comes back of that");
}

/// `least_age` sets a least age for one target, whatever schemes ask; the back-off factor multiplies it.
#[test]
fn a_target_may_ask_for_more_age_than_schemes() {
    let snapshots = snapshots_of("[0,10)=0@60 [10,20)=0@15|[0,4)=0@20", 100);
    let planned = |scheme: Scheme, seconds: u64, backoff: u32| {
        let facts = SystemFacts {
            least_age: [(TargetId(0), Nanos(seconds * SECOND.0))].into(),
            backoff,
            ..SystemFacts::default()
        };
        places(&engine(&[scheme]).plan(SECOND, &snapshots, &facts))
    };
    let pageout = || idle_for(10, Action::Pageout);
    assert_eq!(planned(pageout(), 5, 1), [(0, 0), (1, 0), (0, 10)]);
    assert_eq!(planned(pageout(), 30, 1), [(0, 0), (1, 0)]);
    assert_eq!(planned(pageout(), 30, 2), [(0, 0), (1, 0)], "60 s and 20 s");
    assert_eq!(planned(pageout(), 31, 2), [(1, 0)]);
    assert_eq!(planned(idle_for(10, Action::Stat), 61, 1), [(1, 0)]);
    // Single pages follow the same rule.
    let taken = |seconds: u64| {
        let facts = SystemFacts {
            least_age: [(in_use().target, Nanos(seconds * SECOND.0))].into(),
            ..SystemFacts::default()
        };
        let plan = engine(&[pageout()]).plan(SECOND, &[in_use()], &facts);
        plan.iter().map(|o| o.bytes / PAGE_SIZE).sum::<u64>()
    };
    assert_eq!((taken(0), taken(20), taken(61)), (25, 15, 0));
}

#[test]
fn who_asks_for_more_or_for_memory_in_use_gets_no_others() {
    let of = |scheme: Scheme| plan(&mut engine(&[scheme]), in_use());
    assert_eq!(of(idle_for(31, Action::Pageout)), [(0, 0, mask_of(30..40))]);
    assert_eq!(of(idle_for(61, Action::Pageout)), []);
    assert_eq!(of(idle_for(0, Action::Willneed)), []);
    assert_eq!(of(idle_for(0, Action::Hugepage)), []);
    let mut large = idle_for(0, Action::Cold);
    large.pattern.size.min = 6 * PAGE_SIZE;
    let both = bits::or(&mask_of(10..20), &mask_of(30..40));
    assert_eq!(of(large), [(0, 0, both)], "the second block has five pages");
}

#[test]
fn no_page_is_taken_twice() {
    let schemes = [idle_for(20, Action::Pageout), idle_for(10, Action::Cold)];
    let wanted = [
        (0, 0, mask_of(30..40)),
        (0, 1, mask_of(0..5)),
        (1, 0, mask_of(10..20)),
    ];
    let mut planned = plan(&mut engine(&schemes), in_use());
    planned.sort_unstable();
    assert_eq!(planned, wanted);
    // Counting does not take pages from later schemes.
    let schemes = [idle_for(20, Action::Stat), idle_for(20, Action::Cold)];
    assert_eq!(plan(&mut engine(&schemes), in_use()).len(), 4);
}

#[test]
fn a_quota_and_filters_hold_for_pages() {
    let mut scheme = idle_for(10, Action::Cold);
    scheme.quota.bytes = 13 * PAGE_SIZE;
    scheme.quota.reset_interval = SECOND;
    let nr = |planned: &[(usize, u64, Bitmap)]| -> u32 {
        planned.iter().map(|(_, _, pages)| bits::count(pages)).sum()
    };
    let mut limited = engine(std::slice::from_ref(&scheme));
    assert_eq!(nr(&plan(&mut limited, in_use())), 13);
    scheme.quota.bytes = 0;
    scheme.filters.push(Filter {
        kind: FilterKind::Addr(range(15, 35)),
        matching: true,
        allow: true,
    });
    let mut planned = plan(&mut engine(&[scheme]), in_use());
    planned.sort_unstable();
    assert_eq!(planned, [(0, 0, mask_of(15..20)), (0, 0, mask_of(30..35))]);
}

#[test]
fn their_ages_begin_anew() {
    let mut engine = engine(&[idle_for(20, Action::Cold)]);
    let operations = engine.plan(SECOND, &[in_use()], &SystemFacts::default());
    let outcomes: Vec<Outcome> = operations.iter().map(Outcome::assumed).collect();
    let renewed = engine.done(&operations, &outcomes);
    let wanted = [range(30, 40), range(512, 517)].map(|range| (TargetId(0), range));
    assert_eq!(renewed, wanted);
}

#[test]
fn what_would_come_back_too_soon_is_left_and_counted() {
    let mut engine = engine(&[idle_for(10, Action::Pageout)]);
    let facts = SystemFacts {
        out_age: [(TargetId(0), Nanos(20 * SECOND.0))].into(),
        ..SystemFacts::default()
    };
    let planned = engine.plan(SECOND, &[in_use()], &facts);
    let bytes: u64 = planned.iter().map(|operation| operation.bytes).sum();
    assert_eq!(bytes, 15 * PAGE_SIZE);
    let withheld =
        |engine: &SchemeEngine| -> u64 { engine.status().map(|of| of.withheld_bytes).sum() };
    assert_eq!(withheld(&engine), 10 * PAGE_SIZE);
    engine.plan(SECOND, &[in_use()], &SystemFacts::default());
    assert_eq!(withheld(&engine), 0, "no prediction");
}
