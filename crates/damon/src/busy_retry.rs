//! Retries while another process uses the tree: the kernel does not wait for its lock, but returns EBUSY.

use std::io;
use std::time::Duration;

pub(crate) const EBUSY: i32 = 16;
pub(crate) const EINVAL: i32 = 22;

const PAUSE: Duration = Duration::from_millis(5);

/// Number of retries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BusyRetry {
    /// No kdamond of this process runs: another program reads or sets a file. If a module holds DAMON, EBUSY is
    /// permanent.
    ForOthers,
    /// Kdamonds of this process run. Another program may send them commands, too (counters are read so), and the kernel
    /// has one pending command at a time. The kdamond executes it between two samples, or after a whole aggregation
    /// interval, and not while it pages out memory.
    ForKdamonds,
}

impl BusyRetry {
    const fn nr_tries(self) -> u32 {
        match self {
            Self::ForOthers => 40,
            Self::ForKdamonds => 4_000,
        }
    }
}

/// Repeats an attempt while it fails with EBUSY and retries are left.
pub(crate) fn retry_while_busy<R>(
    busy_retry: BusyRetry,
    mut attempt: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let mut nr_tries = 0;
    loop {
        match attempt() {
            Err(error)
                if error.raw_os_error() == Some(EBUSY) && nr_tries < busy_retry.nr_tries() =>
            {
                nr_tries += 1;
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}
