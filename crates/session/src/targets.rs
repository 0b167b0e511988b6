//! Watched processes: given by id, with their children, or those of a control group. They come and go; each gets a
//! number that is never used again. A process that executes another program is another target where targets come and
//! go. A process that the user named keeps its number, and starts again under it.

mod admission;
mod change;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use isotherm_config::ProcessSpec;
use isotherm_engine::units::format_bytes;
use isotherm_engine::{AddressRange, Nanos, TargetId};
use isotherm_linux::areas::{MappedArea, Names};
use isotherm_linux::cgroup;
use isotherm_linux::probe::{
    PageTableProbe, ProbeError, SecondaryTables, SpaceFacts, WalkerError, without_aliases,
};
use isotherm_linux::process::{self, Process, ProcessError, children_of_this_thread};
use isotherm_record::{Item, TargetExit, TargetStart};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use admission::Admission;
use change::change;

/// Processes that the user asked to watch.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// These processes, and their descendants if `children` is set. Those in `pids` must exist; `command` is our own
    /// child, which may end at any time.
    Processes {
        pids: Vec<u32>,
        command: Option<u32>,
        children: bool,
    },
    /// All processes of a control group and those below it.
    Cgroup(PathBuf),
    /// All processes of the machine except these.
    All { exclude: Vec<ProcessSpec> },
}

/// Open files of a target: its pidfd here and in each actuator, and the lock of the process that acts on it.
const FILES_PER_TARGET: u64 = 4;
/// Open files that belong to no target.
const OTHER_FILES: u64 = 64;
/// Limit of a context's targets whatever the limit of open files: each target takes memory.
const TARGETS_MAX: u64 = 8192;
/// Number of targets beyond which unchanged mappings are read in turns.
const FEW: usize = 16;
/// Number of updates after which all mappings of a target are read, changed or not.
const TURNS: u64 = 8;

/// Time in which a command may keep its parent's name; a command that is itself an isotherm keeps it for good.
const RENAMING_MS: u32 = 20;

#[derive(Debug, Default)]
struct Live {
    pid: u32,
    name: String,
    areas: Vec<MappedArea>,
    /// Facts of the address space when `areas` were read.
    facts: Option<SpaceFacts>,
    /// Identity of the address space.
    space: Option<(u64, u64)>,
    hidden: Option<SecondaryTables>,
}

/// One update of the targets: its time, their probe, and the items that it yields.
struct Update<'a> {
    probe: &'a mut PageTableProbe,
    now: Nanos,
    items: &'a mut Vec<Item>,
}

impl Update<'_> {
    fn note(&mut self, text: String) {
        let time = self.now;
        self.items.push(Item::Note { time, text });
    }
}

#[derive(Debug)]
pub(crate) struct TargetSet {
    wanted: Wanted,
    /// Watched part of each address space (DAMON's initial regions); all of it if empty.
    pub(crate) limits: Vec<AddressRange>,
    live: BTreeMap<TargetId, Live>,
    /// Memory that a process maps several times is watched at each of its addresses: each has accessed bits of its own.
    pub(crate) samples_addresses: bool,
    names: Names,
    pids: BTreeSet<u32>,
    /// Processes that cannot be watched (no rights, no address space); they are not tried again.
    given_up: BTreeSet<u32>,
    /// Spreads additions over time; none: all are added at once.
    admission: Option<Admission>,
    targets_max: usize,
    /// Largest number of left-out processes that was reported.
    left_out: usize,
    updates: u64,
    /// Set after the processes named by the user have been added.
    started: bool,
    pub(crate) next: u32,
}

impl TargetSet {
    /// Makes an empty set that takes at most `files` open files; other contexts have equal shares.
    pub(crate) fn new(wanted: Wanted, limits: Vec<AddressRange>, files: u64) -> Self {
        let targets_max = files.saturating_sub(OTHER_FILES) / FILES_PER_TARGET;
        Self {
            wanted,
            limits,
            live: BTreeMap::new(),
            samples_addresses: false,
            names: Names::default(),
            pids: BTreeSet::new(),
            given_up: BTreeSet::new(),
            admission: None,
            targets_max: targets_max.clamp(1, TARGETS_MAX) as usize,
            left_out: 0,
            updates: 0,
            started: false,
            next: 0,
        }
    }

    /// Adds processes that the user did not name within a budget of `share` of one CPU.
    pub(crate) fn admit_within(&mut self, share: f64) {
        let is_named = matches!(self.wanted, Wanted::Processes { .. });
        self.admission = (!is_named).then(|| Admission::new(share));
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.live.keys().copied()
    }

    pub(crate) fn is_live(&self, id: TargetId) -> bool {
        self.live.contains_key(&id)
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = (TargetId, u32)> + '_ {
        self.live.iter().map(|(id, live)| (*id, live.pid))
    }

    /// Live targets with their processes, as `probe` knows them.
    pub(crate) fn processes<'a>(&self, probe: &'a PageTableProbe) -> Vec<(TargetId, &'a Process)> {
        let processes = self.ids().filter_map(|id| Some((id, probe.process(id)?)));
        processes.collect()
    }

    /// Mappings of a target, watched or not, in address order.
    pub(crate) fn areas(&self, id: TargetId) -> &[MappedArea] {
        self.live.get(&id).map_or(&[], |live| &live.areas)
    }

    /// Updates the set of live targets and their mappings. Returns the targets that have lost their memory since the
    /// last call: they have ended, or run another program.
    pub(crate) fn update(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<Vec<TargetId>, ProbeError> {
        let update = &mut Update { probe, now, items };
        self.updates += 1;
        let ended = self.look_for_ends(update);
        self.look_for_new(update)?;
        self.started = true;
        self.look_for_hidden(update);
        self.look_at_mappings(update);
        Ok(ended)
    }

    /// Adds new processes only. Returns `false` where none can come: the user named the processes.
    pub(crate) fn follow(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<bool, ProbeError> {
        if matches!(self.wanted, Wanted::Processes { .. }) {
            return Ok(false);
        }
        let update = &mut Update { probe, now, items };
        self.look_for_new(update)?;
        for (&id, live) in &mut self.live {
            if live.facts.is_none() {
                read_mappings(id, live, update, &mut self.names);
            }
        }
        Ok(true)
    }

    /// Finds targets that have ended, have called exec, or can no longer be watched. A target stays one after exec,
    /// unless the user excluded its new program.
    fn look_for_ends(&mut self, update: &mut Update<'_>) -> Vec<TargetId> {
        let mut ended = Vec::new();
        for id in self.ids().collect::<Vec<_>>() {
            let failure = match update.probe.refresh(id) {
                Ok(true) => {
                    // After exec, the process runs another program.
                    let live = &self.live[&id];
                    let pid = live.pid;
                    let is_another = live.space != update.probe.address_space(id);
                    match update.probe.take_failure(id) {
                        None if !is_another => continue,
                        None if !self.is_excluded(pid) => {
                            self.start_again(id, update);
                            ended.push(id);
                            continue;
                        }
                        failure => failure,
                    }
                }
                Ok(false) => None,
                Err(error) => Some(error.to_string()),
            };
            update.probe.remove(id);
            let Some(gone) = self.live.remove(&id) else {
                continue;
            };
            self.pids.remove(&gone.pid);
            if let Some(why) = failure {
                self.given_up.insert(gone.pid);
                update.note(format!("watched no longer: {why}"));
            }
            ended.push(id);
            update.items.push(Item::TargetExit(TargetExit {
                time: update.now,
                target: id,
                ..TargetExit::default()
            }));
        }
        ended
    }

    /// Follows a target into another program.
    fn start_again(&mut self, id: TargetId, update: &mut Update<'_>) {
        let process = update.probe.process(id);
        let name = process.map(|process| self.name_of(process));
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.space = update.probe.address_space(id);
        live.facts = None;
        live.name = name.unwrap_or_default();
        update.items.push(start_of(id, live, update.now));
    }

    fn look_for_new(&mut self, update: &mut Update<'_>) -> Result<(), ProbeError> {
        let wanted = self.wanted_pids(update.probe);
        let is_new = |pid: &u32| !self.pids.contains(pid) && !self.given_up.contains(pid);
        let mut new: Vec<u32> = wanted.iter().copied().filter(is_new).collect();
        new.retain(|pid| !self.is_excluded(*pid));
        let room = self.targets_max.saturating_sub(self.live.len());
        let left_out = take_largest(&mut new, room);
        match self.admission.take() {
            Some(mut admission) => {
                admission.queue(&new, update.now);
                let added = self.admit(&mut admission, update);
                self.admission = Some(admission);
                added?;
            }
            None => new.iter().try_for_each(|pid| self.add(*pid, update))?,
        }
        // A process id that is free may be reused.
        self.given_up.retain(|pid| wanted.contains(pid));
        self.tell_left_out(&left_out, update);
        Ok(())
    }

    /// Adds processes of the queue, and reads their mappings, as far as its budget goes.
    fn admit(
        &mut self,
        admission: &mut Admission,
        update: &mut Update<'_>,
    ) -> Result<(), ProbeError> {
        let mut is_first = true;
        while let Some(pid) = admission.next(is_first, update.now) {
            is_first = false;
            let id = TargetId(self.next);
            admission.charge(|| {
                self.add(pid, update)?;
                if let Some(live) = self.live.get_mut(&id) {
                    read_mappings(id, live, update, &mut self.names);
                }
                Ok::<_, ProbeError>(())
            })?;
        }
        update.items.extend(admission.note(update.now));
        Ok(())
    }

    /// Whether the user excluded the process. It is checked again after exec.
    fn is_excluded(&self, pid: u32) -> bool {
        let Wanted::All { exclude } = &self.wanted else {
            return false;
        };
        let is_it = |of: &ProcessSpec| match of {
            ProcessSpec::Pid(of) => *of == pid,
            ProcessSpec::Name(name) => process::has_name(pid, name),
        };
        exclude.iter().any(is_it)
    }

    fn tell_left_out(&mut self, left_out: &[u32], update: &mut Update<'_>) {
        if left_out.len() <= self.left_out.saturating_mul(2) {
            return;
        }
        self.left_out = left_out.len();
        let bytes = left_out
            .iter()
            .map(|pid| process::resident_bytes(*pid))
            .sum();
        update.note(format!(
            "{} processes with {} are left out: at most {} are watched at a time (open files, memory), \
             those with most memory first",
            left_out.len(),
            format_bytes(bytes),
            self.targets_max
        ));
    }

    /// Reports targets with accesses that cannot all be seen, when they are found.
    fn look_for_hidden(&mut self, update: &mut Update<'_>) {
        for (&id, live) in &mut self.live {
            let hidden = update.probe.secondary_page_tables(id);
            if let (None, Some(why)) = (live.hidden, hidden) {
                update.note(format!(
                    "not all accesses of target {} ({}, pid {}) can be seen: {why}. Its memory counts as \
                     unknown where it looks idle, and no scheme about idle memory touches it",
                    id.0, live.name, live.pid
                ));
            }
            live.hidden = hidden;
        }
    }

    fn look_at_mappings(&mut self, update: &mut Update<'_>) {
        let all = self.live.len() <= FEW;
        for (&id, live) in &mut self.live {
            let is_due = all
                || update.probe.facts(id) != live.facts
                || live.facts.is_none()
                || (self.updates + u64::from(id.0)).is_multiple_of(TURNS);
            if is_due {
                read_mappings(id, live, update, &mut self.names);
            }
        }
        if self.updates.is_multiple_of(TURNS) {
            self.names.tidy();
        }
    }

    /// Whether all targets have ended and no new ones can come.
    pub(crate) fn is_over(&self) -> bool {
        self.live.is_empty() && matches!(self.wanted, Wanted::Processes { .. })
    }

    fn wanted_pids(&self, probe: &PageTableProbe) -> BTreeSet<u32> {
        match &self.wanted {
            Wanted::Cgroup(path) => cgroup::processes(path).into_iter().collect(),
            Wanted::All { .. } => process::all().collect(),
            Wanted::Processes {
                pids,
                command,
                children,
            } => {
                let mut wanted = BTreeSet::new();
                if !self.started {
                    wanted.extend(pids.iter().chain(command));
                }
                if *children {
                    let live = self.live.keys().filter_map(|id| probe.process(*id));
                    wanted.extend(live.flat_map(Process::children));
                    wanted.extend(command.iter().flat_map(|command| adopted(*command)));
                }
                wanted
            }
        }
    }

    fn add(&mut self, pid: u32, update: &mut Update<'_>) -> Result<(), ProbeError> {
        if pid == std::process::id() {
            return Ok(());
        }
        let id = TargetId(self.next);
        let added = match Process::open(pid) {
            Ok(process) => {
                let name = self.name_of(&process);
                update.probe.add(id, process).map(|()| name)
            }
            Err(error) => Err(error.into()),
        };
        match added {
            Ok(name) => {
                self.next += 1;
                self.pids.insert(pid);
                let live = Live {
                    pid,
                    name,
                    space: update.probe.address_space(id),
                    ..Live::default()
                };
                update.items.push(start_of(id, &live, update.now));
                self.live.insert(id, live);
                Ok(())
            }
            // A process that the user named must exist; others may have ended again.
            Err(error) if !self.started && self.is_named(pid) => Err(error),
            Err(ProbeError::Process(ProcessError::NoSuchProcess { .. })) => Ok(()),
            // The process is a kernel thread or a zombie.
            Err(ProbeError::Walker(WalkerError::NoAddressSpace { .. })) => {
                self.given_up.insert(pid);
                Ok(())
            }
            // The kernel lacks a resource just now: the next update tries again.
            Err(ProbeError::Walker(error)) if error.is_passing() => Ok(()),
            Err(error) => {
                self.given_up.insert(pid);
                update.note(format!("not watched: {error}"));
                Ok(())
            }
        }
    }

    /// Returns the name of a process; of our command, the name after exec. A command has our name until it executes its
    /// program.
    fn name_of(&self, process: &Process) -> String {
        let ours = own_name();
        let is_command = matches!(&self.wanted, Wanted::Processes { command, .. }
            if *command == Some(process.pid()));
        let mut name = process.name();
        for _ in 0..RENAMING_MS {
            if !is_command || name != ours {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            name = process.name();
        }
        name
    }

    fn is_named(&self, pid: u32) -> bool {
        matches!(&self.wanted, Wanted::Processes { pids, .. } if pids.contains(&pid))
    }

    pub(crate) fn mappings(&self, id: TargetId) -> Vec<AddressRange> {
        let Some(live) = self.live.get(&id) else {
            return Vec::new();
        };
        let areas: Vec<AddressRange> = if self.samples_addresses {
            live.areas.iter().map(|area| area.range).collect()
        } else {
            without_aliases(&live.areas)
        };
        AddressRange::within(areas, &self.limits)
    }

    /// Private anonymous memory of the target, as far as it is watched, in address order.
    pub(crate) fn anonymous(&self, id: TargetId) -> Vec<AddressRange> {
        let areas = self.areas(id).iter();
        let anonymous = areas.filter(|area| area.is_private_anonymous());
        let ranges = anonymous.map(|area| area.range);
        let mut parts = AddressRange::within(ranges, &self.limits);
        parts.sort_unstable();
        parts
    }

    /// Ranges that watching is limited to, if there is a limit.
    pub(crate) fn limits(&self) -> Option<&[AddressRange]> {
        (!self.limits.is_empty()).then_some(&self.limits)
    }
}

fn start_of(id: TargetId, live: &Live, now: Nanos) -> Item {
    Item::TargetStart(TargetStart::new(now, id, live.pid, live.name.clone()))
}

fn read_mappings(id: TargetId, live: &mut Live, update: &mut Update<'_>, names: &mut Names) {
    let Some(Ok(mut areas)) = update.probe.mappings(id) else {
        return;
    };
    live.facts = update.probe.facts(id);
    if areas != live.areas {
        let change = change(id, update.now, &live.areas, &areas);
        update.items.push(Item::Mappings(change));
        names.share(&mut areas);
        live.areas = areas;
    }
}

/// Keeps the `room` processes with most resident memory in `pids`, and returns the others.
fn take_largest(pids: &mut Vec<u32>, room: usize) -> Vec<u32> {
    if pids.len() <= room {
        return Vec::new();
    }
    largest_first(pids);
    pids.split_off(room)
}

fn largest_first(pids: &mut [u32]) {
    pids.sort_by_cached_key(|pid| std::cmp::Reverse(process::resident_bytes(*pid)));
}

/// Descendants of our command that became our own children when their parents ended. Those that have ended are reaped.
fn adopted(command: u32) -> Vec<u32> {
    let mut adopted = children_of_this_thread();
    adopted.retain(|pid| {
        // The command's exit status is left to the code that waits for it.
        let is_running = || {
            let status = waitpid(Pid::from_raw(*pid as i32), Some(WaitPidFlag::WNOHANG));
            status == Ok(WaitStatus::StillAlive)
        };
        *pid != command && is_running()
    });
    adopted
}

fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm");
    name.unwrap_or_default().trim_end().to_owned()
}
