//! Errors in driving the kernel's DAMON.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::tree::TreePath;

/// Result of a request to the kernel's DAMON.
pub(crate) type Result<T, E = DamonError> = std::result::Result<T, E>;

/// Error of a request to the kernel's DAMON.
#[derive(Debug, Error)]
pub enum DamonError {
    #[error(
        "this kernel has no DAMON that can be driven ({} is not there): it needs CONFIG_DAMON_SYSFS, Linux 5.18 or \
         later. `--world linux`, the default, needs no DAMON",
        root.display()
    )]
    Absent { root: PathBuf },
    #[error("cannot read {path} of DAMON's tree: {source}{}", hint(source))]
    Read { path: TreePath, source: io::Error },
    #[error(
        "cannot write '{value}' to {path} of DAMON's tree: {source}{}",
        hint(source)
    )]
    Write {
        path: TreePath,
        value: String,
        source: io::Error,
    },
    #[error("{path} of DAMON's tree says '{found}', where a number was to be")]
    NotANumber { path: TreePath, found: String },
    #[error(
        "kernel DAMON is in use: {by}. It is left alone; end that first, or watch without it (`--world linux`)"
    )]
    InUse { by: String },
    #[error("this kernel's DAMON lacks what is asked for: {}", list(.0))]
    Lacks(Vec<Lack>),
    #[error("kernel DAMON does not start ({source}): {why}")]
    Refused { source: io::Error, why: String },
    #[error(
        "another program has changed DAMON's tree meanwhile ({what}); it is left as it is. `isotherm doctor` shows it"
    )]
    Changed { what: String },
    #[error("cannot keep a note of DAMON's tree in {}: {source}", path.display())]
    Note { path: PathBuf, source: io::Error },
}

/// A feature that a configuration needs and this kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{asked_by} ({why})")]
pub struct Lack {
    /// Part of the configuration that needs it.
    pub asked_by: String,
    /// Missing feature, and an alternative.
    pub why: String,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; it is root's: run as root",
        _ => "",
    }
}

fn list(lacks: &[Lack]) -> String {
    let words: Vec<String> = lacks.iter().map(ToString::to_string).collect();
    words.join("; ")
}

impl DamonError {
    pub(crate) fn read(path: &TreePath) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read {
            path: path.clone(),
            source,
        }
    }

    pub(crate) fn number<N: FromStr>(path: &TreePath, found: String) -> Result<N, Self> {
        found.parse().map_err(|_| Self::NotANumber {
            path: path.clone(),
            found,
        })
    }

    /// Returns whether a kdamond ended before it executed its command.
    pub fn is_of_the_end(&self) -> bool {
        const ECANCELED: i32 = 125;
        matches!(self, Self::Write { source, .. } if source.raw_os_error() == Some(ECANCELED))
    }
}
