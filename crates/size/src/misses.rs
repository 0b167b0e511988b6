//! Accesses by stack distance: how many read a page back under each limit.

use crate::buckets::{class_of, first_of, last_of};

/// Pages that are read back from swap, and from files; and seconds in which the memory in use does not fit.
pub(crate) type Lost = [f64; 3];

/// Accesses by stack distance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Misses {
    /// Accesses of each class of distances.
    classes: Vec<Lost>,
}

impl Misses {
    pub(crate) fn add(&mut self, distance: u64, accesses: Lost) {
        let class = class_of(distance);
        if self.classes.len() <= class {
            self.classes.resize(class + 1, [0.0; 3]);
        }
        for (sum, accesses) in self.classes[class].iter_mut().zip(accesses) {
            *sum += accesses;
        }
    }

    /// Adds accesses whose distances are spread evenly over `least..=greatest`.
    pub(crate) fn spread(&mut self, least: u64, greatest: u64, accesses: Lost) {
        let width = (greatest - least + 1) as f64;
        let mut from = least;
        while from <= greatest {
            let to = last_of(class_of(from)).min(greatest);
            let share = (to - from + 1) as f64 / width;
            self.add(from, accesses.map(|accesses| accesses * share));
            from = to + 1;
        }
    }

    /// Returns the accesses that read a page back if `pages` fit into memory.
    pub(crate) fn beyond(&self, pages: u64) -> Lost {
        let beyond = self.classes.iter().skip(class_of(pages) + 1);
        beyond.fold([0.0; 3], |[a, b, c], [d, e, f]| [a + d, b + e, c + f])
    }

    /// Adds censored accesses. Each is distributed over the distances that were seen beyond its own. The rest is spread up
    /// to `most`.
    ///
    /// Source: Efron, *The Two Sample Problem with Censored Data*, 1967 (redistribution to the right, which gives the
    /// estimate of Kaplan and Meier).
    pub(crate) fn with_censored(mut self, censored: &Self, most: u64) -> Self {
        let len = self.classes.len().max(censored.classes.len());
        self.classes.resize(len, [0.0; 3]);
        for kind in 0..3 {
            let at = |class: usize| censored.classes.get(class).map_or(0.0, |of| of[kind]);
            let sum = |class: usize| self.classes[class][kind] + at(class);
            let all: f64 = (0..len).map(sum).sum();
            // What is less is left by rounding.
            let least = 1e-9 * all;
            let last = (0..len).rev().find(|class| sum(*class) > least);
            let (mut beyond, mut left) = (all, all);
            for class in 0..len {
                let seen = self.classes[class][kind];
                let share = if seen > least && beyond > 0.0 {
                    (seen / beyond).min(1.0)
                } else {
                    0.0
                };
                self.classes[class][kind] = left * share;
                left *= 1.0 - share;
                beyond -= seen + at(class);
            }
            let mut rest = [0.0; 3];
            rest[kind] = left;
            let last = last.map_or(0, last_of);
            self.spread(most.min(last + 1), most, rest);
        }
        self
    }

    /// Adds a `share` of the seconds of `other`.
    pub(crate) fn with_seconds_of(mut self, other: &Self, share: f64) -> Self {
        for (class, lost) in other.classes.iter().enumerate() {
            self.add(last_of(class), [0.0, 0.0, share * lost[2]]);
        }
        self
    }

    /// Returns these accesses with no more beyond any distance than `bound` has.
    pub(crate) fn at_most(mut self, bound: &Self) -> Self {
        for kind in 0..3 {
            let (mut own, mut most, mut before) = (0.0, 0.0, 0.0);
            for class in (0..self.classes.len().max(bound.classes.len())).rev() {
                most += bound.classes.get(class).map_or(0.0, |of| of[kind]);
                if let Some(of) = self.classes.get_mut(class) {
                    own += of[kind];
                    let both = f64::min(own, most);
                    of[kind] = both - before;
                    before = both;
                }
            }
        }
        self
    }

    /// Returns the least number of pages in memory at which reading back, at these costs, takes no more than `most`.
    pub(crate) fn least_for(&self, most: f64, costs: Lost) -> u64 {
        let mut lost = 0.0;
        for (class, accesses) in self.classes.iter().enumerate().rev() {
            lost += cost_of(*accesses, costs);
            if lost > most {
                return last_of(class);
            }
        }
        0
    }
}

/// Accesses whose distances are spread evenly over ranges, as changes of their density from class to class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spreads {
    changes: Vec<Lost>,
}

impl Spreads {
    pub(crate) fn add(&mut self, least: u64, greatest: u64, accesses: Lost) {
        let (from, end) = (class_of(least), class_of(greatest) + 1);
        let pages = (last_of(end - 1) - first_of(from) + 1) as f64;
        if self.changes.len() <= end {
            self.changes.resize(end + 1, [0.0; 3]);
        }
        for (kind, accesses) in accesses.into_iter().enumerate() {
            self.changes[from][kind] += accesses / pages;
            self.changes[end][kind] -= accesses / pages;
        }
    }

    /// Adds accesses to pages that were last accessed in one interval. A share `together` of those returned: at most 1.
    ///
    /// Their distances are spread over `least..=greatest`, the nearer to its end the more of them return together. All of
    /// them are as after a sweep. The kernel takes pages away that the sweep has not reached yet, so that a constant
    /// number `K` of `N` pages is missing among those ahead. In random order `K * (1 + ln(N / K))` of them are read back,
    /// the integral of `K / ahead`. A sweep in the order of the last one reads all `N` back: that is the greatest.
    ///
    /// Measured: `experiments/sweeps.py` (docs/results/size.md).
    pub(crate) fn add_returned(
        &mut self,
        least: u64,
        greatest: u64,
        together: f64,
        accesses: Lost,
    ) {
        const ENDS: [f64; 8] = [0.0, 0.016, 0.031, 0.062, 0.125, 0.25, 0.5, 1.0];
        let width = (greatest - least) as f64;
        // The share of accesses that are missed by memory that lacks this share of the width.
        let missed = |lacks: f64| {
            let swept = if lacks > 0.0 {
                lacks * (1.0 - lacks.ln())
            } else {
                0.0
            };
            (lacks / (1.0 - together).max(1e-9)).min(swept)
        };
        for [from, end] in ENDS.array_windows() {
            let at = |lacks: f64| greatest - (lacks * width) as u64;
            let share = missed(*end) - missed(*from);
            self.add(at(*end), at(*from), accesses.map(|nr| nr * share));
        }
    }

    pub(crate) fn misses(&self) -> Misses {
        let mut density = [0.0; 3];
        let classes = self.changes.iter().enumerate().map(|(class, changes)| {
            let pages = (last_of(class) - first_of(class) + 1) as f64;
            for (density, change) in density.iter_mut().zip(changes) {
                *density += change;
            }
            // Rounding may leave less than nothing.
            density.map(|density| f64::max(density * pages, 0.0))
        });
        Misses {
            classes: classes.collect(),
        }
    }
}

/// Returns what is lost, at the costs of a page from swap, a page from a file, and a second.
pub(crate) fn cost_of(lost: Lost, costs: Lost) -> f64 {
    lost.iter().zip(costs).map(|(lost, cost)| lost * cost).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_that_are_only_known_to_be_greater_are_like_the_greater_ones() {
        let misses = |distances: &[(u64, f64)]| {
            let mut misses = Misses::default();
            let mut add = |(distance, nr)| misses.add(distance, [nr, 0.0, 0.0]);
            distances.iter().copied().for_each(&mut add);
            misses
        };
        let seen = misses(&[(10, 4.0), (20, 1.0), (30, 1.0)]);
        let all = seen.with_censored(&misses(&[(15, 2.0), (40, 1.0)]), 50);
        let beyond = [5, 10, 20, 30, 49, 50].map(|pages| all.beyond(pages)[0]);
        // Of the five beyond 10, those beyond 15 are two of 20 and 30, and one of more than 40: a third each. What is
        // beyond 40 lies anywhere up to 50.
        let expected = [9.0, 5.0, 10.0 / 3.0, 5.0 / 3.0, 5.0 / 30.0, 0.0];
        for (is, expected) in beyond.into_iter().zip(expected) {
            assert!((is - expected).abs() < 1e-9, "{beyond:?}");
        }
    }
}
