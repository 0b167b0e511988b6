//! Searches of made-up programs, whose best is known by trying everything.

use super::*;
use crate::param::Value;
use crate::predict::Estimate;
use crate::space::Settings;
use crate::tests::{contexts, prcl_space};

/// Creates a made-up program: memory idle for less than `phase` is accessed again, and small regions are many.
fn program(phase: f64) -> impl Fn(&Settings) -> Prediction {
    move |settings| {
        let (mut age, mut size) = (5.0, 4096.0);
        for setting in settings.iter() {
            match setting.value {
                Value::Time(time) => age = time.as_secs_f64(),
                Value::Bytes(bytes) => size = bytes as f64,
                Value::Share(_) => {}
            }
        }
        let shift = (size / 4096.0_f64).log2();
        let saved = 0.9 / (1.0 + age / 40.0) / (1.0 + shift / 8.0);
        let loss = 0.05 * (-age / phase).exp() / (1.0 + shift / 3.0);
        Prediction {
            seconds: 100.0 * (1.0 + loss),
            resident_mean_bytes: (1.0 - saved) * 1e9,
            saved_mean_bytes: saved * 1e9,
            saved_share: Estimate::new(saved),
            slowdown: Estimate::new(loss),
            ..Prediction::default()
        }
    }
}

fn searched(
    space: &Space,
    budget: usize,
    seed: u64,
    of: &dyn Fn(&Settings) -> Prediction,
) -> Search {
    let objective = Objective::Memory { max_slowdown: 0.01 };
    let mut search = Search::new(space.clone(), objective, budget, seed, &contexts("prcl"));
    loop {
        let batch = search.suggest();
        if batch.is_empty() {
            return search;
        }
        for point in batch {
            let prediction = of(&search.space().settings(&point));
            assert!(!search.observed().contains_key(&point), "tried twice");
            search.observe(point, prediction);
        }
    }
}

fn saved(search: &Search) -> f64 {
    let (within, _) = search.best();
    search.observed()[within.expect("one is within")]
        .saved_share
        .value
}

#[test]
fn a_small_space_is_tried_whole() {
    let space = prcl_space(&["age=1s,2s,5s", "size=4K..64K"], 240);
    let search = searched(&space, 15, 1, &program(8.0));
    assert_eq!(search.observed().len(), 15);
}

#[test]
fn a_search_comes_within_a_point_of_the_best_by_an_eighth_of_the_evaluations() {
    let space = prcl_space(&["age=1s..2min", "size=4K..16M"], 240);
    for (phase, seed) in [(3.0, 1), (8.0, 2), (20.0, 3), (60.0, 4)] {
        let all = searched(&space, space.len(), 1, &program(phase));
        let some = searched(&space, space.len() / 8, seed, &program(phase));
        assert!(some.observed().len() <= space.len() / 8);
        let (best, found) = (saved(&all), saved(&some));
        assert!(found >= best - 0.01, "{phase}: {found} of {best}");
    }
}

#[test]
fn the_front_has_no_wide_gaps() {
    let space = prcl_space(&["age=1s..2min"], 240);
    let search = searched(&space, 40, 1, &program(20.0));
    let front: Vec<f64> = (search.front().iter())
        .map(|point| search.observed()[*point].saved_share.value)
        .collect();
    assert!(front.len() > 15);
    let widest = front.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
    assert!(widest < 0.15, "{front:?}");
}

#[test]
fn where_the_schemes_stand_is_tried_first() {
    let space = prcl_space(&["age", "size"], 240);
    let mut search = Search::new(space, Objective::Damoos, 8, 1, &contexts("prcl"));
    let first = search.suggest()[0].clone();
    let settings = search.space().settings(&first).to_string();
    assert_eq!(settings, "age 5 s, size 4 KiB");
}

#[test]
fn a_seed_moves_the_sample_and_nothing_else_does() {
    let space = prcl_space(&["age", "size", "quota"], 240);
    let run = |seed| {
        let search = searched(&space, 60, seed, &program(8.0));
        let points = search.observed().keys().cloned();
        points.collect::<Vec<SearchPoint>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_eq!(run(1).len(), 60);
}

#[test]
fn what_no_setting_keeps_within_is_told_apart() {
    let space = prcl_space(&["age=1s,2s"], 240);
    let objective = Objective::Memory { max_slowdown: 1e-6 };
    let mut search = Search::new(space, objective, 9, 1, &contexts("prcl"));
    for point in search.suggest() {
        let prediction = program(8.0)(&search.space().settings(&point));
        search.observe(point, prediction);
    }
    let (within, beyond) = search.best();
    assert!(within.is_none());
    let nearest = search.space().settings(beyond.expect("there are points"));
    assert_eq!(nearest.to_string(), "age 2 s");
}

#[test]
fn a_refined_search_tries_the_best_of_a_coarse_one_and_its_front() {
    let space = prcl_space(&["age=1s..2min", "size=4K..16M"], 240);
    let coarse = searched(&space, 128, 1, &program(8.0));
    let mut refined = coarse.refined(12, &contexts("prcl"));
    let batch = refined.suggest();
    assert_eq!((batch.len(), refined.nr_most()), (12, 12));
    let is_known = |point: &SearchPoint| coarse.observed().contains_key(point);
    assert!(batch.iter().all(is_known));
    let ranked = coarse.ranked();
    let best = ranked.iter().find(|point| !coarse.is_surely_beyond(point));
    assert!(batch.contains(best.expect("one is within")));
    for point in batch {
        refined.observe(point.clone(), coarse.observed()[&point].clone());
    }
    assert!(refined.suggest().is_empty());
}
