//! A generated family of programs of known truth, which no monitor can be tuned to.
//!
//! Problem: a monitor that is measured on a few fixed workloads is soon right on these alone.
//!
//! Approach: [`case`] draws a program from a seed, and [`layout`] computes by rule which of its pages are hot. The rule
//! also gives the program's sequence of touches. The program logs its progress in that sequence ([`journal`]), so that
//! for any interval the touched pages are known exactly. [`verdict`] compares a monitor's snapshots with them, each
//! over its own interval.
//!
//! Limits: one thread touches one word of a page at a time. Pages touched within [`EDGE`] of an
//! edge of the interval may count either way.

pub mod case;
pub mod journal;
pub mod layout;
pub mod pages;
#[cfg(feature = "program")]
pub mod program;
pub mod verdict;

pub use case::Case;
pub use journal::{Ready, TouchJournal};

use isotherm_engine::Nanos;

/// Precision with which times of touches and of snapshots can be compared.
pub const EDGE: Nanos = Nanos::from_millis(2);
