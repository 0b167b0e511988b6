//! How sure a prediction is.
//!
//! **Problem.** A trace is of one run, costs were measured once, and the next run meets the machine in another mood. A
//! number without an interval says nothing of that.
//!
//! **Approach.** The same schemes are replayed again: at the least and at the most that each cost was measured to be,
//! with CPUs less and more busy, and by other draws. What these come to is the interval; it is widened by what the
//! simulated machine was found to be off by on programs that it was not made for (`isotherm-bench prediction`,
//! docs/benchmarks.md), of what no variation tells: caches, locks, a run that is not like the one that was recorded.
//!
//! **Limits.** Four replays are no distribution. The widening is by one kind of machine.

use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

use isotherm_config::SessionSpec;
use isotherm_engine::Nanos;
use isotherm_engine::calibration::{Bound, Calibration};
use isotherm_sim::cost::MachineCosts;
use isotherm_sim::machine::MachineSpec;

use super::predict::{Estimate, Prediction};
use super::replay::Replays;

/// Another replay of the same.
struct Variation {
    costs: Bound,
    /// CPUs that others keep busy, more than when the trace was recorded.
    busier: f64,
    /// Added to the seed.
    seed: u64,
}

/// How many other machines bounds are found with.
pub(super) const NR_VARIATIONS: usize = 4;

/// Number of replays that [`Replays::new`] and [`Replays::bounded`] make together.
pub const NR_REPLAYS_BOUNDED: u64 = 2 * (1 + NR_VARIATIONS as u64);

const VARIATIONS: [Variation; NR_VARIATIONS] = [
    Variation {
        costs: Bound::Middle,
        busier: 0.0,
        seed: 1,
    },
    Variation {
        costs: Bound::Low,
        busier: -0.25,
        seed: 2,
    },
    Variation {
        costs: Bound::High,
        busier: 0.25,
        seed: 3,
    },
    Variation {
        costs: Bound::High,
        busier: 0.75,
        seed: 4,
    },
];

/// What saved memory is off by besides: a share of all memory, and of what is saved. Chosen after twelve live runs; of forty
/// later ones, which nothing was chosen after, 38 were within the bounds (docs/benchmarks.md).
const SAVED_OFF: (f64, f64) = (0.04, 0.15);
/// What a slowdown is: a share of the time, and of the slowdown. Assumed: no live run told as much.
const SLOWDOWN_OFF: (f64, f64) = (0.005, 0.5);
/// And the CPU time of acting: a factor. Likewise, 38 of 40.
const ACTING_OFF: f64 = 1.5;

impl Variation {
    /// The machine at these costs.
    fn machine(&self, machine: &MachineSpec, measured: &Calibration) -> MachineSpec {
        let mut machine = machine.clone();
        machine.costs = MachineCosts::default().calibrated(measured, self.costs);
        if machine.others.is_empty() {
            machine.others.push((Nanos(0), 0.0));
        }
        for (_, busy) in &mut machine.others {
            *busy = (*busy + self.busier).max(0.0);
        }
        machine
    }
}

impl Replays {
    /// The prediction of what `spec` asks for, with bounds; `None` where it was asked to stop meanwhile.
    ///
    /// # Errors
    /// What cannot be simulated.
    pub fn bounded(&self, spec: &SessionSpec) -> anyhow::Result<Option<Prediction>> {
        match self.predicted(spec)? {
            Some(prediction) => self.with_bounds(spec, prediction),
            None => Ok(None),
        }
    }

    /// Adds bounds to a prediction, from replays on machines that differ from the trace's.
    pub(super) fn with_bounds(
        &self,
        spec: &SessionSpec,
        mut prediction: Prediction,
    ) -> anyhow::Result<Option<Prediction>> {
        let mut all = vec![Numbers::of(&prediction)];
        for other in self.others(spec)? {
            let Some(other) = other else {
                return Ok(None);
            };
            all.push(Numbers::of(&other));
        }
        let range = |of: fn(&Numbers) -> f64| {
            let values = all.iter().map(of);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (low, high) = range(|numbers| numbers.saved);
        prediction.saved_share = prediction.saved_share.within(
            low - off(low, SAVED_OFF),
            (high + off(high, SAVED_OFF)).min(1.0),
        );
        let (low, high) = range(|numbers| numbers.slowdown);
        prediction.slowdown = prediction
            .slowdown
            .within(low - off(low, SLOWDOWN_OFF), high + off(high, SLOWDOWN_OFF));
        let (low, high) = range(|numbers| numbers.acting);
        prediction.acting_cpu_seconds = prediction
            .acting_cpu_seconds
            .within(low / ACTING_OFF, high * ACTING_OFF);
        Ok(Some(prediction))
    }

    /// The predictions on all other machines, side by side: none depends on another.
    fn others(&self, spec: &SessionSpec) -> anyhow::Result<Vec<Option<Prediction>>> {
        std::thread::scope(|scope| {
            let replays = VARIATIONS.iter().enumerate().map(|(place, variation)| {
                let spec = SessionSpec {
                    seed: spec.seed.wrapping_add(variation.seed),
                    ..spec.clone()
                };
                let machine = variation.machine(self.machine(), self.calibration());
                scope.spawn(move || self.predict_on(place, &spec, &machine))
            });
            let replays: Vec<_> = replays.collect();
            let joined = replays.into_iter().map(ScopedJoinHandle::join);
            let joined = joined.map(|one| one.unwrap_or_else(|panic| resume_unwind(panic)));
            joined.collect()
        })
    }
}

/// Possible error of a predicted number: a constant, and a share of its value.
fn off(value: f64, (all, part): (f64, f64)) -> f64 {
    all + part * value.abs()
}

/// A prediction with the narrowest bounds that it can have: as if every variation gave the same.
pub(super) fn narrowest(prediction: &Prediction) -> Prediction {
    let (saved, slowdown) = (prediction.saved_share, prediction.slowdown);
    let bounded = |of: Estimate, by: f64| of.within(of.value - by, of.value + by);
    Prediction {
        saved_share: bounded(saved, off(saved.value, SAVED_OFF)),
        slowdown: bounded(slowdown, off(slowdown.value, SLOWDOWN_OFF)),
        ..prediction.clone()
    }
}

/// What has bounds.
struct Numbers {
    saved: f64,
    slowdown: f64,
    acting: f64,
}

impl Numbers {
    fn of(prediction: &Prediction) -> Self {
        Self {
            saved: prediction.saved_share.value,
            slowdown: prediction.slowdown.value,
            acting: prediction.acting_cpu_seconds.value,
        }
    }
}
