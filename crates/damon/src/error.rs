//! What can go wrong between us and the kernel's DAMON.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::tree::TreePath;

/// Why the kernel's DAMON does not do what was asked for.
#[derive(Debug, Error)]
pub enum DamonError {
    /// A kernel without it.
    #[error(
        "this kernel has no DAMON that can be driven ({} is not there): it needs CONFIG_DAMON_SYSFS, Linux 5.18 or \
         later. `--world linux`, the default, needs no DAMON",
        root.display()
    )]
    Absent { root: PathBuf },
    /// A file could not be read.
    #[error("cannot read {path} of DAMON's tree: {source}{}", hint(source))]
    Read { path: TreePath, source: io::Error },
    /// A file could not be set.
    #[error(
        "cannot write '{value}' to {path} of DAMON's tree: {source}{}",
        hint(source)
    )]
    Write {
        path: TreePath,
        value: String,
        source: io::Error,
    },
    /// A file's text is not what such a file holds.
    #[error("{path} of DAMON's tree says '{found}', where a number was to be")]
    NotANumber { path: TreePath, found: String },
    /// Somebody else has it.
    #[error(
        "kernel DAMON is in use: {by}. It is left alone; end that first, or watch without it (`--world linux`)"
    )]
    InUse { by: String },
    /// What is asked for is not in this kernel.
    #[error("this kernel's DAMON lacks what is asked for: {}", list(.0))]
    Lacks(Vec<Lack>),
    /// It would not begin.
    #[error("kernel DAMON does not start ({source}): {why}")]
    Refused { source: io::Error, why: String },
    /// Somebody changed the tree while we had it.
    #[error(
        "DAMON's tree was changed by somebody else meanwhile ({what}); it is left as it is. `isotherm doctor` shows it"
    )]
    Changed { what: String },
    /// Our own notes of what was there before could not be kept.
    #[error("cannot keep a note of DAMON's tree in {}: {source}", path.display())]
    Note { path: PathBuf, source: io::Error },
}

/// One thing that a configuration asks for and this kernel does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// What asks for it.
    pub asked_by: String,
    /// What is missing, and what can be done instead.
    pub why: String,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; it is root's: run as root",
        _ => "",
    }
}

fn list(lacks: &[Lack]) -> String {
    let words = lacks
        .iter()
        .map(|lack| format!("{} ({})", lack.asked_by, lack.why));
    words.collect::<Vec<_>>().join("; ")
}

impl DamonError {
    /// Whether a kdamond ended before it did what it was told.
    pub fn is_of_the_end(&self) -> bool {
        const ECANCELED: i32 = 125;
        matches!(self, Self::Write { source, .. } if source.raw_os_error() == Some(ECANCELED))
    }
}
