//! The seams: what a world (this machine, a simulated one, kernel DAMON) gives to the engine.
//!
//! The engine never calls these itself; a driver passes answers in and carries plans out. They are
//! defined here so that every world implements the same words.

use serde::{Deserialize, Serialize};

use crate::address::Nanos;
use crate::snapshot::{Snapshot, TargetId};

/// Some neighbouring pages whose accessed bits are to be watched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Whose memory.
    pub target: TargetId,
    /// First page; a multiple of the page size.
    pub address: u64,
    /// How many pages from there, at least 1.
    pub nr_pages: u32,
}

/// Why nothing can be said about a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The target exited, or became another program.
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

/// What became of one armed [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// `accessed` of `observed` pages were accessed since the sample was armed. A page that was not
    /// there at either end is observed and idle; one that appeared in between was accessed.
    Seen {
        /// Pages about which something is known, at least 1.
        observed: u32,
        /// Of these, the accessed ones.
        accessed: u32,
    },
    /// Nothing is known.
    Unknown(Gap),
}

impl Touch {
    /// A single page that was accessed.
    pub const ACCESSED: Self = Self::Seen {
        observed: 1,
        accessed: 1,
    };
    /// A single page that was not.
    pub const IDLE: Self = Self::Seen {
        observed: 1,
        accessed: 0,
    };
}

/// What watching has cost since the probe was made. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Reads and clears accessed bits.
pub trait AccessProbe {
    /// What makes the probe useless as a whole (a single target's end does not: that is a [`Gap`]).
    type Error: std::error::Error + Send + Sync + 'static;

    /// Starts to watch `samples`, and forgets those armed before.
    fn arm(&mut self, samples: &[Sample]) -> Result<(), Self::Error>;

    /// Says what became of the samples armed last: one answer for each, in their order.
    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<(), Self::Error>;

    /// What that has cost so far.
    fn cost(&self) -> Cost;
}

/// Finished snapshots, one after the other.
pub trait SnapshotSource {
    /// What can go wrong at the source.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The next snapshot, or `None` when there are no more.
    fn next_snapshot(&mut self) -> Result<Option<Snapshot>, Self::Error>;
}
