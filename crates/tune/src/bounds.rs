//! Bounds of predictions.
//!
//! **Problem.** A trace is of one run, costs were measured once, and the state of the machine differs in the next run.
//! A number without an interval shows none of that.
//!
//! **Approach.** The same schemes are replayed again: at the lowest and the highest measured value of each cost, with
//! CPUs less and more busy, and with other draws. The results span the interval. It is widened by the errors of the
//! simulated machine on programs that it was not made for (`isotherm-bench prediction`, docs/results/prediction.md).
//! They come from causes that no variation covers: caches, locks, and runs that differ from the recorded one.
//!
//! **Limits.** Four replays are no distribution. The widening was measured on one kind of machine.

use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

use isotherm_config::SessionSpec;
use isotherm_engine::Nanos;
use isotherm_engine::calibration::{Bound, Calibration};
use isotherm_sim::cost::MachineCosts;
use isotherm_sim::machine::MachineSpec;

use super::predict::{Estimate, Prediction};
use super::replay::{NR_VARIATIONS, Replays};

/// A replay of the same schemes under other conditions.
struct Variation {
    costs: Bound,
    /// Additional CPUs that others keep busy, against the recorded machine.
    busier: f64,
    seed: u64,
}

/// Number of replays that [`Replays::new`] and [`Replays::bounded`] make together.
pub const NR_REPLAYS_BOUNDED: u64 = 2 * (1 + NR_VARIATIONS as u64);

const VARIATIONS: [Variation; NR_VARIATIONS] = [
    variation(Bound::Middle, 0.0, 1),
    variation(Bound::Low, -0.25, 2),
    variation(Bound::High, 0.25, 3),
    variation(Bound::High, 0.75, 4),
];

const fn variation(costs: Bound, busier: f64, seed: u64) -> Variation {
    Variation {
        costs,
        busier,
        seed,
    }
}

/// Additional error of saved memory: a share of all memory, and of the saved memory. Chosen after twelve live runs. Of
/// forty later runs, after which nothing was chosen, 38 were within the bounds (docs/results/prediction.md).
const SAVED_OFF: (f64, f64) = (0.04, 0.15);
/// Additional error of a slowdown: a share of the time, and of the slowdown. Assumed, because no live run showed it.
const SLOWDOWN_OFF: (f64, f64) = (0.005, 0.5);
/// Additional error of the CPU time of acting: a factor. 38 of the same forty later runs were within the bounds.
const ACTING_OFF: f64 = 1.5;

impl Variation {
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
    /// Returns the prediction for `spec`, with bounds; `None` if it was asked to stop meanwhile. Fails if `spec` cannot
    /// be simulated.
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
        let mut all = vec![prediction.clone()];
        for other in self.others(spec)? {
            let Some(other) = other else {
                return Ok(None);
            };
            all.push(other);
        }
        let range = |of: fn(&Prediction) -> f64| {
            let values = all.iter().map(of);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (low, high) = range(|of| of.saved_share.value);
        prediction.saved_share = prediction.saved_share.within(
            low - off(low, SAVED_OFF),
            (high + off(high, SAVED_OFF)).min(1.0),
        );
        let (low, high) = range(|of| of.slowdown.value);
        prediction.slowdown = prediction
            .slowdown
            .within(low - off(low, SLOWDOWN_OFF), high + off(high, SLOWDOWN_OFF));
        let (low, high) = range(|of| of.acting_cpu_seconds.value);
        prediction.acting_cpu_seconds = prediction
            .acting_cpu_seconds
            .within(low / ACTING_OFF, high * ACTING_OFF);
        Ok(Some(prediction))
    }

    /// Returns the predictions on all other machines, replayed in parallel: none depends on another.
    fn others(&self, spec: &SessionSpec) -> anyhow::Result<Vec<Option<Prediction>>> {
        std::thread::scope(|scope| {
            let replays = VARIATIONS.iter().enumerate().map(|(place, variation)| {
                let spec = SessionSpec {
                    seed: spec.seed.wrapping_add(variation.seed),
                    ..spec.clone()
                };
                let machine = variation.machine(&self.machine, &self.calibration);
                scope.spawn(move || self.predict_on(place, &spec, &machine))
            });
            let replays: Vec<_> = replays.collect();
            let joined = replays.into_iter().map(ScopedJoinHandle::join);
            let joined = joined.map(|one| one.unwrap_or_else(|panic| resume_unwind(panic)));
            joined.collect()
        })
    }
}

/// Returns the possible error of a predicted number: a constant, and a share of its value.
fn off(value: f64, (all, part): (f64, f64)) -> f64 {
    all + part * value.abs()
}

/// Returns a prediction with the narrowest bounds of saved memory and slowdown: as if every variation gave the same
/// result.
pub(super) fn narrowest(prediction: &Prediction) -> Prediction {
    let (saved, slowdown) = (prediction.saved_share, prediction.slowdown);
    let bounded = |of: Estimate, by: f64| of.within(of.value - by, of.value + by);
    Prediction {
        saved_share: bounded(saved, off(saved.value, SAVED_OFF)),
        slowdown: bounded(slowdown, off(slowdown.value, SLOWDOWN_OFF)),
        ..prediction.clone()
    }
}
