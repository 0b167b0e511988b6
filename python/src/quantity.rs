//! Sizes, durations and shares as Python gives them: text with a unit as on the command line, or a type that has
//! one.

use std::time::Duration;

use isotherm_engine::Nanos;
use isotherm_engine::units::{parse_bytes, parse_share, parse_time};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDelta, PyString};

/// A size: a number of bytes, or text such as `"2 MiB"`.
#[derive(Clone, Copy)]
pub(crate) struct Bytes(pub(crate) u64);

/// A duration: `datetime.timedelta`, or text such as `"5s"`. A bare number has no unit.
#[derive(Clone, Copy)]
pub(crate) struct Time(pub(crate) Nanos);

/// A share: a number of 0 to 1, or text such as `"5%"`.
#[derive(Clone, Copy)]
pub(crate) struct Share(pub(crate) f64);

fn wrong(found: Borrowed<'_, '_, PyAny>, wanted: &str) -> PyErr {
    let kind = found.get_type().name();
    let kind = kind.map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{wanted}, not {kind}"))
}

fn text<T, E: std::fmt::Display>(
    found: Borrowed<'_, '_, PyAny>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> PyResult<Option<T>> {
    let Ok(text) = found.cast::<PyString>() else {
        return Ok(None);
    };
    let parsed = parse(text.to_str()?);
    parsed
        .map(Some)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

impl FromPyObject<'_, '_> for Bytes {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        const WANTED: &str = "a size is a number of bytes, or text such as '2 MiB'";
        if let Some(bytes) = text(found, parse_bytes)? {
            return Ok(Self(bytes));
        }
        if found.is_instance_of::<PyBool>() {
            return Err(wrong(found, WANTED));
        }
        found.extract().map(Self).map_err(|error| {
            if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(found.py()) {
                PyValueError::new_err("a size is from 0 to 2**64 - 1 bytes")
            } else {
                wrong(found, WANTED)
            }
        })
    }
}

impl FromPyObject<'_, '_> for Time {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Some(time) = text(found, parse_time)? {
            return Ok(Self(time));
        }
        if !found.is_instance_of::<PyDelta>() {
            let wanted = "a duration is a datetime.timedelta, or text such as '5s'";
            return Err(wrong(found, wanted));
        }
        let duration: Duration = found.extract()?;
        let nanos = u64::try_from(duration.as_nanos());
        let nanos = nanos.map_err(|_| PyValueError::new_err("a duration of at most 584 years"))?;
        Ok(Self(Nanos(nanos)))
    }
}

impl FromPyObject<'_, '_> for Share {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        const WANTED: &str = "a share is a number of 0 to 1, or text such as '5%'";
        if let Some(share) = text(found, parse_share)? {
            return Ok(Self(share));
        }
        if found.is_instance_of::<PyBool>() {
            return Err(wrong(found, WANTED));
        }
        let share: f64 = found.extract().map_err(|_| wrong(found, WANTED))?;
        if (0.0..=1.0).contains(&share) {
            Ok(Self(share))
        } else {
            Err(PyValueError::new_err(format!(
                "{share} is no share: a number of 0 to 1, or text such as '5%'"
            )))
        }
    }
}
