//! Commands that predict and measure: calibrations, simulations, searches, experiments.

pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod eval;
pub(crate) mod simulate;
pub(crate) mod tune;
pub(crate) mod workload;
