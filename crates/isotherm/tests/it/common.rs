//! Shared helpers of the tests: the command and its output.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) fn isotherm() -> Command {
    Command::new(env!("CARGO_BIN_EXE_isotherm"))
}

/// Runs the command in `folder` to its end.
pub(crate) fn run<S: AsRef<OsStr>>(folder: &Path, arguments: &[S]) -> Output {
    let mut command = isotherm();
    command.args(arguments).current_dir(folder);
    command.output().expect("isotherm starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
