//! Errors of preparing and running a virtual machine, and of the answers that it gives.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(crate) type Result<T, E = VmError> = std::result::Result<T, E>;

/// The reason why a virtual machine gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The host lacks something. The test is skipped and does not fail.
    #[error("{what} is not available: {why}; {fix}")]
    Unavailable {
        what: String,
        why: String,
        fix: String,
    },
    /// The machine was still running at its limit, and was killed.
    #[error(
        "killed after {cpu:?} of CPU time in {wall:?} without an answer; last console lines:\n{tail}"
    )]
    TimedOut {
        cpu: Duration,
        wall: Duration,
        tail: String,
    },
    /// The machine ended without handing back its results: a panic, or QEMU gave up.
    #[error("ended without results ({how}); last console lines:\n{tail}")]
    NoAnswer {
        /// QEMU's exit status and messages, or the fault in the stream that came back.
        how: String,
        tail: String,
    },
    /// The script in the guest failed.
    #[error("the guest's script ended with exit code {code}; last lines of its output:\n{tail}")]
    Script { code: i32, tail: String },
    /// A program that prepares the machine failed.
    #[error("`{command}` failed: {why}")]
    Command { command: String, why: String },
    /// A file on the host could not be read or written.
    #[error("cannot {attempt} {}: {source}", path.display())]
    Io {
        /// The operation: "read", "write", ...
        attempt: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The guest answered, and the answer is wrong.
    #[error("{0}")]
    Wrong(String),
}

impl VmError {
    /// Wraps an I/O error with the operation and the file.
    pub(crate) fn io(
        attempt: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            attempt,
            path,
            source,
        }
    }
}

/// Runs a command, and returns its output if it succeeds.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, VmError> {
    let why = match command.output() {
        Ok(output) if output.status.success() => return Ok(output.stdout),
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            format!("{}: {}", output.status, words.trim())
        }
        Err(error) => error.to_string(),
    };
    Err(VmError::Command {
        command: format!("{command:?}"),
        why,
    })
}

/// Returns the last `count` lines of `text`, each indented.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    let kept: Vec<String> = lines[from..].iter().map(|l| format!("    {l}")).collect();
    kept.join("\n")
}
