//! Measurement of the costs of actions on this machine. It runs in a process of its own
//! (`isotherm/_calibration_subject.py`): the CPU time of actions is the whole process's, so nothing else may run in it.

use std::ffi::OsString;
use std::process::Command;

use isotherm_linux::calibrate::subject::be_subject;
use isotherm_linux::calibrate::{PAGES, calibrate, content_of, made_up_content};
use isotherm_session::Versioned;
use pyo3::prelude::*;

use crate::errors::{Doing, raise};

/// Measures the costs and returns them as JSON. `subject`: the program to measure on, and its arguments.
#[pyfunction]
pub(crate) fn _calibrate(
    py: Python<'_>,
    subject: (OsString, Vec<OsString>),
    pid: Option<u32>,
) -> PyResult<String> {
    let measured = py.detach(move || {
        let (program, arguments) = subject;
        let content = match pid {
            Some(pid) => content_of(pid, PAGES, None)?,
            None => made_up_content(PAGES),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        calibrate(&content, pid.is_none(), command, |_| ())
    });
    let measured = measured.map_err(|error| raise(error, Doing::Watching))?;
    let json = serde_json::to_string(&Versioned::new(&measured));
    json.map_err(|error| raise(error, Doing::Watching))
}

/// Runs as the process to measure on, until standard input ends.
#[pyfunction]
pub(crate) fn _be_calibration_subject(py: Python<'_>) -> PyResult<()> {
    let ended = py.detach(be_subject);
    ended.map_err(|error| raise(error, Doing::Watching))
}
