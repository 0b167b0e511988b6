//! What is believed of a block's blind pages, and what a clear is worth.
//!
//! The problem: clearing accessed bits costs CPU time and a TLB flush of the target, so of all pages
//! whose bit is set only some can be watched in the next interval. Which?
//!
//! The approach: of each block's blind pages a share `touched` is believed to be touched in an
//! interval, with a `weight` in observed pages (a Beta distribution's mean and count). An observation
//! moves the mean; without one the weight decays, and what happens beside a block makes it less sure.
//! A clear's *value* is the number of pages that it is expected to keep from being told wrongly; the
//! planner takes the clears of the most value for each microsecond that they cost (an index policy, as
//! for restless bandits: Whittle, "Restless bandits", J. Appl. Probab. 25A, 1988). Discovery, noticing
//! change and giving up on what does not change all follow from that.
//!
//! Limits: the two kinds of clear, 16 pages or all, are weighed by simple estimates, not by solving
//! for the optimum; a block whose parts behave differently is only known apart once it was cleared
//! whole.

/// Most weight: so many observed pages are believed as much as any number.
const WEIGHT_MAX: f32 = 64.0;
/// What is left of the weight after an interval without an observation, and where the block's armed
/// pages, untouched, speak for the others.
const DECAY: f32 = 0.8;
const DECAY_IDLE: f32 = 0.97;
/// An observation that differs by more than this from what was believed says that the block changed.
const CHANGE_LEAST: f32 = 0.4;
/// Weight of what is believed of pages that were just touched after they had been idle: too little to
/// be told unless their neighbours say the same.
const TOUCHED_ONCE_WEIGHT: f32 = 0.2;
/// Where fewer than this share of the blind pages are left after an observation, what is believed of
/// the rest is hardly observed any more: it weighs no more than so many pages.
const SELECTED_SHARE: f32 = 0.5;
const SELECTED_WEIGHT: f32 = 2.0;
/// A page told idle once and for all spares that many later observations.
const IDLE_BONUS: f32 = 0.3;
/// How much a block that moved as one gains from being looked at in parts.
const UNIFORM_DISCOUNT: f32 = 0.1;

/// What is believed of a block's blind pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Belief {
    /// Share of them that is touched in an interval, 0 to 1.
    pub(super) touched: f32,
    /// How sure that is, in observed pages; 0: nothing is known.
    pub(super) weight: f32,
    /// Share of sampling windows in which a page that is in use is touched; `None`: not seen yet.
    pub(super) rate: Option<f32>,
    /// When it was cleared whole, all of it was touched, or nothing.
    pub(super) is_uniform: bool,
    /// Intervals since it was cleared whole, or first seen.
    pub(super) since_whole: u16,
    /// Counts its samples, so that each is taken elsewhere.
    pub(super) nr_samples: u32,
}

impl Default for Belief {
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

impl Belief {
    /// `touched` of `watched` pages, which were blind when the interval began, were touched in it.
    /// Yields the share of all blind pages that is thought to have been, and whether the block changed.
    pub(super) fn observe(&mut self, watched: u32, touched: u32) -> (f32, bool) {
        let (n, k) = (watched as f32, touched as f32);
        let seen = k / n;
        let noise = (self.touched * (1.0 - self.touched) / n).sqrt();
        let difference = (seen - self.touched).abs();
        let is_change = self.weight >= 4.0 && difference > CHANGE_LEAST;
        // The interval's own observation counts most, unless it only confirms.
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

    /// After an observation, of the `left` pages that are still blind: those of `blind` that were seen
    /// to be untouched are watched from now on, so that the touched ones are a larger part of the rest.
    /// That these are touched again is likely, and not sure.
    pub(super) fn select(&mut self, blind: u32, left: u32) {
        if left == 0 || left >= blind {
            return;
        }
        let part = left as f32 / blind as f32;
        self.touched = (self.touched / part).min(1.0);
        if part < SELECTED_SHARE {
            self.weight = self.weight.min(SELECTED_WEIGHT);
        }
    }

    /// An interval passed without an observation of blind pages. `is_idle`: the block's armed pages
    /// were not touched either.
    pub(super) fn forget(&mut self, is_idle: bool) {
        let speaks = is_idle && self.touched < 0.2;
        self.weight *= if speaks { DECAY_IDLE } else { DECAY };
    }

    /// Of now `blind` pages, `joined` were touched in the last interval after having been idle.
    pub(super) fn join(&mut self, joined: u32, blind: u32) {
        if joined == 0 || blind == 0 {
            return;
        }
        let share = (joined as f32 / blind as f32).min(1.0);
        self.touched += (0.5 - self.touched) * share;
        self.weight += (TOUCHED_ONCE_WEIGHT - self.weight) * share;
    }

    /// Something changed nearby: be less sure.
    pub(super) fn doubt(&mut self) {
        self.weight = self.weight.min(1.0);
    }

    /// Takes in how many of the touched pages were touched in a window.
    pub(super) fn observe_rate(&mut self, rate: f32) {
        self.rate = Some(self.rate.map_or(rate, |old| old + (rate - old) * 0.3));
    }

    /// Pages that a sample keeps from being told wrongly, of `blind` ones.
    pub(super) fn value_of_sample(&self, blind: u32) -> f32 {
        let m = self.touched.clamp(0.03, 0.97);
        blind as f32 * (m * (1.0 - m) / (1.0 + self.weight)).sqrt()
    }

    /// Pages that clearing all of `blind` keeps from being told wrongly, beyond what a sample does.
    pub(super) fn value_of_whole(&self, blind: u32) -> f32 {
        let m = self.touched;
        let mixed = 4.0
            * m
            * (1.0 - m)
            * if self.is_uniform {
                UNIFORM_DISCOUNT
            } else {
                0.5
            };
        let is_sure = self.weight / (self.weight + 4.0);
        let idle = IDLE_BONUS * (1.0 - m) * is_sure;
        // In the end everything is worth knowing to the page.
        let overdue = f32::from(self.since_whole.min(1000)) / 1000.0 * 0.1;
        blind as f32 * (mixed * is_sure + idle + overdue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(samples: &[(u32, u32)]) -> Belief {
        let mut belief = Belief::default();
        for (watched, touched) in samples {
            belief.observe(*watched, *touched);
        }
        belief
    }

    #[test]
    fn what_is_unknown_is_worth_more_than_what_is_known() {
        let fresh = Belief::default();
        let known = observed(&[(16, 16), (16, 16)]);
        assert!(fresh.value_of_sample(512) > 3.0 * known.value_of_sample(512));
    }

    #[test]
    fn a_change_is_believed_at_once_and_makes_it_less_sure() {
        let mut belief = observed(&[(16, 16); 4]);
        let (share, is_change) = belief.observe(16, 0);
        assert!(is_change && share < 0.1, "{share}");
        assert!(belief.weight <= 4.0);
    }

    #[test]
    fn what_is_left_after_the_untouched_ones_are_known_was_touched() {
        let mut belief = observed(&[(512, 46)]);
        belief.select(512, 46);
        assert!(belief.touched > 0.95 && belief.weight <= 2.0, "{belief:?}");
    }

    #[test]
    fn noise_is_averaged() {
        let belief = observed(&[(16, 6), (16, 8), (16, 5), (16, 7), (16, 6)]);
        assert!((belief.touched - 0.4).abs() < 0.05, "{belief:?}");
    }

    #[test]
    fn idle_pages_are_worth_clearing_for_good_and_busy_ones_are_not() {
        let (idle, busy) = (
            observed(&[(16, 0), (16, 0)]),
            observed(&[(16, 16), (16, 16)]),
        );
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
