//! The intervals of a monitor.

use crate::address::Nanos;

/// The intervals in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Between two checks.
    pub sample: Nanos,
    /// Over which checks are counted.
    pub aggregation: Nanos,
    /// Between two looks at the mappings.
    pub update: Nanos,
}
