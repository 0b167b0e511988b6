//! The exceptions, and the mapping of errors to them. An exception has the text of its error.

use std::io;

use isotherm_config::RequestError;
use isotherm_record::RecordError as RecordFault;
use isotherm_record::input::InputError;
use isotherm_report::read::NothingThere;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError};
use pyo3::prelude::*;

/// Declares the exceptions, each with its base and its text, and the function that adds them to the module.
macro_rules! exceptions {
    ($($name:ident: $base:ty, $about:literal;)*) => {
        $(create_exception!(isotherm, $name, $base, $about);)*

        pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            $(module.add(stringify!($name), py.get_type::<$name>())?;)*
            Ok(())
        }
    };
}

exceptions! {
    IsothermError: PyException, "What Isotherm could not do: what was tried, why it failed, and what to do about it.";
    RecordError: IsothermError, "A record that cannot be read, or does not hold what is asked of it.";
    SpecError: IsothermError, "A scheme, configuration, scenario or session that says something wrong, or too little.";
    SessionError: IsothermError, "A live session that could not begin, or ended before its time.";
    PrivilegeError: SessionError, "A live session for which this user lacks a privilege.";
    SimulationError: IsothermError, "A simulation that cannot be made or compared.";
    IsothermWarning: pyo3::exceptions::PyUserWarning,
        "What the user should know of how a record was read, or of what a session cannot see or do.";
}

/// The operation that failed, which chooses the exception if the error itself does not.
#[derive(Clone, Copy)]
pub(crate) enum Doing {
    Reading,
    Specifying,
    Simulating,
    #[cfg(feature = "live")]
    Watching,
}

/// Converts an error to its exception; an exception that Python has raised meanwhile stays what it is. If the operating
/// system refused something, its `OSError` is the cause.
pub(crate) fn raise(error: impl Into<anyhow::Error>, doing: Doing) -> PyErr {
    let error = match error.into().downcast::<PyErr>() {
        Ok(raised) => return raised,
        Err(error) => error,
    };
    let text = format!("{error:#}");
    let is_of_record = || {
        let is_it = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<RecordFault>() || cause.is::<InputError>() || cause.is::<NothingThere>()
        };
        error.chain().any(is_it)
    };
    let exception = match doing {
        Doing::Specifying => SpecError::new_err(text),
        _ if error.is::<RequestError>() => SpecError::new_err(text),
        #[cfg(feature = "live")]
        Doing::Watching if isotherm_session::lacks_privilege(&error) => {
            PrivilegeError::new_err(text)
        }
        #[cfg(feature = "live")]
        Doing::Watching => SessionError::new_err(text),
        Doing::Reading => RecordError::new_err(text),
        Doing::Simulating if is_of_record() => RecordError::new_err(text),
        Doing::Simulating => SimulationError::new_err(text),
    };
    let mut causes = error.chain().filter_map(|cause| {
        let refused = cause.downcast_ref::<io::Error>()?;
        refused
            .raw_os_error()
            .map(|number| (number, refused.to_string()))
    });
    if let Some((number, words)) = causes.next() {
        Python::attach(|py| {
            // With a number the constructor makes FileNotFoundError and the like.
            let cause = py.get_type::<PyOSError>().call1((number, words));
            let cause = cause.map(PyErr::from_value);
            exception.set_cause(py, cause.ok());
        });
    }
    exception
}

pub(crate) fn warn(py: Python<'_>, notes: &[String]) -> PyResult<()> {
    let category = py.get_type::<IsothermWarning>();
    for note in notes {
        let text = std::ffi::CString::new(note.replace('\0', "\u{fffd}"))?;
        PyErr::warn(py, &category, &text, 1)?;
    }
    Ok(())
}
