//! The tree, claimed: nobody else's kdamonds are touched, what was there is put back at the end.
//!
//! Problem: the tree has one number of kdamonds for all users, and setting it removes every kdamond's configuration;
//! who drives DAMON can neither share it nor leave it as it found it without taking notes. Approach: [`Claim::take`]
//! refuses while any kdamond runs, and writes down all that the tree holds; [`Claim::start`] writes the
//! configuration, looks at what the kernel takes of it before anything is turned on, and undoes all where it does
//! not; [`Claim::release`] (or a drop) puts the former tree back. After a SIGKILL the next claim does it by the note.
//!
//! Limits: regions that a `stat` scheme had found, statistics and a stopped kdamond's last results are not brought
//! back; the kernel has no way to set them.

use std::io;
use std::path::Path;

use isotherm_engine::scheme::{Action, FilterKind};

use crate::context::{DamonContext, Operations};
use crate::error::{DamonError, Lack};
use crate::modules::Module;
use crate::note::{Note, NotePlace, UNKNOWN_PID};
use crate::patience::{EBUSY, EINVAL, Patience, patiently};
use crate::tree::{EntryKind, Tree, TreePath};
use crate::writes::{Layout, Write, goals, skeleton, values};

/// Deeper than this lies nothing in the tree.
const DEPTH_MAX: usize = 16;

/// The tree in our hands.
#[derive(Debug)]
pub struct Claim<T: Tree> {
    pub(crate) tree: T,
    pub(crate) place: NotePlace,
    note: Note,
    /// The kernel's modules that use DAMON by themselves, to name them.
    modules: Vec<Module>,
    /// What of the former owner was put in order.
    pub(crate) recovered: Option<String>,
    is_released: bool,
}

impl<T: Tree> Claim<T> {
    /// Takes the tree if nobody uses it, and puts in order what an Isotherm left that was killed. Notes are kept in
    /// `directory`; `boot` is the kernel's boot id; `modules` are those that may use DAMON besides.
    ///
    /// # Errors
    /// [`DamonError::InUse`] where a kdamond runs; what the tree or the directory refuses.
    pub fn take(
        tree: T,
        directory: &Path,
        boot: &str,
        modules: Vec<Module>,
    ) -> Result<Self, DamonError> {
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
        claim.note = Note {
            boot: boot.to_owned(),
            before: claim.save()?,
            ..Note::default()
        };
        claim.place.write(&claim.note)?;
        claim.is_released = false;
        Ok(claim)
    }

    /// What was put in order of an owner that had been killed, to be said.
    pub fn recovered(&self) -> Option<&str> {
        self.recovered.as_deref()
    }

    /// Sets up a kdamond for each context and turns all on. Where one fails, none is left, and it can be tried again.
    ///
    /// # Errors
    /// [`DamonError::Lacks`] with everything that this kernel cannot do, before anything runs;
    /// [`DamonError::Refused`] where the kernel does not turn a kdamond on.
    pub fn start(&mut self, contexts: &[DamonContext]) -> Result<(), DamonError> {
        let result = self.set_up(contexts).and_then(|()| self.turn_on());
        if result.is_err() {
            // What failed first is what is to be said.
            let _ = self.begin_anew();
        }
        result
    }

    /// Whether this kernel takes the contexts, without anything running.
    ///
    /// # Errors
    /// As [`Claim::start`], but for what is only known once a kdamond runs.
    pub fn check(&mut self, contexts: &[DamonContext]) -> Result<(), DamonError> {
        let result = self.set_up(contexts);
        self.begin_anew()?;
        result
    }

    /// Undoes all; the claim stays. What is left in the tree stays noted, for the end.
    fn begin_anew(&mut self) -> Result<(), DamonError> {
        if !self.undo(&self.note.clone()).is_empty() {
            return Ok(());
        }
        self.note.written.clear();
        self.note.pids.clear();
        self.place.write(&self.note)
    }

    fn set_up(&mut self, contexts: &[DamonContext]) -> Result<(), DamonError> {
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

    /// Notes what was written, as it reads now.
    fn remember(&mut self, written: &[TreePath]) -> Result<(), DamonError> {
        for path in written {
            let text = self.read(path)?;
            self.note.written.push((path.to_string(), text));
        }
        self.place.write(&self.note)
    }

    /// Writes a context; what this kernel lacks for it comes back.
    fn write_context(
        &mut self,
        at: usize,
        context: &DamonContext,
        written: &mut Vec<TreePath>,
    ) -> Result<Vec<Lack>, DamonError> {
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

    /// Sets files in order. One that is not there, or does not take a value, is something that the kernel lacks.
    fn write_all(
        &mut self,
        writes: &[Write],
        written: &mut Vec<TreePath>,
    ) -> Result<Vec<Lack>, DamonError> {
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
            // One word for all files of the same part.
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

    fn turn_on(&mut self) -> Result<(), DamonError> {
        for at in 0..self.nr_kdamonds()? {
            self.turn_on_one(at)?;
        }
        Ok(())
    }

    fn turn_on_one(&mut self, at: usize) -> Result<(), DamonError> {
        // Noted first: after a SIGKILL in between it is still ours.
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

    fn note_pid(&mut self, at: usize, pid: i64) -> Result<(), DamonError> {
        let nr = self.note.pids.len().max(at + 1);
        self.note.pids.resize(nr, UNKNOWN_PID);
        self.note.pids[at] = pid;
        self.place.write(&self.note)
    }

    fn why_not(&self, error: &io::Error) -> String {
        let on: Vec<String> = self.modules.iter().filter_map(Module::in_use).collect();
        let enabled = self.modules.iter().filter(|module| module.is_enabled());
        let switches = enabled.map(|module| format!("`echo N > {}`", module.switch()));
        let switches: Vec<String> = switches.collect();
        match error.raw_os_error() {
            Some(EBUSY) if !on.is_empty() => format!(
                "{} of the kernel itself is on, and shares with nobody; turn it off ({}) or watch without kernel DAMON \
                 (`--world linux`)",
                on.join(", "),
                switches.join(", ")
            ),
            Some(EBUSY) => "somebody else's kdamond runs, and shares with nobody".to_owned(),
            Some(EINVAL) => {
                "it does not take the configuration as a whole; is each process still there?"
                    .to_owned()
            }
            _ => "it does not say why; see the kernel log".to_owned(),
        }
    }

    /// Replaces a running kdamond's configuration, in one step as seen by it.
    ///
    /// # Errors
    /// As [`Claim::start`], the kdamond then goes on as before; [`DamonError::Changed`] where somebody else has changed
    /// the tree.
    pub fn commit(&mut self, at: usize, context: &DamonContext) -> Result<(), DamonError> {
        self.require_unchanged()?;
        self.rewrite(at, context)?;
        self.command(at, "commit")
    }

    /// Whether a commit can take single targets away (`obsolete_target`, Linux 6.19) from a kdamond that has any.
    pub fn drops_targets(&self, at: usize) -> bool {
        let target = TreePath::kdamond(at).join("contexts/0/targets/0");
        self.tree.kind(&target.join("obsolete_target")).is_some()
    }

    /// Turns a kdamond off and on again, with another configuration: what it knew is gone.
    ///
    /// # Errors
    /// As [`Claim::commit`]; the kdamond is off then.
    pub fn restart(&mut self, at: usize, context: &DamonContext) -> Result<(), DamonError> {
        self.require_unchanged()?;
        self.turn_off(at)?;
        self.rewrite(at, context)?;
        self.turn_on_one(at)
    }

    fn require_unchanged(&self) -> Result<(), DamonError> {
        let changed = self.changed(&self.note);
        changed.map_or(Ok(()), |what| Err(DamonError::Changed { what }))
    }

    /// Turns a kdamond off, if it is on.
    ///
    /// # Errors
    /// What the tree refuses.
    pub fn turn_off(&mut self, at: usize) -> Result<(), DamonError> {
        if self.is_on(at)? {
            self.command(at, "off")?;
        }
        Ok(())
    }

    /// Writes another configuration, and a note of it: it comes into force with the next commit.
    ///
    /// # Errors
    /// As [`Claim::start`].
    pub fn rewrite(&mut self, at: usize, context: &DamonContext) -> Result<(), DamonError> {
        let kdamond = format!("{}/", TreePath::kdamond(at));
        // Noted first: after a SIGKILL in between, the files are neither as they were nor as they were to be.
        let of_others = |(path, _): &(String, String)| !path.starts_with(&kdamond);
        self.note.written.retain(of_others);
        self.place.write(&self.note)?;
        let mut written = Vec::new();
        let lacks = self.write_context(at, context, &mut written)?;
        // Whatever came of it: that is how the tree is now.
        self.remember(&written)?;
        if lacks.is_empty() {
            Ok(())
        } else {
            Err(DamonError::Lacks(lacks))
        }
    }

    /// Tells a running kdamond what users' goals came to.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn commit_goals(&mut self, at: usize, context: &DamonContext) -> Result<(), DamonError> {
        for write in goals(&TreePath::kdamond(at), context) {
            if self.tree.kind(&write.path).is_some() {
                self.write(&write.path, &write.value)?;
            }
        }
        self.command(at, "commit_schemes_quota_goals")
    }

    /// Turns everything off and puts the former tree back. What could not be put back is told.
    ///
    /// # Errors
    /// [`DamonError::Changed`] where somebody else has changed the tree: it is left as it is.
    pub fn release(mut self) -> Result<Vec<String>, DamonError> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<Vec<String>, DamonError> {
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

    fn require_unused(&self) -> Result<(), DamonError> {
        for at in 0..self.nr_kdamonds()? {
            let is_on = self.is_on(at).or_else(|error| match error {
                // Held for as long as an aggregation interval by who asks for regions: they will do so again.
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

    /// What somebody else's kdamond does, as far as its directory tells.
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

    /// All that can be set, and to what it is.
    fn save(&self) -> Result<Vec<(String, String)>, DamonError> {
        let mut saved = Vec::new();
        self.save_below(&TreePath::kdamonds(), 0, &mut saved)?;
        Ok(saved)
    }

    fn save_below(
        &self,
        path: &TreePath,
        depth: usize,
        saved: &mut Vec<(String, String)>,
    ) -> Result<(), DamonError> {
        let entries = self.tree.list(path).map_err(|source| DamonError::Read {
            path: path.clone(),
            source,
        })?;
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

    /// How many kdamonds there are.
    pub(crate) fn nr_kdamonds(&self) -> Result<usize, DamonError> {
        let nr: u64 = self.number(&TreePath::kdamonds().join("nr_kdamonds"))?;
        Ok(nr as usize)
    }

    /// Whether a kdamond runs.
    ///
    /// # Errors
    /// If the tree cannot be read.
    pub fn is_on(&self, at: usize) -> Result<bool, DamonError> {
        Ok(self.read(&TreePath::kdamond(at).join("state"))? == "on")
    }

    /// The process id of a kdamond's thread, while it runs.
    ///
    /// # Errors
    /// If the tree cannot be read.
    pub fn pid(&self, at: usize) -> Result<Option<i64>, DamonError> {
        let pid: i64 = self.number(&TreePath::kdamond(at).join("pid"))?;
        Ok((pid > 0).then_some(pid))
    }

    /// Has a kdamond do something.
    pub(crate) fn command(&mut self, at: usize, word: &str) -> Result<(), DamonError> {
        self.write(&TreePath::kdamond(at).join("state"), word)
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, path: &TreePath) -> Result<N, DamonError> {
        let text = self.read(path)?;
        text.parse().map_err(|_| DamonError::NotANumber {
            path: path.clone(),
            found: text,
        })
    }

    pub(crate) fn read(&self, path: &TreePath) -> Result<String, DamonError> {
        let read = patiently(self.patience(), || self.tree.read(path));
        read.map_err(|source| DamonError::Read {
            path: path.clone(),
            source,
        })
    }

    fn patience(&self) -> Patience {
        // One that is being turned on may meet a module that has DAMON for good.
        if self.note.pids.iter().any(|pid| *pid != UNKNOWN_PID) {
            Patience::ForKdamonds
        } else {
            Patience::ForOthers
        }
    }

    pub(crate) fn write(&mut self, path: &TreePath, value: &str) -> Result<(), DamonError> {
        let written = patiently(self.patience(), || self.tree.write(path, value));
        written.map_err(|source| DamonError::Write {
            path: path.clone(),
            value: value.to_owned(),
            source,
        })
    }
}

impl<T: Tree> Drop for Claim<T> {
    fn drop(&mut self) {
        // Nobody is there to be told.
        let _ = self.put_back();
    }
}

/// What the tree takes and the kernel then ignores in silence.
fn ignored(context: &DamonContext, layout: Layout) -> Vec<Lack> {
    let operations = context.operations;
    let mut lacks = Vec::new();
    for (at, scheme) in context.schemes.iter().enumerate() {
        let action = scheme.action;
        if !operations.knows(action, layout.has_dests) {
            lacks.push(Lack {
                asked_by: format!("scheme {at}: action `{}`", action.name()),
                why: format!(
                    "`{}` takes it and does nothing; `--world linux` may do it",
                    operations.name()
                ),
            });
        }
        let is_asked = scheme
            .filters
            .iter()
            .any(|filter| matches!(filter.kind, FilterKind::Ops(_)));
        let moves = matches!(action, Action::MigrateHot | Action::MigrateCold);
        if operations != Operations::Paddr && is_asked && !(moves && layout.has_dests) {
            lacks.push(Lack {
                asked_by: format!("scheme {at}: filters by page"),
                why: format!(
                    "`{}` applies none to `{}`; `--world linux` does",
                    operations.name(),
                    action.name()
                ),
            });
        }
    }
    lacks
}

/// `schemes/0/quotas` as the kernel's documentation has it, for every scheme: without the kdamond.
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
