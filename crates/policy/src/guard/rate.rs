//! Rate at which one pool of memory may be acted on: the law in the guard's description.

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

/// Share of the memory that may be acted on in the first second.
const START_PER_S: f64 = 0.05;
/// Lower bound of the rate, as a share of the memory per second.
pub(super) const LEAST_PER_S: f64 = 0.000_083;
/// Upper bound: all of the memory in a second, which is no effective limit.
const MOST_PER_S: f64 = 1.0;
const GROWTH: f64 = 0.5;
pub(super) const HOLD_OFF_MIN: Nanos = Nanos::from_millis(5_000);
pub(super) const HOLD_OFF_MAX: Nanos = Nanos::from_millis(300_000);

/// Memory that the guard stops separately: the cost of one pool does not stop the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Memory of processes, and the files that they map.
    Processes,
    /// The unmapped page cache.
    PageCache,
}

impl Pool {
    /// All pools.
    pub const ALL: [Self; 2] = [Self::Processes, Self::PageCache];
}

/// State of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PoolStatus {
    /// Whether it may be acted on now.
    pub is_open: bool,
    /// Bytes per second that may be acted on.
    pub bytes_per_s: u64,
    /// Times that it was stopped.
    pub nr_stops: u64,
    /// Time at which it may be acted on again; `None` while it may.
    pub until: Option<Nanos>,
}

#[derive(Clone, Debug)]
pub(super) struct Rate {
    /// Share of the pool's memory per second.
    share_per_s: f64,
    bytes: u64,
    /// Bytes that may be acted on before the next observation.
    available: f64,
    was_used_up: bool,
    pub(super) hold_off: Nanos,
    closed_until: Option<Nanos>,
    quiet_since: Nanos,
    nr_stops: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            share_per_s: START_PER_S,
            bytes: 0,
            available: 0.0,
            was_used_up: false,
            hold_off: HOLD_OFF_MIN,
            closed_until: None,
            quiet_since: Nanos(0),
            nr_stops: 0,
        }
    }
}

impl Rate {
    /// Closes the pool, as its limit ratio reached 1. Returns whether it was open before.
    pub(super) fn stop(&mut self, now: Nanos) -> bool {
        self.quiet_since = now;
        // While the pool is closed, the limit ratio is still that of the last stop.
        if self.closed_until.is_some() {
            return false;
        }
        self.nr_stops += 1;
        self.share_per_s = (self.share_per_s / 4.0).max(LEAST_PER_S);
        self.closed_until = Some(now + self.hold_off);
        self.hold_off = Nanos(self.hold_off.0 * 2).min(HOLD_OFF_MAX);
        true
    }

    /// Lets the rate grow, and reopens the pool after its hold-off. `limit_ratio` is `None` if any limited signal is
    /// unknown.
    pub(super) fn go_on(&mut self, now: Nanos, limit_ratio: Option<f64>) {
        if let Some(until) = self.closed_until {
            if now >= until {
                self.closed_until = None;
                self.quiet_since = now;
            }
            return;
        }
        if let Some(limit_ratio) = limit_ratio
            && self.was_used_up
        {
            let growth = 1.0 + GROWTH * (1.0 - limit_ratio).max(0.0);
            self.share_per_s = (self.share_per_s * growth).min(MOST_PER_S);
        }
        if now.since(self.quiet_since) >= self.hold_off && self.hold_off > HOLD_OFF_MIN {
            self.hold_off = Nanos(self.hold_off.0 / 2).max(HOLD_OFF_MIN);
            self.quiet_since = now;
        }
    }

    /// Sets the available bytes until the next observation, after `elapsed` seconds; the pool has `bytes`.
    pub(super) fn refill(&mut self, elapsed: f64, bytes: u64) {
        self.bytes = bytes;
        self.was_used_up = false;
        // Unused bytes are not saved up; an overdraft is paid off.
        let debt = self.available.min(0.0);
        self.available = debt + self.share_per_s * bytes as f64 * elapsed.clamp(0.0, 5.0);
    }

    pub(super) fn available(&self) -> u64 {
        if self.is_held() {
            0
        } else {
            self.available.max(0.0) as u64
        }
    }

    pub(super) fn charge(&mut self, bytes: u64) {
        self.available -= bytes as f64;
        self.was_used_up |= self.available <= 0.0;
    }

    /// Returns whether it waits for its hold-off to pass.
    pub(super) fn is_held(&self) -> bool {
        self.closed_until.is_some()
    }

    pub(super) fn status(&self) -> PoolStatus {
        PoolStatus {
            is_open: !self.is_held(),
            bytes_per_s: (self.share_per_s * self.bytes as f64) as u64,
            nr_stops: self.nr_stops,
            until: self.closed_until,
        }
    }
}

/// Size of each pool, and the page cache's part of the waits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pools {
    /// Resident bytes of processes.
    pub resident: u64,
    /// Bytes of page cache, if schemes act on the page cache as well.
    pub page_cache: Option<u64>,
    /// Part of the waits that the page cache caused, 0 to 1; `None`: unknown.
    pub cache_share: Option<f64>,
}

impl Pools {
    /// Returns whether the common limit ratio stops `pool`: the pool caused most of it, or exceeds the limit alone.
    pub(super) fn is_over_limit_by(self, pool: Pool, limit_ratio: f64) -> bool {
        let share = self.cache_share.map_or(1.0, |share| match pool {
            Pool::Processes => 1.0 - share,
            Pool::PageCache => share,
        });
        limit_ratio >= 1.0 && (share >= 0.5 || share * limit_ratio >= 1.0)
    }

    /// Returns pools with processes' memory only.
    pub fn processes(resident: u64) -> Self {
        Self {
            resident,
            page_cache: None,
            cache_share: Some(0.0),
        }
    }
}
