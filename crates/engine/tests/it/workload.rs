//! Tests of whether the engine finds hot memory, in synthetic memory with known truth.

use crate::world::World;

#[test]
fn a_hot_tenth_is_found() {
    let score = World::with_hot(1024, |_| 301, 101).run(30.0, 10.0);
    assert!(score.precision >= 0.95, "precision: {score:?}");
    assert!(score.recall >= 0.95, "recall: {score:?}");
    assert!(
        score.found_after.is_some_and(|after| after <= 2.0),
        "too late: {score:?}"
    );
}

#[test]
fn ten_steps_of_five_seconds_are_followed() {
    let world = World::with_hot(1000, |second| 100 * ((second / 5.0) as u64 % 10), 100);
    // An aggregation interval across a step sees both, so that the bound is lower than in the static world.
    let score = world.run(50.0, 5.0);
    assert!(score.precision >= 0.85 && score.recall >= 0.85, "{score:?}");
}

#[test]
fn a_run_can_be_repeated() {
    let world = World::with_hot(512, |_| 100, 50);
    let run = || format!("{:?}", world.run(10.0, 1.0));
    assert_eq!(run(), run());
}
