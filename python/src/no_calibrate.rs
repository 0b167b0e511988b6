//! The functions that measure costs, in a build that cannot: each call raises an error with the reason.

use pyo3::prelude::*;

use crate::errors::SessionError;

fn refused() -> PyErr {
    SessionError::new_err(
        "this build of Isotherm cannot measure costs: memory is paged out on x86_64 only, so far",
    )
}

/// Raises SessionError: this build cannot measure costs.
#[pyfunction]
pub(crate) fn _calibrate(subject: &Bound<'_, PyAny>, pid: Option<u32>) -> PyResult<String> {
    let _ = (subject, pid);
    Err(refused())
}

/// Raises SessionError: this build cannot measure costs.
#[pyfunction]
pub(crate) fn _be_calibration_subject() -> PyResult<()> {
    Err(refused())
}
