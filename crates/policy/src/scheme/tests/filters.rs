//! Tests of filters.

use super::*;

const INSIDE: bool = true;
const OUTSIDE: bool = false;
const ALLOW: bool = true;
const REJECT: bool = false;

fn filter(kind: FilterKind, matching: bool, allow: bool) -> Filter {
    Filter {
        kind,
        matching,
        allow,
    }
}

fn addr(start: u64, end: u64, matching: bool, allow: bool) -> Filter {
    filter(FilterKind::Addr(range(start, end)), matching, allow)
}

fn target(id: u32, matching: bool, allow: bool) -> Filter {
    filter(FilterKind::Target(TargetId(id)), matching, allow)
}

fn anon(matching: bool, allow: bool) -> Filter {
    filter(FilterKind::Ops(OpsFilter::Anon), matching, allow)
}

fn with(filters: &[Filter]) -> [Scheme; 1] {
    let mut scheme = everything(Action::Cold);
    scheme.filters = filters.to_vec();
    [scheme]
}

#[test]
fn address_filters_divide_regions_at_their_borders() {
    let rejected = with(&[addr(4, 6, INSIDE, REJECT)]);
    check(&rejected, "[0,8)=0", "[0,4) [6,8)");
    check(&rejected, "[0,4)=0 [4,6)=0 [6,8)=0", "[0,4) [6,8)");
    check(&rejected, "[5,8)=0", "[6,8)");
    check(&rejected, "[0,5)=0", "[0,4)");
    check(&rejected, "[8,9)=0", "[8,9)");
    let allowed = with(&[addr(4, 6, INSIDE, ALLOW)]);
    check(&allowed, "[0,8)=0", "[4,6)");
    check(&allowed, "[0,4)=0 [6,8)=0", "");
    check(&with(&[addr(4, 6, OUTSIDE, REJECT)]), "[0,8)=0", "[4,6)");
    let outside = with(&[addr(4, 6, OUTSIDE, ALLOW)]);
    check(&outside, "[0,8)=0", "[0,4) [6,8)");
}

#[test]
fn the_first_match_decides() {
    let memory = "[0,10)=0";
    let filters = [addr(2, 8, INSIDE, REJECT), addr(4, 10, INSIDE, ALLOW)];
    check(&with(&filters), memory, "[8,10)");
    let filters = [addr(4, 10, INSIDE, ALLOW), addr(2, 8, INSIDE, REJECT)];
    check(&with(&filters), memory, "[0,2) [4,10)");
}

#[test]
fn what_matches_no_filter_gets_the_opposite_of_the_last() {
    let memory = "[0,10)=0";
    let filters = [addr(0, 2, INSIDE, ALLOW), addr(4, 6, INSIDE, REJECT)];
    check(&with(&filters), memory, "[0,2) [2,4) [6,10)");
    let filters = [addr(4, 6, INSIDE, REJECT), addr(0, 2, INSIDE, ALLOW)];
    check(&with(&filters), memory, "[0,2)");
}

#[test]
fn targets_are_filtered() {
    let memory = "[0,4)=0 | [0,4)=0 | [0,4)=0";
    check(&with(&[target(1, true, ALLOW)]), memory, "| [0,4)");
    check(&with(&[target(1, true, REJECT)]), memory, "[0,4) | | [0,4)");
    check(&with(&[target(1, false, ALLOW)]), memory, "[0,4) | | [0,4)");
}

#[test]
fn pages_at_the_ends_of_an_address_filter_are_left_alone() {
    let ragged = |matching, allow| {
        let kind = FilterKind::Addr(AddressRange::new(pages(4) + 1, pages(6) + 1));
        with(&[filter(kind, matching, allow)])
    };
    check(&ragged(INSIDE, REJECT), "[0,9)=0", "[0,4) [7,9)");
    check(&ragged(INSIDE, ALLOW), "[0,9)=0", "[5,6)");
    check(&ragged(OUTSIDE, ALLOW), "[0,9)=0", "[0,4) [7,9)");
    check(&ragged(OUTSIDE, REJECT), "[0,9)=0", "[5,6)");
}

#[test]
fn the_world_is_asked_about_what_the_engines_own_filters_do_not_decide() {
    let check = |filters: &[Filter], wanted: &[(&str, usize, bool)]| {
        let plan = Bench::new(&with(filters)).plan("[0,8)=0");
        assert_eq!(plan.len(), wanted.len(), "{filters:?}");
        for (operation, (text, nr, pass)) in plan.iter().zip(wanted) {
            let got = of_operations(std::slice::from_ref(operation));
            assert_eq!(got, *text, "{filters:?}");
            let asked = (operation.filters.len(), operation.pass_unmatched);
            assert_eq!(asked, (*nr, *pass), "{filters:?}");
        }
    };
    check(&[], &[("[0,8)", 0, true)]);
    check(&[anon(true, ALLOW)], &[("[0,8)", 1, false)]);
    check(&[anon(true, REJECT)], &[("[0,8)", 1, true)]);
    let both = [anon(true, REJECT), anon(false, ALLOW)];
    check(&both, &[("[0,8)", 2, false)]);
    // A match of the engine's own filter decides, wherever it stands. Other memory would be rejected by that filter
    // alone, but is passed to the world's filters if there are any.
    let wanted = [("[0,4)", 0, true), ("[4,8)", 1, false)];
    check(&[anon(true, ALLOW), addr(0, 4, INSIDE, ALLOW)], &wanted);
    check(&[addr(0, 4, INSIDE, ALLOW), anon(true, ALLOW)], &wanted);
    let both = [anon(true, ALLOW), addr(0, 4, INSIDE, REJECT)];
    check(&both, &[("[4,8)", 1, false)]);
}

#[test]
fn filtered_memory_has_no_part_in_the_quota() {
    let mut scheme = limited(Action::Pageout, 4, SECOND);
    scheme.filters = vec![addr(0, 4, INSIDE, REJECT)];
    scheme.quota.weights.age_permil = 1000;
    // The coldest memory is filtered out: the next coldest has its turn.
    let memory = "[0,4)=0@100 [4,8)=0@10 [8,20)=5@9";
    Bench::new(std::slice::from_ref(&scheme)).check(memory, "[4,8)");
    scheme.quota.weights.age_permil = 0;
    let mut bench = Bench::new(&[scheme]);
    bench.check("[0,6)=0 [6,9)=0", "[4,6) [6,8)");
    assert_eq!(bench.stats().sz_tried, pages(4));
}

#[test]
fn what_nobody_can_reclaim_is_not_tried_and_takes_no_quota() {
    let schemes = [Action::Pageout, Action::Hugepage].map(|action| limited(action, 4, SECOND));
    let mut bench = Bench::new(&schemes);
    bench.system.left_alone = [(TargetId(0), vec![range(0, 8)])].into();
    bench.check("[0,16)=0", "#1[0,4) [8,12)");
}
