//! Errors of replays, learnt from a few live runs.
//!
//! **Problem.** A replay errs in the same direction for settings that are alike (in the cost of a page, or in the time
//! when a live monitor finds idle memory). A live run costs minutes. The result of one run has to serve for all
//! settings.
//!
//! **Approach.** A Gaussian process models the difference between live and replayed results (Kennedy and O'Hagan,
//! *Predicting the output from a complex computer code when fast approximations are available*, 2000). The replay is
//! the fast code, and the scale is fixed at 1. The covariance has three parts: an offset, the same for all settings; a
//! factor on the prediction, the same for all; and a part of each setting's own, alike for neighbours:
//! `a^2 + b^2 p p' + c^2 p p' exp(-|x - x'|^2 / 2 l^2)`. Posterior means and variances are those of Rasmussen and
//! Williams, *Gaussian Processes for Machine Learning* (2006), algorithm 2.1.
//!
//! **Limits.** `a`, `b`, `c` and `l` are not fitted: five runs are too few for that. Those of memory are chosen by the
//! errors of replays on programs that they were not made for (docs/results/prediction.md, "Predictions beside live
//! runs"); those of time are assumed.

/// Errors of replays before any live run, as standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prior {
    /// Error that all settings share: a share of all memory, or of the time.
    pub(super) offset: f64,
    /// Relative error that all settings share: a share of the prediction.
    pub(super) factor: f64,
    /// Relative error of each setting's own.
    pub(super) own: f64,
    /// Variation of a single run against its neighbours, before any two were compared: a share.
    pub(super) noise: f64,
}

/// Distance between settings, as a share of each ladder, at which they have little to say of each other.
const LENGTH: f64 = 0.3;
/// Weight of the prior's noise, as a number of pairs of runs.
const NOISE_WEIGHT: f64 = 2.0;

/// The place of a setting in the space, and its prediction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Predicted {
    /// Places on the ladders, 0 to 1.
    pub(super) place: Vec<f64>,
    pub(super) value: f64,
}

/// The live result of a setting, beside its prediction.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) predicted: Predicted,
    pub(super) live: f64,
    /// Number of runs without schemes that it was compared with, at least one.
    pub(super) nr_bases: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Normal {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    prior: Prior,
    settings: Vec<Predicted>,
    /// Lower triangle of the covariances' Cholesky factor, row by row.
    factor: Vec<Vec<f64>>,
    /// Inverse of the covariances times the differences.
    weights: Vec<f64>,
}

impl Model {
    pub(super) fn new(prior: Prior, observed: &[Observed], noise: f64) -> Self {
        let settings: Vec<Predicted> = observed.iter().map(|of| of.predicted.clone()).collect();
        let covariance = |row: usize, column: usize| {
            let between = prior.covariance(&settings[row], &settings[column]);
            let runs = 1.0 + 1.0 / observed[row].nr_bases.max(1) as f64;
            between
                + if row == column {
                    noise * noise * runs
                } else {
                    0.0
                }
        };
        let factor = cholesky(observed.len(), covariance);
        let differences = observed.iter().map(|of| of.live - of.predicted.value);
        let differences: Vec<f64> = differences.collect();
        let weights = backward(&factor, &forward(&factor, &differences));
        Self {
            prior,
            settings,
            factor,
            weights,
        }
    }

    /// Returns the expected live result of a setting, on average over runs.
    pub(super) fn correct(&self, predicted: &Predicted) -> Normal {
        let of: Vec<f64> = { self.settings.iter() }
            .map(|other| self.prior.covariance(predicted, other))
            .collect();
        let difference: f64 = of.iter().zip(&self.weights).map(|(c, w)| c * w).sum();
        let known: f64 = forward(&self.factor, &of).iter().map(|v| v * v).sum();
        let variance = self.prior.covariance(predicted, predicted) - known;
        Normal {
            mean: predicted.value + difference,
            deviation: variance.max(0.0).sqrt(),
        }
    }
}

impl Prior {
    fn covariance(&self, one: &Predicted, other: &Predicted) -> f64 {
        let places = one.place.iter().zip(&other.place);
        let squares = places.map(|(a, b)| (a - b).powi(2));
        let alike = (-squares.sum::<f64>() / (2.0 * LENGTH * LENGTH)).exp();
        let size = one.value.abs() * other.value.abs();
        self.offset.powi(2) + size * (self.factor.powi(2) + self.own.powi(2) * alike)
    }

    /// Returns the variation of a single run, from `same`: runs of the same settings in the order in which they were
    /// made. It is from half the mean square of the successive differences, to which slow drift adds little (von
    /// Neumann, 1941).
    pub(super) fn noise_of(&self, same: &[f64]) -> f64 {
        let mean = same.iter().sum::<f64>() / same.len().max(1) as f64;
        let squares = same
            .windows(2)
            .map(|pair| ((pair[1] - pair[0]) / mean.max(1e-300)).powi(2) / 2.0);
        let (nr, sum) = squares.fold((0.0, 0.0), |(nr, sum), square| (nr + 1.0, sum + square));
        ((NOISE_WEIGHT * self.noise.powi(2) + sum) / (NOISE_WEIGHT + nr)).sqrt()
    }
}

/// Returns the lower triangle of a positive definite matrix' Cholesky factor.
fn cholesky(size: usize, of: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(size);
    for row in 0..size {
        let mut line: Vec<f64> = Vec::with_capacity(row + 1);
        for column in 0..=row {
            let above = factor.get(column).unwrap_or(&line);
            let pairs = line.iter().zip(above).take(column);
            let sum: f64 = pairs.map(|(a, b)| a * b).sum();
            let rest = of(row, column) - sum;
            line.push(if row == column {
                // Noise keeps it above zero, but for rounding.
                rest.max(1e-18).sqrt()
            } else {
                rest / factor[column][column]
            });
        }
        factor.push(line);
    }
    factor
}

/// Solves `factor x = of`.
fn forward(factor: &[Vec<f64>], of: &[f64]) -> Vec<f64> {
    let mut solved: Vec<f64> = Vec::with_capacity(of.len());
    for (row, line) in factor.iter().enumerate() {
        let sum: f64 = line.iter().zip(&solved).map(|(a, b)| a * b).sum();
        solved.push((of[row] - sum) / line[row]);
    }
    solved
}

/// Solves `factor^T x = of`.
fn backward(factor: &[Vec<f64>], of: &[f64]) -> Vec<f64> {
    let mut solved = vec![0.0; of.len()];
    for row in (0..of.len()).rev() {
        let below = row + 1..of.len();
        let sum: f64 = below.map(|at| factor[at][row] * solved[at]).sum();
        solved[row] = (of[row] - sum) / factor[row][row];
    }
    solved
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: Prior = Prior {
        offset: 0.01,
        factor: 0.5,
        own: 0.5,
        noise: 0.01,
    };

    fn at(place: f64, value: f64) -> Predicted {
        Predicted {
            place: vec![place],
            value,
        }
    }

    fn observed(place: f64, value: f64, live: f64) -> Observed {
        Observed {
            predicted: at(place, value),
            live,
            nr_bases: 2,
        }
    }

    #[test]
    fn without_runs_it_is_what_is_predicted_and_what_replays_were_off_by() {
        let said = Model::new(PRIOR, &[], 0.01).correct(&at(0.5, 0.2));
        assert!((said.mean - 0.2).abs() < 1e-12);
        let off = (0.01_f64.powi(2) + 0.04 * 0.5).sqrt();
        assert!((said.deviation - off).abs() < 1e-12, "{said:?}");
    }

    #[test]
    fn of_one_run_it_is_the_weighted_mean_that_can_be_had_by_hand() {
        let (variance, noise) = (0.01_f64.powi(2) + 0.04 * 0.5, 0.02_f64.powi(2) * 1.5);
        let said = Model::new(PRIOR, &[observed(0.5, 0.2, 0.3)], 0.02).correct(&at(0.5, 0.2));
        let weight = variance / (variance + noise);
        assert!((said.mean - (0.2 + 0.1 * weight)).abs() < 1e-12);
        assert!((said.deviation - (variance * (1.0 - weight)).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn what_is_learnt_of_one_setting_serves_its_neighbours_most() {
        let runs = [
            observed(0.1, 0.2, 0.3),
            observed(0.1, 0.2, 0.3),
            observed(0.2, 0.1, 0.15),
        ];
        let model = Model::new(PRIOR, &runs, 0.01);
        let factor = |place: f64| model.correct(&at(place, 0.2)).mean / 0.2;
        assert!(factor(0.12) > 1.4 && factor(0.9) < factor(0.4) && factor(0.9) > 1.1);
        let deviation = |place: f64| model.correct(&at(place, 0.2)).deviation;
        assert!(deviation(0.12) < deviation(0.4) && deviation(0.4) < deviation(0.9));
    }

    #[test]
    fn noise_is_the_priors_until_runs_were_compared() {
        assert!((PRIOR.noise_of(&[7.0]) - 0.01).abs() < 1e-12);
        let steady = PRIOR.noise_of(&[7.0; 9]);
        assert!((steady - 0.01 * (2.0_f64 / 10.0).sqrt()).abs() < 1e-12);
        assert!(PRIOR.noise_of(&[7.0, 8.0, 7.0, 8.0]) > 0.05);
        // Slow drift adds little to the noise.
        let drifting: Vec<f64> = (0..20).map(|n| 7.0 + 0.01 * f64::from(n)).collect();
        assert!(PRIOR.noise_of(&drifting) < 0.005);
    }
}
