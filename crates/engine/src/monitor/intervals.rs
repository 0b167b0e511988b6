//! The intervals of a monitor.

use crate::address::Nanos;

/// The intervals in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Time between two checks.
    pub sample: Nanos,
    /// Time over which checks are counted.
    pub aggregation: Nanos,
    /// Time between two updates of the mappings.
    pub update: Nanos,
}
