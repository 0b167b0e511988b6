//! Tests of watermarks, intervals and limits on snapshots.

use super::*;

fn with_watermarks() -> Scheme {
    let mut scheme = everything(Action::Cold);
    scheme.watermarks = Some(watermarks(500, 400, 200));
    scheme
}

/// Checks steps of a second each: the `free` permil, and whether the scheme is active then.
#[track_caller]
fn check_watermarks(steps: &[(Option<u32>, bool)]) {
    let mut bench = Bench::new(&[with_watermarks()]);
    for (step, (free, works)) in steps.iter().enumerate() {
        bench.system.free_mem_permil = *free;
        let is_planned = !bench.plan("[0,1)=0").is_empty();
        assert_eq!(is_planned, *works, "step {step} of {steps:?}");
        assert_eq!(bench.engine.is_idle(), !works);
    }
}

#[test]
fn schemes_rest_by_their_watermarks() {
    check_watermarks(&[(Some(500), true), (Some(501), false)]);
    check_watermarks(&[(Some(200), true), (Some(199), false)]);
    // An inactive scheme does not become active just below `high`.
    check_watermarks(&[
        (Some(501), false),
        (Some(500), false),
        (Some(400), false),
        (Some(399), true),
        (Some(450), true),
        (Some(199), false),
        (Some(200), true),
    ]);
    // An unknown value changes nothing.
    check_watermarks(&[(None, true), (Some(600), false), (None, false)]);
}

#[test]
fn watermarks_are_looked_at_once_per_interval() {
    let mut scheme = with_watermarks();
    scheme.watermarks.as_mut().expect("set").interval = Nanos(3 * SECOND.0);
    let mut bench = Bench::new(&[scheme, everything(Action::Stat)]);
    let mut works = |free| {
        bench.system.free_mem_permil = Some(free);
        of_operations(&bench.plan("[0,1)=0")) == "[0,1) #1[0,1)"
    };
    let seen = [450, 999, 999, 999, 300, 300, 300].map(&mut works);
    assert_eq!(seen, [true, true, true, false, false, false, true]);
    assert!(!bench.engine.is_idle(), "the other one works");
    assert_eq!(bench.engine.next_check(), Some(Nanos(10 * SECOND.0)));
}

#[test]
fn an_idle_engine_wakes_without_a_snapshot() {
    let mut bench = Bench::new(&[with_watermarks()]);
    bench.system.free_mem_permil = Some(900);
    bench.check("[0,1)=0", "");
    bench.system.free_mem_permil = Some(300);
    let (now, next) = (SECOND, bench.engine.next_check().expect("watermarks"));
    bench.engine.check_watermarks(now, &bench.system);
    assert!(bench.engine.is_idle());
    bench.engine.check_watermarks(next, &bench.system);
    assert!(!bench.engine.is_idle());
}

#[test]
fn an_apply_interval_is_rounded_up_to_the_next_snapshot() {
    let times = |millis| {
        let mut scheme = everything(Action::Stat);
        scheme.apply_interval = Nanos::from_millis(millis);
        let mut bench = Bench::new(&[scheme]);
        let mut seconds = Vec::new();
        for _ in 0..10 {
            if !bench.plan("[0,1)=0").is_empty() {
                seconds.push(bench.now);
            }
        }
        seconds
    };
    let all: Vec<u64> = (1..=10).collect();
    assert_eq!(times(0), all);
    assert_eq!(times(1), all);
    assert_eq!(times(1_000), all);
    assert_eq!(times(3_000), [3, 6, 9]);
    assert_eq!(times(2_500), [3, 5, 8, 10]);
}

#[test]
fn late_snapshots_do_not_add_up_to_fewer_applications() {
    let mut scheme = everything(Action::Stat);
    scheme.apply_interval = SECOND;
    let mut engine = SchemeEngine::new(vec![scheme]).expect("good");
    for late in [0, 1, 90, 7, 0, 400, 2] {
        let second = engine.stats(0).expect("a scheme").nr_snapshots + 1;
        let now = Nanos(second * SECOND.0 + late);
        let snapshots = snapshots_of("[0,1)=0", second);
        let plan = engine.plan(now, &snapshots, &SystemFacts::default());
        assert_eq!(plan.len(), 1, "{late} ns late");
    }
}

#[test]
fn a_scheme_ends_after_so_many_snapshots() {
    let mut scheme = everything(Action::Cold);
    scheme.max_nr_snapshots = 2;
    let mut bench = Bench::new(std::slice::from_ref(&scheme));
    bench.check("[0,1)=? [2,3)=0", "[2,3)");
    bench.check("[0,1)=?", "");
    bench.check("[2,3)=0", "");
    let status = bench.engine.status().next().expect("a scheme");
    assert!(status.is_finished && status.is_active);
    // As in the kernel, each target's regions are a snapshot. A snapshot that is not walked to its end because of the
    // quota does not count.
    check(&[scheme], "[0,1)=0 | [0,1)=0 | [0,1)=0", "[0,1) | [0,1)");
    let mut limited = limited(Action::Cold, 1, SECOND);
    limited.max_nr_snapshots = 1;
    let mut bench = Bench::new(&[limited]);
    bench.check("[0,2)=0", "[0,1)");
    assert_eq!(bench.stats().nr_snapshots, 0);
    bench.check("[0,2)=0", "[1,2)");
    assert_eq!(bench.stats().nr_snapshots, 1);
    bench.check("[0,2)=0", "");
}

#[test]
fn a_paused_engine_plans_nothing() {
    let mut bench = Bench::new(&[everything(Action::Cold)]);
    bench.engine.set_paused(true);
    bench.check("[0,1)=0", "");
    assert!(bench.engine.is_paused());
    bench.engine.set_paused(false);
    bench.check("[0,1)=0", "[0,1)");
    assert_eq!(bench.stats().nr_snapshots, 1);
}

#[test]
fn only_what_is_needed_is_asked_for() {
    let mut tuned = limited(Action::Cold, 0, Nanos(2 * SECOND.0));
    let goal = |metric| goal(metric, 1);
    let (node, memcg_path) = (3, "a".to_owned());
    tuned.quota.goals = vec![
        goal(GoalMetric::SomeMemPsiUs),
        goal(GoalMetric::NodeMemFreeBp { node }),
        goal(GoalMetric::NodeMemcgUsedBp { node, memcg_path }),
        goal(GoalMetric::NodeEligibleMemBp { node }),
        goal(GoalMetric::UserInput),
    ];
    let mut bench = Bench::new(&[with_watermarks(), tuned]);
    let all = [
        Metric::FreeMem,
        Metric::SomeMemPsi,
        Metric::Node(3),
        Metric::NodeMemcg(3, "a".to_owned()),
        Metric::Eligible(1, 3),
    ];
    assert_eq!(bench.engine.metrics(), all);
    let at = |second| Nanos(second * SECOND.0);
    assert_eq!(bench.engine.wanted_metrics(at(1)), all);
    bench.check("[0,1)=0", "[0,1)");
    assert_eq!(bench.engine.wanted_metrics(at(1)), []);
    assert_eq!(bench.engine.wanted_metrics(at(2)), [Metric::FreeMem]);
    assert_eq!(bench.engine.wanted_metrics(at(3)), all);
    let snapshots = snapshots_of("[0,1)=? [1,2)=0 | [4,9)=0", 2);
    let matching: Vec<_> = bench.engine.matching(1, &snapshots).collect();
    let wanted = [(TargetId(0), range(1, 2)), (TargetId(1), range(4, 9))];
    assert_eq!(matching, wanted);
}
