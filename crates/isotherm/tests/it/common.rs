//! Shared helpers of the tests: the command and its output.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) fn isotherm() -> Command {
    Command::new(env!("CARGO_BIN_EXE_isotherm"))
}

/// Runs the command in `folder` to its end.
pub(crate) fn run<S: AsRef<OsStr>>(folder: &Path, arguments: &[S]) -> Output {
    let mut command = isotherm();
    command.args(arguments).current_dir(folder);
    command.output().expect("isotherm starts")
}

/// A process that ends with the test, however that ends.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits at most a minute until this is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_mins(1), "no {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Text of a command's output, and assertions about it.
pub(crate) trait Ended: Sized {
    /// Returns its messages.
    fn errors(&self) -> String;

    /// Parses its standard output.
    fn json(&self) -> Value;

    /// Asserts success and returns itself.
    fn success(self) -> Self;

    /// Asserts that it refused: by exit code 2, and a message that contains `words`.
    fn refused(&self, words: &str);

    /// Asserts that its standard output contains `words`.
    fn prints(&self, words: &str);
}

impl Ended for Output {
    fn errors(&self) -> String {
        text(&self.stderr)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    fn success(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }

    #[track_caller]
    fn refused(&self, words: &str) {
        let is_refusal = self.status.code() == Some(2) && self.errors().contains(words);
        assert!(is_refusal, "no {words:?}: {self:?}");
    }

    #[track_caller]
    fn prints(&self, words: &str) {
        let stdout = text(&self.stdout);
        assert!(stdout.contains(words), "no {words:?}: {self:?}");
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
