//! DAMON's sysfs tree: directories of one-line files.
//!
//! Everything is addressed by [`TreePath`]s below the tree's root, which cannot name anything outside it.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Path of the kernel's tree (`Documentation/admin-guide/mm/damon/usage.rst`).
pub const SYSFS_ROOT: &str = "/sys/kernel/mm/damon/admin";

/// A path in the tree, relative to its root. Each component consists of `a` to `z`, digits and `_`, so that no path
/// leaves the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(String);

impl TreePath {
    /// Returns the directory that holds all kdamonds.
    pub fn kdamonds() -> Self {
        Self("kdamonds".to_owned())
    }

    /// Returns the directory of the kdamond with this index.
    pub fn kdamond(at: usize) -> Self {
        Self::kdamonds().at(at)
    }

    /// Parses a written path; `None` if a component could lead outside the tree.
    pub fn parse(text: &str) -> Option<Self> {
        text.split('/')
            .all(is_component)
            .then(|| Self(text.to_owned()))
    }

    /// Returns the path with `below` appended: one or several components.
    ///
    /// # Panics
    /// If a component is not a valid name in the tree: paths consist of this crate's own words.
    #[must_use]
    pub fn join(&self, below: &str) -> Self {
        assert!(
            below.split('/').all(is_component),
            "no place in the tree: {below:?}"
        );
        if self.0.is_empty() {
            return Self(below.to_owned());
        }
        Self(format!("{}/{below}", self.0))
    }

    /// Returns the subdirectory with this number.
    #[must_use]
    pub fn at(&self, number: usize) -> Self {
        self.join(&number.to_string())
    }

    /// Returns the last component.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the parent directory; the root's is the root.
    #[must_use]
    pub fn parent(&self) -> Self {
        let parent = self.0.rsplit_once('/').map_or("", |(parent, _)| parent);
        Self(parent.to_owned())
    }

    /// Returns the text, with `/` between components.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_component(text: &str) -> bool {
    let is_of_names = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    !text.is_empty() && text.bytes().all(is_of_names)
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeEntry {
    pub name: String,
    pub kind: EntryKind,
}

/// Kind of an entry in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    Directory,
    ReadOnly,
    Writable,
}

impl EntryKind {
    fn of(metadata: &fs::Metadata) -> Self {
        if metadata.is_dir() {
            Self::Directory
        } else if metadata.permissions().mode() & 0o200 == 0 {
            Self::ReadOnly
        } else {
            Self::Writable
        }
    }
}

/// Access to the tree, the kernel's or one that behaves like it.
pub trait Tree {
    /// Returns a file's text, without the end of its line.
    fn read(&self, path: &TreePath) -> io::Result<String>;

    /// Sets a file, in one call.
    ///
    /// # Errors
    /// Fails with the kernel's error: EINVAL for an unknown word, EBUSY while a kdamond or module runs.
    fn write(&mut self, path: &TreePath, value: &str) -> io::Result<()>;

    /// Returns the content of a directory, in order: files by name, then directories, those with numbers by number.
    fn list(&self, path: &TreePath) -> io::Result<Vec<TreeEntry>>;

    /// Returns the kind of the entry at `path`, if there is one.
    fn kind(&self, path: &TreePath) -> Option<EntryKind> {
        let entries = self.list(&path.parent()).ok()?;
        let entry = entries.into_iter().find(|entry| entry.name == path.name());
        entry.map(|entry| entry.kind)
    }
}

/// The tree in a file system.
#[derive(Clone, Debug)]
pub struct DirectoryTree {
    root: PathBuf,
}

impl DirectoryTree {
    /// Returns the kernel's own tree; `None` if it has no DAMON, or none with sysfs (before 5.18).
    pub fn of_kernel() -> Option<Self> {
        Self::at(SYSFS_ROOT)
    }

    /// Returns the tree below `root`, if there is one.
    pub fn at(root: impl Into<PathBuf>) -> Option<Self> {
        let root = root.into();
        root.join("kdamonds").is_dir().then_some(Self { root })
    }

    /// Returns the path of the root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn place(&self, path: &TreePath) -> PathBuf {
        self.root.join(path.as_str())
    }
}

impl Tree for DirectoryTree {
    fn read(&self, path: &TreePath) -> io::Result<String> {
        let mut text = fs::read_to_string(self.place(path))?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    fn write(&mut self, path: &TreePath, value: &str) -> io::Result<()> {
        // `fs::write` would create a file where the kernel has none.
        let mut file = OpenOptions::new().write(true).open(self.place(path))?;
        // An empty text would make no system call at all.
        let text = if value.is_empty() { "\n" } else { value };
        let written = file.write(text.as_bytes())?;
        if written < text.len() {
            return Err(io::Error::other("it took only a part of the value"));
        }
        Ok(())
    }

    fn list(&self, path: &TreePath) -> io::Result<Vec<TreeEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.place(path))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = EntryKind::of(&entry.metadata()?);
            entries.push(TreeEntry { name, kind });
        }
        sort(&mut entries);
        Ok(entries)
    }

    fn kind(&self, path: &TreePath) -> Option<EntryKind> {
        let metadata = fs::symlink_metadata(self.place(path)).ok()?;
        Some(EntryKind::of(&metadata))
    }
}

/// Sorts files first. A caller who writes them in order then makes directories (`nr_...`) before the files in them.
pub(crate) fn sort(entries: &mut [TreeEntry]) {
    entries.sort_by_cached_key(|entry| {
        let number: Option<u64> = entry.name.parse().ok();
        (
            entry.kind == EntryKind::Directory,
            number,
            entry.name.clone(),
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leaves_the_tree() {
        for text in [
            "", "..", "a/../b", "/etc", "a//b", "a/./b", "A", "a b", "a\0",
        ] {
            assert_eq!(TreePath::parse(text), None, "{text:?}");
        }
        let path = TreePath::kdamond(3).join("contexts/0").at(12);
        assert_eq!(path.as_str(), "kdamonds/3/contexts/0/12");
        assert_eq!(path.name(), "12");
        assert_eq!(path.parent().as_str(), "kdamonds/3/contexts/0");
        assert_eq!(TreePath::parse(path.as_str()), Some(path));
    }

    #[test]
    fn a_missing_file_is_not_made() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("kdamonds")).expect("a directory");
        let mut tree = DirectoryTree::at(root.path()).expect("a tree");
        let path = TreePath::kdamonds().join("nr_kdamonds");
        let error = tree.write(&path, "1").expect_err("no such file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(tree.kind(&path), None);
        fs::write(root.path().join("kdamonds/nr_kdamonds"), "0\n").expect("a file");
        assert_eq!(tree.read(&path).expect("its text"), "0");
        assert_eq!(tree.kind(&path), Some(EntryKind::Writable));
    }
}
