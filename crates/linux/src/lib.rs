//! The interface to this machine's kernel: the only system calls, BPF and unsafe code of Isotherm.
//!
//! [`probe`] reads accesses. [`process`] holds a target by its pidfd; [`act`] acts on its memory; [`host`] reports the
//! abilities of this kernel.

#![expect(
    unsafe_code,
    reason = "system calls and memory shared with BPF live here, and only here"
)]

pub mod act;
pub mod areas;
pub mod cache;
pub mod calibrate;
pub mod cgroup;
pub mod clock;
pub mod compaction;
pub mod cpu;
pub mod damon_trace;
pub mod delays;
mod elf_error;
pub mod faults;
pub mod frames;
pub mod host;
pub mod kernel_thread;
pub mod load;
mod mapped;
pub mod meminfo;
pub mod migrations;
pub mod node;
mod page_map;
pub mod pods;
pub mod pressure;
pub mod privileges;
pub mod probe;
pub mod process;
pub mod refault_cost;
pub mod state;
pub mod swap;
mod system_call;
mod text;
pub mod thp;
