//! Keeps a cost within a budget.
//!
//! Problem: the cost of a memory sample cannot be known beforehand. It depends on the kernel, on the virtualisation, on
//! the number of the target's running threads, and on the accessed share of the sampled memory. A user can, however,
//! set the cost of watching: 1 % of a CPU.
//!
//! Approach: measure, and adapt the *pace* of the work; the cost is expected to grow in proportion to it. 1 is the
//! initial pace, 0.5 means half as much work per second. The pace falls at once and in proportion when the cost since
//! the last change exceeds the budget. It grows gently, by a tenth twice a second, while the cost is well below the
//! budget. This is the additive-increase, multiplicative-decrease idea of TCP's congestion control (Jacobson 1988).
//! Excess spending within the last seconds is paid back: the average over these seconds, not just the next second,
//! meets the budget.
//!
//! On a shared virtual machine the reported CPU time is sometimes hundreds of times the used time (see `fixed_cost`).
//! Taken literally, one such measurement would slow the work down for many seconds. Therefore one piece of work counts
//! as at most [`OUTLIER`] times the most expensive of the last [`PIECES`]. Repeated high costs are counted in full.
//!
//! Limits: it reacts to past spending. Work that suddenly gets more expensive overspends until the next update. A fixed
//! cost that alone exceeds the budget cannot be lowered below the least pace.

use std::collections::VecDeque;

use crate::address::Nanos;
use crate::port::Cost;

/// Time over which the average cost must meet the budget.
const WINDOW: Nanos = Nanos::from_millis(4_000);
/// Least time between two points of the window, which bounds their number.
const STEP: Nanos = Nanos::from_millis(100);
/// Least time over which a cost is trusted, and between two increases.
const TRUSTED: Nanos = Nanos::from_millis(500);
/// Factor on the budget when the pace falls, as costs vary.
const HEADROOM: f64 = 0.9;
/// Share of the budget below which the pace grows.
const ROOM: f64 = 0.8;
const INCREASE: f64 = 1.1;
/// Largest cost of one piece of work, as a multiple of the most expensive one before.
const OUTLIER: u64 = 10;
/// Number of remembered pieces of work.
const PIECES: usize = 64;
/// Least factor of one decrease: a single measurement may be an outlier.
const DECREASE_MAX: f64 = 0.1;

/// Adapts the pace of some work so that its measured cost stays within a share of one CPU.
///
/// Pure: the caller passes the time and the cost. Call [`BudgetController::update`] after each piece of work, and do
/// the next one at the pace it returns:
///
/// ```text
/// let mut controller = BudgetController::new(0.01, 0.01..=4.0);
/// loop {
///     work(controller.pace());
///     controller.update(now, cost);
/// }
/// ```
///
/// `tests/it/examples.rs` runs this.
#[derive(Clone, Debug)]
pub struct BudgetController {
    share: f64,
    least: f64,
    most: f64,
    pace: f64,
    /// Points in time and CPU time spent up to them, over the last [`WINDOW`].
    window: VecDeque<(Nanos, Nanos)>,
    /// The point at which the pace was last changed.
    changed: Option<(Nanos, Nanos)>,
    counted: Counted,
}

/// Total CPU time without the outliers.
#[derive(Clone, Debug, Default)]
struct Counted {
    reported: Nanos,
    total: Nanos,
    /// Costs of the last pieces of work.
    pieces: VecDeque<Nanos>,
}

impl Counted {
    /// Returns the total, given the CPU time `reported` that the kernel reports.
    fn update(&mut self, reported: Nanos) -> Nanos {
        let piece = reported.since(self.reported);
        self.reported = reported;
        let dearest = self.pieces.iter().max();
        let most = dearest.map_or(piece, |dearest| Nanos(dearest.0 * OUTLIER));
        let piece = piece.min(most);
        if piece > Nanos(0) {
            self.pieces.push_back(piece);
            self.pieces
                .drain(..self.pieces.len().saturating_sub(PIECES));
        }
        self.total = self.total + piece;
        self.total
    }
}

impl BudgetController {
    /// Creates a controller that allows `share` of a CPU (0.01 is 1 %). It moves the pace within `bounds`, from 1 or
    /// the bound next to it.
    ///
    /// # Panics
    /// Panics if the bounds are not positive, or in the wrong order.
    pub fn new(share: f64, bounds: std::ops::RangeInclusive<f64>) -> Self {
        let (least, most) = (*bounds.start(), *bounds.end());
        assert!(0.0 < least && least <= most, "a pace is positive");
        Self {
            share,
            least,
            most,
            pace: 1.0_f64.clamp(least, most),
            window: VecDeque::new(),
            changed: None,
            counted: Counted::default(),
        }
    }

    /// Returns the present pace.
    pub fn pace(&self) -> f64 {
        self.pace
    }

    /// Takes in the time spent up to `now` (monitor and induced CPU time; `cost` is a total since the start) and
    /// returns the new pace.
    pub fn update(&mut self, now: Nanos, cost: Cost) -> f64 {
        let point = (
            now,
            self.counted.update(cost.monitor_cpu + cost.induced_cpu),
        );
        self.remember(point);
        let changed = *self.changed.get_or_insert(point);
        let elapsed = now.since(changed.0);
        if elapsed < TRUSTED {
            return self.pace;
        }
        let measured = share_between(changed, point);
        let allowed = self.allowed(point);
        if measured > allowed {
            let factor = (HEADROOM * allowed / measured).max(DECREASE_MAX);
            self.change(factor, point);
        } else if measured < ROOM * allowed {
            self.change(INCREASE, point);
        } else if elapsed >= WINDOW {
            // A measurement over a long calm period would notice a change only after as long again.
            self.changed = Some(point);
        }
        self.pace
    }

    /// Returns the share that may be spent next such that the whole window meets the budget.
    fn allowed(&self, now: (Nanos, Nanos)) -> f64 {
        let first = self.window.front().copied().unwrap_or(now);
        let earned = self.share * now.0.since(first.0).as_secs_f64();
        let debt = (now.1.since(first.1).as_secs_f64() - earned).max(0.0);
        // Never zero: without any samples the present cost of sampling would stay unknown.
        (self.share - debt / WINDOW.as_secs_f64()).max(self.share / 4.0)
    }

    fn change(&mut self, factor: f64, point: (Nanos, Nanos)) {
        self.pace = (self.pace * factor).clamp(self.least, self.most);
        self.changed = Some(point);
    }

    fn remember(&mut self, point: (Nanos, Nanos)) {
        if self
            .window
            .back()
            .is_none_or(|last| point.0.since(last.0) >= STEP)
        {
            self.window.push_back(point);
        }
        // The first point kept is the youngest that is a whole window old.
        while self
            .window
            .get(1)
            .is_some_and(|second| point.0.since(second.0) >= WINDOW)
        {
            self.window.pop_front();
        }
    }
}

fn share_between(from: (Nanos, Nanos), to: (Nanos, Nanos)) -> f64 {
    let elapsed = to.0.since(from.0).as_secs_f64();
    if elapsed > 0.0 {
        to.1.since(from.1).as_secs_f64() / elapsed
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works for `seconds` every 20 ms, where `price(second)` is the share of a CPU that pace 1
    /// costs; returns the largest share of any 4 s after the first 2 s, and the last pace.
    fn work(share: f64, seconds: u64, price: impl Fn(u64) -> f64) -> (f64, f64) {
        let mut controller = BudgetController::new(share, 0.001..=4.0);
        let mut spent = Vec::new();
        let mut cost = Cost::default();
        for tick in 0..seconds * 50 {
            let now = Nanos::from_millis(tick * 20);
            let cpu = 0.02 * price(tick / 50) * controller.pace();
            cost.induced_cpu = cost.induced_cpu + Nanos((cpu * 1e9) as u64);
            controller.update(now, cost);
            spent.push(cost.induced_cpu.as_secs_f64());
        }
        let worst = spent[100..]
            .windows(200)
            .map(|w| (w[199] - w[0]) / (199.0 * 0.02));
        (worst.fold(0.0, f64::max), controller.pace())
    }

    fn check(price: f64, wanted_pace: std::ops::RangeInclusive<f64>) {
        let (worst, pace) = work(0.01, 60, |_| price);
        assert!(
            worst <= 0.0101,
            "4 s took {worst} of a CPU at price {price}"
        );
        assert!(wanted_pace.contains(&pace), "pace {pace} at price {price}");
    }

    #[test]
    fn the_pace_follows_the_price() {
        check(0.0, 4.0..=4.0);
        check(0.001, 4.0..=4.0);
        check(0.01, 0.75..=1.0);
        check(0.10, 0.075..=0.1);
        check(0.50, 0.015..=0.02);
    }

    #[test]
    fn an_overrun_is_paid_back() {
        // The price rises tenfold after 30 s; after a few seconds more the average is right again.
        let (_, pace) = work(0.01, 60, |second| if second < 30 { 0.005 } else { 0.05 });
        assert!((0.13..=0.2).contains(&pace), "pace {pace}");
        let (worst, _) = work(0.01, 60, |second| if second < 30 { 0.05 } else { 0.005 });
        assert!(worst <= 0.0101, "{worst}");
    }

    #[test]
    fn one_outlier_stops_nothing_and_what_is_dear_again_and_again_is_counted() {
        let mut controller = BudgetController::new(0.01, 0.001..=4.0);
        let mut cost = Cost::default();
        let mut spend = |tick: u64, ns| {
            cost.monitor_cpu = cost.monitor_cpu + Nanos(ns);
            controller.update(Nanos::from_millis(tick * 20), cost)
        };
        // 0.75 % of a CPU.
        let before = (0..500)
            .map(|tick| spend(tick, 150_000))
            .fold(0.0, f64::max);
        spend(500, 900_000_000);
        let after = (501..600)
            .map(|tick| spend(tick, 150_000))
            .fold(f64::MAX, f64::min);
        assert!(after > 0.5 * before, "{before} to {after}");
        let dear = (600..700)
            .map(|tick| spend(tick, 20_000_000))
            .fold(f64::MAX, f64::min);
        assert!(dear < 0.05 * before, "{before} to {dear}");
    }
}
