//! Prediction: do replays, the tuner and comparisons agree with this kernel?

mod calibrate;
mod compare;
mod evaluation;
mod simulated;
mod tune;
