//! The names of live sessions and of measurements of costs, in a build that has none: a call raises an error with the
//! reason.

use pyo3::prelude::*;

use crate::errors::SessionError;
use crate::spec::SessionSpec;

fn no_calibration() -> PyErr {
    SessionError::new_err("this build of Isotherm cannot measure costs")
}

/// Raises SessionError: this build cannot measure costs.
#[pyfunction]
pub(crate) fn _calibrate(subject: &Bound<'_, PyAny>, pid: Option<u32>) -> PyResult<String> {
    let _ = (subject, pid);
    Err(no_calibration())
}

/// Raises SessionError: this build cannot measure costs.
#[pyfunction]
pub(crate) fn _be_calibration_subject() -> PyResult<()> {
    Err(no_calibration())
}

/// A snapshot of a live session; this build has none.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Snapshot;

/// A live session. This build has none: creating one raises SessionError.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Session;

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (spec, *, duration=None))]
    fn new(spec: &Bound<'_, SessionSpec>, duration: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let _ = (spec, duration);
        Err(SessionError::new_err(
            "this build of Isotherm has no live sessions; records, reports and simulations work",
        ))
    }
}

/// Does nothing: this build has no sessions.
#[pyfunction]
pub(crate) fn _close_sessions() {}
