//! Work without the interpreter's lock that ctrl-C can still end.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The interval between checks for signals: ctrl-C takes effect soon, and the lock is rarely taken.
const PERIOD: Duration = Duration::from_millis(50);

/// The time of the last check for signals.
pub(crate) struct Interrupt {
    looked: Instant,
}

impl Interrupt {
    pub(crate) fn new() -> Self {
        Self {
            looked: Instant::now(),
        }
    }

    /// Checks for signals between two steps of the work, at most once per `PERIOD`. Fails if a signal's handler has
    /// raised (ctrl-C: `KeyboardInterrupt`).
    pub(crate) fn check(&mut self) -> PyResult<()> {
        if self.looked.elapsed() < PERIOD {
            return Ok(());
        }
        self.looked = Instant::now();
        Python::attach(signals)
    }
}

fn signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// Runs `work`, which cannot check for signals itself, on a thread of its own. Once a signal's handler has raised,
/// `stop` is set until the work has ended. `tell` receives the messages of `work` with the interpreter's lock held; its
/// failure also ends the work.
pub(crate) fn stoppable<T: Send, N: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    tell: impl Fn(Python<'_>, N) -> PyResult<()> + Send,
    work: impl FnOnce(&Sender<N>) -> T + Send,
) -> PyResult<T> {
    py.detach(move || {
        thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            let worker = scope.spawn(move || work(&send));
            let mut raised = None;
            loop {
                let seen = match receive.recv_timeout(PERIOD) {
                    Ok(_) if raised.is_some() => Ok(()),
                    Ok(news) => Python::attach(|py| tell(py, news).and_then(|()| signals(py))),
                    Err(RecvTimeoutError::Timeout) => Python::attach(signals),
                    // The work has ended.
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if let Err(error) = seen {
                    stop.store(true, Ordering::Relaxed);
                    raised.get_or_insert(error);
                }
            }
            let done = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            match raised {
                None => Ok(done),
                Some(error) => {
                    // The flag must not stop the next work that uses it.
                    stop.store(false, Ordering::Relaxed);
                    Err(error)
                }
            }
        })
    })
}
