//! The names of measuring costs, in a build that cannot: who asks for it is told why.

use pyo3::prelude::*;

use crate::errors::SessionError;

fn refused() -> PyErr {
    SessionError::new_err(
        "this build of Isotherm cannot measure costs: memory is paged out on x86_64 only, so far",
    )
}

/// Measures nothing, and says so.
#[pyfunction]
pub(crate) fn _calibrate(subject: &Bound<'_, PyAny>, pid: Option<u32>) -> PyResult<String> {
    let _ = (subject, pid);
    Err(refused())
}

/// Nobody is measured on.
#[pyfunction]
pub(crate) fn _be_calibration_subject() -> PyResult<()> {
    Err(refused())
}
