//! A prediction beside the live result, and whether it was right.

use isotherm_engine::statistics::Interval;
use serde::Serialize;
use serde_json::Value;

use super::super::meter::Rate;

/// Limits of a good prediction: points of saved memory, points of slowdown, and the factor of acting time.
pub(super) const SAVED_POINTS: f64 = 5.0;
pub(super) const SLOWDOWN_POINTS: f64 = 2.0;
pub(super) const ACTING_FACTOR: f64 = 1.5;
/// Acting that takes less than this is not judged by the factor.
const LITTLE_ACTING_S: f64 = 0.05;

#[derive(Serialize)]
pub(super) struct Pair {
    pub(super) program: String,
    pub(super) guard: bool,
    pub(super) live: Live,
    pub(super) predicted: Predicted,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct Live {
    pub(super) saved_percent: f64,
    /// Slowdown against another run alone; `None` if the program's speed cannot be measured.
    pub(super) slowdown_percent: Option<f64>,
    pub(super) acting_cpu_s: f64,
    /// Progress per second before and during acting, and the same of the run alone.
    pub(super) rates: Option<[Rate; 2]>,
    pub(super) rates_alone: Option<[Rate; 2]>,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct Predicted {
    pub(super) saved_percent: Bounded,
    pub(super) slowdown_percent: Bounded,
    pub(super) acting_cpu_s: Bounded,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct Bounded {
    pub(super) value: f64,
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
}

impl Bounded {
    fn exact(value: f64) -> Self {
        Self {
            value,
            low: None,
            high: None,
        }
    }

    pub(super) fn of(value: &Value) -> Option<Self> {
        if let Some(value) = value.as_f64() {
            return Some(Self::exact(value));
        }
        Some(Self {
            value: value["value"].as_f64()?,
            low: value["low"].as_f64(),
            high: value["high"].as_f64(),
        })
    }

    pub(super) fn holds(&self, value: f64, slack: f64) -> bool {
        let (low, high) = (
            self.low.unwrap_or(self.value),
            self.high.unwrap_or(self.value),
        );
        (low - slack..=high + slack).contains(&value)
    }
}

impl Pair {
    pub(super) fn is_saved_right(&self) -> bool {
        let off = self.predicted.saved_percent.value - self.live.saved_percent;
        off.abs() <= SAVED_POINTS || self.is_saved_within()
    }

    pub(super) fn is_saved_within(&self) -> bool {
        let saved = self.live.saved_percent;
        self.predicted.saved_percent.holds(saved, 0.0)
    }

    pub(super) fn is_acting_right(&self) -> bool {
        let (live, predicted) = (self.live.acting_cpu_s, self.predicted.acting_cpu_s.value);
        if live.max(predicted) < LITTLE_ACTING_S {
            return true;
        }
        live.max(predicted) / live.min(predicted).max(1e-9) <= ACTING_FACTOR
    }

    pub(super) fn is_acting_within(&self) -> bool {
        let live = self.live.acting_cpu_s;
        live < LITTLE_ACTING_S || self.predicted.acting_cpu_s.holds(live, 0.0)
    }
}

/// Returns whether the slowdown of a program was predicted, by all of its pairs under one kind of guard. The prediction
/// is right within some points of the interval of the true slowdown, or with bounds that reach it. Runs differ by
/// tenths because of this machine, so a single pair decides nothing: `None`.
pub(super) fn is_slowdown_right(pairs: &[&Pair]) -> Option<bool> {
    let live = Interval::of(pairs.iter().filter_map(|pair| pair.live.slowdown_percent))?;
    let half_width = live.half_width?;
    let mean = |of: fn(&Bounded) -> f64| {
        let all = pairs
            .iter()
            .map(|pair| of(&pair.predicted.slowdown_percent));
        all.sum::<f64>() / pairs.len() as f64
    };
    let predicted = Bounded {
        value: mean(|of| of.value),
        low: Some(mean(|of| of.low.unwrap_or(of.value))),
        high: Some(mean(|of| of.high.unwrap_or(of.value))),
    };
    let off = (predicted.value - live.mean).abs();
    Some(off <= SLOWDOWN_POINTS + half_width || predicted.holds(live.mean, half_width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(slowdown: f64, predicted: Bounded) -> Pair {
        Pair {
            program: String::new(),
            guard: false,
            live: Live {
                saved_percent: 10.0,
                slowdown_percent: Some(slowdown),
                acting_cpu_s: 0.3,
                rates: None,
                rates_alone: None,
            },
            predicted: Predicted {
                saved_percent: Bounded {
                    value: 16.0,
                    low: Some(9.0),
                    high: Some(20.0),
                },
                slowdown_percent: predicted,
                acting_cpu_s: Bounded::exact(0.1),
            },
        }
    }

    #[test]
    fn slowdowns_are_judged_by_several_pairs() {
        let check = |live: &[f64], predicted: f64, wanted: Option<bool>| {
            let of = Bounded::exact(predicted);
            let pairs: Vec<Pair> = live.iter().map(|live| pair(*live, of)).collect();
            let pairs: Vec<&Pair> = pairs.iter().collect();
            assert_eq!(is_slowdown_right(&pairs), wanted, "{live:?}");
        };
        check(&[5.0], 5.0, None);
        check(&[5.0, 5.1, 5.0], 4.0, Some(true));
        check(&[5.0, 5.1, 5.0], 1.0, Some(false));
        check(&[-5.0, 15.0], 1.0, Some(true));
    }

    #[test]
    fn memory_is_right_within_points_or_bounds_and_acting_within_a_factor() {
        let pair = pair(0.0, Bounded::exact(0.0));
        assert!(pair.is_saved_right() && pair.is_saved_within());
        assert!(!pair.is_acting_right() && !pair.is_acting_within());
    }
}
