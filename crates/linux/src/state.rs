//! The directory for Isotherm's data that outlive a command: locks, notes of set-up resources, and the daemon's socket.
//!
//! The problem: a directory that any user may write can mislead or block a program that runs as root. So the directory
//! is accessible to its owner alone (0700); a directory made by another user is refused.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Directory of root, and of a service with a user of its own.
const SYSTEM: &str = "/run/isotherm";

/// Reason why there is no directory for notes and locks.
#[derive(Debug, Error)]
pub enum StateError {
    #[error("cannot make {}: {source}; run as root, or set XDG_RUNTIME_DIR", path.display())]
    Cannot { path: PathBuf, source: io::Error },
    #[error(
        "{} is not safe: {what}. Whoever can write there could block or mislead isotherm; remove it, and it is made anew",
        path.display()
    )]
    Unsafe { path: PathBuf, what: String },
    #[error(
        "no place for locks and notes: {SYSTEM} is root's, and XDG_RUNTIME_DIR is not set; run as root"
    )]
    NoPlace,
}

/// Returns the path of the directory for this user, whether it exists or not. This is `/run/isotherm` for root and for
/// a service that owns it, else `isotherm` in XDG_RUNTIME_DIR.
pub fn path() -> Result<PathBuf, StateError> {
    let us = effective_user();
    let is_ours = || fs::symlink_metadata(SYSTEM).is_ok_and(|it| it.uid() == us);
    if us == 0 || is_ours() {
        return Ok(SYSTEM.into());
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(place) if place.is_absolute() => Ok(place.join("isotherm")),
        _ => Err(StateError::NoPlace),
    }
}

/// Returns the directory, and creates it if it does not exist.
pub fn directory() -> Result<PathBuf, StateError> {
    let path = path()?;
    make_private(&path)?;
    Ok(path)
}

/// Makes `path`, accessible to this user alone. An existing directory must belong to this user, and must not be
/// writable by others.
pub fn make_private(path: &Path) -> Result<(), StateError> {
    let cannot = |source| StateError::Cannot {
        path: path.to_owned(),
        source,
    };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(cannot(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(path).map_err(cannot)?;
    let what = if !found.is_dir() {
        "it is no directory".to_owned()
    } else if found.uid() != effective_user() {
        format!("it belongs to user {}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("others may write in it (mode {:o})", found.mode() & 0o7777)
    } else {
        // Older directories were 0755: any user that can read a lock can hold it.
        if found.mode() & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(cannot)?;
        }
        return Ok(());
    };
    Err(StateError::Unsafe {
        path: path.to_owned(),
        what,
    })
}

fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    #[test]
    fn a_new_directory_is_its_makers_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("new");
        make_private(&path).expect("made");
        assert_eq!(mode(&path), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("ours");
        make_private(&path).expect("readable by others is mended");
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn what_others_may_write_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("open");
        fs::create_dir(&path).expect("made");
        for bad in [0o777, 0o1777, 0o770] {
            fs::set_permissions(&path, Permissions::from_mode(bad)).expect("ours");
            let error = make_private(&path).expect_err("others may write");
            assert!(matches!(error, StateError::Unsafe { .. }), "{error}");
            assert_eq!(mode(&path), bad, "it is left as it was");
        }
        let link = scratch.path().join("link");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("ours");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let error = make_private(&link).expect_err("a link").to_string();
        assert!(error.contains("no directory"), "{error}");
        if effective_user() == 0 {
            std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
            let error = make_private(&path).expect_err("another's").to_string();
            assert!(error.contains("user 65534"), "{error}");
        }
    }
}
