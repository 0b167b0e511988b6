//! Far memory for a replay: a second node that the recorded machine did not have.

use isotherm_engine::Nanos;
use isotherm_engine::units::parse_share;
use isotherm_session::simulated::{FarMemory, Replay};

/// The simulated machine's second node.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Far memory")]
pub(crate) struct FarArgs {
    /// Add a second node (1) of this size to the simulated machine, where an access takes LATENCY [default: no such
    /// node; 250ns without LATENCY]
    #[arg(long, value_name = "SIZE[,LATENCY]", value_parser = FarMemory::parse_node, requires = "memory_bound")]
    far: Option<(u64, Nanos)>,

    /// Assume that the program waits for memory for this share of its time while all memory is near; `perf stat -M
    /// tma_memory_bound` measures it
    #[arg(long, value_name = "SHARE", value_parser = parse_share, requires = "far")]
    memory_bound: Option<f64>,
}

impl FarArgs {
    pub(crate) fn is_none(&self) -> bool {
        self.far.is_none()
    }

    pub(crate) fn add_to(&self, replay: &mut Replay) {
        if let (Some((bytes, latency)), Some(memory_bound)) = (self.far, self.memory_bound) {
            replay.add_far(&FarMemory {
                bytes,
                latency,
                memory_bound,
            });
        }
    }
}
