//! Facts about the machine: clocks, load, memory, nodes, pressure, from /proc and /sys.

pub mod clock;
pub mod cpu;
pub mod delays;
pub mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod kernel_thread;
pub mod load;
pub mod meminfo;
pub mod migrations;
pub mod node;
pub(crate) mod page_map;
pub mod pressure;
pub mod thp;
