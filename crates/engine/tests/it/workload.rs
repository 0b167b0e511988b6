//! Tests of whether the engine finds hot memory, in synthetic memory with known truth.

use isotherm_engine::{Attributes, Strategy};

use crate::world::{Score, World, scattered};

/// Checks precision and recall by bytes, and that the hot memory was found in time.
fn check(world: &World, attributes: Attributes, least: f64, seconds_max: f64) -> Score {
    let score = world.run(attributes, 30.0, 10.0);
    assert!(score.precision >= least, "precision: {score:?}");
    assert!(score.recall >= least, "recall: {score:?}");
    assert!(
        score.found_after.is_some_and(|after| after <= seconds_max),
        "too late: {score:?}"
    );
    score
}

#[test]
fn a_hot_tenth_is_found_by_damons_own_algorithm_and_by_ours() {
    let world = World::with_hot(1024, &[(301, 101)], 200.0);
    check(&world, Attributes::faithful(), 0.95, 2.0);
    let ours = check(&world, Attributes::default(), 0.95, 2.0);
    assert!(ours.cpu <= 0.0101, "{ours:?}");
}

#[test]
fn every_part_of_the_strategy_works_alone() {
    let world = World::with_hot(1024, &[(301, 101)], 200.0);
    let faithful = Strategy::faithful();
    let parts = [
        Strategy {
            cluster_pages: 16,
            ..faithful
        },
        Strategy {
            populated_only: true,
            ..faithful
        },
        Strategy {
            weighted_samples: true,
            ..faithful
        },
        Strategy {
            aligned_splits: true,
            ..faithful
        },
    ];
    for strategy in parts {
        check(
            &world,
            Attributes {
                strategy,
                cpu_budget: None,
                ..Attributes::default()
            },
            0.95,
            2.0,
        );
    }
}

#[test]
fn scattered_hot_pieces_are_found_within_the_budget() {
    let world = World::with_hot(4096, &scattered(205, 4096), 200.0);
    let score = check(&world, Attributes::default(), 0.95, 15.0);
    assert!(score.cpu <= 0.0101, "{score:?}");
}

#[test]
fn two_hundred_hot_megabytes_in_sixteen_gigabytes_are_found_within_ten_seconds() {
    let world = World::with_hot(16 << 10, &[(7003, 200)], 100.0);
    let score = check(&world, Attributes::default(), 0.95, 10.0);
    assert!(score.cpu <= 0.0101, "{score:?}");
}

#[test]
fn ten_steps_of_five_seconds_are_followed() {
    let stairs = |second: f64| vec![(100 * ((second / 5.0) as u64 % 10), 100)];
    let world = World::with_hot_at(1000, stairs, 200.0);
    // An aggregation interval across a step sees both, so that the bound is lower than in the static worlds.
    let score = world.run(Attributes::default(), 50.0, 5.0);
    assert!(score.precision >= 0.85 && score.recall >= 0.85, "{score:?}");
    let score = world.run(Attributes::faithful(), 50.0, 5.0);
    assert!(score.precision >= 0.85 && score.recall >= 0.85, "{score:?}");
}

#[test]
fn a_large_reservation_does_not_hide_what_is_populated() {
    let mut world = World::with_hot(1024, &[(301, 101)], 200.0);
    world.reserve(1 << 20);
    check(&world, Attributes::default(), 0.95, 3.0);
}

#[test]
fn a_run_can_be_repeated() {
    let world = World::with_hot(512, &[(100, 50)], 200.0);
    let run = || format!("{:?}", world.run(Attributes::default(), 10.0, 1.0));
    assert_eq!(run(), run());
}
