//! Beliefs about a block's unsampled pages, and the value of a clear.
//!
//! The problem: clearing accessed bits costs CPU time and a TLB flush of the target. Of all pages whose bit is set,
//! only some can be watched in the next interval. Which?
//!
//! The approach: in each block a share `touched` of the unsampled pages is believed to be touched in an interval. Its
//! `weight` is a number of observed pages (a Beta distribution's mean and count). An observation moves the mean.
//! Without one the weight decays, and a change near the block lowers it too. A clear's *value* is the number of pages
//! that it should protect from a wrong report. The planner takes the clears of the most value for each microsecond of
//! their cost. This is an index policy, as for restless bandits: Whittle, "Restless bandits", J. Appl. Probab. 25A,
//! 1988. Discovery, noticing change and giving up on constant blocks all follow from that.
//!
//! Limits: the two kinds of clear, 16 pages or all, are weighed by simple estimates, not by solving for the optimum. If
//! the parts of a block behave differently, they are known apart only after it was cleared whole.

/// Largest weight, in observed pages: more observations add no certainty.
const WEIGHT_MAX: f32 = 64.0;
/// Factor on the weight after an interval without an observation. The second one applies if the block's sampled pages
/// stayed untouched, as that is evidence for the others.
const DECAY: f32 = 0.8;
const DECAY_IDLE: f32 = 0.97;
/// An observation that differs by more than this from the estimate means that the block changed.
const CHANGE_LEAST: f32 = 0.4;
/// Weight of the estimate of pages that were touched just now after being idle. It is too small for a report unless
/// their neighbours agree.
const TOUCHED_ONCE_WEIGHT: f32 = 0.2;
/// If less than this share of the unsampled pages is left after an observation, the estimate of those is hardly
/// observed any more. Its weight is then limited to [`SELECTED_WEIGHT`] pages.
const SELECTED_SHARE: f32 = 0.5;
const SELECTED_WEIGHT: f32 = 2.0;
/// Later observations saved by each page that a whole clear shows as idle.
const IDLE_BONUS: f32 = 0.3;
/// Factor on the gain from a whole clear for a block whose pages were all alike.
const UNIFORM_DISCOUNT: f32 = 0.1;

/// The estimate of accesses to a block's unsampled pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AccessEstimate {
    /// Share of them that is touched in an interval, 0 to 1.
    pub(super) touched: f32,
    /// Certainty of that share, in observed pages; 0: nothing is known.
    pub(super) weight: f32,
    /// Share of sampling windows in which a page that is in use is touched; `None`: not seen yet.
    pub(super) rate: Option<f32>,
    /// When the block was last cleared whole, all of it was touched, or nothing.
    pub(super) is_uniform: bool,
    /// Intervals since it was cleared whole, or first seen.
    pub(super) since_whole: u16,
    /// Number of samples, so that each is taken at another place.
    pub(super) nr_samples: u32,
}

impl Default for AccessEstimate {
    fn default() -> Self {
        Self {
            touched: 0.5,
            weight: 0.0,
            rate: None,
            is_uniform: false,
            since_whole: 0,
            nr_samples: 0,
        }
    }
}

impl AccessEstimate {
    /// Takes in that `touched` of `watched` pages, which were unsampled when the interval began, were touched in it.
    /// Returns the estimated share of all unsampled pages that were touched, and whether the block changed.
    pub(super) fn observe(&mut self, watched: u32, touched: u32) -> (f32, bool) {
        let (n, k) = (watched as f32, touched as f32);
        let seen = k / n;
        let noise = (self.touched * (1.0 - self.touched) / n).sqrt();
        let difference = (seen - self.touched).abs();
        let is_change = self.weight >= 4.0 && difference > CHANGE_LEAST;
        // The interval's own observation counts most, unless it only confirms the access_estimate.
        let prior = if difference <= 2.0 * noise + 0.02 {
            self.weight.min(n)
        } else {
            self.weight.min(1.0)
        };
        self.touched = (k + prior * self.touched) / (n + prior);
        self.weight = if is_change {
            n / 4.0
        } else {
            (self.weight + n).min(WEIGHT_MAX)
        };
        (self.touched, is_change)
    }

    /// Corrects the share after an observation, for the `left` pages that are still unsampled. Pages of `unsampled`
    /// that were seen untouched are sampled from now on, so the touched ones are a larger part of the others. It is
    /// likely but not certain that these are touched again.
    pub(super) fn select(&mut self, unsampled: u32, left: u32) {
        if left == 0 || left >= unsampled {
            return;
        }
        let part = left as f32 / unsampled as f32;
        self.touched = (self.touched / part).min(1.0);
        if part < SELECTED_SHARE {
            self.weight = self.weight.min(SELECTED_WEIGHT);
        }
    }

    /// Lowers the weight after an interval without an observation of unsampled pages. `is_idle`: the block's sampled
    /// pages were not touched either.
    pub(super) fn forget(&mut self, is_idle: bool) {
        let speaks = is_idle && self.touched < 0.2;
        self.weight *= if speaks { DECAY_IDLE } else { DECAY };
    }

    /// Adds `joined` pages to the now `unsampled` ones: they were touched in the last interval after having been idle.
    pub(super) fn join(&mut self, joined: u32, unsampled: u32) {
        if joined == 0 || unsampled == 0 {
            return;
        }
        let share = (joined as f32 / unsampled as f32).min(1.0);
        self.touched += (0.5 - self.touched) * share;
        self.weight += (TOUCHED_ONCE_WEIGHT - self.weight) * share;
    }

    /// Lowers the weight after a change nearby.
    pub(super) fn doubt(&mut self) {
        self.weight = self.weight.min(1.0);
    }

    /// Takes in the share of the touched pages that were touched within the window.
    pub(super) fn observe_rate(&mut self, rate: f32) {
        self.rate = Some(self.rate.map_or(rate, |old| old + (rate - old) * 0.3));
    }

    /// Returns the pages, of `unsampled` ones, that a sample protects from a wrong report.
    pub(super) fn value_of_sample(&self, unsampled: u32) -> f32 {
        let m = self.touched.clamp(0.03, 0.97);
        unsampled as f32 * (m * (1.0 - m) / (1.0 + self.weight)).sqrt()
    }

    /// Returns the pages that clearing all of `unsampled` protects from a wrong report, beyond the effect of a sample.
    pub(super) fn value_of_whole(&self, unsampled: u32) -> f32 {
        let m = self.touched;
        let is_mixed = !self.is_uniform;
        let factor = if is_mixed { 0.5 } else { UNIFORM_DISCOUNT };
        let mixed = 4.0 * m * (1.0 - m) * factor;
        let is_sure = self.weight / (self.weight + 4.0);
        let idle = IDLE_BONUS * (1.0 - m) * is_sure;
        // In the end every block is worth a look at each page.
        let overdue = f32::from(self.since_whole.min(1000)) / 1000.0 * 0.1;
        unsampled as f32 * (mixed * is_sure + idle + overdue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(samples: &[(u32, u32)]) -> AccessEstimate {
        let mut access_estimate = AccessEstimate::default();
        for (watched, touched) in samples {
            access_estimate.observe(*watched, *touched);
        }
        access_estimate
    }

    #[test]
    fn what_is_unknown_is_worth_more_than_what_is_known() {
        let fresh = AccessEstimate::default();
        let known = observed(&[(16, 16), (16, 16)]);
        assert!(fresh.value_of_sample(512) > 3.0 * known.value_of_sample(512));
    }

    #[test]
    fn a_change_is_believed_at_once_and_makes_it_less_sure() {
        let mut access_estimate = observed(&[(16, 16); 4]);
        let (share, is_change) = access_estimate.observe(16, 0);
        assert!(is_change && share < 0.1, "{share}");
        assert!(access_estimate.weight <= 4.0);
    }

    #[test]
    fn what_is_left_after_the_untouched_ones_are_known_was_touched() {
        let mut of = observed(&[(512, 46)]);
        of.select(512, 46);
        assert!(of.touched > 0.95 && of.weight <= 2.0, "{of:?}");
    }

    #[test]
    fn noise_is_averaged() {
        let of = observed(&[(16, 6), (16, 8), (16, 5), (16, 7), (16, 6)]);
        assert!((of.touched - 0.4).abs() < 0.05, "{of:?}");
    }

    #[test]
    fn idle_pages_are_worth_clearing_for_good_and_busy_ones_are_not() {
        let (idle, busy) = (observed(&[(16, 0); 2]), observed(&[(16, 16); 2]));
        assert!(idle.value_of_whole(512) > 5.0 * busy.value_of_whole(512));
    }

    #[test]
    fn without_news_certainty_fades_slower_where_watched_pages_stay_quiet() {
        let (mut a, mut b) = (observed(&[(16, 0)]), observed(&[(16, 0)]));
        a.forget(true);
        b.forget(false);
        assert!(a.weight > b.weight && b.weight > 0.0);
    }
}
