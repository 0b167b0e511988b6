//! The names of live sessions, in a build that has none: who asks for one is told why.

use pyo3::prelude::*;

use crate::errors::SessionError;
use crate::spec::SessionSpec;

/// What a live session yields: there is none in this build.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Snapshot;

/// A live session: this build has none, and says so.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Session;

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (spec, *, duration=None))]
    fn new(spec: &Bound<'_, SessionSpec>, duration: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let _ = (spec, duration);
        Err(SessionError::new_err(
            "this build of Isotherm has no live sessions: page tables are read on x86_64 only, so far; records, \
             reports and simulations work",
        ))
    }
}

/// There is none to close.
#[pyfunction]
pub(crate) fn _close_sessions() {}
