//! Far memory for a replay: a second node that the recorded machine did not have.

use isotherm_engine::Nanos;
use isotherm_engine::units::{parse_bytes, parse_share, parse_time};
use isotherm_session::simulated::Replay;

/// What an access to a node of CXL memory takes, unless it is said: some 2.5 times what near memory takes.
const FAR_LATENCY: Nanos = Nanos(250);

/// The simulated machine's second node.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Far memory")]
pub(crate) struct FarArgs {
    /// Replay on a machine that has so much memory on a second node (1) as well, and what an access to it takes
    /// [latency: 250ns]
    #[arg(long, value_name = "SIZE[,LATENCY]", value_parser = parse_far, requires = "memory_bound")]
    far: Option<(u64, Nanos)>,

    /// Share of its time in which the program waits for memory, if all of that is near: `perf stat -M tma_memory_bound`
    /// tells. No trace does
    #[arg(long, value_name = "SHARE", value_parser = parse_share, requires = "far")]
    memory_bound: Option<f64>,
}

impl FarArgs {
    /// Whether the machine is to stay as it was.
    pub(crate) fn is_none(&self) -> bool {
        self.far.is_none()
    }

    /// Gives the replay's machine its second node.
    pub(crate) fn add_to(&self, replay: &mut Replay) {
        if let (Some((bytes, latency)), Some(memory_bound)) = (self.far, self.memory_bound) {
            replay.add_far_node(bytes, latency, memory_bound);
        }
    }
}

fn parse_far(text: &str) -> Result<(u64, Nanos), String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_a_latency() {
        assert_eq!(parse_far("64G"), Ok((64 << 30, FAR_LATENCY)));
        assert_eq!(parse_far("1T, 400ns"), Ok((1 << 40, Nanos(400))));
        for wrong in ["", "0", "64G,", "64G,0ns", "much", "64G,90ns,3"] {
            assert!(parse_far(wrong).is_err(), "{wrong}");
        }
    }
}
