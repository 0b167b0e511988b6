//! The memory that a program needs: request, limit, swap.
//!
//! **Problem.** What a program occupies says little about what it needs: much of it is never used again. A limit that
//! is too low reads memory back all the time, or kills.
//!
//! **Approach.** A record of page scans tells for every limit how often pages would be read back (`distances.rs`).
//! With the cost of that, the least limit follows for any loss that a user allows ([`report`]).
//!
//! **Limits.** A record promises nothing for what it did not see: a longer rhythm, a greater load, a start.

#![forbid(unsafe_code)]

mod buckets;
mod charge;
mod counts;
mod distances;
#[cfg(feature = "live")]
pub mod group;
pub mod growth;
mod misses;
#[cfg(feature = "live")]
pub mod programs;
mod render;
pub mod report;
mod size;
mod summary;
#[cfg(test)]
mod tests;
pub mod verify;

pub use growth::Growth;
pub use report::{ProgramSetting, SizeEstimate, SizeReport, SizeToday, Verified};
pub use size::{Size, SizeOptions};
pub use summary::SizedSummary;
pub use verify::verify;
