//! The seams: traits and types by which a world (this machine, a simulated one, kernel DAMON) serves the engine.
//!
//! The engine never calls these itself; a driver passes answers in and executes plans. They are defined here so that
//! every world implements the same types.

use serde::{Deserialize, Serialize};

use crate::address::Nanos;
use crate::snapshot::TargetId;

/// A page whose accessed bit is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Target that the page belongs to.
    pub target: TargetId,
    /// Address of the page; a multiple of the page size.
    pub address: u64,
}

/// Reason why the state of a sample is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The target exited, or executed another program.
    Exited,
    /// Nothing is mapped there any more.
    Unmapped,
    /// The page's accessed bit cannot be cleared: shared, locked, special or refused.
    Unclearable,
    /// No process maps this physical frame.
    NoMapping,
    /// The page table could not be read.
    Unreadable,
}

/// Result of one [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The page was accessed since sampling began, or appeared since.
    Accessed,
    /// The page was not accessed, or is absent.
    Idle,
    /// Nothing is known.
    Unknown(Gap),
}

impl Touch {
    /// Returns the result for a page with a known state.
    pub const fn of(is_accessed: bool) -> Self {
        if is_accessed {
            Self::Accessed
        } else {
            Self::Idle
        }
    }
}

/// Cost of monitoring since the probe was created. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cost {
    /// CPU time of the monitor itself, kernel work on its behalf included.
    pub monitor_cpu: Nanos,
    /// CPU time that the monitor is estimated to have taken from targets (TLB flushes and refills).
    pub induced_cpu: Nanos,
    /// Accessed bits checked.
    pub checks: u64,
    /// Ranges of pages cleared.
    pub clears: u64,
    /// Clears that were refused or had no effect.
    pub refused: u64,
}

impl Cost {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            monitor_cpu: self.monitor_cpu + other.monitor_cpu,
            induced_cpu: self.induced_cpu + other.induced_cpu,
            checks: self.checks + other.checks,
            clears: self.clears + other.clears,
            refused: self.refused + other.refused,
        }
    }
}

/// Reads and clears accessed bits.
pub trait AccessProbe {
    /// Error that makes the probe useless as a whole (a single target's end does not: that is a [`Gap`]).
    type Error: std::error::Error + Send + Sync + 'static;

    /// Starts to watch `samples`, and forgets the previous ones.
    fn arm(&mut self, samples: &[Sample]) -> Result<(), Self::Error>;

    /// Appends the results of the current samples: one for each, in their order.
    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<(), Self::Error>;

    /// Returns the cost so far. Its CPU time may be that of the whole process, other work included.
    fn cost(&self) -> Cost;
}
