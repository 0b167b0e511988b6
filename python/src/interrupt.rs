//! Work without the interpreter's lock that ctrl-C ends all the same.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often signals are looked for: nobody waits long for ctrl-C, and the lock is taken seldom.
const PERIOD: Duration = Duration::from_millis(50);

/// When signals were looked for last.
pub(crate) struct Interrupt {
    looked: Instant,
}

impl Interrupt {
    pub(crate) fn new() -> Self {
        Self {
            looked: Instant::now(),
        }
    }

    /// Between two steps of the work: fails once a signal's handler has raised (ctrl-C: `KeyboardInterrupt`).
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

/// Does `work` on a thread of its own, where it cannot look for signals itself. Once a signal's handler has raised, `stop`
/// is set until the work has ended by it. What it sends is told here, with the lock; that `tell` fails ends it, too.
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
                    // Whoever works by it next is not stopped.
                    stop.store(false, Ordering::Relaxed);
                    Err(error)
                }
            }
        })
    })
}
