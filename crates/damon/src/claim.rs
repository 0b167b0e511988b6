//! A claim on the tree: it leaves the kdamonds of other users alone, and restores the former tree at the end.
//!
//! Problem: the tree has one number of kdamonds for all users, and setting it removes every kdamond's configuration. A
//! program that drives DAMON can neither share the tree nor leave it unchanged without notes. Approach: [`Claim::take`]
//! refuses while any kdamond runs, and notes the whole content of the tree. [`Claim::start`] writes the configuration.
//! Before it turns anything on it checks what the kernel accepts, and undoes everything if that is incomplete.
//! [`Claim::release`] (or a drop) restores the former tree. After a SIGKILL the next claim restores it from the note.
//!
//! Limits: regions that a `stat` scheme had found, statistics and a stopped kdamond's last results are not restored;
//! the kernel has no way to set them.

use std::io;
use std::path::Path;
use std::time::Duration;

use isotherm_policy::scheme::{Action, FilterKind};

use crate::context::{DamonContext, Operations, knows};
use crate::error::{DamonError, Lack, Result};
use crate::modules::Module;
use crate::note::{Note, NotePlace, UNKNOWN_PID};
use crate::tree::{EntryKind, Tree, TreePath};
use crate::writes::{Layout, Write, skeleton, values};

const DEPTH_MAX: usize = 16;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
/// Retries of an access while another process uses the tree: the kernel does not wait for its lock, but returns EBUSY.
/// This is the number while no kdamond of this process runs; if a module holds DAMON, EBUSY is permanent.
const RETRIES: u32 = 40;
/// Retries while kdamonds of this process run. Another program may send them commands, too (counters are read so), and
/// the kernel has one pending command at a time. The kdamond executes it between two samples, or after a whole
/// aggregation interval, and not while it pages out memory.
const RETRIES_WITH_KDAMONDS: u32 = 4_000;
const PAUSE: Duration = Duration::from_millis(5);

/// The tree while this process owns it.
#[derive(Debug)]
pub struct Claim<T: Tree> {
    pub(crate) tree: T,
    pub(crate) place: NotePlace,
    note: Note,
    /// Kernel modules that use DAMON on their own, to name them in errors.
    modules: Vec<Module>,
    /// Report on the former owner's state that was restored.
    pub(crate) recovered: Option<String>,
    is_released: bool,
}

impl<T: Tree> Claim<T> {
    /// Claims the tree if it is unused, and restores it after an Isotherm that was killed. Notes are kept in
    /// `directory`; `boot` is the kernel's boot id; `modules` are kernel modules that may use DAMON as well. Fails with
    /// [`DamonError::InUse`] if a kdamond runs, or with the error of the tree or the directory.
    pub fn take(tree: T, directory: &Path, boot: &str, modules: Vec<Module>) -> Result<Self> {
        let place = NotePlace::take(directory)?;
        let mut claim = Self {
            tree,
            place,
            note: Note::default(),
            modules,
            recovered: None,
            is_released: true,
        };
        if let Some(note) = claim.place.read().filter(|note| note.boot == boot) {
            claim.recover(&note);
        }
        claim.require_unused()?;
        boot.clone_into(&mut claim.note.boot);
        let mut before = Vec::new();
        claim.save_below(&TreePath::kdamonds(), 0, &mut before)?;
        claim.note.before = before;
        claim.place.write(&claim.note)?;
        claim.is_released = false;
        Ok(claim)
    }

    /// Returns a report on the state of a killed owner that was restored, for the user.
    pub fn recovered(&self) -> Option<&str> {
        self.recovered.as_deref()
    }

    /// Sets up a kdamond for each context and turns all on. If one fails, none is left, and the call may be repeated.
    ///
    /// # Errors
    /// Fails with [`DamonError::Lacks`] before anything runs, listing everything that this kernel lacks. Fails with
    /// [`DamonError::Refused`] if the kernel does not turn a kdamond on.
    pub fn start(&mut self, contexts: &[DamonContext]) -> Result<()> {
        let result = self.set_up(contexts).and_then(|()| self.turn_on());
        if result.is_err() {
            // The first failure is the one to report.
            let _ = self.begin_anew();
        }
        result
    }

    /// Checks whether this kernel accepts the contexts, without running anything.
    ///
    /// # Errors
    /// Fails as [`Claim::start`] does, except for errors that only a running kdamond shows.
    pub fn check(&mut self, contexts: &[DamonContext]) -> Result<()> {
        let result = self.set_up(contexts);
        self.begin_anew()?;
        result
    }

    /// Undoes everything and keeps the claim. Anything that is left in the tree stays noted, for the end.
    fn begin_anew(&mut self) -> Result<()> {
        if !self.undo(&self.note.clone()).is_empty() {
            return Ok(());
        }
        self.note.written.clear();
        self.note.pids.clear();
        self.place.write(&self.note)
    }

    fn set_up(&mut self, contexts: &[DamonContext]) -> Result<()> {
        let nr = TreePath::kdamonds().join("nr_kdamonds");
        self.note.written = vec![(nr.to_string(), contexts.len().to_string())];
        self.place.write(&self.note)?;
        self.write(&nr, &contexts.len().to_string())?;
        let (mut lacks, mut written) = (Vec::new(), Vec::new());
        for (at, context) in contexts.iter().enumerate() {
            lacks.extend(self.write_context(at, context, &mut written)?);
        }
        if !lacks.is_empty() {
            return Err(DamonError::Lacks(lacks));
        }
        self.remember(&written)
    }

    /// Notes the written files with their present text.
    fn remember(&mut self, written: &[TreePath]) -> Result<()> {
        for path in written {
            let text = self.read(path)?;
            self.note.written.push((path.to_string(), text));
        }
        self.place.write(&self.note)
    }

    /// Writes a context and returns the features that this kernel lacks for it.
    fn write_context(
        &mut self,
        at: usize,
        context: &DamonContext,
        written: &mut Vec<TreePath>,
    ) -> Result<Vec<Lack>> {
        let kdamond = TreePath::kdamond(at);
        let mut lacks = self.write_all(&skeleton(&kdamond, context), written)?;
        if lacks.is_empty() {
            let layout = Layout::of(&self.tree, &kdamond);
            lacks = ignored(context, layout);
            lacks.extend(self.write_all(&values(&kdamond, context, layout), written)?);
        }
        lacks.dedup();
        Ok(lacks)
    }

    /// Sets files in order. A file that is missing, or does not accept its value, is a feature that the kernel lacks.
    fn write_all(&mut self, writes: &[Write], written: &mut Vec<TreePath>) -> Result<Vec<Lack>> {
        let mut lacks: Vec<Lack> = Vec::new();
        for write in writes {
            let why = if self.tree.kind(&write.path).is_none() {
                if write.is_default {
                    continue;
                }
                format!("it has no {}", without_numbers(&write.path))
            } else {
                match self.write(&write.path, &write.value) {
                    Ok(()) => {
                        written.push(write.path.clone());
                        continue;
                    }
                    Err(DamonError::Write { source, .. })
                        if source.kind() == io::ErrorKind::InvalidInput =>
                    {
                        format!(
                            "{} does not take '{}'",
                            without_numbers(&write.path),
                            write.value
                        )
                    }
                    Err(error) => return Err(error),
                }
            };
            // All files of the same part share one entry.
            if lacks
                .last()
                .is_none_or(|last| last.asked_by != write.asked_by)
            {
                lacks.push(Lack {
                    asked_by: write.asked_by.clone(),
                    why,
                });
            }
        }
        Ok(lacks)
    }

    fn turn_on(&mut self) -> Result<()> {
        for at in 0..self.nr_kdamonds()? {
            self.turn_on_one(at)?;
        }
        Ok(())
    }

    fn turn_on_one(&mut self, at: usize) -> Result<()> {
        // The note comes first: after a SIGKILL in between, the kdamond still counts as ours.
        self.note_pid(at, UNKNOWN_PID)?;
        let state = TreePath::kdamond(at).join("state");
        if let Err(error) = self.write(&state, "on") {
            let DamonError::Write { source, .. } = error else {
                return Err(error);
            };
            let why = self.why_not(&source);
            return Err(DamonError::Refused { source, why });
        }
        let pid = self.pid(at)?.unwrap_or(UNKNOWN_PID);
        self.note_pid(at, pid)
    }

    fn note_pid(&mut self, at: usize, pid: i64) -> Result<()> {
        let nr = self.note.pids.len().max(at + 1);
        self.note.pids.resize(nr, UNKNOWN_PID);
        self.note.pids[at] = pid;
        self.place.write(&self.note)
    }

    fn why_not(&self, error: &io::Error) -> String {
        let enabled = self.modules.iter().filter_map(|module| {
            let turn_off = format!("`echo N > {}`", module.switch());
            Some((module.in_use()?, turn_off))
        });
        let (on, turn_off): (Vec<String>, Vec<String>) = enabled.unzip();
        match error.raw_os_error() {
            Some(EBUSY) if !on.is_empty() => format!(
                "{} of the kernel itself is on, and does not share; turn it off ({}) or watch without kernel DAMON \
                 (`--world linux`)",
                on.join(", "),
                turn_off.join(", ")
            ),
            Some(EBUSY) => "another program's kdamond runs, and does not share".to_owned(),
            Some(EINVAL) => {
                "it does not take the configuration as a whole; is each process still there?"
                    .to_owned()
            }
            _ => "it does not say why; see the kernel log".to_owned(),
        }
    }

    /// Replaces a running kdamond's configuration; for the kdamond that is one step.
    ///
    /// # Errors
    /// Fails as [`Claim::start`] does; the kdamond then continues as before. Fails with [`DamonError::Changed`] if
    /// another program has changed the tree.
    pub fn commit(&mut self, at: usize, context: &DamonContext) -> Result<()> {
        self.require_unchanged()?;
        self.rewrite(at, context)?;
        self.command(at, "commit")
    }

    /// Returns whether a commit can remove single targets (`obsolete_target`, Linux 6.19) from a kdamond that has any.
    pub fn drops_targets(&self, at: usize) -> bool {
        let target = TreePath::kdamond(at).join("contexts/0/targets/0");
        self.tree.kind(&target.join("obsolete_target")).is_some()
    }

    /// Turns a kdamond off and on again, with another configuration: its results are lost.
    ///
    /// # Errors
    /// Fails as [`Claim::commit`] does; the kdamond is off then.
    pub fn restart(&mut self, at: usize, context: &DamonContext) -> Result<()> {
        self.require_unchanged()?;
        self.turn_off(at)?;
        self.rewrite(at, context)?;
        self.turn_on_one(at)
    }

    fn require_unchanged(&self) -> Result<()> {
        let changed = self.changed(&self.note);
        changed.map_or(Ok(()), |what| Err(DamonError::Changed { what }))
    }

    /// Turns a kdamond off, if it is on.
    pub fn turn_off(&mut self, at: usize) -> Result<()> {
        if self.is_on(at)? {
            self.command(at, "off")?;
        }
        Ok(())
    }

    /// Writes another configuration, and a note of it: the next commit puts it into force.
    pub fn rewrite(&mut self, at: usize, context: &DamonContext) -> Result<()> {
        let kdamond = format!("{}/", TreePath::kdamond(at));
        // The note comes first: after a SIGKILL in between, the files have neither the old nor the new values.
        let of_others = |(path, _): &(String, String)| !path.starts_with(&kdamond);
        self.note.written.retain(of_others);
        self.place.write(&self.note)?;
        let mut written = Vec::new();
        let lacks = self.write_context(at, context, &mut written)?;
        // The note is of the present tree, whatever the result was.
        self.remember(&written)?;
        if lacks.is_empty() {
            Ok(())
        } else {
            Err(DamonError::Lacks(lacks))
        }
    }

    /// Turns everything off and restores the former tree. Returns the errors of files that could not be restored.
    ///
    /// # Errors
    /// Fails with [`DamonError::Changed`] if another program has changed the tree: it is left as it is.
    pub fn release(mut self) -> Result<Vec<String>> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<Vec<String>> {
        if self.is_released {
            return Ok(Vec::new());
        }
        self.is_released = true;
        if let Some(what) = self.changed(&self.note.clone()) {
            self.place.clear();
            return Err(DamonError::Changed { what });
        }
        let left = self.undo(&self.note.clone());
        if left.is_empty() {
            self.place.clear();
        }
        Ok(left)
    }

    fn require_unused(&self) -> Result<()> {
        for at in 0..self.nr_kdamonds()? {
            let is_on = self.is_on(at).or_else(|error| match error {
                // A reader of regions holds the lock for up to an aggregation interval, and will do so again.
                DamonError::Read { source, .. } if source.raw_os_error() == Some(EBUSY) => Ok(true),
                error => Err(error),
            });
            if is_on? {
                let pid = self.pid(at).unwrap_or_default();
                let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                let what = self.what_it_does(at);
                let by = format!("kdamond {at}{pid} runs{what}");
                return Err(DamonError::InUse { by });
            }
        }
        Ok(())
    }

    /// Describes another user's kdamond, by the content of its directory.
    fn what_it_does(&self, at: usize) -> String {
        let context = TreePath::kdamond(at).join("contexts/0");
        let Ok(operations) = self.read(&context.join("operations")) else {
            return String::new();
        };
        let number = |path: TreePath| self.read(&path).unwrap_or_else(|_| "?".to_owned());
        format!(
            ", {operations} of {} target(s), {} scheme(s)",
            number(context.join("targets/nr_targets")),
            number(context.join("schemes/nr_schemes")),
        )
    }

    /// Saves all writable files with their present texts.
    fn save_below(
        &self,
        path: &TreePath,
        depth: usize,
        saved: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let entries = self.tree.list(path).map_err(DamonError::read(path))?;
        for entry in entries {
            let Some(below) = TreePath::parse(&format!("{path}/{}", entry.name)) else {
                continue;
            };
            match entry.kind {
                EntryKind::Directory if depth < DEPTH_MAX => {
                    self.save_below(&below, depth + 1, saved)?;
                }
                EntryKind::Writable if entry.name != "state" => {
                    if let Ok(text) = self.read(&below) {
                        saved.push((below.to_string(), text));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn nr_kdamonds(&self) -> Result<usize> {
        let nr: u64 = self.number(&TreePath::kdamonds().join("nr_kdamonds"))?;
        Ok(nr as usize)
    }

    /// Returns whether a kdamond runs.
    pub fn is_on(&self, at: usize) -> Result<bool> {
        Ok(self.read(&TreePath::kdamond(at).join("state"))? == "on")
    }

    /// Returns the process id of a kdamond's thread, while it runs.
    pub fn pid(&self, at: usize) -> Result<Option<i64>> {
        let pid: i64 = self.number(&TreePath::kdamond(at).join("pid"))?;
        Ok((pid > 0).then_some(pid))
    }

    pub(crate) fn command(&mut self, at: usize, word: &str) -> Result<()> {
        self.write(&TreePath::kdamond(at).join("state"), word)
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, path: &TreePath) -> Result<N> {
        DamonError::number(path, self.read(path)?)
    }

    pub(crate) fn read(&self, path: &TreePath) -> Result<String> {
        let read = retry_while_busy(self.nr_retries(), || self.tree.read(path));
        read.map_err(DamonError::read(path))
    }

    fn nr_retries(&self) -> u32 {
        // A module may hold DAMON for good while a kdamond is being turned on.
        if self.note.pids.iter().any(|pid| *pid != UNKNOWN_PID) {
            RETRIES_WITH_KDAMONDS
        } else {
            RETRIES
        }
    }

    pub(crate) fn write(&mut self, path: &TreePath, value: &str) -> Result<()> {
        let written = retry_while_busy(self.nr_retries(), || self.tree.write(path, value));
        written.map_err(|source| DamonError::Write {
            path: path.clone(),
            value: value.to_owned(),
            source,
        })
    }
}

impl<T: Tree> Drop for Claim<T> {
    fn drop(&mut self) {
        // A drop cannot report an error.
        let _ = self.put_back();
    }
}

/// Repeats an attempt while it fails with EBUSY, with `nr_retries` retries at most.
fn retry_while_busy<R>(
    nr_retries: u32,
    mut attempt: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    for _ in 0..nr_retries {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(EBUSY) => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// Returns the requests that the tree accepts but the kernel then ignores silently.
fn ignored(context: &DamonContext, layout: Layout) -> Vec<Lack> {
    let operations = context.operations;
    let mut lacks = Vec::new();
    for (at, scheme) in context.schemes.iter().enumerate() {
        let mut add = |asked_by: &str, why: String| {
            let asked_by = format!("scheme {at}: {asked_by}");
            lacks.push(Lack { asked_by, why });
        };
        let action = scheme.action;
        if !knows(operations, action, layout.has_dests) {
            let asked_by = format!("action `{}`", action.name());
            let name = operations.name();
            let why = format!("`{name}` takes it and does nothing; `--world linux` may do it");
            add(&asked_by, why);
        }
        let mut filters = scheme.filters.iter();
        let is_asked = filters.any(|filter| matches!(filter.kind, FilterKind::Ops(_)));
        let moves = matches!(action, Action::MigrateHot | Action::MigrateCold);
        if operations != Operations::Paddr && is_asked && !(moves && layout.has_dests) {
            let (name, action) = (operations.name(), action.name());
            let why = format!("`{name}` applies none to `{action}`; `--world linux` does");
            add("filters by page", why);
        }
    }
    lacks
}

/// Returns a path as in the kernel's documentation, such as `schemes/N/quotas`: for every scheme, without the kdamond.
fn without_numbers(path: &TreePath) -> String {
    let components = path.as_str().split('/');
    let of_context = components.skip_while(|name| *name != "contexts").skip(2);
    let mut names: Vec<&str> = of_context.collect();
    if names.is_empty() {
        names.push(path.name());
    }
    let names = names.iter().map(|name| {
        if name.bytes().all(|c| c.is_ascii_digit()) {
            "N"
        } else {
            name
        }
    });
    names.collect::<Vec<_>>().join("/")
}
