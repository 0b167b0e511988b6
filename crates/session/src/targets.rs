//! Which processes are watched: given by id, with their children, or those of a control group. They
//! come and go; each gets a number that is never used again. A process that becomes another program (exec) is
//! another target where targets come and go. One that the user named keeps its number, and starts again by it.

mod change;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use isotherm_config::ProcessSpec;
use isotherm_engine::table::MappedRange;
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

use change::change;

/// What the user asked to watch.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// These processes, and if asked for all that descend from them.
    /// Those in `pids` must be there; `command` is our own child, which may end at any time.
    Processes {
        pids: Vec<u32>,
        command: Option<u32>,
        children: bool,
    },
    /// All processes of a control group and those below it.
    Cgroup(PathBuf),
    /// All processes of the machine but these.
    All { exclude: Vec<ProcessSpec> },
}

/// Open files that a target takes: its pidfd here and in each actuator, and the lock that says who acts
/// on it.
const FILES_PER_TARGET: u64 = 4;
/// Open files that are not targets'.
const OTHER_FILES: u64 = 64;
/// Most targets of a context, whatever is open: each takes memory.
const TARGETS_MAX: u64 = 8192;
/// With more targets than this, mappings that most likely have not changed are read in turns.
const FEW: usize = 16;
/// At every so many updates all mappings of a target are read, however it looks.
const TURNS: u64 = 8;

/// How long a command may keep the name of who started it; one that is an isotherm itself does.
const RENAMING_MS: u32 = 20;

/// A target at present.
#[derive(Debug)]
struct Live {
    pid: u32,
    name: String,
    areas: Vec<MappedArea>,
    /// What was known of the address space when `areas` were read.
    facts: Option<SpaceFacts>,
    /// The identity of its address space.
    space: Option<(u64, u64)>,
    hidden: Option<SecondaryTables>,
}

/// The targets of a session.
#[derive(Debug)]
pub(crate) struct TargetSet {
    wanted: Wanted,
    /// If not empty, only this part of each address space is watched (DAMON's initial regions).
    limits: Vec<AddressRange>,
    live: BTreeMap<TargetId, Live>,
    /// What a process maps several times is watched at each of its addresses.
    samples_addresses: bool,
    /// Of their mappings.
    names: Names,
    /// Of the live ones.
    pids: BTreeSet<u32>,
    /// Processes that cannot be watched (no rights, no address space); not tried again.
    given_up: BTreeSet<u32>,
    targets_max: usize,
    /// The most processes at a time, so far told, that there was no room for.
    left_out: usize,
    updates: u64,
    /// The processes named by the user have been added.
    started: bool,
    next: u32,
}

impl TargetSet {
    /// With at most `files` open, of which other contexts have an equal part.
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
            targets_max: targets_max.clamp(1, TARGETS_MAX) as usize,
            left_out: 0,
            updates: 0,
            started: false,
            next: 0,
        }
    }

    /// For a monitor that samples addresses: each alias of the same memory has accessed bits of its own.
    pub(crate) fn sampled_by_address(mut self) -> Self {
        self.samples_addresses = true;
        self
    }

    /// With numbers from `first` on.
    pub(crate) fn numbered_from(mut self, first: u32) -> Self {
        self.next = first;
        self
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.live.keys().copied()
    }

    /// Whether it has not ended, as far as known.
    pub(crate) fn is_live(&self, id: TargetId) -> bool {
        self.live.contains_key(&id)
    }

    /// Process ids of the live targets.
    pub(crate) fn pids(&self) -> impl Iterator<Item = (TargetId, u32)> + '_ {
        self.live.iter().map(|(id, live)| (*id, live.pid))
    }

    /// What a target maps, watched or not, in address order.
    pub(crate) fn areas(&self, id: TargetId) -> &[MappedArea] {
        self.live.get(&id).map_or(&[], |live| &live.areas)
    }

    /// Looks at who is there and what they map. Yields the targets whose memory is gone since the last time: they
    /// have ended, or run another program.
    pub(crate) fn update(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<Vec<TargetId>, ProbeError> {
        self.updates += 1;
        let ended = self.look_for_ends(probe, now, items);
        self.look_for_new(probe, now, items)?;
        self.started = true;
        self.look_for_hidden(probe, now, items);
        self.look_at_mappings(probe, now, items);
        Ok(ended)
    }

    /// Only takes in who has come. `false`: nobody comes by himself.
    pub(crate) fn follow(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<bool, ProbeError> {
        if matches!(self.wanted, Wanted::Processes { .. }) {
            return Ok(false);
        }
        self.look_for_new(probe, now, items)?;
        for (&id, live) in &mut self.live {
            if live.facts.is_none() {
                read_mappings(id, live, probe, now, &mut self.names, items);
            }
        }
        Ok(true)
    }

    /// Finds targets that have ended, have called exec, or can be watched no longer. The others go on.
    fn look_for_ends(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Vec<TargetId> {
        let mut ended = Vec::new();
        for id in self.ids().collect::<Vec<_>>() {
            let failure = match probe.refresh(id) {
                Ok(true) => match (probe.take_failure(id), self.has_become_another(id, probe)) {
                    (None, false) => continue,
                    (None, true) if self.keeps_numbers() => {
                        self.start_again(id, probe, now, items);
                        ended.push(id);
                        continue;
                    }
                    (failure, _) => failure,
                },
                Ok(false) => None,
                Err(error) => Some(error.to_string()),
            };
            probe.remove(id);
            let Some(gone) = self.live.remove(&id) else {
                continue;
            };
            self.pids.remove(&gone.pid);
            if let Some(why) = failure {
                self.given_up.insert(gone.pid);
                let text = format!("watched no longer: {why}");
                items.push(Item::Note { time: now, text });
            }
            ended.push(id);
            items.push(Item::TargetExit(TargetExit {
                time: now,
                target: id,
                exit_code: None,
                signal: None,
            }));
        }
        ended
    }

    /// Whether it runs another program now (exec).
    fn has_become_another(&self, id: TargetId, probe: &PageTableProbe) -> bool {
        (self.live.get(&id)).is_some_and(|live| live.space != probe.address_space(id))
    }

    /// Whether a process that runs another program is the same target.
    fn keeps_numbers(&self) -> bool {
        matches!(self.wanted, Wanted::Processes { .. })
    }

    /// Follows a target into another program.
    fn start_again(
        &mut self,
        id: TargetId,
        probe: &PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) {
        let name = probe.process(id).map(|process| self.name_of(process));
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.space = probe.address_space(id);
        live.facts = None;
        live.name = name.unwrap_or_default();
        items.push(start_of(id, live, now));
    }

    /// Takes in who is wanted, as far as there is room.
    fn look_for_new(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<(), ProbeError> {
        let wanted = self.wanted_pids(probe);
        let is_new = |pid: &u32| !self.pids.contains(pid) && !self.given_up.contains(pid);
        let mut new: Vec<u32> = wanted.iter().copied().filter(is_new).collect();
        new.retain(|pid| !self.is_excluded(*pid));
        let room = self.targets_max.saturating_sub(self.live.len());
        let left_out = take_largest(&mut new, room);
        for pid in new {
            self.add(pid, probe, now, items)?;
        }
        // A number that is nobody's any more may become another's.
        self.given_up.retain(|pid| wanted.contains(pid));
        self.tell_left_out(&left_out, now, items);
        Ok(())
    }

    /// Whether the user does not want it watched. A program that a process becomes is asked about anew.
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

    fn tell_left_out(&mut self, left_out: &[u32], now: Nanos, items: &mut Vec<Item>) {
        if left_out.len() <= self.left_out.saturating_mul(2) {
            return;
        }
        self.left_out = left_out.len();
        let bytes = left_out
            .iter()
            .map(|pid| process::resident_bytes(*pid))
            .sum();
        let text = format!(
            "{} processes with {} are left out: at most {} are watched at a time (open files, memory), \
             those with most memory first",
            left_out.len(),
            format_bytes(bytes),
            self.targets_max
        );
        items.push(Item::Note { time: now, text });
    }

    /// Says whose accesses cannot all be seen, when that is found.
    fn look_for_hidden(&mut self, probe: &PageTableProbe, now: Nanos, items: &mut Vec<Item>) {
        for (&id, live) in &mut self.live {
            let hidden = probe.secondary_page_tables(id);
            if let (None, Some(why)) = (live.hidden, hidden) {
                let text = format!(
                    "not all accesses of target {} ({}, pid {}) can be seen: {why}. Its memory counts as \
                     unknown where it looks idle, and no scheme about idle memory touches it",
                    id.0, live.name, live.pid
                );
                items.push(Item::Note { time: now, text });
            }
            live.hidden = hidden;
        }
    }

    fn look_at_mappings(&mut self, probe: &mut PageTableProbe, now: Nanos, items: &mut Vec<Item>) {
        let all = self.live.len() <= FEW;
        for (&id, live) in &mut self.live {
            let is_due = all
                || probe.facts(id) != live.facts
                || live.facts.is_none()
                || (self.updates + u64::from(id.0)).is_multiple_of(TURNS);
            if is_due {
                read_mappings(id, live, probe, now, &mut self.names, items);
            }
        }
        if self.updates.is_multiple_of(TURNS) {
            self.names.tidy();
        }
    }

    /// Whether there is nobody left to watch, nor anybody to wait for.
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

    fn add(
        &mut self,
        pid: u32,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<(), ProbeError> {
        if pid == std::process::id() {
            return Ok(());
        }
        let id = TargetId(self.next);
        let added = match Process::open(pid) {
            Ok(process) => {
                let name = self.name_of(&process);
                probe.add(id, process).map(|()| name)
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
                    areas: Vec::new(),
                    facts: None,
                    space: probe.address_space(id),
                    hidden: None,
                };
                items.push(start_of(id, &live, now));
                self.live.insert(id, live);
                Ok(())
            }
            // Somebody whom the user named must be there; others may have gone again.
            Err(error) if !self.started && self.is_named(pid) => Err(error),
            Err(ProbeError::Process(ProcessError::NoSuchProcess { .. })) => Ok(()),
            // A kernel thread, or one that has ended and that nobody has waited for.
            Err(ProbeError::Walker(WalkerError::NoAddressSpace { .. })) => {
                self.given_up.insert(pid);
                Ok(())
            }
            // Short of something just now: the next look tries again.
            Err(ProbeError::Walker(error)) if error.is_passing() => Ok(()),
            Err(error) => {
                self.given_up.insert(pid);
                items.push(Item::Note {
                    time: now,
                    text: format!("not watched: {error}"),
                });
                Ok(())
            }
        }
    }

    /// Its name; that of a command of ours once it has it. A process that runs its program already keeps
    /// our name for a moment.
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

    /// The target's mappings, as far as they are watched.
    pub(crate) fn mappings(&self, id: TargetId) -> Vec<MappedRange> {
        let Some(live) = self.live.get(&id) else {
            return Vec::new();
        };
        let areas: Vec<AddressRange> = if self.samples_addresses {
            live.areas.iter().map(|area| area.range).collect()
        } else {
            without_aliases(&live.areas)
        };
        let areas = areas.into_iter();
        if self.limits.is_empty() {
            return areas.map(|range| MappedRange { range }).collect();
        }
        areas
            .flat_map(|area| {
                self.limits
                    .iter()
                    .filter_map(move |limit| area.intersection(*limit))
            })
            .map(|range| MappedRange { range })
            .collect()
    }

    /// Where its private anonymous memory is, as far as it is watched; in address order.
    pub(crate) fn anonymous(&self, id: TargetId) -> Vec<AddressRange> {
        let areas = self.areas(id).iter();
        let anonymous = areas.filter(|area| area.permissions.is_private() && !area.is_file());
        let ranges = anonymous.map(|area| area.range);
        if self.limits.is_empty() {
            return ranges.collect();
        }
        let parts = ranges.flat_map(|area| {
            let limits = self.limits.iter();
            limits.filter_map(move |limit| area.intersection(*limit))
        });
        let mut parts: Vec<AddressRange> = parts.collect();
        parts.sort_unstable();
        parts
    }

    /// The ranges that watching is limited to, if it is.
    pub(crate) fn limits(&self) -> Option<&[AddressRange]> {
        (!self.limits.is_empty()).then_some(&self.limits)
    }
}

/// Says which program a target is from now on.
fn start_of(id: TargetId, live: &Live, now: Nanos) -> Item {
    Item::TargetStart(TargetStart {
        time: now,
        target: id,
        pid: live.pid,
        name: live.name.clone(),
        context: None,
    })
}

/// Reads what a target maps.
fn read_mappings(
    id: TargetId,
    live: &mut Live,
    probe: &mut PageTableProbe,
    now: Nanos,
    names: &mut Names,
    items: &mut Vec<Item>,
) {
    let Some(Ok(mut areas)) = probe.mappings(id) else {
        return;
    };
    live.facts = probe.facts(id);
    if areas != live.areas {
        items.push(Item::Mappings(change(id, now, &live.areas, &areas)));
        names.share(&mut areas);
        live.areas = areas;
    }
}

/// Leaves the `room` processes of most resident memory in `pids`, and yields the others.
fn take_largest(pids: &mut Vec<u32>, room: usize) -> Vec<u32> {
    if pids.len() <= room {
        return Vec::new();
    }
    pids.sort_by_cached_key(|pid| std::cmp::Reverse(process::resident_bytes(*pid)));
    pids.split_off(room)
}

/// Descendants of our command whose parents have ended, and which were made our own children. Those that
/// have ended, too, are laid to rest.
fn adopted(command: u32) -> Vec<u32> {
    let mut adopted = children_of_this_thread();
    adopted.retain(|pid| {
        // The command's end is told to who waits for it.
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
