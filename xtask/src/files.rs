//! Files of the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(crate) fn list(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let wrong = || format!("cannot list {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(wrong)? {
        paths.push(entry.with_context(wrong)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Returns the files below a folder whose names end with `.EXTENSION`, except those in folders of the names `left_out`.
pub(crate) fn below(
    folder: &Path,
    extension: &str,
    left_out: &[&str],
) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in list(folder)? {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            if left_out.iter().all(|of| name != *of) {
                files.extend(below(&path, extension, left_out)?);
            }
        } else if path.extension().is_some_and(|end| end == extension) {
            files.push(path);
        }
    }
    Ok(files)
}
