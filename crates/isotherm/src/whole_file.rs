//! Files that appear as a whole, or not at all.
//!
//! The content is written to a file beside the target, which replaces the target when it is complete. No failure, full
//! disk or Ctrl-C leaves half a file, or loses the old one. A device or a pipe is written into.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::TempPath;

/// A file that is being written under another name.
pub(crate) struct WholeFile {
    path: PathBuf,
    file: File,
    /// The other name, unless the file is special.
    temporary: Option<TempPath>,
}

impl WholeFile {
    /// Creates a file of a record's content, with the record's mode 0600.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, 0o600)
    }

    /// Creates a file; an existing one keeps its mode.
    fn with_mode(path: &Path, mode: u32) -> io::Result<Self> {
        let (file, temporary) = if is_special(path) {
            (File::options().write(true).open(path)?, None)
        } else {
            let mut builder = tempfile::Builder::new();
            builder.permissions(Permissions::from_mode(mode));
            let file = builder.prefix(".isotherm-").tempfile_in(folder_of(path))?;
            if let Ok(before) = path.metadata() {
                file.as_file().set_permissions(before.permissions())?;
            }
            let (file, temporary) = file.into_parts();
            (file, Some(temporary))
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            temporary,
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Completes the file and renames it to its path.
    pub(crate) fn keep(self) -> io::Result<()> {
        if let Some(temporary) = self.temporary {
            // Some file systems report only now that the disk is full.
            self.file.sync_all()?;
            temporary.persist(&self.path)?;
        }
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `bytes` to `path`.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let write = || {
        // The mode is that of any new file, less the umask.
        let mut file = WholeFile::with_mode(path, 0o666)?;
        file.write_all(bytes.as_ref())?;
        file.keep()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that [`write()`] can start, for commands that write after a long time.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    if !is_special(path) {
        let begun = WholeFile::create(path);
        begun.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns whether this is a device or a pipe, which cannot be replaced.
pub(crate) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file())
}

/// Returns `path.EXTENSION`.
pub(crate) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_leaves_nothing_and_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        write(&path, "old").expect("room");
        let mut half = WholeFile::create(&path).expect("a directory of ours");
        half.write_all(b"ne").expect("room");
        drop(half);
        assert_eq!(std::fs::read(&path).expect("there"), b"old");
        let left = std::fs::read_dir(directory.path()).expect("ours");
        assert_eq!(left.count(), 1);
        write(Path::new("/dev/null"), "x").expect("a device is written through");
        assert!(write(Path::new("/dev/full"), "x").is_err());
    }

    #[test]
    fn what_is_made_of_a_record_is_its_owners_and_a_file_keeps_its_mode() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let mode = || path.metadata().expect("there").permissions().mode() & 0o777;
        let make = || {
            let file = WholeFile::create(&path).expect("a directory of ours");
            file.keep().expect("room");
        };
        make();
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("ours");
        make();
        assert_eq!(mode(), 0o640);
    }
}
