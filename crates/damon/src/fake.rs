//! A tree in memory that behaves like the kernel's, with its traps, by the version that it simulates.
//!
//! Simulated: numbers that re-create directories; words and files that a version lacks; exclusive modules (-EBUSY);
//! kdamonds that end when no target is left; a number of kdamonds that cannot change while one runs; regions that exist
//! only after a request; ages that actions reset. Not simulated: waiting for the next apply interval (there is no time
//! here), and monitoring itself (a test sets the regions).
//!
//! Source: `mm/damon/sysfs.c`, `mm/damon/sysfs-schemes.c`, and the table of versions in the kernel's changelogs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::tree::{EntryKind, Tree, TreeEntry, TreePath, sort};

mod contents;

/// Kernel version, as far as it affects DAMON's tree: 5.18 to 7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(pub u32, pub u32);

impl Level {
    /// Versions that differ in the tree, oldest first.
    pub const ALL: [Self; 15] = [
        Self(5, 18),
        Self(6, 2),
        Self(6, 3),
        Self(6, 6),
        Self(6, 7),
        Self(6, 8),
        Self(6, 9),
        Self(6, 11),
        Self(6, 12),
        Self(6, 14),
        Self(6, 16),
        Self(6, 17),
        Self(6, 19),
        Self(7, 2),
        // What is proposed, in no release yet.
        Self(8, 0),
    ];
}

/// A region of the fake's monitor: start, end, accesses, age in intervals.
pub type FakeRegion = (u64, u64, u32, u32);

/// The fake tree; its clones are the same tree.
#[derive(Clone, Debug)]
pub struct FakeTree(Rc<RefCell<State>>);

#[derive(Clone, Debug)]
struct State {
    level: Level,
    nodes: BTreeMap<TreePath, Node>,
    /// Live processes.
    pids: BTreeSet<u32>,
    /// Whether a module of the kernel is on.
    is_exclusive: bool,
    /// Process ids of the running kdamonds, by index.
    running: BTreeMap<usize, i64>,
    next_pid: i64,
    regions: Vec<FakeRegion>,
    /// Number of configurations that took effect.
    nr_commits: u32,
    nr_writes: u64,
    /// Number of the write from which on all fail.
    fails_at: Option<u64>,
    /// Number of further commands that find another program's command pending.
    nr_busy: u32,
    keep: Option<Keep>,
}

/// A write at which the tree and a note are copied.
#[derive(Clone, Debug)]
struct Keep {
    nr_write: u64,
    note: PathBuf,
    kept: Option<(Box<State>, Option<Vec<u8>>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Directory,
    File { text: String, is_writable: bool },
}

impl FakeTree {
    /// Returns the tree of a freshly booted machine with these processes.
    pub fn new(level: Level, pids: &[u32]) -> Self {
        let mut nodes = BTreeMap::new();
        nodes.insert(TreePath::kdamonds(), Node::Directory);
        let nr_kdamonds = TreePath::kdamonds().join("nr_kdamonds");
        contents::file(&mut nodes, &nr_kdamonds, "0", true);
        Self(Rc::new(RefCell::new(State {
            level,
            nodes,
            pids: pids.iter().copied().collect(),
            is_exclusive: false,
            running: BTreeMap::new(),
            next_pid: 1000,
            regions: Vec::new(),
            nr_commits: 0,
            nr_writes: 0,
            fails_at: None,
            nr_busy: 0,
            keep: None,
        })))
    }

    /// Starts an exclusive module of the kernel.
    pub fn start_module(&self) {
        self.0.borrow_mut().is_exclusive = true;
    }

    /// Makes the next `nr` commands to running kdamonds find another program's command pending.
    pub fn keep_busy(&self, nr: u32) {
        self.0.borrow_mut().nr_busy = nr;
    }

    /// Ends a process; a kdamond ends if none of its processes is left.
    pub fn end_process(&self, pid: u32) {
        self.0.borrow_mut().end_process(pid);
    }

    /// Sets the regions that its monitor has found.
    pub fn set_regions(&self, regions: &[FakeRegion]) {
        self.0.borrow_mut().regions = regions.to_vec();
    }

    /// Returns the regions of its monitor.
    pub fn regions(&self) -> Vec<FakeRegion> {
        self.0.borrow().regions.clone()
    }

    /// Returns whether a kdamond runs.
    pub fn is_on(&self, at: usize) -> bool {
        self.0.borrow().running.contains_key(&at)
    }

    /// Returns how often a running kdamond's configuration was replaced.
    pub fn nr_commits(&self) -> u32 {
        self.0.borrow().nr_commits
    }

    /// Returns the number of writes.
    pub fn nr_writes(&self) -> u64 {
        self.0.borrow().nr_writes
    }

    /// Makes each write after the next `writes` fail, as if the writer were killed; `None` ends that.
    pub fn fail_after(&self, writes: Option<u64>) {
        let mut state = self.0.borrow_mut();
        state.fails_at = writes.map(|writes| state.nr_writes + writes);
    }

    /// Requests a copy of the state that a SIGKILL just before this write would leave: the tree, and the note in this
    /// file.
    pub fn keep_at(&self, nr_write: u64, note: &Path) {
        self.0.borrow_mut().keep = Some(Keep {
            nr_write,
            note: note.to_owned(),
            kept: None,
        });
    }

    /// Returns the copy; `None` if there were fewer writes.
    pub fn kept(&self) -> Option<(Self, Option<Vec<u8>>)> {
        let state = self.0.borrow();
        let (tree, note) = state.keep.as_ref()?.kept.as_ref()?;
        let tree = Self(Rc::new(RefCell::new((**tree).clone())));
        Some((tree, note.clone()))
    }

    /// Replaces the text of any file.
    pub fn tamper(&self, at: usize, new: &str) {
        let mut state = self.0.borrow_mut();
        let mut files = state.nodes.values_mut().filter_map(|node| match node {
            Node::File { text, .. } => Some(text),
            Node::Directory => None,
        });
        if let Some(text) = files.nth(at) {
            new.clone_into(text);
        }
    }

    /// Returns every file's text, for comparison.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let state = self.0.borrow();
        let files = state.nodes.iter().filter_map(|(path, node)| match node {
            Node::File { text, .. } => Some((path.to_string(), text.clone())),
            Node::Directory => None,
        });
        files.collect()
    }
}

impl Tree for FakeTree {
    fn read(&self, path: &TreePath) -> io::Result<String> {
        let state = self.0.borrow();
        if let Some(kdamond) = kdamond_of(path, "state") {
            state.require(path)?;
            let is_on = state.running.contains_key(&kdamond);
            return Ok(if is_on { "on" } else { "off" }.to_owned());
        }
        if let Some(kdamond) = kdamond_of(path, "pid") {
            state.require(path)?;
            return Ok(state
                .running
                .get(&kdamond)
                .map_or(-1, |pid| *pid)
                .to_string());
        }
        match state.nodes.get(path) {
            Some(Node::File { text, .. }) => Ok(text.clone()),
            Some(Node::Directory) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn write(&mut self, path: &TreePath, value: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.keep_if_due();
        state.nr_writes += 1;
        if state.fails_at.is_some_and(|at| state.nr_writes > at) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        state.write(path, value.trim())
    }

    fn list(&self, path: &TreePath) -> io::Result<Vec<TreeEntry>> {
        let state = self.0.borrow();
        state.require(path)?;
        let below = state
            .nodes
            .iter()
            .filter(|(at, _)| at.parent() == *path && *at != path);
        let mut entries: Vec<TreeEntry> = below
            .map(|(at, node)| TreeEntry {
                name: at.name().to_owned(),
                kind: match node {
                    Node::Directory => EntryKind::Directory,
                    Node::File {
                        is_writable: true, ..
                    } => EntryKind::Writable,
                    Node::File { .. } => EntryKind::ReadOnly,
                },
            })
            .collect();
        sort(&mut entries);
        Ok(entries)
    }
}

/// Returns the kdamond that `path` belongs to, if it is its file of this name.
fn kdamond_of(path: &TreePath, file: &str) -> Option<usize> {
    let rest = path.as_str().strip_prefix("kdamonds/")?;
    rest.strip_suffix(file)?.strip_suffix('/')?.parse().ok()
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(22)
}

fn busy() -> io::Error {
    io::Error::from_raw_os_error(16)
}

impl State {
    fn keep_if_due(&mut self) {
        let Some(mut keep) = self.keep.take_if(|keep| keep.nr_write == self.nr_writes) else {
            return;
        };
        keep.kept = Some((Box::new(self.clone()), fs::read(&keep.note).ok()));
        self.keep = Some(keep);
    }

    fn require(&self, path: &TreePath) -> io::Result<()> {
        let is_there = self.nodes.contains_key(path);
        is_there
            .then_some(())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, path: &TreePath, value: &str) -> io::Result<()> {
        match self.nodes.get(path) {
            Some(Node::File {
                is_writable: true, ..
            }) => {}
            Some(Node::File { .. }) => return Err(io::ErrorKind::PermissionDenied.into()),
            Some(Node::Directory) => return Err(io::ErrorKind::IsADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        if let Some(kdamond) = kdamond_of(path, "state") {
            return self.command(kdamond, value);
        }
        if !contents::takes(self.level, path, value) {
            return Err(invalid());
        }
        if path.name().starts_with("nr_") {
            return self.set_number(path, value);
        }
        self.set(path, value);
        Ok(())
    }

    fn set(&mut self, path: &TreePath, value: &str) {
        if let Some(Node::File { text, .. }) = self.nodes.get_mut(path) {
            value.clone_into(text);
        }
    }

    /// Re-creates numbered directories.
    fn set_number(&mut self, path: &TreePath, value: &str) -> io::Result<()> {
        let nr: usize = value.parse().map_err(|_| invalid())?;
        if path.name() == "nr_kdamonds" && !self.running.is_empty() {
            return Err(busy());
        }
        if path.name() == "nr_contexts" && nr > 1 {
            return Err(invalid());
        }
        let directory = path.parent();
        self.clear(&directory);
        for at in 0..nr {
            contents::make(&mut self.nodes, self.level, &directory.at(at), path.name());
        }
        self.set(path, &nr.to_string());
        Ok(())
    }

    /// Removes the numbered directories below `directory`.
    fn clear(&mut self, directory: &TreePath) {
        let prefix = format!("{directory}/");
        self.nodes.retain(|at, _| {
            let below = at.as_str().strip_prefix(&prefix);
            !below.is_some_and(|below| below.starts_with(|c: char| c.is_ascii_digit()))
        });
    }

    fn command(&mut self, kdamond: usize, word: &str) -> io::Result<()> {
        let path = TreePath::kdamond(kdamond).join("contexts");
        if word != "off" && self.text(&path.join("nr_contexts")) != "1" {
            return Err(invalid());
        }
        let is_on = self.running.contains_key(&kdamond);
        if is_on && self.nr_busy > 0 {
            self.nr_busy -= 1;
            return Err(busy());
        }
        match word {
            "on" if is_on || self.is_exclusive => Err(busy()),
            "on" => self.turn_on(kdamond),
            "off" if is_on => {
                self.running.remove(&kdamond);
                Ok(())
            }
            "commit" if is_on => {
                self.check(kdamond)?;
                self.nr_commits += 1;
                Ok(())
            }
            "update_schemes_stats" | "update_tuned_intervals" if is_on => Ok(()),
            "update_schemes_effective_quotas" if is_on && self.level >= Level(6, 9) => Ok(()),
            "update_schemes_tried_regions" if is_on && self.level >= Level(6, 2) => {
                self.update_tried_regions(kdamond);
                Ok(())
            }
            "clear_schemes_tried_regions" if self.level >= Level(6, 2) => {
                for scheme in self.schemes(kdamond) {
                    self.clear(&scheme.join("tried_regions"));
                }
                Ok(())
            }
            _ => Err(invalid()),
        }
    }

    fn turn_on(&mut self, kdamond: usize) -> io::Result<()> {
        self.check(kdamond)?;
        self.running.insert(kdamond, self.next_pid);
        self.next_pid += 1;
        Ok(())
    }

    /// Checks the conditions that the kernel checks only when it builds a context.
    fn check(&self, kdamond: usize) -> io::Result<()> {
        let context = TreePath::kdamond(kdamond).join("contexts/0");
        let number = |below: &str| -> u64 { self.text(&context.join(below)).parse().unwrap_or(0) };
        let intervals = "monitoring_attrs/intervals";
        let is_backwards =
            number(&format!("{intervals}/sample_us")) > number(&format!("{intervals}/aggr_us"));
        let min = number("monitoring_attrs/nr_regions/min");
        if is_backwards || min < 3 || min > number("monitoring_attrs/nr_regions/max") {
            return Err(invalid());
        }
        let is_physical = self.text(&context.join("operations")) == "paddr";
        let nr_targets = number("targets/nr_targets");
        if is_physical && nr_targets > 1 {
            return Err(invalid());
        }
        let gone = |at| {
            !self
                .pids
                .contains(&(number(&format!("targets/{at}/pid_target")) as u32))
        };
        if !is_physical && (0..nr_targets).any(gone) {
            return Err(invalid());
        }
        Ok(())
    }

    fn end_process(&mut self, pid: u32) {
        self.pids.remove(&pid);
        let running: Vec<usize> = self.running.keys().copied().collect();
        for kdamond in running {
            let targets = TreePath::kdamond(kdamond).join("contexts/0/targets");
            let nr: usize = self.text(&targets.join("nr_targets")).parse().unwrap_or(0);
            let lives = |at: usize| {
                let pid = self.text(&targets.at(at).join("pid_target"));
                pid.parse().is_ok_and(|pid| self.pids.contains(&pid))
            };
            if nr > 0 && !(0..nr).any(lives) {
                self.running.remove(&kdamond);
            }
        }
    }

    fn schemes(&self, kdamond: usize) -> Vec<TreePath> {
        let schemes = TreePath::kdamond(kdamond).join("contexts/0/schemes");
        let nr: usize = self.text(&schemes.join("nr_schemes")).parse().unwrap_or(0);
        (0..nr).map(|at| schemes.at(at)).collect()
    }

    fn update_tried_regions(&mut self, kdamond: usize) {
        for scheme in self.schemes(kdamond) {
            let tried = scheme.join("tried_regions");
            self.clear(&tried);
            let bound = |below: &str| -> u64 {
                let text = self.text(&scheme.join(&format!("access_pattern/{below}")));
                text.parse().unwrap_or(0)
            };
            let within = |name: &str, value: u64| {
                (bound(&format!("{name}/min"))..=bound(&format!("{name}/max"))).contains(&value)
            };
            let matching: Vec<usize> = (0..self.regions.len())
                .filter(|at| {
                    let (start, end, nr_accesses, age) = self.regions[*at];
                    within("sz", end - start)
                        && within("nr_accesses", nr_accesses.into())
                        && within("age", age.into())
                })
                .collect();
            let is_stat = self.text(&scheme.join("action")) == "stat";
            for (at, index) in matching.into_iter().enumerate() {
                let region = self.regions[index];
                contents::region(&mut self.nodes, self.level, &tried.at(at), region);
                if !is_stat {
                    self.regions[index].3 = 0;
                }
            }
        }
    }

    fn text(&self, path: &TreePath) -> &str {
        match self.nodes.get(path) {
            Some(Node::File { text, .. }) => text,
            _ => "",
        }
    }
}
