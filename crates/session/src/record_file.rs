//! Opens the file of a record.
//!
//! The problem: a record describes the memory of another user's program. Root writes it, often into a directory that is
//! writable for everybody. So only its owner may read it. Another user's link is not followed, and another user's file
//! in such a directory is not written to. Anything but a file is written to only if that is plainly intended.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context as _, ensure};

/// Paths that may be written to though they are no files.
const STREAMS: [&str; 6] = [
    "/dev/null",
    "/dev/full",
    "/dev/stdout",
    "/dev/stderr",
    "/dev/fd/",
    "/proc/self/fd/",
];

/// Opens `path` for writing without truncating it. A missing file is created with mode 0600.
pub fn open(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("cannot create {}", path.display());
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)
                .with_context(cannot);
        }
        found => found.with_context(cannot)?,
    };
    let is_link = found.is_symlink();
    ensure!(
        !is_link || is_trusted(&found),
        "{} is a link of user {}; it is not followed, name another file",
        path.display(),
        found.uid()
    );
    let flags = if is_link { 0 } else { libc::O_NOFOLLOW };
    let is_stream = STREAMS
        .iter()
        .any(|start| path.starts_with(start.trim_end_matches('/')));
    let there = fs::metadata(path);
    if let Ok(there) = &there {
        ensure!(
            there.is_file() || is_stream,
            "cannot create {}: it is no file; a record goes to a file, /dev/null or /dev/stdout",
            path.display()
        );
        ensure!(
            !there.is_file() || is_trusted(there) || !in_everybodys_directory(path),
            "{} is a file of user {} in a directory where everybody may write; name another file",
            path.display(),
            there.uid()
        );
    }
    OpenOptions::new()
        .write(true)
        // A link of ours may point to a file that does not exist yet.
        .create(is_link)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
        .with_context(cannot)
}

/// Opens `path` for writing and truncates it. A missing file is created with mode 0600.
pub fn create(path: &Path) -> anyhow::Result<File> {
    let file = open(path)?;
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        file.set_len(0)
            .with_context(|| format!("cannot empty {}", path.display()))?;
    }
    Ok(file)
}

fn is_trusted(found: &Metadata) -> bool {
    found.uid() == 0 || found.uid() == nix::unistd::Uid::effective().as_raw()
}

fn in_everybodys_directory(path: &Path) -> bool {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    fs::metadata(directory).is_ok_and(|found| found.mode() & 0o002 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    #[test]
    fn a_record_is_its_owners_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("record");
        open(&path).expect("new");
        assert_eq!(fs::metadata(&path).expect("made").mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        fs::write(&path, "old").expect("ours");
        open(&path).expect("there");
        let found = fs::metadata(&path).expect("kept");
        let found = (found.mode() & 0o777, found.len());
        assert_eq!(found, (0o644, 3), "kept as it was");
    }

    #[test]
    fn what_others_have_laid_there_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name| directory.path().join(name);
        symlink(at("target"), at("ours")).expect("a link");
        open(&at("ours")).expect("our own link");
        assert!(at("target").is_file());
        let mut mkfifo = std::process::Command::new("mkfifo");
        let made = mkfifo.arg(at("pipe")).status();
        assert!(made.expect("mkfifo(1)").success());
        let error = open(&at("pipe")).expect_err("no file").to_string();
        assert!(error.contains("no file"), "{error}");
        open(Path::new("/dev/null")).expect("plainly meant");
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        symlink(at("target"), at("theirs")).expect("a link");
        lchown(at("theirs"), Some(65534), None).expect("root may");
        let error = open(&at("theirs")).expect_err("another's link").to_string();
        assert!(error.contains("a link of user 65534"), "{error}");
        fs::write(at("file"), "").expect("a file");
        chown(at("file"), Some(65534), None).expect("root may");
        open(&at("file")).expect("nobody else may write in this directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
        let error = open(&at("file")).expect_err("another's file").to_string();
        assert!(error.contains("a file of user 65534"), "{error}");
    }
}
