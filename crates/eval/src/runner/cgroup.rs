//! The control group of a workload's processes. All of them can be watched, measured and ended together, also those
//! that have left its process group and have other parents.
//!
//! It is one of version 2 if that is mounted at `/sys/fs/cgroup`, else one of version 1's memory controller. No limit
//! is set on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use isotherm_linux::{cgroup, process};

const ROOT: &str = "/sys/fs/cgroup";
/// Time limit for killed processes to be gone.
const GONE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// A control group. Its processes are killed, and it is removed, when this is dropped.
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(super) fn create() -> anyhow::Result<Self> {
        let path = parent().join(format!("isotherm-eval-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| {
            format!(
                "cannot make the workload's control group {}; are you root, and are control groups mounted?",
                path.display()
            )
        })?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn members(&self) -> Vec<u32> {
        cgroup::processes(&self.path)
    }

    /// Kills its remaining processes and removes it.
    pub(super) fn end(&self) -> anyhow::Result<()> {
        remove(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The error cannot be reported any more; the next evaluation finds the group.
        let _ = self.end();
    }
}

/// Returns the reason why no group can be made, if there is one.
pub(super) fn lacks() -> Option<String> {
    let parent = parent();
    let members = fs::OpenOptions::new()
        .write(true)
        .open(parent.join("cgroup.procs"));
    members.is_err().then(|| {
        format!(
            "no control group can be made below {}; are you root, and are control groups mounted?",
            parent.display()
        )
    })
}

/// Removes the groups of evaluations that were killed.
pub(super) fn recover() {
    for entry in fs::read_dir(parent()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let pid = name.strip_prefix("isotherm-eval-");
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !process::has_name(pid, "isotherm") {
            // A group that cannot be removed disturbs only an evaluation that would take its name.
            let _ = remove(&entry.path());
        }
    }
}

fn parent() -> PathBuf {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        root.to_owned()
    } else {
        root.join("memory")
    }
}

fn below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let limit = Instant::now() + GONE;
    loop {
        let left = cgroup::processes(path);
        for pid in &left {
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            // The process may have ended since.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        if left.is_empty() {
            for group in below(path) {
                remove(&group)?;
            }
            // A process that has just ended may hold it for a moment.
            match fs::remove_dir(path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                Err(error) if Instant::now() > limit => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                Err(_) => {}
            }
        }
        anyhow::ensure!(
            Instant::now() <= limit,
            "processes of {} do not end",
            path.display()
        );
        std::thread::sleep(POLL);
    }
}
