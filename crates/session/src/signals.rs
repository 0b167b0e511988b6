//! Signals as flags, and a pipe that ends a sleep: one that arrives just before the sleep begins must
//! end it, too.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// What signals have asked for.
pub struct Signals {
    stop: Arc<AtomicBool>,
    hang_up: Arc<AtomicBool>,
    child_ended: Arc<AtomicBool>,
    /// SIGHUP asks for something else than the end.
    outlives_hang_up: bool,
    wakes: UnixStream,
}

/// Asks a session for its end, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
}

impl Stopper {
    /// Asks for the end; a sleep ends.
    pub fn stop(&self) {
        // In this order: whoever is woken finds the flag set.
        self.stop.store(true, Ordering::Relaxed);
        // Full is as good as written to.
        let _ = (&*self.wake).write(&[0]);
    }
}

impl Signals {
    /// Watches from now on.
    pub fn watch() -> anyhow::Result<Self> {
        let (signals, end) = Self::unwatched()?;
        for (signal, flag) in [
            (SIGINT, &signals.stop),
            (SIGTERM, &signals.stop),
            (SIGHUP, &signals.hang_up),
            (SIGCHLD, &signals.child_ended),
        ] {
            // In this order: whoever is woken finds the flag set.
            signal_hook::flag::register(signal, Arc::clone(flag))
                .and_then(|_| signal_hook::low_level::pipe::register(signal, end.try_clone()?))
                .context("cannot watch for signals")?;
        }
        Ok(signals)
    }

    /// Watches for none: signals are another's, who asks for the end by what comes with it.
    pub fn of_another() -> anyhow::Result<(Self, Stopper)> {
        let (signals, end) = Self::unwatched()?;
        end.set_nonblocking(true)
            .context("cannot make a pipe for signals")?;
        let stopper = Stopper {
            stop: Arc::clone(&signals.stop),
            wake: Arc::new(end),
        };
        Ok((signals, stopper))
    }

    /// Flags that nobody sets yet, and the pipe's other end.
    fn unwatched() -> anyhow::Result<(Self, UnixStream)> {
        let (wakes, end) = UnixStream::pair().context("cannot make a pipe for signals")?;
        wakes
            .set_nonblocking(true)
            .context("cannot make a pipe for signals")?;
        let signals = Self {
            stop: Arc::default(),
            hang_up: Arc::default(),
            child_ended: Arc::default(),
            outlives_hang_up: false,
            wakes,
        };
        Ok((signals, end))
    }

    /// Whether the end was asked for.
    pub fn is_stopped(&self) -> bool {
        let is_hung_up = || self.hang_up.load(Ordering::Relaxed);
        self.stop.load(Ordering::Relaxed) || (!self.outlives_hang_up && is_hung_up())
    }

    /// From now on SIGHUP is no end.
    pub fn outlive_hang_up(&mut self) {
        self.outlives_hang_up = true;
    }

    /// Whether SIGHUP has come since this was last asked.
    pub fn take_hang_up(&self) -> bool {
        self.hang_up.swap(false, Ordering::Relaxed)
    }

    /// Whether a child of ours has ended since this was last asked.
    pub fn take_child_end(&mut self) -> bool {
        // What is left in the pipe would end the next sleep as well.
        while matches!(self.wakes.read(&mut [0; 64]), Ok(1..)) {}
        self.child_ended.swap(false, Ordering::Relaxed)
    }

    /// Readable once a signal has come.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}
