//! Tests of quotas and priorities.

use super::*;
use crate::port::Refusal;
use isotherm_engine::NodeMoves;

const MANY: Nanos = Nanos(100 * SECOND.0);

fn tuned(tuner: Tuner, goals: &[Goal]) -> Scheme {
    let mut scheme = limited(Action::Cold, 0, SECOND);
    scheme.quota.tuner = tuner;
    scheme.quota.goals = goals.to_vec();
    scheme
}

/// Returns an outcome with half of the bytes applied.
fn half(operation: &Operation) -> Outcome {
    let applied = operation.range.len() / 2;
    Outcome {
        filter_passed: operation.range.len(),
        applied,
        refused: [(Refusal::Kept, applied)].into(),
        took: Nanos::from_millis(1),
        ..Outcome::default()
    }
}

#[test]
fn the_next_window_goes_on_where_the_quota_ended() {
    let mut bench = Bench::new(&[limited(Action::Cold, 3, SECOND)]);
    let memory = "[0,2)=0 [2,4)=0 [4,6)=0";
    bench.check(memory, "[0,2) [2,3)");
    bench.check(memory, "[3,4) [4,6)");
    // All memory had its turn, but as in the kernel it takes a snapshot to detect that.
    bench.check(memory, "");
    bench.check(memory, "[0,2) [2,3)");
    assert_eq!(bench.stats().qt_exceeds, 2);
    let mut bench = Bench::new(&[limited(Action::Cold, 3, SECOND)]);
    let memory = "[0,2)=0 | [0,4)=0 | [0,1)=0";
    bench.check(memory, "[0,2) | [0,1)");
    bench.check(memory, "| [1,4)");
    bench.check(memory, "| | [0,1)");
    bench.check(memory, "[0,2) | [0,1)");
    // The target in which the window ended has exited, or has no memory left.
    bench.check("[0,2)=0", "[0,2)");
    bench.check("[0,2)=0 | [0,9)=0", "[0,2) | [0,1)");
    bench.check("[0,2)=0 |", "[0,2)");
}

#[test]
fn a_window_has_one_quota_however_many_snapshots_it_has() {
    let mut bench = Bench::new(&[limited(Action::Cold, 3, Nanos(3 * SECOND.0))]);
    let memory = "[0,2)=0 [9,20)=9";
    bench.check(memory, "[0,2) [9,10)");
    bench.check(memory, "").check(memory, "");
    assert_eq!(bench.quota().charged, pages(3));
    bench.check(memory, "[10,13)");
    // Without an interval every snapshot has a window of its own.
    let mut bench = Bench::new(&[limited(Action::Cold, 3, Nanos(0))]);
    bench.check("[0,9)=0", "[0,3)").check("[0,9)=0", "[3,6)");
}

#[test]
fn less_than_a_page_is_only_tried() {
    let mut scheme = limited(Action::Cold, 0, SECOND);
    scheme.quota.bytes = pages(2) + 100;
    let mut bench = Bench::new(&[scheme]);
    let memory = "[0,3)=0 [3,5)=0 [5,6)=0";
    bench.check(memory, "[0,2)");
    // The count includes the rest of the first region, and the two others.
    let stats = bench.stats();
    assert_eq!((stats.nr_tried, stats.sz_tried), (4, pages(2)));
    bench.check(memory, "[2,3) [3,4)");
    assert_eq!(bench.stats().qt_exceeds, 1);
    bench.check(memory, "[4,5) [5,6)");
}

#[test]
fn the_coldest_or_the_hottest_memory_comes_first() {
    let first = |action, frequency, age| {
        let mut scheme = limited(action, 4, SECOND);
        scheme.destinations.push(Destination { node: 1, weight: 1 });
        scheme.quota.weights.nr_accesses_permil = frequency;
        scheme.quota.weights.age_permil = age;
        [scheme]
    };
    let memory = "[0,4)=9@1 [4,8)=0@1 [8,12)=20@1 [12,16)=0@99";
    check(&first(Action::Pageout, 0, 1), memory, "[12,16)");
    check(&first(Action::Pageout, 1, 0), memory, "[4,8)");
    check(&first(Action::MigrateHot, 1, 0), memory, "[8,12)");
    check(&first(Action::MigrateHot, 0, 1), memory, "[0,4)");
    check(&first(Action::Cold, 1, 1), memory, "[0,4)");
    // If the best score does not fill the quota, the next one is added.
    let memory = "[0,9)=9@1 [10,13)=20@1 [14,15)=0";
    check(&first(Action::LruPrio, 1, 0), memory, "[0,4)");
}

#[test]
fn time_becomes_bytes_by_the_throughput_so_far() {
    let mut scheme = limited(Action::Cold, 0, SECOND);
    scheme.quota.time = Nanos::from_millis(2);
    let mut bench = Bench::new(&[scheme.clone()]);
    bench.outcome = |operation| Outcome {
        took: Nanos::from_millis(4),
        ..Outcome::assumed(operation)
    };
    let memory = "[0,100000)=0";
    bench.check(memory, "[0,2048)");
    // 2,048 pages took 4 ms.
    bench.check(memory, "[2048,3072)");
    // 3,072 took 8 ms, 3,840 took 12.
    bench.check(memory, "[3072,3840)");
    // The least is one page, and the bytes are a limit as well.
    bench.outcome = |operation| Outcome {
        took: Nanos(1000 * SECOND.0),
        ..Outcome::assumed(operation)
    };
    bench
        .check(memory, "[3840,4480)")
        .check(memory, "[4480,4481)");
    scheme.quota.bytes = pages(3);
    check(&[scheme], memory, "[0,3)");
}

#[test]
fn failures_are_charged_as_far_as_is_wanted() {
    let charged = |fail_charge, wanted_pages: u64, then: &str| {
        let mut scheme = limited(Action::Cold, 8, MANY);
        scheme.quota.fail_charge = fail_charge;
        let mut bench = Bench::new(&[scheme]);
        bench.outcome = half;
        bench.check("[0,20)=0", "[0,8)");
        let charged = bench.quota().charged;
        assert_eq!(charged, pages(wanted_pages), "{fail_charge:?}");
        bench.check("[0,20)=0", then);
    };
    let share = |numerator, denominator| {
        Some(FailCharge {
            numerator,
            denominator,
        })
    };
    charged(None, 8, "");
    charged(share(0, 1), 4, "[8,12)");
    charged(share(1, 4), 5, "[8,11)");
    charged(share(1, 1), 8, "");
    charged(share(3, 1), 16, "");
    // If the action applied to more than the operation's bytes, only those are charged.
    let mut scheme = limited(Action::Collapse, 8, MANY);
    scheme.quota.fail_charge = share(1, 2);
    let mut bench = Bench::new(&[scheme]);
    bench.outcome = |operation| Outcome {
        applied: operation.range.len() * 2,
        ..Outcome::assumed(operation)
    };
    bench.check("[0,3)=0", "[0,3)");
    assert_eq!(bench.quota().charged, pages(3));
}

#[test]
fn what_is_done_is_counted() {
    let mut bench = Bench::new(&[everything(Action::Pageout)]);
    bench.outcome = |operation| match operation.range.start {
        0 => Outcome {
            refused: [(Refusal::NoSwap, operation.range.len())].into(),
            ..Outcome::default()
        },
        _ => half(operation),
    };
    bench.check("[0,2)=0 [2,6)=1@7", "[0,2) [2,6)");
    let wanted = Stats {
        nr_tried: 2,
        sz_tried: pages(6),
        nr_applied: 1,
        sz_applied: pages(2),
        sz_ops_filter_passed: pages(4),
        qt_exceeds: 0,
        nr_snapshots: 1,
        refused: [(Refusal::NoSwap, pages(2)), (Refusal::Kept, pages(2))].into(),
        took: Nanos::from_millis(1),
        moved: NodeMoves::default(),
    };
    assert_eq!(*bench.stats(), wanted);
    // An operation without an outcome is only planned.
    bench.plan("[0,2)=0");
    assert_eq!(bench.stats().nr_tried, 2);
}

#[test]
fn what_is_not_reported_is_not_charged() {
    let mut bench = Bench::new(&[limited(Action::Cold, 8, MANY)]);
    bench.plan("[0,5)=0");
    assert_eq!(bench.quota().charged, pages(5));
    bench.check("[0,7)=0", "[0,7)");
    bench.check("[0,7)=0", "[0,1)");
}

#[test]
fn a_quota_follows_its_goal_from_one_byte_on() {
    let mut bench = Bench::new(&[tuned(Tuner::Consist, &[goal(GoalMetric::UserInput, 100)])]);
    let mut seen = Vec::new();
    let mut next = |bench: &mut Bench, current| {
        bench.set_goal_value(current);
        bench.plan("[0,100)=0");
        seen.push(bench.quota().effective.expect("a limit"));
    };
    for _ in 0..15 {
        next(&mut bench, 0);
    }
    for current in [50, 100, 150, 200, 100] {
        next(&mut bench, current);
    }
    let doubling: Vec<u64> = (1..=15).map(|window| 1 << window).collect();
    assert_eq!(seen[..15], doubling);
    assert_eq!(seen[15..], [49_152, 49_152, 24_576, 1, 1]);
}

#[test]
fn a_temporal_goal_is_all_or_nothing() {
    let mut scheme = tuned(Tuner::Temporal, &[goal(GoalMetric::UserInput, 100)]);
    let run = |scheme: &Scheme, not_reached: &str| {
        let mut bench = Bench::new(std::slice::from_ref(scheme));
        bench.check("[0,100)=0", not_reached);
        bench.set_goal_value(100);
        bench.check("[0,100)=0", "");
        assert_eq!(bench.quota().effective, Some(0));
        bench.set_goal_value(99);
        bench.check("[0,100)=0 | [0,1)=0", "[0,100) | [0,1)");
    };
    run(&scheme, "[0,100)");
    scheme.quota.bytes = pages(200);
    scheme.quota.time = SECOND;
    run(&scheme, "[0,100)");
}

#[test]
fn of_several_goals_the_best_reached_decides() {
    let free = goal(GoalMetric::NodeMemFreeBp { node: 0 }, 1_000);
    let goals = [free, goal(GoalMetric::UserInput, 100)];
    let mut bench = Bench::new(&[tuned(Tuner::Temporal, &goals)]);
    let memory = |free| NodeUsage { total: 100, free };
    bench.system.nodes.insert(0, memory(1));
    bench.check("[0,1)=0", "[0,1)");
    bench.system.nodes.insert(0, memory(10));
    bench.check("[0,1)=0", "");
    let scores: Vec<_> = bench.quota().goals.iter().map(|g| g.score_bp).collect();
    assert_eq!(scores, [Some(10_000), Some(0)]);
}

#[test]
fn goals_are_measured_in_their_units() {
    let (node, path) = (1, || "service/a".to_owned());
    let (active, inactive) = (1, 2);
    let mut system = SystemFacts {
        lru: Some(LruMemory { active, inactive }),
        ..SystemFacts::default()
    };
    system.nodes.insert(1, NodeUsage { total: 3, free: 1 });
    system.node_memcg_used.insert((1, path()), 1);
    system.eligible_bp.insert((0, 1), 77);
    let check = |metric: GoalMetric, wanted| {
        let goal = goal(metric, 1);
        assert_eq!(system.value(&goal, 0), wanted, "{goal:?}");
    };
    check(GoalMetric::NodeMemUsedBp { node: 1 }, Some(6_666));
    check(GoalMetric::NodeMemFreeBp { node: 1 }, Some(3_333));
    check(GoalMetric::NodeMemFreeBp { node: 0 }, None);
    let used = |memcg_path| GoalMetric::NodeMemcgUsedBp { node, memcg_path };
    let free = |memcg_path| GoalMetric::NodeMemcgFreeBp { node, memcg_path };
    check(used(path()), Some(3_333));
    check(free(path()), Some(6_666));
    check(free("other".to_owned()), None);
    check(GoalMetric::ActiveMemBp, Some(3_333));
    check(GoalMetric::InactiveMemBp, Some(6_666));
    check(GoalMetric::NodeEligibleMemBp { node: 1 }, Some(77));
    check(GoalMetric::NodeEligibleMemBp { node: 0 }, None);
    check(GoalMetric::SomeMemPsiUs, None);
    check(GoalMetric::UserInput, Some(0));
    let complement = Goal {
        complement: true,
        ..goal(GoalMetric::NodeMemUsedBp { node: 1 }, 1)
    };
    assert_eq!(system.value(&complement, 0), Some(3_334));
}

#[test]
fn pressure_is_that_of_the_window() {
    let pressure = goal(GoalMetric::SomeMemPsiUs, 1_000);
    let mut bench = Bench::new(&[tuned(Tuner::Consist, &[pressure])]);
    let mut current = |total| {
        bench.system.some_mem_psi_total_us = total;
        bench.plan("[0,1)=0");
        bench.quota().goals[0].current
    };
    assert_eq!(current(Some(50_000)), None, "nothing to compare with");
    assert_eq!(current(Some(50_400)), Some(400));
    assert_eq!(current(Some(50_400)), Some(0));
    assert_eq!(current(None), None);
    assert_eq!(current(Some(90_000)), None);
    assert_eq!(current(Some(90_001)), Some(1));
}

#[test]
fn an_unknown_goal_does_not_raise_the_quota() {
    let effective = |known: Option<u64>, tuner| {
        let free = goal(GoalMetric::NodeMemFreeBp { node: 0 }, 5_000);
        let mut bench = Bench::new(&[tuned(tuner, &[goal(GoalMetric::UserInput, 10), free])]);
        let node = |free| NodeUsage { total: 100, free };
        bench.plan("[0,1)=0");
        assert_eq!(bench.quota().effective, Some(0), "nothing was ever known");
        bench.system.nodes.insert(0, node(0));
        for _ in 0..6 {
            bench.plan("[0,1)=0");
        }
        bench.system.nodes.clear();
        if let Some(current) = known {
            bench.set_goal_value(current);
        }
        bench.plan("[0,1)=0");
        let quota = bench.quota();
        assert_eq!(quota.goals[1].current, None);
        quota.effective
    };
    assert_eq!(effective(None, Tuner::Consist), Some(64));
    assert_eq!(effective(Some(15), Tuner::Consist), Some(32));
    assert_eq!(effective(Some(10), Tuner::Temporal), Some(0));
    assert_eq!(effective(None, Tuner::Temporal), Some(u64::MAX / 10_000));
}
