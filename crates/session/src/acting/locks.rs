//! Locks on processes that are acted on: two isotherms that act on the same memory would undo each other's work and
//! distort each other's guard.
//!
//! Approach: a file for each process in `/run/isotherm/managed`, locked (flock) for as long as its owner acts on it,
//! with the owner's pid inside. A lock ends with its owner, however that ends, so nothing has to be cleaned up. An
//! isotherm that acts on physical memory acts on every process: it takes the exclusive lock on the file `machine`, and
//! isotherms that act on processes share that lock. One isotherm locks for all its contexts, so that they do not refuse
//! each other.
//!
//! Only their owner can read the files: a process that can open a lock can hold it, and so could block acting.
//!
//! Limits: isotherms in mount namespaces of their own do not see each other, nor do those of different users.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use isotherm_config::{ContextSpec, SessionSpec};
use isotherm_engine::TargetId;
use isotherm_linux::state;
use isotherm_record::{Item, TargetStart};

use super::is_dry_run;
use crate::lock::{Lock, lock};

const DIRECTORY: &str = "managed";

/// Locks on the memory that this isotherm alone acts on.
#[derive(Debug, Default)]
pub(super) struct Locks {
    directory: Option<PathBuf>,
    /// Lock on the file `machine`, held until the end.
    machine: Option<File>,
    processes: BTreeMap<u32, HeldLock>,
    /// Targets that another isotherm acts on.
    pub(super) anothers: BTreeSet<TargetId>,
    /// Set after the start: processes that others have locked are left to them.
    pub(super) has_begun: bool,
}

#[derive(Debug)]
struct HeldLock {
    path: PathBuf,
    /// The lock, which lasts as long as the file is open.
    _file: File,
    /// Targets of the process: several if several contexts act on it.
    targets: BTreeSet<TargetId>,
}

impl Locks {
    /// Takes the locks on the machine that a session needs.
    pub(super) fn of(spec: &SessionSpec) -> anyhow::Result<Self> {
        if is_dry_run(spec) {
            return Ok(Self::default());
        }
        let is_physical = spec.contexts.iter().any(ContextSpec::samples_frames);
        let how = if is_physical {
            Lock::Alone
        } else {
            Lock::Shared
        };
        Self::in_directory(&state::directory()?.join(DIRECTORY), how)
    }

    fn in_directory(directory: &Path, how: Lock) -> anyhow::Result<Self> {
        let cannot = || {
            format!(
                "cannot note in {} what is acted on; run as root",
                directory.display()
            )
        };
        state::make_private(directory).with_context(cannot)?;
        remove_stale(directory);
        let machine = lock(&directory.join("machine"), how).with_context(cannot)?;
        let machine = match machine {
            Ok(file) => file,
            Err(owner) => bail!(
                "another isotherm{} acts on this machine's memory{}; end it first",
                owner.map_or_else(String::new, |pid| format!(" (pid {pid})")),
                if how == Lock::Alone {
                    ", by process or as a whole"
                } else {
                    " as a whole"
                },
            ),
        };
        let mut locks = Self::default();
        locks.directory = Some(directory.to_owned());
        locks.machine = Some(machine);
        Ok(locks)
    }

    /// Locks a process that appears among the targets. If another isotherm has locked it, this is an error at first.
    /// Later, when a group has got a new process, it is only noted.
    pub(super) fn acquire(&mut self, start: &TargetStart) -> anyhow::Result<Option<Item>> {
        let Some(directory) = self.directory.as_ref().filter(|_| start.pid != 0) else {
            return Ok(None);
        };
        if let Some(held) = self.processes.get_mut(&start.pid) {
            held.targets.insert(start.target);
            return Ok(None);
        }
        let path = directory.join(start.pid.to_string());
        let locked = lock(&path, Lock::Alone)
            .with_context(|| format!("cannot note in {} who acts on it", path.display()))?;
        let owner = match locked {
            Ok(file) => {
                let held = HeldLock {
                    path,
                    _file: file,
                    targets: BTreeSet::from([start.target]),
                };
                self.processes.insert(start.pid, held);
                return Ok(None);
            }
            Err(owner) => owner.map_or_else(String::new, |pid| format!(" (pid {pid})")),
        };
        let what = format!(
            "process {} ({}) is managed by another isotherm{owner}",
            start.pid, start.name
        );
        if !self.has_begun {
            bail!("{what}; end that one first, or leave the process out");
        }
        self.anothers.insert(start.target);
        Ok(Some(Item::Note {
            time: start.time,
            text: format!("not acted on: {what}"),
        }))
    }

    pub(super) fn release(&mut self, target: TargetId) {
        self.anothers.remove(&target);
        self.processes.retain(|_, held| {
            let was_last = held.targets.remove(&target) && held.targets.is_empty();
            if was_last {
                // The file is removed under its lock: an isotherm that opens it now finds that it is not the file any
                // more.
                fs::remove_file(&held.path).ok();
            }
            !was_last
        });
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        for held in self.processes.values() {
            fs::remove_file(&held.path).ok();
        }
        self.processes.clear();
        drop(self.machine.take());
    }
}

fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let is_process = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok());
        if is_process
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            fs::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(target: u32, pid: u32) -> TargetStart {
        TargetStart {
            target: TargetId(target),
            pid,
            ..TargetStart::default()
        }
    }

    #[test]
    fn a_process_has_one_owner_until_that_lets_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let mut a = Locks::in_directory(path, Lock::Shared).expect("free");
        let mut b = Locks::in_directory(path, Lock::Shared).expect("shared");
        a.acquire(&start(0, 77)).expect("free");
        let error = b.acquire(&start(3, 77)).expect_err("taken").to_string();
        let us = format!("(pid {})", std::process::id());
        let is_told = error.contains("process 77") && error.contains(&us);
        assert!(is_told, "{error}");
        b.acquire(&start(4, 78)).expect("another one");
        b.has_begun = true;
        let later = b.acquire(&start(5, 77)).expect("no error later");
        assert!(matches!(later, Some(Item::Note { .. })));
        assert_eq!(b.anothers, [TargetId(5)].into());
        a.acquire(&start(1, 77)).expect("ours, in another context");
        a.release(TargetId(0));
        assert!(b.acquire(&start(6, 77)).expect("no error later").is_some());
        a.release(TargetId(1));
        assert!(b.acquire(&start(6, 77)).expect("free").is_none());
        drop((a, b));
        assert!(!path.join("77").exists());
    }

    #[test]
    fn the_whole_machine_and_its_processes_exclude_each_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let a = Locks::in_directory(path, Lock::Shared).expect("free");
        assert!(Locks::in_directory(path, Lock::Alone).is_err());
        drop(a);
        let whole = Locks::in_directory(path, Lock::Alone).expect("free");
        assert!(Locks::in_directory(path, Lock::Alone).is_err());
        assert!(Locks::in_directory(path, Lock::Shared).is_err());
        drop(whole);
        fs::write(path.join("99"), "1\n").expect("left by a killed one");
        Locks::in_directory(path, Lock::Shared).expect("free again");
        assert!(!path.join("99").exists());
    }
}
