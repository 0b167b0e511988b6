//! Whose code touches memory first, and whose brings back what was paged out: a part of the page faults of
//! processes, with the user stack of each.
//!
//! Problem: an accessed bit says that a page is idle, not what it is for. The code that first touched it
//! does; the kernel knows it at one moment, the page fault.
//!
//! Approach: software events of perf count faults on every processor, and run a BPF program at every so many
//! ([`FaultSampler`]). For processes that are watched it hands out the address, three registers and the top
//! of the user stack, within a token bucket. From these, and from what the files of the program say about
//! their stack frames (`.eh_frame`), the chain of calls is found here ([`unwind`]), so that programs need no
//! frame pointers; where nothing is said, as of code that was compiled at run time, frame pointers are
//! followed. What a JIT wrote about its code ([`perf_map`]) is kept by name.
//!
//! Limits: memory that the kernel fills without a fault (`MAP_POPULATE`, `mlock`, direct I/O) is seen by
//! nobody. Of a stack 16 KiB are seen.
//!
//! Source: perf_event_open(2); `mm_account_fault` in `mm/memory.c`.

mod elf;
mod events;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod modules;
mod perf_event;
pub mod perf_map;
pub mod unwind;

pub use events::{
    AnonymousMapping, Fault, FaultError, FaultSampler, SampledTargets, SamplerTotals,
};
