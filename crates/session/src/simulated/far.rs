//! Far memory for a replay: a second node that the recorded machine did not have.

use isotherm_engine::units::{parse_bytes, parse_time};
use isotherm_engine::{BLOCK_SIZE, Nanos};
use isotherm_sim::machine::NodeSpec;
use serde::{Deserialize, Serialize};

use super::Replay;

/// Default latency of an access to a node of CXL memory: some 2.5 times that of near memory.
const FAR_LATENCY: Nanos = Nanos(250);

/// A second node, and the use that a program makes of memory; a trace holds neither.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FarMemory {
    /// Size of the node.
    pub bytes: u64,
    /// Latency of an access.
    pub latency: Nanos,
    /// Share of its time in which the program waits for memory, if all memory is near.
    pub memory_bound: f64,
}

impl FarMemory {
    /// Reads `SIZE` or `SIZE,LATENCY`.
    ///
    /// # Errors
    /// Fails if the text is no size, or no latency; the error names the fault.
    pub fn parse(text: &str, memory_bound: f64) -> Result<Self, String> {
        let (bytes, latency) = Self::parse_node(text)?;
        Ok(Self {
            bytes,
            latency,
            memory_bound,
        })
    }

    /// Reads the size and the latency of `SIZE[,LATENCY]`.
    ///
    /// # Errors
    /// Fails if the text is no size, or no latency; the error names the fault.
    pub fn parse_node(text: &str) -> Result<(u64, Nanos), String> {
        let (size, latency) = match text.split_once(',') {
            Some((size, latency)) => (size, Some(latency)),
            None => (text, None),
        };
        let bytes = parse_bytes(size.trim()).map_err(|error| error.to_string())?;
        if bytes == 0 {
            return Err("a node has some memory, e.g. 64G".to_owned());
        }
        let latency = match latency {
            Some(text) => parse_time(text.trim()).map_err(|error| error.to_string())?,
            None => FAR_LATENCY,
        };
        if latency < Nanos(1) {
            return Err("an access takes some time, e.g. 250ns".to_owned());
        }
        Ok((bytes, latency))
    }
}

impl Replay {
    /// Adds a second node to the machine.
    pub fn add_far(&mut self, far: &FarMemory) {
        // Nodes of the simulated machine consist of whole blocks of 4 MiB.
        let size = far.bytes.next_multiple_of(2 * BLOCK_SIZE);
        self.machine.nodes.push(NodeSpec {
            latency: far.latency,
            ..NodeSpec::new(size)
        });
        for (_, process) in &mut self.processes {
            process.memory_bound = far.memory_bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_a_latency() {
        let parse = FarMemory::parse_node;
        assert_eq!(parse("64G"), Ok((64 << 30, FAR_LATENCY)));
        assert_eq!(parse("1T, 400ns"), Ok((1 << 40, Nanos(400))));
        for wrong in ["", "0", "64G,", "64G,0ns", "much", "64G,90ns,3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
