//! Tests of patterns, and of the effect of one scheme's work on the next.

use super::*;

fn with(change: impl FnOnce(&mut AccessPattern)) -> [Scheme; 1] {
    let mut scheme = everything(Action::Pageout);
    change(&mut scheme.pattern);
    [scheme]
}

const MEMORY: &str = "[0,4)=0@9 [4,5)=0@2 [5,9)=11@5 [9,20)=20@1 [20,30)=?@9";

#[test]
fn bounds_are_closed() {
    check(&with(|_| ()), MEMORY, "[0,4) [4,5) [5,9) [9,20)");
    let bytes = |min, max| Bounds::new(pages(min), pages(max));
    check(&with(|p| p.size = bytes(4, 4)), MEMORY, "[0,4) [5,9)");
    check(&with(|p| p.size = bytes(5, 99)), MEMORY, "[9,20)");
    let samples = |min, max| Bounds::new(Frequency::Samples(min), Frequency::Samples(max));
    let check_samples = |min, max, wanted| {
        check(&with(|p| p.nr_accesses = samples(min, max)), MEMORY, wanted);
    };
    check_samples(0, 0, "[0,4) [4,5)");
    check_samples(11, 20, "[5,9) [9,20)");
    check_samples(12, 19, "");
    let ages = |min, max| Bounds::new(Age::Intervals(min), Age::Intervals(max));
    check(&with(|p| p.age = ages(2, 5)), MEMORY, "[4,5) [5,9)");
    check(&with(|p| p.age = ages(6, 8)), MEMORY, "");
}

#[test]
fn shares_and_times_mean_the_same_whatever_the_intervals_are() {
    let shares = |min, max| Bounds::new(Frequency::Percent(min), Frequency::Percent(max));
    let check_shares = |min, max, wanted| {
        check(&with(|p| p.nr_accesses = shares(min, max)), MEMORY, wanted);
    };
    check_shares(0.0, 0.0, "[0,4) [4,5)");
    check_shares(55.0, 100.0, "[5,9) [9,20)");
    check_shares(55.1, 100.0, "[9,20)");
    check_shares(1.0, 55.0, "[5,9)");
    let times = Bounds::new(Age::Time(Nanos(5 * SECOND.0)), Age::Intervals(8));
    check(&with(|p| p.age = times), MEMORY, "[5,9)");
}

#[test]
fn what_is_unknown_is_not_cold() {
    check(&[idle(Action::Pageout)], "[0,4)=? [4,8)=0", "[4,8)");
    check(&[everything(Action::Stat)], "[0,4)=?", "");
}

#[test]
fn the_age_begins_anew_for_the_schemes_after_one_that_acts() {
    let old = |action| {
        let mut scheme = everything(action);
        scheme.pattern.age.min = Age::Intervals(3);
        scheme
    };
    let memory = "[0,4)=0@3 [4,8)=0@2";
    let both = [old(Action::Pageout), old(Action::Stat)];
    check(&both, memory, "[0,4)");
    let both = [old(Action::Stat), old(Action::Pageout)];
    check(&both, memory, "[0,4) #1[0,4)");
    let both = [old(Action::Cold), everything(Action::Pageout)];
    check(&both, memory, "[0,4) #1[0,4) #1[4,8)");
}

#[test]
fn what_a_scheme_divides_is_divided_for_the_others() {
    // The first scheme's quota ends at page 3. The second scheme sees two regions, which are too small for it.
    let mut large = everything(Action::Stat);
    large.pattern.size.min = pages(6);
    let schemes = [limited(Action::Cold, 3, SECOND), large];
    check(&schemes, "[0,8)=0", "[0,3)");
    check(&schemes, "[0,9)=0", "[0,3) #1[3,9)");
    check(&schemes, "[0,3)=0 [3,9)=0", "[0,3) #1[3,9)");
    // The first scheme has seen the whole region: it does not act on the part a second time.
    let schemes = [everything(Action::Stat), limited(Action::Cold, 3, SECOND)];
    check(&schemes, "[0,9)=0", "[0,9) #1[0,3)");
}

#[test]
fn whose_age_begins_anew_is_reported() {
    let check = |schemes: &[Scheme], picture: &str, wanted: &str| {
        let mut bench = Bench::new(schemes);
        let plan = bench.plan(picture);
        let outcomes: Vec<_> = plan.iter().map(Outcome::assumed).collect();
        let renewed = bench.engine.done(&plan, &outcomes);
        let ranges: Vec<_> = renewed.iter().map(|(_, range)| *range).collect();
        assert_eq!(of_ranges(&ranges), wanted, "from {picture}");
    };
    let memory = "[0,4)=0 [4,8)=0 [8,9)=5 [9,12)=0 | [12,13)=0";
    check(&[idle(Action::Cold)], memory, "[0,8) [9,12) [12,13)");
    check(&[idle(Action::Stat)], memory, "");
    let both = [idle(Action::Cold), everything(Action::Pageout)];
    check(&both, memory, "[0,12) [12,13)");
}

#[test]
fn regions_that_end_within_a_page_are_acted_on_in_whole_pages() {
    let mut snapshots = snapshots_of("[0,4)=0 [5,6)=0", 1);
    snapshots[0].regions[0].range = AddressRange::new(100, pages(3) + 100);
    snapshots[0].regions[1].range = AddressRange::new(pages(5) + 1, pages(6));
    let mut engine = SchemeEngine::new(vec![everything(Action::Cold)]).expect("good");
    let plan = engine.plan(SECOND, &snapshots, &SystemFacts::default());
    assert_eq!(of_operations(&plan), "[1,3)");
    assert_eq!(engine.stats(0).expect("a scheme").nr_snapshots, 1);
}

#[test]
fn hot_memory_scores_high_for_some_actions_and_cold_memory_for_others() {
    let check = |frequency, age, picture: &str, hot: u32| {
        let weights = Weights {
            size_permil: 1000,
            nr_accesses_permil: frequency,
            age_permil: age,
        };
        let region = snapshots_of(picture, 1)[0].regions[0];
        let score = |action| priority::score(action, &region, 20, weights);
        let case = format!("{picture} by {frequency} and {age}");
        assert_eq!(score(Action::MigrateHot), hot, "{case}");
        assert_eq!(score(Action::LruPrio), hot, "{case}");
        for action in [Action::Pageout, Action::LruDeprio, Action::MigrateCold] {
            assert_eq!(score(action), 99 - hot, "{action} of {case}");
        }
        assert_eq!(score(Action::Hugepage), 99, "{case}");
        assert_eq!(score(Action::Cold), 99, "{case}");
    };
    check(1, 0, "[0,1)=0", 0);
    check(1, 0, "[0,1)=10", 49);
    check(1, 0, "[0,1)=20", 99);
    // 0 s: the middle. 1 s is one step of 64, away from it; 8 to 15 s are four.
    check(0, 1, "[0,1)=0@0", 49);
    check(0, 1, "[0,1)=0@1", 47);
    check(0, 1, "[0,1)=5@1", 50);
    check(0, 1, "[0,1)=0@8", 42);
    check(0, 1, "[0,1)=0@15", 42);
    check(0, 1, "[0,1)=0@16", 41);
    check(0, 1, "[0,1)=9@16", 56);
    check(0, 1, "[0,1)=0@4000000000", 0);
    check(1, 1, "[0,1)=20@8", 77);
    check(3, 1, "[0,1)=10@0", 49);
    // Without weights all memory is equal; the size does not count.
    check(0, 0, "[0,1)=20@8", 0);
    check(0, 0, "[0,100)=20@8", 0);
}
