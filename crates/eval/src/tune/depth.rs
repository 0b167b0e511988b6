//! How much of a trace is replayed under how many settings, where nobody says.
//!
//! **Problem.** A replay of a large trace takes seconds of CPU time, and a search wants some hundred.
//!
//! **Approach.** What a replay takes follows from the memory and the length of the trace. Where all settings in full would
//! take longer than [`CPU_S`], they are tried on one block in so many, and the best of them in full. The numbers follow from
//! the trace alone, so that the answer is the same on every machine.
//!
//! **Limits.** A setting that looks bad on some of the blocks is not tried in full.

use isotherm_engine::BLOCK_SIZE;
use isotherm_session::simulated::Replay;

use super::param::TraceTimes;

/// Pages times seconds of a trace that are replayed in a second of CPU time. Of two traces of 1 GiB it was 12 and 44 million
/// (docs/tune.md, "What it takes").
const PACE: f64 = 16e6;
/// CPU time of a search, in seconds: two CPUs for less than a minute.
const CPU_S: f64 = 100.0;
/// Part of it for settings on some of the blocks.
const COARSE_S: f64 = 25.0;
/// Most settings that are tried.
pub(super) const SETTINGS: usize = 256;
/// Replays that the bounds of the best take, about: of four other machines, without schemes and under three settings.
pub(super) const BOUNDS: usize = 16;
/// Fewest settings that are tried in full.
const FULL_MIN: usize = 8;
/// Fewest blocks that stand for all.
const BLOCKS_MIN: u64 = 32;

/// How a trace is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depth {
    /// One block in so many is replayed first; 1: all settings are tried in full at once.
    pub(super) one_in: u32,
    /// Most settings that are tried first.
    pub(super) nr_first: usize,
    /// Most settings that are tried in full.
    pub(super) nr_full: usize,
}

impl Depth {
    /// All of at most `budget` settings in full.
    pub(super) fn full(budget: usize) -> Self {
        Self {
            one_in: 1,
            nr_first: budget,
            nr_full: budget,
        }
    }

    /// Of a trace, for a space of so many points.
    pub(super) fn of(replay: &Replay, times: TraceTimes, nr_points: usize) -> Self {
        let page_seconds = replay.seen_pages() as f64 * times.interval.as_secs_f64();
        let mapped = replay
            .processes
            .iter()
            .map(|(_, process)| process.mapped_bytes());
        let nr_blocks = mapped.sum::<u64>() / BLOCK_SIZE;
        Self::by_cost(page_seconds / PACE, nr_blocks, nr_points)
    }

    /// Of so many blocks, where a replay takes so many seconds.
    fn by_cost(replay_s: f64, nr_blocks: u64, nr_points: usize) -> Self {
        let nr_first = nr_points.min(SETTINGS);
        if replay_s * (nr_first + BOUNDS) as f64 <= CPU_S {
            return Self::full(SETTINGS);
        }
        let nr_in = |cpu_s: f64| {
            let nr = (cpu_s / replay_s - BOUNDS as f64) as usize;
            nr.clamp(FULL_MIN, nr_first.max(FULL_MIN))
        };
        let shares = (replay_s * nr_first as f64 / COARSE_S).ceil() as u64;
        let one_in = shares.clamp(2, (nr_blocks / BLOCKS_MIN).max(2));
        if nr_blocks < 2 * BLOCKS_MIN {
            return Self::full(nr_in(CPU_S));
        }
        Self {
            one_in: one_in as u32,
            nr_first: SETTINGS,
            nr_full: nr_in(CPU_S - COARSE_S),
        }
    }

    /// Replays in full that all of it takes, in the time of one.
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
        check(1.0, 512, (11, 256, 59));
        check(3.0, 2048, (31, 256, 9));
        check(1e6, 2048, (64, 256, 8));
        check(1.0, 40, (1, 84, 84));
        assert_eq!(Depth::by_cost(3.0, 2048, 16), Depth::full(SETTINGS));
        let depth = Depth::by_cost(1.0, 512, 429);
        assert!(depth.nr_replays(429) <= 100.0, "{}", depth.nr_replays(429));
    }
}
