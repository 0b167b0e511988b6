//! Work without the interpreter's lock that ctrl-C ends all the same.

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
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method is of one lifetime, the closure of any"
        )]
        Python::attach(|py| py.check_signals())
    }
}
