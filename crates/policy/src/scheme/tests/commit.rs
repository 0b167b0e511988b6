//! Exchanging schemes while running, and schemes that are refused.

use super::*;

#[test]
fn exchanged_schemes_keep_what_they_have_done() {
    let minute = Nanos(60 * SECOND.0);
    let mut bench = Bench::new(&[limited(Action::Cold, 4, minute), everything(Action::Stat)]);
    bench.check("[0,3)=0", "[0,3) #1[0,3)");
    let bound = |bench: &mut Bench, nr_pages| {
        let schemes = vec![limited(Action::Pageout, nr_pages, minute)];
        bench.engine.set_schemes(schemes).expect("good schemes");
    };
    bound(&mut bench, 8);
    assert_eq!(bench.engine.schemes().len(), 1);
    assert_eq!(bench.stats().sz_tried, pages(3));
    // Bytes charged to the old quota are charged to the new one at once.
    bench.check("[0,9)=0", "[0,5)");
    bound(&mut bench, 6);
    bench.check("[0,9)=0", "");
    bound(&mut bench, 9);
    bench.check("[0,9)=0", "[5,6)");
    bound(&mut bench, 0);
    bench.check("[0,9)=0", "[0,9)");
    assert_eq!(bench.quota(), QuotaState::default());
    bound(&mut bench, 2);
    bench.check("[0,9)=0", "[0,2)");
}

#[test]
fn exchanged_watermarks_are_looked_at_at_once() {
    let marked = |high_permil| {
        let mut scheme = everything(Action::Cold);
        scheme.watermarks = Some(Watermarks {
            interval: Nanos(99 * SECOND.0),
            ..watermarks(high_permil, high_permil, 0)
        });
        scheme
    };
    let mut bench = Bench::new(&[marked(500)]);
    bench.system.free_mem_permil = Some(600);
    bench.check("[0,1)=0", "");
    bench.engine.set_schemes(vec![marked(700)]).expect("good");
    bench.check("[0,1)=0", "[0,1)");
    bench.engine.set_schemes(vec![marked(500)]).expect("good");
    bench.check("[0,1)=0", "");
    let unmarked = vec![everything(Action::Cold)];
    bench.engine.set_schemes(unmarked).expect("good");
    bench.check("[0,1)=0", "[0,1)");
}

#[test]
fn outcomes_of_schemes_that_are_gone_do_no_harm() {
    let scheme = || limited(Action::Cold, 9, SECOND);
    let mut bench = Bench::new(&[scheme(), scheme()]);
    let plan = bench.plan("[0,9)=0");
    let unlimited = vec![everything(Action::Cold)];
    bench.engine.set_schemes(unlimited).expect("good");
    let outcomes: Vec<_> = plan.iter().map(Outcome::assumed).collect();
    let renewed = bench.engine.done(&plan, &outcomes);
    assert_eq!(renewed, [(TargetId(0), range(0, 9))]);
    assert_eq!(bench.quota().charged, 0);
}

/// Checks that a scheme is refused after `change`, with the wanted message.
#[track_caller]
fn check_refusal(change: impl FnOnce(&mut Scheme), wanted: &str) {
    let mut scheme = everything(Action::MigrateCold);
    scheme.destinations = vec![Destination { node: 2, weight: 1 }];
    change(&mut scheme);
    let schemes = vec![everything(Action::Stat), scheme];
    let refusal = SchemeEngine::new(schemes.clone()).expect_err(wanted);
    let wanted = format!("scheme 1 (migrate_cold): {wanted}");
    assert_eq!(refusal.to_string(), wanted);
    let mut engine = SchemeEngine::new(Vec::new()).expect("good");
    assert_eq!(engine.set_schemes(schemes), Err(refusal));
    assert_eq!(engine.schemes().len(), 0);
}

#[test]
fn patterns_that_nothing_has_are_refused() {
    let size = "its least size is above its most, so that no memory matches; exchange the two";
    check_refusal(|s| s.pattern.size = Bounds::new(2, 1), size);
    let accesses = Bounds::new(Frequency::Percent(50.0), Frequency::Percent(5.0));
    check_refusal(
        |s| s.pattern.nr_accesses = accesses,
        "its least access frequency is above its most, so that no memory matches; exchange the two",
    );
    let ages = Bounds::new(Age::Time(SECOND), Age::Time(Nanos(0)));
    let age = "its least age is above its most, so that no memory matches; exchange the two";
    check_refusal(|s| s.pattern.age = ages, age);
    let share = "its access frequency is not a share of 0 % to 100 %";
    let (nan, large) = (Frequency::Percent(f64::NAN), Frequency::Percent(100.5));
    check_refusal(|s| s.pattern.nr_accesses.min = nan, share);
    check_refusal(|s| s.pattern.nr_accesses.max = large, share);
}

#[test]
fn what_cannot_be_worked_with_is_refused() {
    let nowhere = "it moves memory but does not say where to; name a node";
    check_refusal(|s| s.destinations.clear(), nowhere);
    let weight = "the weight of node 2 is 0; leave the node out, or give it a weight";
    check_refusal(|s| s.destinations[0].weight = 0, weight);
    let target = "the target value of its goal 0 is 0; say what the metric should come to";
    let zero = goal(GoalMetric::UserInput, 0);
    check_refusal(|s| s.quota.goals.push(zero), target);
    let charge = FailCharge {
        numerator: 1,
        denominator: 0,
    };
    check_refusal(
        |s| s.quota.fail_charge = Some(charge),
        "the denominator of its charge for failures is 0; leave both out for a full charge",
    );
    let order = "its watermarks are not in order: low <= mid <= high is needed, not 200, 400, 300";
    let unordered = watermarks(300, 400, 200);
    check_refusal(|s| s.watermarks = Some(unordered), order);
}
