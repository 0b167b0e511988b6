//! What can go wrong around a virtual machine, as opposed to inside it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a virtual machine gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The host lacks something: the test is to be skipped, not failed.
    #[error("{what} is not available: {why}; {fix}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// How that showed.
        why: String,
        /// What would provide it.
        fix: String,
    },
    /// The machine was still running at its limit, and was killed.
    #[error(
        "killed after {cpu:?} of CPU time in {wall:?} without an answer; last console lines:\n{tail}"
    )]
    TimedOut {
        /// CPU time of the host that it used.
        cpu: Duration,
        /// Time since it was started.
        wall: Duration,
        /// What the guest had last to say.
        tail: String,
    },
    /// The machine ended without handing back its results: a panic, or QEMU gave up.
    #[error("ended without results ({how}); last console lines:\n{tail}")]
    NoAnswer {
        /// QEMU's exit status and words, or what is wrong with the stream that came back.
        how: String,
        /// What the guest had last to say.
        tail: String,
    },
    /// The script in the guest failed.
    #[error("the guest's script ended with exit code {code}; last lines of its output:\n{tail}")]
    Script {
        /// Its exit code.
        code: i32,
        /// What it had last to say.
        tail: String,
    },
    /// A program that prepares the machine failed.
    #[error("`{command}` failed: {why}")]
    Command {
        /// The command line.
        command: String,
        /// Its status and words.
        why: String,
    },
    /// A file on the host could not be read or written.
    #[error("cannot {attempt} {}: {source}", path.display())]
    Io {
        /// What was tried: "read", "write", ...
        attempt: &'static str,
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The guest answered, and the answer is wrong.
    #[error("{0}")]
    Wrong(String),
}

impl VmError {
    /// Wraps an I/O error with what was tried on which file.
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

/// The last `count` lines of `text`, each indented.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    let kept: Vec<String> = lines[from..].iter().map(|l| format!("    {l}")).collect();
    kept.join("\n")
}
