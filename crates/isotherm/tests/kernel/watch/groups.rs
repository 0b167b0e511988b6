//! Control groups, version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{
    Record, Running, at_once, isotherm, pause, record_file, record_until, shared, skip, stop_once,
    until_written,
};

/// A group of the test's own; its processes end with it.
pub(crate) struct Group {
    pub(crate) directory: PathBuf,
}

impl Group {
    pub(crate) fn create(hierarchy: &Path, name: &str) -> Option<Self> {
        // Tests of one process run at once, and may choose the same name.
        static NR: AtomicUsize = AtomicUsize::new(0);
        let (pid, nr) = (std::process::id(), NR.fetch_add(1, Ordering::Relaxed));
        let directory = hierarchy.join(format!("isotherm-{name}-{pid}-{nr}"));
        fs::create_dir(&directory).ok()?;
        Some(Self { directory })
    }

    pub(crate) fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Returns the file of its limit, if its memory can be limited.
    pub(crate) fn limit(&self) -> Option<PathBuf> {
        let files = ["memory.high", "memory.limit_in_bytes"];
        let mut files = files.map(|name| self.directory.join(name)).into_iter();
        files.find(|path| path.exists())
    }

    pub(crate) fn name(&self) -> String {
        let name = self.directory.file_name().expect("a name");
        name.to_str().expect("a name of ours").to_owned()
    }

    /// Returns a shell that enters the group and runs a line there.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > \"$PROCS\"; {line}");
        command.args(["-c", &script, "sh"]);
        command.env("PROCS", self.procs());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            // A group of the test contains only the test's children.
            for line in fs::read_to_string(self.procs()).unwrap_or_default().lines() {
                if let Ok(pid) = line.parse() {
                    kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
                }
            }
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            pause(0.05);
        }
        eprintln!("cannot remove {}", self.directory.display());
    }
}

/// Returns the mount points of the hierarchies to test: version 2, and version 1's memory controller.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, point, kind, options, ..] = words[..] else {
            return None;
        };
        let wanted =
            kind == "cgroup2" || kind == "cgroup" && options.split(',').any(|o| o == "memory");
        wanted.then(|| PathBuf::from(point))
    };
    mounts.lines().filter_map(mount).collect()
}

/// Makes a group of a name; prints a skip and returns `None` where that is not possible.
pub(crate) fn group(name: &str) -> Option<Group> {
    let hierarchies = hierarchies();
    let mut made = hierarchies.iter();
    let made = made.find_map(|hierarchy| Group::create(hierarchy, name));
    if made.is_none() {
        skip("no control group can be made here");
    }
    made
}

/// Makes a group whose memory can be limited; prints a skip and returns `None` where that is not possible.
pub(crate) fn memory_group(name: &str) -> Option<Group> {
    let made = hierarchies().into_iter().find_map(|hierarchy| {
        let group = Group::create(&hierarchy, name)?;
        group.limit().is_some().then_some(group)
    });
    if made.is_none() {
        skip("no control group whose memory can be limited");
    }
    made
}

fn check_followed(group: &Group, name: &Path) {
    let (_directory, path) = record_file();
    let shell = Running::start(&mut group.shell("while :; do sleep 1.7; done"));
    pause(0.5);
    let mut command = isotherm(["record", "--cgroup"]);
    let what = "children that come and go";
    let (_, record) = record_until(what, command.arg(name), &path, |record| {
        let has_snapshot = record.snapshots().next().is_some();
        has_snapshot && record.starts().len() >= 4 && record.exits().len() >= 2
    });
    let starts = record.starts();
    let children = starts.iter().filter(|start| start.pid != shell.pid());
    assert!(children.count() >= 3, "{starts:?}");
    let of_shell = record.target(shell.pid());
    assert!(of_shell.is_some(), "{starts:?}");
    let exits = record.exits();
    let is_shell = exits.iter().any(|exit| Some(exit.target) == of_shell);
    assert!(!is_shell, "the shell runs");
}

#[test]
fn processes_of_a_group_are_followed_as_they_come_and_go() {
    let Some(_turn) = shared() else { return };
    let hierarchies = hierarchies();
    let groups = hierarchies.iter().enumerate();
    let groups: Vec<Group> = groups
        .filter_map(|(i, hierarchy)| Group::create(hierarchy, &format!("test-{i}")))
        .collect();
    let [first, ..] = &groups[..] else {
        return skip("no control group can be made here");
    };
    at_once(&groups, |group| check_followed(group, &group.directory));
    // The group is named by its path within the hierarchy, as in /proc/PID/cgroup.
    let name = first.directory.file_name().expect("a name");
    check_followed(first, Path::new(name));
}

/// The recorder waits for processes of an empty group, and does not refuse it.
#[test]
fn a_group_may_be_empty_at_first() {
    let Some(_turn) = shared() else { return };
    let Some(group) = group("empty") else { return };
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--cgroup"]);
    let recorder = Running::start(command.arg(&group.directory).arg("-o").arg(&path));
    until_written(&path);
    // It lists processes once a second.
    pause(1.5);
    let late = Running::start(&mut group.shell("exec sleep 60"));
    let what = "the process to be found";
    stop_once(what, recorder, &path, |record| !record.starts().is_empty());
    let record = Record::read(&path);
    let pids: Vec<u32> = record.starts().iter().map(|start| start.pid).collect();
    assert_eq!(pids, [late.pid()]);
}
