//! A generated family of programs of known truth, which no monitor can be tuned to.
//!
//! Problem: a monitor that is measured on a few fixed workloads is soon right on these alone.
//!
//! Approach: [`case`] draws a program from a seed; [`layout`] says which of its pages are hot, by
//! rule; the program logs how far it has come in the sequence of touches that follows from the rule
//! ([`journal`]), so that for any interval the pages touched in it are known exactly; [`verdict`] holds
//! the snapshots of a monitor against that, each over its own interval.
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
pub use journal::{Journal, Ready};

use isotherm_engine::Nanos;

/// How exactly times of touches and of snapshots can be compared.
pub const EDGE: Nanos = Nanos::from_millis(2);
