//! Chooses the settings that are tried next.
//!
//! **Problem.** A space has from some ten to some millions of points, and an evaluation takes from milliseconds to
//! seconds. The aim is the whole trade-off, known best at the limit.
//!
//! **Approach.** If the budget covers the space, all of it is tried. Else this is a direct search, after Custodio,
//! Madeira, Vaz and Vicente (*Direct multisearch for multiobjective optimization*, 2011). It first tries the schemes as
//! they are given, the corners, and an even sample (Halton's sequence, moved by the seed). Then rounds follow. In each
//! round some points are polled, by one step up and down in each dimension and by both ways in two at a time. The step
//! of a polled point is halved until it is one place on the ladder. The best point within the limit is polled first.
//! When all of its neighbours are known, the points at the widest gaps of the front are polled. Each round also tries
//! the middles of these gaps, and the middle between the best point and the nearest beyond the limit. The search
//! assumes nothing of the effect of an older age or a larger size. Batches have a fixed size, and every point of one is
//! observed before the next is suggested. The result thus does not depend on the number of evaluations at a time.
//!
//! **Limits.** It is a local search from some twenty starts: a narrow optimum between them is not found. Predictions
//! are taken to be exact.
//!
//! **Not taken.** `egobox` (Gaussian processes) brings linfa and ndarray, 120 crates and more; surrogates save
//! evaluations that cost minutes, not those that cost a tenth of a second. `argmin` and `cmaes` search for one optimum
//! of a real function, without a front, and `cmaes` brings nalgebra. `friedrich` is a Gaussian process alone. With at
//! most three or four ladders of some hundred values, they would replace the 100 lines below by 100 lines of calls.
//!
//! A live search has the same interface: [`Search::suggest`] and [`Search::observe`].

use std::collections::{BTreeMap, BTreeSet};

use isotherm_config::ContextConfig;
use isotherm_engine::units::format_share;

use super::bounds::narrowest;
use super::format::{percent, signed};
use super::front::front;
use super::objective::Objective;
use super::predict::Prediction;
use super::space::{SearchPoint, Space};

/// Number of points that are tried before the next are chosen.
const BATCH: usize = 16;
/// Divisor of the budget: the share for the first, even sample.
const SAMPLE_SHARE: usize = 4;
/// Maximum number of dimensions of a space whose corners are tried.
const CORNER_DIMENSIONS: usize = 3;
/// Number of points that are polled in a round.
const POLLED: usize = 4;

/// A search of a space.
#[derive(Debug)]
pub struct Search {
    space: Space,
    objective: Objective,
    budget: usize,
    /// Points to suggest before polling, the last first.
    first: Vec<SearchPoint>,
    suggested: BTreeSet<SearchPoint>,
    observed: BTreeMap<SearchPoint, Prediction>,
    /// Step of a point's next poll, in places on each ladder; none once its neighbours are known.
    steps: BTreeMap<SearchPoint, Option<Vec<usize>>>,
    first_step: Vec<usize>,
}

impl Search {
    /// Creates a search of `space` by at most `budget` points. The schemes of `start` are tried first.
    pub fn new(
        space: Space,
        objective: Objective,
        budget: usize,
        seed: u64,
        start: &[ContextConfig],
    ) -> Self {
        let mut first: Vec<SearchPoint> = space.point_of(start).into_iter().collect();
        let nr_sampled = (budget / SAMPLE_SHARE).max(1);
        if space.len() <= budget {
            // Spreads the points from the first on, so that an interrupted search has seen some of everything.
            let bits = space.len().next_power_of_two().trailing_zeros();
            let numbers = (0..1_usize << bits).map(|n| reversed(n, bits));
            let inside = numbers.filter(|number| *number < space.len());
            first.extend(inside.map(|number| space.point(number)));
        } else {
            first.extend(corners(&space));
            first.extend((0..nr_sampled).map(|n| halton(&space, n, seed)));
        }
        let mut seen = BTreeSet::new();
        first.retain(|point| seen.insert(point.clone()));
        first.truncate(budget);
        first.reverse();
        let along = (nr_sampled as f64).powf(1.0 / space.nr_dimensions() as f64);
        let first_step = (0..space.nr_dimensions()).map(|d| {
            let step = space.nr_steps(d) as f64 / (2.0 * along);
            (step.ceil() as usize).max(1)
        });
        Self {
            first_step: first_step.collect(),
            space,
            objective,
            budget,
            first,
            suggested: BTreeSet::new(),
            observed: BTreeMap::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Creates a search of at most `budget` of this search's points: first the best by their narrowest bounds, then
    /// points along the front.
    pub(super) fn refined(&self, budget: usize, start: &[ContextConfig]) -> Self {
        let (mut sure, front) = (self.ranked_surely(), self.front());
        let nr_along = (budget / 3).min(front.len());
        let along = (0..nr_along).map(|n| front[n * front.len() / nr_along].clone());
        let mut first: Vec<SearchPoint> = self.space.point_of(start).into_iter().collect();
        let rest = sure.split_off(sure.len().min(budget.saturating_sub(nr_along + 1)));
        first.extend(sure.into_iter().chain(along).chain(rest));
        let mut seen = BTreeSet::new();
        first.retain(|point| self.observed.contains_key(point) && seen.insert(point.clone()));
        first.truncate(budget);
        let budget = first.len();
        first.reverse();
        Self {
            space: self.space.clone(),
            objective: self.objective,
            budget,
            first,
            suggested: BTreeSet::new(),
            observed: BTreeMap::new(),
            steps: BTreeMap::new(),
            first_step: self.first_step.clone(),
        }
    }

    /// Returns the space of the search.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the maximum number of points that it suggests.
    pub fn nr_most(&self) -> usize {
        self.space.len().min(self.budget)
    }

    /// Returns the points to try next; none when it is done. Every point has to be observed before the next call.
    pub fn suggest(&mut self) -> Vec<SearchPoint> {
        let left = self.budget - self.suggested.len();
        let nr_first = self.first.len().saturating_sub(BATCH.min(left));
        let mut batch = self.first.split_off(nr_first);
        batch.reverse();
        while batch.is_empty() && left > 0 {
            let centres = self.centres();
            if centres.is_empty() {
                break;
            }
            let mut wanted = self.middles();
            for centre in centres {
                // All neighbours of a point must be tried before its step is halved, so a batch may be longer.
                if wanted.len() < BATCH {
                    wanted.extend(self.poll(&centre));
                }
            }
            let mut seen = BTreeSet::new();
            wanted.retain(|point| !self.suggested.contains(point) && seen.insert(point.clone()));
            wanted.truncate(left);
            batch = wanted;
        }
        self.suggested.extend(batch.iter().cloned());
        batch
    }

    /// Adds the prediction of a point.
    pub fn observe(&mut self, point: SearchPoint, prediction: Prediction) {
        self.observed.insert(point, prediction);
    }

    pub(super) fn is_within(&self, point: &SearchPoint) -> bool {
        self.objective.rank(&self.observed[point]).violation <= 0.0
    }

    /// Returns all points, the best by their narrowest possible bounds first.
    fn ranked_surely(&self) -> Vec<SearchPoint> {
        let observed = self.observed.iter();
        let ranks = observed.map(|(point, of)| (self.objective.rank(&narrowest(of)), point));
        let mut ranks: Vec<_> = ranks.collect();
        ranks.sort_by(|a, b| a.0.compare(&b.0).then(a.1.cmp(b.1)));
        ranks.into_iter().map(|(_, point)| point.clone()).collect()
    }

    /// Whether a point exceeds the limit even with its narrowest possible bounds.
    pub(super) fn is_surely_beyond(&self, point: &SearchPoint) -> bool {
        let narrow = narrowest(&self.observed[point]);
        self.objective.rank(&narrow).violation > 0.0
    }

    /// Returns the best point so far, in words.
    pub(super) fn lead(&self) -> Option<String> {
        let (within, beyond) = self.best();
        let point = within.or(beyond)?;
        let prediction = &self.observed[point];
        let saved = signed(prediction.saved_share.value, format_share);
        let slower = percent(prediction.slowdown.value);
        let limit = if within.is_some() {
            ""
        } else {
            " (beyond the limit)"
        };
        let settings = self.space.settings(point);
        Some(format!("{settings} saves {saved}, {slower} slower{limit}"))
    }

    /// Returns the points within the limit, the best first; if there are none, the nearest beyond it.
    pub(super) fn ranked(&self) -> Vec<SearchPoint> {
        let within = { self.observed.keys() }.filter(|point| self.is_within(point));
        let mut ranked: Vec<&SearchPoint> = within.collect();
        ranked.sort_by(|a, b| {
            let rank = |point: &SearchPoint| self.objective.rank(&self.observed[point]);
            rank(a).compare(&rank(b)).then(a.cmp(b))
        });
        if ranked.is_empty() {
            ranked.extend(self.best().1);
        }
        ranked.into_iter().cloned().collect()
    }

    /// Returns the recommended point, and the nearest beyond the limit: of those with bounds, if one of them is within.
    pub fn settled(&self) -> (Option<&SearchPoint>, Option<&SearchPoint>) {
        let has_bounds = |point: &SearchPoint| self.observed[point].slowdown.has_bounds();
        match self.best_of(&has_bounds) {
            (Some(within), beyond) => (Some(within), beyond),
            (None, _) => self.best(),
        }
    }

    /// Returns the predictions that were observed, in the space's order.
    pub fn observed(&self) -> &BTreeMap<SearchPoint, Prediction> {
        &self.observed
    }

    /// Returns the best point within the limit, if any is, and the nearest beyond it.
    pub fn best(&self) -> (Option<&SearchPoint>, Option<&SearchPoint>) {
        self.best_of(&|_| true)
    }

    /// Returns the best point within the limit and the nearest beyond it, of some points only.
    pub(super) fn best_of(
        &self,
        is_meant: &dyn Fn(&SearchPoint) -> bool,
    ) -> (Option<&SearchPoint>, Option<&SearchPoint>) {
        let meant = { self.observed.iter() }.filter(|(point, _)| is_meant(point));
        let ranked = meant.map(|(point, p)| (self.objective.rank(p), point));
        let (mut within, mut beyond) = (None, None);
        for (rank, point) in ranked {
            let best = if rank.violation > 0.0 {
                &mut beyond
            } else {
                &mut within
            };
            if best.is_none_or(|(other, _)| rank.compare(&other).is_lt()) {
                *best = Some((rank, point));
            }
        }
        (
            within.map(|(_, point)| point),
            beyond.map(|(_, point)| point),
        )
    }

    /// Returns the front, from the least slowdown to the most.
    pub fn front(&self) -> Vec<&SearchPoint> {
        let points: Vec<&SearchPoint> = self.observed.keys().collect();
        let predictions: Vec<&Prediction> = self.observed.values().collect();
        let places = front(&predictions);
        places.into_iter().map(|at| points[at]).collect()
    }

    /// Returns neighbours on the front, the widest gaps first. The width of a gap is in memory and in time together,
    /// each relative to the front's extent.
    fn gaps(&self) -> Vec<(&SearchPoint, &SearchPoint)> {
        let front = self.front();
        let of = |point: &SearchPoint| {
            let prediction = &self.observed[point];
            (prediction.slowdown.value, prediction.resident_mean_bytes)
        };
        let (Some(first), Some(last)) = (front.first(), front.last()) else {
            return Vec::new();
        };
        let (from, to) = (of(first), of(last));
        let extent = ((to.0 - from.0).max(1e-9), (from.1 - to.1).max(1.0));
        let mut gaps: Vec<(f64, &SearchPoint, &SearchPoint)> = front
            .windows(2)
            .map(|pair| {
                let (a, b) = (of(pair[0]), of(pair[1]));
                let width = (b.0 - a.0) / extent.0 + (a.1 - b.1) / extent.1;
                (width, pair[0], pair[1])
            })
            .collect();
        gaps.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        gaps.into_iter().map(|(_, a, b)| (a, b)).collect()
    }

    /// Returns the middle of the best point within the limit and the nearest beyond it, and the middles of the front's
    /// widest gaps. Middles are by places in the space.
    fn middles(&self) -> Vec<SearchPoint> {
        let (within, beyond) = self.best();
        let gaps = self.gaps().into_iter().take(POLLED);
        let gaps = within.zip(beyond).into_iter().chain(gaps);
        let middle = |(a, b): (&SearchPoint, &SearchPoint)| {
            let places = a.0.iter().zip(&b.0);
            SearchPoint(places.map(|(a, b)| usize::midpoint(*a, *b)).collect())
        };
        gaps.map(middle).collect()
    }

    fn centres(&self) -> Vec<SearchPoint> {
        let (within, beyond) = self.best();
        let at_gaps = self.gaps().into_iter().flat_map(|(a, b)| [a, b]);
        let all = within.or(beyond).into_iter().chain(at_gaps).chain(beyond);
        let mut centres: Vec<SearchPoint> = Vec::new();
        for point in all.chain(self.front()) {
            let is_open = !matches!(self.steps.get(point), Some(None));
            if is_open && !centres.contains(point) {
                centres.push(point.clone());
            }
        }
        // The recommended point comes first. Its neighbours are known before the ends of the gaps are polled; the gaps
        // are halved meanwhile.
        let is_open = centres
            .first()
            .is_some_and(|first| within.or(beyond) == Some(first));
        centres.truncate(if is_open { 1 } else { POLLED });
        centres
    }

    /// Returns the neighbours of a point by its step, and halves the step.
    fn poll(&mut self, centre: &SearchPoint) -> Vec<SearchPoint> {
        let known = self.steps.get(centre).cloned().flatten();
        let step = known.unwrap_or_else(|| self.first_step.clone());
        let moved = |point: &SearchPoint, dimension: usize, is_up: bool| {
            let (last, at) = (self.space.nr_steps(dimension) - 1, point.0[dimension]);
            let mut moved = point.clone();
            moved.0[dimension] = if is_up {
                (at + step[dimension]).min(last)
            } else {
                at.saturating_sub(step[dimension])
            };
            moved
        };
        let mut neighbours = Vec::new();
        for dimension in 0..step.len() {
            for is_up in [false, true] {
                let along = moved(centre, dimension, is_up);
                // Along a limit, one number has to go up where the other goes down.
                let others = dimension + 1..step.len();
                neighbours.extend(others.map(|other| moved(&along, other, !is_up)));
                neighbours.push(along);
            }
        }
        neighbours.retain(|point| !self.suggested.contains(point));
        let is_last = step.iter().all(|by| *by == 1);
        let shorter: Vec<usize> = step.iter().map(|by| by.div_ceil(2)).collect();
        for neighbour in &neighbours {
            let its = self.steps.entry(neighbour.clone());
            its.or_insert_with(|| Some(step.clone()));
        }
        self.steps
            .insert(centre.clone(), (!is_last).then_some(shorter));
        neighbours
    }
}

fn reversed(number: usize, bits: u32) -> usize {
    number
        .reverse_bits()
        .checked_shr(usize::BITS - bits)
        .unwrap_or(0)
}

fn corners(space: &Space) -> Vec<SearchPoint> {
    let dimensions = space.nr_dimensions();
    if dimensions > CORNER_DIMENSIONS {
        return Vec::new();
    }
    let corner = |number: usize| {
        let end = |d: usize| (number >> d & 1) * (space.nr_steps(d) - 1);
        SearchPoint((0..dimensions).map(end).collect())
    };
    (0..1 << dimensions).map(corner).collect()
}

/// Returns the `n`th point of an even sample: Halton's sequence, each dimension moved by the seed (Cranley and
/// Patterson, 1976).
fn halton(space: &Space, n: usize, seed: u64) -> SearchPoint {
    const BASES: [usize; 7] = [2, 3, 5, 7, 11, 13, 17];
    let place = |dimension: usize| {
        let base = BASES[dimension % BASES.len()];
        let (mut rest, mut unit, mut sum) = (n + 1, 1.0, 0.0);
        while rest > 0 {
            unit /= base as f64;
            sum += unit * (rest % base) as f64;
            rest /= base;
        }
        // Multiples of the golden ratio are evenly spread, whatever the seed.
        let moved =
            (sum + (seed.wrapping_mul(dimension as u64 + 1) % 1024) as f64 * 0.618_034).fract();
        let steps = space.nr_steps(dimension);
        ((moved * steps as f64) as usize).min(steps - 1)
    };
    SearchPoint((0..space.nr_dimensions()).map(place).collect())
}

#[cfg(test)]
mod tests;
