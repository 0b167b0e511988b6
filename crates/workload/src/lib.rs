//! Memory accesses of known truth, and a score of monitors against it.
//!
//! A workload is text ([`config`], masim's format and a little more). [`layout`] computes from it which addresses are
//! accessed how often, and [`run`] makes just these accesses. [`truth`] records the times, and [`accuracy`] compares a
//! monitor's snapshots with them. [`family`] draws programs whose touches are known one by one. All scores are by
//! [`score`].

#![forbid(unsafe_code)]

pub mod accuracy;
pub mod config;
pub mod family;
pub mod layout;
#[cfg(unix)]
pub mod run;
pub mod score;
pub mod truth;

pub use config::{Config, WorkloadParseError};
