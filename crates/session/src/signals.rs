//! Signals as flags, and a pipe that ends a sleep: a signal that arrives just before the sleep must end it, too.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// Pending requests of signals.
pub struct Signals {
    stop: Arc<AtomicBool>,
    hang_up: Arc<AtomicBool>,
    child_ended: Arc<AtomicBool>,
    /// Set if SIGHUP does not end the session.
    outlives_hang_up: bool,
    wakes: UnixStream,
}

/// Handle that ends a session from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
}

impl Stopper {
    /// Ends the session, and its sleep.
    pub fn stop(&self) {
        // The order matters: the woken thread must find the flag set.
        self.stop.store(true, Ordering::Relaxed);
        // A full pipe wakes the sleeper as well as a written one.
        let _ = (&*self.wake).write(&[0]);
    }
}

impl Signals {
    /// Starts watching signals.
    pub fn watch() -> anyhow::Result<Self> {
        let (signals, end) = Self::unwatched()?;
        for (signal, flag) in [
            (SIGINT, &signals.stop),
            (SIGTERM, &signals.stop),
            (SIGHUP, &signals.hang_up),
            (SIGCHLD, &signals.child_ended),
        ] {
            // The order matters: the woken thread must find the flag set.
            signal_hook::flag::register(signal, Arc::clone(flag))
                .and_then(|_| signal_hook::low_level::pipe::register(signal, end.try_clone()?))
                .context("cannot watch for signals")?;
        }
        Ok(signals)
    }

    /// Watches no signals, which belong to another thread; the returned `Stopper` ends the session instead.
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

    /// Makes clear flags without a source, and the other end of the pipe.
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

    /// Whether a signal or a `Stopper` has asked for the end.
    pub fn is_stopped(&self) -> bool {
        let is_hung_up = || self.hang_up.load(Ordering::Relaxed);
        self.stop.load(Ordering::Relaxed) || (!self.outlives_hang_up && is_hung_up())
    }

    /// Makes SIGHUP no longer end the session.
    pub fn outlive_hang_up(&mut self) {
        self.outlives_hang_up = true;
    }

    /// Whether SIGHUP has come since the last call.
    pub fn take_hang_up(&self) -> bool {
        self.hang_up.swap(false, Ordering::Relaxed)
    }

    /// Whether a child of this process has ended since the last call.
    pub fn take_child_end(&mut self) -> bool {
        // Bytes left in the pipe would end the next sleep as well.
        while matches!(self.wakes.read(&mut [0; 64]), Ok(1..)) {}
        self.child_ended.swap(false, Ordering::Relaxed)
    }

    /// File descriptor that becomes readable when a signal comes.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}
