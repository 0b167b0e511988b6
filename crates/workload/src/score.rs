//! Precision and recall: the arithmetic of every comparison with the truth.
//!
//! Scores are in bytes or pages. They are fractions where a monitor's claim applies to a part of a region.

use std::iter::Sum;

/// Claims of a monitor and the truth, in bytes or pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccuracyScore {
    /// Memory that is claimed, and rightly so.
    pub hit: f64,
    /// Memory that is claimed.
    pub claimed: f64,
    /// Memory that should be claimed.
    pub truth: f64,
}

impl AccuracyScore {
    /// Adds a claim, of which a part is right.
    pub fn claim(&mut self, right: f64, wrong: f64) {
        self.hit += right;
        self.claimed += right + wrong;
    }

    /// Share of the claimed memory that is claimed rightly; `None` if nothing was claimed.
    pub fn precision(&self) -> Option<f64> {
        share(self.hit, self.claimed)
    }

    /// Share of the true memory that was claimed; `None` if there is none.
    pub fn recall(&self) -> Option<f64> {
        share(self.hit, self.truth)
    }
}

impl Sum for AccuracyScore {
    fn sum<I: Iterator<Item = Self>>(scores: I) -> Self {
        scores.fold(Self::default(), |sum, score| Self {
            hit: sum.hit + score.hit,
            claimed: sum.claimed + score.claimed,
            truth: sum.truth + score.truth,
        })
    }
}

/// Returns `part` as a share of `whole`, at most 1; `None` if the whole is nothing.
pub fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| (part / whole).min(1.0))
}
