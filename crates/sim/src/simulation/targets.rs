//! Target numbers in events: a context counts each process that it monitors as a target of its own.

use isotherm_engine::drive::Numbering;
use isotherm_engine::{Snapshot, TargetId};

use super::{Event, PHYSICAL};
use crate::machine::SimMachine;

/// The targets that events have reported.
pub(super) struct Targets {
    /// The contexts that monitor processes; without any context, the number that the first would have.
    of_processes: Vec<usize>,
    of_physical: Vec<usize>,
    pub(super) given: Numbering,
    told_physical: bool,
    told_started: usize,
    told_ended: Vec<bool>,
}

impl Targets {
    /// Creates an empty list; `is_physical` says for each context whether it monitors physical memory.
    pub(super) fn new(is_physical: &[bool]) -> Self {
        let contexts = |wanted: bool| {
            let contexts = is_physical.iter().enumerate();
            let contexts = contexts.filter(move |(_, physical)| **physical == wanted);
            contexts.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let of_processes = if is_physical.is_empty() {
            vec![0]
        } else {
            contexts(false)
        };
        Self {
            of_processes,
            of_physical: contexts(true),
            given: Numbering::default(),
            told_physical: false,
            told_started: 0,
            told_ended: Vec::new(),
        }
    }

    /// Returns a context's snapshots as events, with the targets' numbers in events.
    pub(super) fn seen(
        &self,
        context: usize,
        snapshots: &[Snapshot],
    ) -> impl Iterator<Item = Event> {
        snapshots.iter().map(move |snapshot| {
            let number = self.given.number(context, snapshot.target);
            Event::Snapshot(Snapshot {
                target: number.expect("a target is reported before it is watched"),
                ..snapshot.clone()
            })
        })
    }

    /// The targets that stand for a process.
    pub(super) fn of(&self, process: usize) -> impl Iterator<Item = TargetId> + '_ {
        let local = TargetId(process as u32);
        let watching = self.of_processes.iter();
        watching.filter_map(move |context| self.given.number(*context, local))
    }

    pub(super) fn tell(&mut self, machine: &SimMachine, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.told_physical, true) {
            for context in self.of_physical.clone() {
                events.push(Event::Started {
                    target: self.given.give(context, PHYSICAL),
                    context,
                    name: "physical".to_owned(),
                    mappings: Vec::new(),
                });
            }
        }
        let processes = machine.processes();
        for (index, process) in processes.iter().enumerate().skip(self.told_started) {
            let local = TargetId(index as u32);
            for context in self.of_processes.clone() {
                let mappings = machine.mappings(local);
                events.push(Event::Started {
                    target: self.given.give(context, local),
                    context,
                    name: process.name().to_owned(),
                    mappings: mappings
                        .map(|(name, range, purpose)| (name.to_owned(), range, purpose))
                        .collect(),
                });
            }
        }
        self.told_started = processes.len();
        self.told_ended.resize(processes.len(), false);
        for (index, process) in processes.iter().enumerate() {
            if process.is_running() || std::mem::replace(&mut self.told_ended[index], true) {
                continue;
            }
            let was_killed = process.was_killed;
            let ended = self.of(index);
            events.extend(ended.map(|target| Event::Ended { target, was_killed }));
        }
    }
}
