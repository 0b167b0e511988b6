//! Clocks: the only place where time is read.

use isotherm_engine::Nanos;

/// CPU time that this process has used, kernel work on its behalf included.
pub fn process_cpu() -> Nanos {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The time of day at the start, then monotonic: timestamps that never step back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: u64,
}

impl Clock {
    /// A clock that shows the time of day now.
    pub fn start() -> Self {
        Self {
            offset: read(libc::CLOCK_REALTIME)
                .0
                .saturating_sub(read(libc::CLOCK_MONOTONIC).0),
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now(self) -> Nanos {
        Nanos(self.offset + read(libc::CLOCK_MONOTONIC).0)
    }
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid timespec to fill.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
