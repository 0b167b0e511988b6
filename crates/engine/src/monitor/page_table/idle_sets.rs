//! For how long pages of a block have not been touched, where others of it have been.

use crate::monitor::bits::{self, Bitmap, and};

/// For how long pages of a block have not been touched, page by page: sets of those that have stayed
/// untouched since so many moments. Of each period an old set, which is a period old at least, and a
/// young one, which takes its place when it has become as old.
///
/// A page's age is thus at least half of what it could be told, and never too long; what costs a
/// counter for each page in kstaled and kidled (LWN 461461) costs six bits here.
#[derive(Clone, Debug)]
pub(super) struct IdleSets {
    sets: [(u32, Bitmap); IDLE_SETS],
    /// The places of the sets by age.
    oldest_first: [u8; IDLE_SETS],
}

/// Periods, in ticks: 6 s, 48 s and 384 s.
const IDLE_PERIODS: [u32; 3] = [6 * 64, 48 * 64, 384 * 64];
const IDLE_SETS: usize = 2 * IDLE_PERIODS.len();

impl IdleSets {
    pub(super) fn new(now: u32, untouched: &Bitmap) -> Self {
        Self {
            sets: [(now, *untouched); IDLE_SETS],
            oldest_first: std::array::from_fn(|at| at as u8),
        }
    }

    pub(super) fn update(&mut self, now: u32, untouched: &Bitmap) {
        for (_, set) in &mut self.sets {
            *set = and(set, untouched);
        }
        for (pair, period) in self
            .sets
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .zip(IDLE_PERIODS)
        {
            if now.saturating_sub(pair[1].0) >= period {
                pair[0] = pair[1];
                pair[1] = (now, *untouched);
            }
        }
        let sets = &self.sets;
        self.oldest_first
            .sort_unstable_by_key(|at| sets[usize::from(*at)].0);
    }

    /// The sum over the pages of `rest` of the time since when each is untouched. `words` takes the
    /// words of a set that `rest` is of.
    pub(super) fn sum_since<const N: usize>(
        &self,
        mut rest: [u64; N],
        words: impl Fn(&Bitmap) -> [u64; N],
        now: u32,
    ) -> f64 {
        let mut sum = 0;
        for at in self.oldest_first {
            let (since, set) = &self.sets[usize::from(at)];
            for (rest, set) in rest.iter_mut().zip(words(set)) {
                sum += u64::from(*since) * u64::from((*rest & set).count_ones());
                *rest &= !set;
            }
        }
        let left: u32 = rest.iter().map(|word| word.count_ones()).sum();
        (sum + u64::from(now) * u64::from(left)) as f64
    }

    pub(super) fn since(&self, page: usize, now: u32) -> u32 {
        let holds = self.sets.iter().filter(|(_, set)| bits::has(set, page));
        holds.map(|(since, _)| *since).min().unwrap_or(now)
    }
}
