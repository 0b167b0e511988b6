//! Parks idle programs: all of their memory goes to swap, and comes back in the order of need.
//!
//! **Problem.** Sandboxes, development containers and functions are idle for hours, and keep their memory. Paged out, a
//! program faults page after page when it is needed again, and its first answer takes seconds.
//!
//! **Approach.** [`park`] pages out all that the processes map. [`wake`] lets them run, and notes in which order their
//! pages return. The next [`wake`] reads these pages in this order, before the program asks for them. The order of a
//! wake is nearly that of the next one (Ustiugov et al., *Benchmarking, Analysis, and Optimization of Serverless
//! Function Snapshots*, ASPLOS 2021).
//!
//! [`IdleParker`] does both by itself: a group that has used no CPU for some time is parked, and woken when it runs.
//!
//! **Limits.** Memory that other processes map too, and locked memory, stays. An order holds for a process: it ends with
//! it.

#![forbid(unsafe_code)]

mod auto;
mod note;
mod order;
mod park;
mod wake;

pub use auto::{IdleParker, IdleRule, ParkDone, ParkEvent};
pub use park::{ParkReport, ParkedProcess, park};
pub use wake::{WakeReport, WakeSpec, wake};
