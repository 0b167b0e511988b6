//! The interface to this machine's kernel: the only system calls, BPF and unsafe code of Isotherm.
//!
//! [`probe`] reads accesses. [`process`] holds a target by its pidfd; [`act`] acts on its memory; [`host`] reports the
//! abilities of this kernel.

#![expect(
    unsafe_code,
    reason = "system calls and memory shared with BPF live here, and only here"
)]

pub mod act;
mod arch;
pub mod areas;
pub mod cache;
pub mod calibrate;
pub mod cgroup;
pub mod compaction;
pub mod damon_trace;
mod elf_error;
pub mod faults;
pub mod host;
mod mapped;
pub mod pods;
pub mod privileges;
pub mod probe;
pub mod process;
pub mod refault_cost;
pub mod state;
pub mod swap;
mod sys;
mod system_call;
mod text;

#[cfg(feature = "fuzz")]
pub use sys::fuzz;
use sys::page_map;
pub use sys::{
    clock, cpu, delays, frames, kernel_thread, load, meminfo, migrations, node, pressure, thp,
};
