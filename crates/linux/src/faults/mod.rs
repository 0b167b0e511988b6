//! Samples page faults with their user stacks: they show which code touches memory first, and which reads back
//! paged-out memory.
//!
//! Problem: an accessed bit shows that a page is idle, not its purpose. The code that first touched the page shows
//! that, and the kernel knows it only at the page fault.
//!
//! Approach: software events of perf count faults on every processor and run a BPF program once per sampling period
//! ([`FaultSampler`]). For watched processes it reports the address, three registers and the top of the user stack,
//! within a token bucket. The chain of calls is found here ([`unwind`]) from these and the files' stack frame
//! information (`.eh_frame`). So programs need no frame pointers. Code without such information, like JIT-compiled
//! code, is followed by frame pointers. Names that a JIT wrote for its code ([`perf_map`]) are kept.
//!
//! Limits: memory that the kernel fills without a fault (`MAP_POPULATE`, `mlock`, direct I/O) is not seen. At most 16
//! KiB of a stack are read.
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
