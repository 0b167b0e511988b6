//! Again while somebody else is at the tree: the kernel does not let anybody wait for its lock, it says EBUSY.

use std::io;
use std::time::Duration;

pub(crate) const EBUSY: i32 = 16;
pub(crate) const EINVAL: i32 = 22;

const PAUSE: Duration = Duration::from_millis(5);

/// For how long is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Nothing of ours runs: another program reads or sets something. Where a module has DAMON, it is EBUSY for good.
    ForOthers,
    /// Ours runs. Another program may have it do something, too (counters are read so), and the kernel has one such
    /// command at a time: the kdamond comes to it between two looks, or after a whole aggregation interval, and not
    /// while it pages something out.
    ForKdamonds,
}

impl Patience {
    const fn nr_tries(self) -> u32 {
        match self {
            Self::ForOthers => 40,
            Self::ForKdamonds => 4_000,
        }
    }
}

/// Tries again as long as the tree is busy and there is patience.
pub(crate) fn patiently<R>(
    patience: Patience,
    mut attempt: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let mut nr_tries = 0;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(EBUSY) && nr_tries < patience.nr_tries() => {
                nr_tries += 1;
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}
