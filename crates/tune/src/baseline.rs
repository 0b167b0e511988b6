//! The published methods, over the same evaluations: the baselines of a search.
//!
//! They follow DAMOOS' description (its repository, 2021). It tunes one number of a scheme after the other and judges
//! by its score ([`damoos_score`]):
//! - [`PublishedMethod::DamoosGrid`]: four ages, then five sizes at the best of them: nine runs.
//! - [`PublishedMethod::DamoosPolyfit`]: twenty runs for each number, 60 % anywhere and 40 % within a tenth of the
//!   range about the best of these. A polynomial of degree min(runs / 3, 10) is fitted, and its maximum is chosen.
//! - [`PublishedMethod::Swarm`]: its particle swarm is named without its settings. This is the usual one: eight
//!   particles with the constriction of Clerc and Kennedy (2002), ten rounds, each particle at the nearest value of
//!   the space.
//!
//! Its Q-learning (30 states) is not here: its states and rewards are not described.
//!
//! Their result is the best setting that they have run. For the fit, the chosen setting takes one more run.

use isotherm_sim::statistics::scramble;

use super::objective::damoos_score;
use super::predict::Prediction;
use super::space::{SearchPoint, Space};

/// Published methods of choosing settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedMethod {
    /// The grid of DAMOOS.
    DamoosGrid,
    /// The polynomial of DAMOOS.
    DamoosPolyfit,
    /// A particle swarm.
    Swarm,
}

/// Evaluates a point; `None` if it was asked to stop.
pub(super) type Run<'a> = dyn FnMut(&SearchPoint) -> anyhow::Result<Option<Prediction>> + 'a;

/// Runs a method; `run` sees each point once or more often. Returns `false` if the method was stopped before its end.
/// Fails if `run` fails.
pub(super) fn run_method(
    method: PublishedMethod,
    space: &Space,
    start: SearchPoint,
    seed: u64,
    run: &mut Run<'_>,
) -> anyhow::Result<bool> {
    let mut score =
        |point: &SearchPoint| Ok(run(point)?.map(|prediction| damoos_score(&prediction)));
    match method {
        PublishedMethod::DamoosGrid => grid(space, start, &mut score),
        PublishedMethod::DamoosPolyfit => polyfit(space, start, seed, &mut score),
        PublishedMethod::Swarm => swarm(space, seed, &mut score),
    }
}

/// Scores a point; `None` if it was asked to stop.
type Scored<'a> = dyn FnMut(&SearchPoint) -> anyhow::Result<Option<f64>> + 'a;

/// Runs for the first number, and for each after it.
const GRID: (usize, usize) = (4, 5);
/// Runs for each number, and the number of them that are anywhere in the range.
const FIT_RUNS: (usize, usize) = (20, 12);
/// Half width of the range about the best that the other runs are in, as a share of the whole range.
const NEAR: f64 = 0.1;
const PARTICLES: usize = 8;
const ROUNDS: usize = 10;

/// Random numbers from 0 up to 1, from a seed.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(1);
        (scramble(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns the place on a ladder of `steps` steps at the share `along` of its length, 0 to 1.
fn place(steps: usize, along: f64) -> usize {
    (along.clamp(0.0, 1.0) * (steps - 1) as f64).round() as usize
}

fn grid(space: &Space, start: SearchPoint, score: &mut Scored<'_>) -> anyhow::Result<bool> {
    let mut best = start;
    for dimension in 0..space.nr_dimensions() {
        let runs = if dimension == 0 { GRID.0 } else { GRID.1 };
        let mut highest = f64::NEG_INFINITY;
        let from = best.clone();
        for at in 0..runs {
            let mut point = from.clone();
            point.0[dimension] = place(space.nr_steps(dimension), at as f64 / (runs - 1) as f64);
            let Some(score) = score(&point)? else {
                return Ok(false);
            };
            if score > highest {
                (highest, best) = (score, point);
            }
        }
    }
    Ok(true)
}

fn polyfit(
    space: &Space,
    start: SearchPoint,
    seed: u64,
    score: &mut Scored<'_>,
) -> anyhow::Result<bool> {
    let mut draws = Draws(seed);
    let mut best = start;
    for dimension in 0..space.nr_dimensions() {
        let steps = space.nr_steps(dimension);
        let mut scored: Vec<(f64, f64)> = Vec::new();
        let mut at = |along: f64, scored: &mut Vec<(f64, f64)>| {
            let mut point = best.clone();
            point.0[dimension] = place(steps, along);
            let score = score(&point)?;
            let along = point.0[dimension] as f64 / (steps - 1).max(1) as f64;
            scored.extend(score.map(|score| (along, score)));
            Ok::<bool, anyhow::Error>(score.is_some())
        };
        for run in 0..FIT_RUNS.0 {
            let along = if run < FIT_RUNS.1 {
                draws.next()
            } else {
                highest(&scored) + NEAR * (2.0 * draws.next() - 1.0)
            };
            if !at(along, &mut scored)? {
                return Ok(false);
            }
        }
        let fitted = Fit::of(&scored, (scored.len() / 3).min(10));
        let of_fit = |n: usize| {
            let along = n as f64 / (steps - 1).max(1) as f64;
            (along, fitted.at(along))
        };
        let chosen = highest(&(0..steps).map(of_fit).collect::<Vec<_>>());
        if !at(chosen, &mut scored)? {
            return Ok(false);
        }
        best.0[dimension] = place(steps, chosen);
    }
    Ok(true)
}

/// Returns the place of the highest score; the first of several.
fn highest(scored: &[(f64, f64)]) -> f64 {
    let best = scored.iter().reduce(|a, b| if b.1 > a.1 { b } else { a });
    best.map_or(0.5, |(along, _)| *along)
}

fn swarm(space: &Space, seed: u64, score: &mut Scored<'_>) -> anyhow::Result<bool> {
    // Clerc and Kennedy's constriction for 2.05 + 2.05.
    const INERTIA: f64 = 0.7298;
    const PULL: f64 = 1.496_18;
    let mut draws = Draws(seed);
    let dimensions = space.nr_dimensions();
    let mut draw = |_| (0..dimensions).map(|_| draws.next()).collect::<Vec<f64>>();
    let mut places: Vec<Vec<f64>> = (0..PARTICLES).map(&mut draw).collect();
    let mut pulls = Draws(scramble(seed));
    let mut speeds = vec![vec![0.0; dimensions]; PARTICLES];
    let mut own: Vec<(f64, Vec<f64>)> = vec![(f64::NEG_INFINITY, Vec::new()); PARTICLES];
    for _ in 0..ROUNDS {
        for (particle, along) in places.iter().enumerate() {
            let steps = along.iter().enumerate();
            let point = steps.map(|(dimension, along)| place(space.nr_steps(dimension), *along));
            let Some(score) = score(&SearchPoint(point.collect()))? else {
                return Ok(false);
            };
            if score > own[particle].0 {
                own[particle] = (score, along.clone());
            }
        }
        let leader = own.iter().reduce(|a, b| if b.0 > a.0 { b } else { a });
        let leader = leader.map(|(_, along)| along.clone()).unwrap_or_default();
        for (particle, along) in places.iter_mut().enumerate() {
            for dimension in 0..dimensions {
                let speed = &mut speeds[particle][dimension];
                let towards = |goal: &[f64], pulls: &mut Draws| {
                    pulls.next() * (goal[dimension] - along[dimension])
                };
                let pull = towards(&own[particle].1, &mut pulls) + towards(&leader, &mut pulls);
                *speed = INERTIA * *speed + PULL * pull;
            }
            for (along, speed) in along.iter_mut().zip(&speeds[particle]) {
                *along = (*along + speed).clamp(0.0, 1.0);
            }
        }
    }
    Ok(true)
}

/// A polynomial through points, by least squares, in Chebyshev's polynomials over 0 to 1: plain powers of such degrees
/// are too nearly alike.
struct Fit(Vec<f64>);

impl Fit {
    fn terms(along: f64, degree: usize) -> Vec<f64> {
        let x = 2.0 * along - 1.0;
        let mut terms = vec![1.0, x];
        for n in 2..=degree {
            terms.push(2.0 * x * terms[n - 1] - terms[n - 2]);
        }
        terms.truncate(degree + 1);
        terms
    }

    fn of(points: &[(f64, f64)], degree: usize) -> Self {
        let size = degree + 1;
        // The normal equations. A small addition to the diagonal keeps them regular if values are tried twice.
        let mut rows = vec![vec![0.0; size + 1]; size];
        for (along, score) in points {
            let terms = Self::terms(*along, degree);
            for (row, a) in rows.iter_mut().zip(&terms) {
                for (cell, b) in row.iter_mut().zip(terms.iter().chain([score])) {
                    *cell += a * b;
                }
            }
        }
        for (at, row) in rows.iter_mut().enumerate() {
            row[at] += 1e-9;
        }
        for pivot in 0..size {
            let from = rows[pivot].clone();
            for row in rows.iter_mut().skip(pivot + 1) {
                let factor = row[pivot] / from[pivot];
                row.iter_mut()
                    .zip(&from)
                    .for_each(|(cell, from)| *cell -= factor * from);
            }
        }
        let mut found = vec![0.0; size];
        for at in (0..size).rev() {
            let known: f64 = (at + 1..size)
                .map(|other| rows[at][other] * found[other])
                .sum();
            found[at] = (rows[at][size] - known) / rows[at][at];
        }
        Self(found)
    }

    fn at(&self, along: f64) -> f64 {
        let terms = Self::terms(along, self.0.len() - 1);
        terms.iter().zip(&self.0).map(|(term, by)| term * by).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::PublishedMethod::{DamoosGrid, DamoosPolyfit, Swarm};
    use super::*;
    use crate::predict::Estimate;
    use crate::tests::{contexts, prcl_space};
    use std::collections::BTreeSet;

    /// Runs a method on a space with one best place, from which all gets worse. Returns the number of runs and the
    /// distance of the best, in shares of the space's sides.
    fn tried(method: PublishedMethod) -> (usize, f64) {
        let space = prcl_space(&["age", "size"], 240);
        let start = space.point_of(&contexts("prcl")).expect("it is in it");
        let off = |point: &SearchPoint| {
            let along = |d: usize| point.0[d] as f64 / (space.nr_steps(d) - 1) as f64;
            (along(0) - 0.7).abs().max((along(1) - 0.3).abs())
        };
        let (mut runs, mut least) = (BTreeSet::new(), f64::INFINITY);
        let mut run = |point: &SearchPoint| {
            runs.insert(point.clone());
            least = least.min(off(point));
            Ok(Some(Prediction {
                saved_share: Estimate::new(1.0 - off(point).powi(2)),
                ..Prediction::default()
            }))
        };
        assert!(run_method(method, &space, start, 1, &mut run).expect("no failure"));
        (runs.len(), least)
    }

    #[test]
    fn each_takes_its_runs_and_comes_near() {
        for (method, runs_max, off_max) in [
            (DamoosGrid, 9, 0.2),
            (DamoosPolyfit, 42, 0.1),
            (Swarm, 80, 0.1),
        ] {
            let (runs, off) = tried(method);
            assert!(runs <= runs_max && off < off_max, "{runs} {off}");
        }
    }

    #[test]
    fn a_fit_goes_through_what_it_can() {
        let of = |x: f64| 3.0 - 2.0 * x + 5.0 * x * x * x;
        let places = (0..12).map(|n| f64::from(n) / 11.0);
        let points: Vec<(f64, f64)> = places.map(|x| (x, of(x))).collect();
        let fit = Fit::of(&points, 4);
        let mut places = (0..50).map(|n| f64::from(n) / 49.0);
        assert!(places.all(|x| (fit.at(x) - of(x)).abs() < 1e-5));
        // The same value is tried many times.
        let flat = Fit::of(&[(0.5, 1.0); 20], 6);
        assert!(flat.at(0.5).is_finite() && (flat.at(0.5) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn who_is_stopped_stops() {
        for method in [DamoosGrid, DamoosPolyfit, Swarm] {
            let space = prcl_space(&[], 60);
            let mut nr = 0;
            let mut run = |_: &SearchPoint| {
                nr += 1;
                Ok((nr < 4).then(Prediction::default))
            };
            let start = space.point(0);
            assert!(!run_method(method, &space, start, 1, &mut run).expect("no failure"));
            assert_eq!(nr, 4);
        }
    }
}
