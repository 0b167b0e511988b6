//! Chooses the number of settings, and the part of the trace that each replays, where no budget is given.
//!
//! **Problem.** A replay of a large trace takes seconds of CPU time, and a search wants some hundred.
//!
//! **Approach.** The CPU time of a replay follows from the trace's memory and length. Where all settings in full would
//! take longer than [`CPU_S`], a sample of the blocks is replayed first, and then the best settings in full. The
//! numbers follow from the trace alone, so the answer is the same on every machine.
//!
//! **Limits.** A setting that is bad on the sample is not replayed in full.

use isotherm_engine::BLOCK_SIZE;
use isotherm_session::simulated::Replay;

use super::param::TraceTimes;

/// Pages times seconds of a trace that are replayed in a second of CPU time. It was 12 and 44 million in two traces of
/// 1 GiB (docs/how-to/tune.md, "What it takes").
const PACE: f64 = 16e6;
/// CPU time of a search, in seconds.
const CPU_S: f64 = 60.0;
/// Part of [`CPU_S`] for replays of the sample.
const COARSE_S: f64 = 12.0;
/// Maximum number of settings that are tried without a budget, and the number of a thorough search.
pub const SETTINGS: usize = 256;
/// Approximate number of replays for the bounds: four other machines, without schemes and under three settings.
pub(super) const BOUNDS: usize = 16;
/// Minimum number of settings that are tried in full.
const FULL_MIN: usize = 8;
/// Minimum number of blocks of a sample.
const BLOCKS_MIN: u64 = 32;

/// Size of the sample, and numbers of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depth {
    /// The sample has one block in this many; 1: there is no sample, and all settings are replayed in full.
    pub(super) one_in: u32,
    /// Maximum number of settings that are replayed on the sample.
    pub(super) nr_first: usize,
    /// Maximum number of settings that are replayed in full.
    pub(super) nr_full: usize,
}

impl Depth {
    /// Returns the depth that replays at most `budget` settings, all in full.
    pub(super) fn full(budget: usize) -> Self {
        Self {
            one_in: 1,
            nr_first: budget,
            nr_full: budget,
        }
    }

    /// Returns the depth for a trace and a space of `nr_points` settings.
    pub(super) fn of(replay: &Replay, times: TraceTimes, nr_points: usize) -> Self {
        let page_seconds = replay.seen_pages() as f64 * times.interval.as_secs_f64();
        let processes = replay.processes.iter();
        let mapped = processes.map(|(_, process)| process.mapped_bytes());
        let nr_blocks = mapped.sum::<u64>() / BLOCK_SIZE;
        Self::by_cost(page_seconds / PACE, nr_blocks, nr_points)
    }

    /// Returns the depth for a trace of `nr_blocks` blocks, of which a replay takes `replay_s` seconds of CPU time.
    fn by_cost(replay_s: f64, nr_blocks: u64, nr_points: usize) -> Self {
        let nr_first = nr_points.min(SETTINGS);
        if replay_s * (nr_first + BOUNDS) as f64 <= CPU_S {
            return Self::full(SETTINGS);
        }
        let nr_after = |replays: f64| {
            let nr = (CPU_S / replay_s - BOUNDS as f64 - replays) as usize;
            nr.clamp(FULL_MIN, nr_first.max(FULL_MIN))
        };
        if nr_blocks < 2 * BLOCKS_MIN {
            return Self::full(nr_after(0.0));
        }
        let shares = (replay_s * nr_first as f64 / COARSE_S).ceil() as u64;
        let one_in = shares.clamp(2, nr_blocks / BLOCKS_MIN);
        Self {
            one_in: one_in as u32,
            nr_first: SETTINGS,
            nr_full: nr_after(nr_first as f64 / one_in as f64 + 1.0),
        }
    }

    /// Returns the CPU time of the search, in replays of the whole trace.
    pub(super) fn nr_replays(self, nr_points: usize) -> f64 {
        let first = nr_points.min(self.nr_first) as f64 / f64::from(self.one_in);
        let full = nr_points.min(self.nr_full) + BOUNDS;
        if self.one_in > 1 {
            first + 1.0 + full as f64
        } else {
            full as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_replay_is_made_coarse_first() {
        let check = |replay_s: f64, nr_blocks: u64, wanted: (u32, usize, usize)| {
            let depth = Depth::by_cost(replay_s, nr_blocks, 429);
            let got = (depth.one_in, depth.nr_first, depth.nr_full);
            assert_eq!(got, wanted, "{replay_s} s, {nr_blocks} blocks");
        };
        check(0.1, 512, (1, 256, 256));
        check(1.0, 512, (16, 256, 27));
        check(3.0, 2048, (64, 256, 8));
        check(1e6, 2048, (64, 256, 8));
        check(1.0, 40, (1, 44, 44));
        assert_eq!(Depth::by_cost(1.5, 2048, 16), Depth::full(SETTINGS));
        let depth = Depth::by_cost(1.0, 512, 429);
        assert!(depth.nr_replays(429) <= 60.0, "{}", depth.nr_replays(429));
    }
}
