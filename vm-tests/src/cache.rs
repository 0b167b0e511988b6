//! Files that are fetched once: kernels, damo, a Python. Locked files beside them limit the virtual machines that run at
//! once on this checkout to two, across all processes.

use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::error::{Result, VmError};

/// Virtual machines that run at once. `cargo test` runs tests on all processors.
const SLOTS: usize = 2;

/// Returns `vm-tests/cache` or `$ISOTHERM_VM_CACHE`, and creates it if it is missing.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let dir = std::env::var_os("ISOTHERM_VM_CACHE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("cache"),
        PathBuf::from,
    );
    fs::create_dir_all(&dir).map_err(VmError::io("make", &dir))?;
    Ok(dir)
}

/// Locks `path` until the returned file is dropped.
pub(crate) fn lock(path: &Path) -> Result<fs::File> {
    let file = open_lock(path)?;
    file.lock().map_err(VmError::io("lock", path))?;
    Ok(file)
}

fn open_lock(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(VmError::io("open", path))
}

/// Waits for the right to run a machine, which lasts until the returned file is dropped. The kernel releases a lock
/// however its holder ends.
pub(crate) fn slot() -> Result<fs::File> {
    let cache = cache_dir()?;
    loop {
        for index in 0..SLOTS {
            let path = cache.join(format!("slot-{index}.lock"));
            let file = open_lock(&path)?;
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(VmError::io("lock", path)(e)),
            }
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Returns the tree of this name in the cache. If it is missing, `make` makes it, with a directory for its own files.
/// The caller holds a lock.
pub(crate) fn fetched(
    name: &str,
    make: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = cache_dir()?;
    let dir = cache.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    let work = tempfile::tempdir_in(&cache).map_err(VmError::io("make a directory in", &cache))?;
    let tree = work.path().join("tree");
    fs::create_dir(&tree).map_err(VmError::io("make", &tree))?;
    make(work.path(), &tree)?;
    // Only a complete tree gets the final name.
    fs::rename(&tree, &dir).map_err(VmError::io("rename into place", &dir))?;
    Ok(dir)
}

/// Fetches packages into `work`, with these options of apt, and unpacks them into `tree`.
pub(crate) fn unpack_packages<T>(
    options: &[String],
    packages: &[String],
    work: &Path,
    tree: &Path,
    run: impl Fn(&mut Command) -> Result<T>,
) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(options).args(["download", "-q"]).args(packages);
    run(apt.current_dir(work))?;
    for deb in fs::read_dir(work).map_err(VmError::io("list", work))? {
        let deb = deb.map_err(VmError::io("list", work))?.path();
        if deb.extension().is_some_and(|is| is == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(tree))?;
        }
    }
    Ok(())
}
