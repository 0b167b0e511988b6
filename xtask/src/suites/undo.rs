//! Restores settings of the machine that tests changed and could not restore themselves.
//!
//! A test restores its settings when it ends, also by a panic. One that is killed, as by its suite's time limit, does
//! not: compressed swap stays, and so do its control groups. The command's own note names the swap that it set up
//! (`/run/isotherm/zram-swap`). Swap that existed before the tests is not theirs. A mark beside the logs records that
//! the swap is the tests', and outlives a runner that is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NOTE: &str = "/run/isotherm/zram-swap";
/// Parents of tests' control groups, in version 2 and 1.
const HIERARCHIES: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/memory",
];

pub(super) struct Undo {
    command: PathBuf,
    note: PathBuf,
    mark: PathBuf,
}

impl Undo {
    /// Restores the machine after an earlier runner, and marks later changes as the tests' own. `command` is the
    /// `isotherm` that tests run.
    pub(super) fn new(command: PathBuf, logs: &Path) -> Self {
        Self::of(command, logs, Path::new(NOTE))
    }

    fn of(command: PathBuf, logs: &Path, note: &Path) -> Self {
        let undo = Self {
            command,
            note: note.to_owned(),
            mark: logs.join("swap-is-the-tests-own"),
        };
        undo.all();
        if !undo.note.exists() {
            // Without the mark nothing is restored; there is no other remedy.
            let _ = fs::write(&undo.mark, "");
        }
        undo
    }

    /// Restores the machine now. Call it after each suite.
    pub(super) fn all(&self) {
        if self.mark.exists() && self.note.exists() {
            println!("A test was ended before it could take its swap away:");
            let status = Command::new(&self.command).args(["swap", "off"]).status();
            if !status.is_ok_and(|status| status.success()) {
                println!("it is still there: {}", self.note.display());
            }
        }
        for hierarchy in HIERARCHIES {
            remove_groups(Path::new(hierarchy), Path::new("/proc"));
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        self.all();
        // The mark does not exist if there was swap before.
        let _ = fs::remove_file(&self.mark);
    }
}

/// Removes the groups `isotherm-NAME-PID` of tests that have ended. The kernel keeps one that is in use.
fn remove_groups(hierarchy: &Path, proc: &Path) {
    let Ok(entries) = fs::read_dir(hierarchy) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix("isotherm-")
            .and_then(|rest| rest.rsplit_once('-'))
            .filter(|(_, pid)| pid.parse::<u32>().is_ok());
        if pid.is_some_and(|(_, pid)| !proc.join(pid).exists()) {
            // A process that outlived its test still uses it: the next listing shows it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Returns a command that removes the note, as `swap off` does.
    fn command(directory: &Path) -> PathBuf {
        let path = directory.join("isotherm");
        let script = format!("#!/bin/sh\nrm {}/note\n", directory.display());
        fs::write(&path, script).expect("written");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, executable).expect("its own file");
        path
    }

    #[test]
    fn swap_that_a_killed_test_left_is_taken_away_and_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let (at, note) = (directory.path(), directory.path().join("note"));
        let new = || Undo::of(command(at), at, &note);
        // A suite that was killed has left this.
        let undo = new();
        fs::write(&note, "zram0").expect("written");
        undo.all();
        assert!(!note.exists());
        // The runner was killed, too.
        fs::write(&note, "zram0").expect("written");
        std::mem::forget(undo);
        drop(new());
        assert!(!note.exists());
        // This existed before.
        fs::write(&note, "zram0").expect("written");
        drop(new());
        assert!(note.exists());
    }

    #[test]
    fn groups_of_tests_that_have_ended_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let groups = directory.path().join("groups");
        let proc = directory.path().join("proc");
        for name in [
            "isotherm-many-7",
            "isotherm-many-8",
            "isotherm-x",
            "user.slice-7",
        ] {
            fs::create_dir_all(groups.join(name)).expect("made");
        }
        fs::create_dir_all(proc.join("8")).expect("made");
        remove_groups(&groups, &proc);
        let left = fs::read_dir(&groups).expect("there");
        let left = left.map(|entry| entry.expect("one").file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["isotherm-many-8", "isotherm-x", "user.slice-7"]);
    }
}
