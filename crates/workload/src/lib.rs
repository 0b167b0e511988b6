//! Memory accesses of known truth, and how well a monitor saw them.
//!
//! A workload is text ([`config`], masim's format and a little more). [`layout`] says from it which
//! addresses are accessed how often, [`run`] makes just these accesses, [`truth`] writes down when,
//! and [`accuracy`] holds a monitor's snapshots against that.

#![forbid(unsafe_code)]

pub mod accuracy;
pub mod config;
pub mod family;
pub mod layout;
#[cfg(unix)]
pub mod run;
pub mod truth;

pub use config::{Config, ParseError};
