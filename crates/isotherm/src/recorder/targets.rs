//! Which processes are watched: given by id, with their children, or those of a control group. They
//! come and go; each gets a number that is never used again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use isotherm_engine::table::MappedRange;
use isotherm_engine::{AddressRange, Nanos, TargetId};
use isotherm_linux::cgroup;
use isotherm_linux::probe::{PageTableProbe, ProbeError, WalkerError};
use isotherm_linux::process::{MappedArea, Process, ProcessError};
use isotherm_record::{Item, Mapping, MappingChange, TargetExit, TargetStart};

use super::Ended;

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
}

/// A target at present.
#[derive(Debug, Default)]
struct Live {
    pid: u32,
    areas: Vec<MappedArea>,
}

/// The targets of a session.
#[derive(Debug)]
pub(crate) struct TargetSet {
    wanted: Wanted,
    /// If not empty, only this part of each address space is watched (DAMON's initial regions).
    limits: Vec<AddressRange>,
    live: BTreeMap<TargetId, Live>,
    /// Processes that could not be watched (no rights, no memory); not tried again.
    given_up: BTreeSet<u32>,
    /// The processes named by the user have been added.
    started: bool,
    next: u32,
}

impl TargetSet {
    pub(crate) fn new(wanted: Wanted, limits: Vec<AddressRange>) -> Self {
        Self {
            wanted,
            limits,
            live: BTreeMap::new(),
            given_up: BTreeSet::new(),
            started: false,
            next: 0,
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.live.keys().copied()
    }

    /// Looks at who is there and what they map. Yields the targets that ended since the last time.
    pub(crate) fn update(
        &mut self,
        probe: &mut PageTableProbe,
        now: Nanos,
        items: &mut Vec<Item>,
    ) -> Result<Vec<TargetId>, ProbeError> {
        let mut ended = Vec::new();
        let ids: Vec<TargetId> = self.ids().collect();
        for id in ids {
            if !probe.refresh(id)? {
                probe.remove(id);
                self.live.remove(&id);
                ended.push(id);
                let exit = TargetExit {
                    time: now,
                    target: id,
                    exit_code: None,
                    signal: None,
                };
                items.push(Item::TargetExit(exit));
            }
        }
        for pid in self.wanted_pids(probe) {
            self.add(pid, probe, now, items)?;
        }
        self.started = true;
        for (&id, live) in &mut self.live {
            let Some(Ok(areas)) = probe.process(id).map(Process::mappings) else {
                continue;
            };
            if areas != live.areas {
                items.push(Item::Mappings(change(id, now, &live.areas, &areas)));
                live.areas = areas;
            }
        }
        Ok(ended)
    }

    /// Whether there is nobody left to watch, nor anybody to wait for.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let waits = matches!(self.wanted, Wanted::Cgroup(_));
        (self.live.is_empty() && !waits).then_some(Ended::TargetsGone)
    }

    fn wanted_pids(&self, probe: &PageTableProbe) -> Vec<u32> {
        match &self.wanted {
            Wanted::Cgroup(path) => cgroup::processes(path),
            Wanted::Processes {
                pids,
                command,
                children,
            } => {
                let mut wanted = Vec::new();
                if !self.started {
                    wanted.extend(pids.iter().chain(command));
                }
                if *children {
                    let live = self.live.keys().filter_map(|id| probe.process(*id));
                    wanted.extend(live.flat_map(Process::children));
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
        let known = self.given_up.contains(&pid) || self.live.values().any(|live| live.pid == pid);
        if known || pid == std::process::id() {
            return Ok(());
        }
        let id = TargetId(self.next);
        let added = match Process::open(pid) {
            Ok(process) => {
                let name = process.name();
                probe.add(id, process).map(|()| name)
            }
            Err(error) => Err(error.into()),
        };
        match added {
            Ok(name) => {
                self.next += 1;
                self.live.insert(
                    id,
                    Live {
                        pid,
                        areas: Vec::new(),
                    },
                );
                items.push(Item::TargetStart(TargetStart {
                    time: now,
                    target: id,
                    pid,
                    name,
                    context: None,
                }));
                Ok(())
            }
            // Somebody whom the user named must be there; others may have gone again.
            Err(error) if !self.started && self.is_named(pid) => Err(error),
            Err(
                ProbeError::Process(ProcessError::NoSuchProcess { .. })
                | ProbeError::Walker(WalkerError::NoAddressSpace { .. }),
            ) => Ok(()),
            Err(ProbeError::Process(error)) => {
                self.given_up.insert(pid);
                items.push(Item::Note {
                    time: now,
                    text: format!("not watched: {error}"),
                });
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn is_named(&self, pid: u32) -> bool {
        matches!(&self.wanted, Wanted::Processes { pids, .. } if pids.contains(&pid))
    }

    /// The target's mappings, as far as they are watched.
    pub(crate) fn mappings(&self, id: TargetId) -> Vec<MappedRange> {
        let Some(live) = self.live.get(&id) else {
            return Vec::new();
        };
        let areas = live.areas.iter().map(|area| area.range);
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

    /// The ranges that watching is limited to; empty for no limit.
    pub(crate) fn limits(&self) -> &[AddressRange] {
        &self.limits
    }
}

/// What came and went between two looks at the mappings, both in address order.
fn change(target: TargetId, time: Nanos, old: &[MappedArea], new: &[MappedArea]) -> MappingChange {
    let mut change = MappingChange {
        time,
        target,
        ..MappingChange::default()
    };
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a == b => {
                old.next();
                new.next();
            }
            (Some(a), b) if b.is_none_or(|b| a.range.start <= b.range.start) => {
                change.removed.push(a.range);
                old.next();
            }
            (_, Some(b)) => {
                change.added.push(Mapping {
                    range: b.range,
                    permissions: b.permissions.clone(),
                    name: b.name.clone(),
                });
                new.next();
            }
            (_, None) => return change,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(start: u64, end: u64, name: &str) -> MappedArea {
        MappedArea {
            range: AddressRange::new(start, end),
            permissions: "rw-p".into(),
            name: name.into(),
        }
    }

    #[test]
    fn changes_hold_what_came_and_what_went() {
        let old = [area(1, 2, "a"), area(3, 4, "b"), area(5, 6, "c")];
        let new = [area(1, 2, "a"), area(3, 9, "b"), area(10, 11, "d")];
        let change = change(TargetId(0), Nanos(7), &old, &new);
        assert_eq!(
            change.removed,
            [AddressRange::new(3, 4), AddressRange::new(5, 6)]
        );
        let added: Vec<_> = change
            .added
            .iter()
            .map(|m| (m.range.start, m.name.as_str()))
            .collect();
        assert_eq!(added, [(3, "b"), (10, "d")]);
    }
}
