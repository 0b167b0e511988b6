//! Several contexts in one session: a monitor for each, combined into one.
//!
//! Problem: a file of damo's or HMSDK's has a context for each NUMA node, each with targets, intervals and schemes of
//! its own. But the session has one loop, one record, and one process with a measured CPU time.
//!
//! Approach: a monitor made of monitors. Each member is stepped when it is due. Members number their targets from 0, so
//! every target gets a number of the session's when it starts, and its start names the context. Probes measure the cost
//! of watching as the CPU time of the whole process. So the time of one member's step is other work for the others, and
//! the time of the loop is divided evenly. The members' costs add up to the CPU time of the process, and each budget
//! limits its own member.
//!
//! Limits: members do not know of each other. If two watch the same memory, each clears accessed bits that the other
//! has not read ([`crate::warnings`] reports that). An error of one member ends the session.

use isotherm_engine::drive::Numbering;
use isotherm_engine::{AddressRange, CpuLedger, Intervals, Nanos, TargetId};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::process::Process;
use isotherm_record::Item;

use super::{CacheView, Kdamond, Monitor, MonitorStatus, NextStep, TargetTables};
use isotherm_engine::units::format_time;

pub(crate) struct Contexts {
    members: Vec<Member>,
    targets: Numbering,
}

struct Member {
    name: String,
    monitor: Box<dyn Monitor>,
    steps_cpu: Nanos,
    wake_at: Nanos,
    is_over: bool,
}

impl Contexts {
    pub(crate) fn new(monitors: Vec<(String, Box<dyn Monitor>)>) -> Self {
        let members = monitors.into_iter().map(|(name, monitor)| Member {
            name,
            monitor,
            steps_cpu: Nanos(0),
            wake_at: Nanos(0),
            is_over: false,
        });
        Self {
            members: members.collect(),
            targets: Numbering::default(),
        }
    }

    /// Returns the ledger of a member, given that of the session. The member's cost is its steps and an equal part of
    /// what no step took, the time of loading included.
    fn ledger_of(&self, at: usize, cpu: CpuLedger) -> CpuLedger {
        let (total, nr) = (process_cpu(), self.members.len() as u64);
        let steps: u64 = self.members.iter().map(|m| m.steps_cpu.0).sum();
        let rest = total.since(cpu.other).since(Nanos(steps));
        let own = self.members[at].steps_cpu + Nanos(rest.0 / nr);
        CpuLedger {
            watching: Nanos(cpu.watching.0 / nr),
            other: total.since(own),
        }
    }

    fn status_of(&self, at: usize, cpu: CpuLedger) -> MonitorStatus {
        let cpu = self.ledger_of(at, cpu);
        self.members[at].monitor.status(cpu)
    }

    fn step_member(
        &mut self,
        at: usize,
        now: Nanos,
        cpu: CpuLedger,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<()> {
        let first_new = items.len();
        let cpu = self.ledger_of(at, cpu);
        let before = process_cpu();
        let member = &mut self.members[at];
        let stepped = member.monitor.step(now, cpu, items);
        member.steps_cpu = member.steps_cpu + process_cpu().since(before);
        for item in &mut items[first_new..] {
            self.renumber(at, item);
        }
        let member = &mut self.members[at];
        match stepped.map_err(|error| error.context(format!("{} has failed", member.name)))? {
            Some(wake_at) => member.wake_at = wake_at,
            None => member.is_over = true,
        }
        Ok(())
    }

    /// Replaces the member's target number in an item by the session's.
    fn renumber(&mut self, at: usize, item: &mut Item) {
        let target = match item {
            Item::TargetStart(start) => {
                self.targets.give(at, start.target);
                start.context = Some(self.members[at].name.clone());
                &mut start.target
            }
            Item::Snapshot(snapshot) => &mut snapshot.target,
            Item::Pages(pages) => &mut pages.target,
            Item::Blocks(its) => &mut its.target,
            Item::Mappings(change) => &mut change.target,
            Item::TargetExit(exit) => &mut exit.target,
            Item::Machine(machine) => {
                machine.context = Some(self.members[at].name.clone());
                let mapped = machine.mapped.iter_mut().filter_map(|m| m.target.as_mut());
                for target in mapped.chain(machine.groups.iter_mut().map(|g| &mut g.target)) {
                    *target = self.number(at, *target);
                }
                return;
            }
            Item::Note { text, .. } => {
                *text = format!("{}: {text}", self.members[at].name);
                return;
            }
            Item::Action(action) => {
                for of_target in &mut action.targets {
                    of_target.target = self.number(at, of_target.target);
                }
                return;
            }
            Item::Usage(_)
            | Item::Cost(_)
            | Item::Calibration(_)
            | Item::Guard(_)
            | Item::Fragmentation(_)
            | Item::Compaction(_)
            // These items come from the session, and have its numbers.
            | Item::Stacks(_)
            | Item::Symbols(_)
            | Item::HugePages(_) => return,
        };
        *target = self.number(at, *target);
    }

    fn number(&self, at: usize, target: TargetId) -> TargetId {
        let number = self.targets.number(at, target);
        number.expect("a target starts before anything is reported of it")
    }
}

impl Monitor for Contexts {
    fn step(&mut self, now: Nanos, cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            if !member.is_over && member.wake_at <= now {
                self.step_member(at, now, cpu, items)?;
            }
        }
        let going = self.members.iter().filter(|member| !member.is_over);
        let next = going.map(|member| member.wake_at).min();
        Ok(next)
    }

    fn last_look(&mut self, now: Nanos, items: &mut Vec<Item>) -> anyhow::Result<()> {
        for at in 0..self.members.len() {
            let first_new = items.len();
            let looked = self.members[at].monitor.last_look(now, items);
            for item in &mut items[first_new..] {
                self.renumber(at, item);
            }
            looked?;
        }
        Ok(())
    }

    fn take_internal_snapshots(&mut self) -> Vec<Item> {
        let mut all = Vec::new();
        for at in 0..self.members.len() {
            let mut items = self.members[at].monitor.take_internal_snapshots();
            for item in &mut items {
                self.renumber(at, item);
            }
            all.extend(items);
        }
        all
    }

    fn look_for_ends(&mut self, now: Nanos) {
        for member in &mut self.members {
            member.monitor.look_for_ends(now);
            member.wake_at = now;
        }
    }

    fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        if let Some((at, number)) = self.targets.context(target) {
            self.members[at].monitor.reset_age(number, range, now);
        }
    }

    fn target_tables(&mut self, target: TargetId) -> Option<TargetTables<'_>> {
        let (at, number) = self.targets.context(target)?;
        self.members[at].monitor.target_tables(number)
    }

    fn page_cache(&mut self, context: usize) -> Option<&mut CacheView> {
        self.members.get_mut(context)?.monitor.page_cache(0)
    }

    fn kdamond(&mut self, context: usize) -> Option<&mut dyn Kdamond> {
        self.members.get_mut(context)?.monitor.kdamond(0)
    }

    /// Returns the sums of all members, and their shortest intervals.
    fn status(&self, cpu: CpuLedger) -> MonitorStatus {
        let all = (0..self.members.len()).map(|at| self.status_of(at, cpu));
        all.reduce(|a, b| MonitorStatus {
            cost: a.cost.plus(b.cost),
            nr_unknown: a.nr_unknown + b.nr_unknown,
            intervals: Intervals {
                sample: a.intervals.sample.min(b.intervals.sample),
                aggregation: a.intervals.aggregation.min(b.intervals.aggregation),
                update: a.intervals.update.min(b.intervals.update),
            },
        })
        .expect("there are contexts")
    }

    fn live(&self) -> Vec<(TargetId, &Process)> {
        let mut live = Vec::new();
        for (at, member) in self.members.iter().enumerate() {
            let targets = member.monitor.live().into_iter();
            live.extend(targets.filter_map(|(id, process)| {
                // A target that has just been found has no start in the record yet.
                Some((self.targets.number(at, id)?, process))
            }));
        }
        live.sort_by_key(|(id, _)| *id);
        live
    }

    fn context_of(&self, target: TargetId) -> usize {
        self.targets.context(target).map_or(0, |(at, _)| at)
    }

    fn summary(&self, cpu: CpuLedger) -> Option<String> {
        let lines = self.members.iter().enumerate().map(|(at, member)| {
            let cost = self.status_of(at, cpu).cost;
            let own = member.monitor.summary(cpu);
            format!(
                "{}: watching took {} of CPU{}",
                member.name,
                format_time(cost.monitor_cpu),
                own.map_or_else(String::new, |text| format!("; {text}")),
            )
        });
        Some(lines.collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{Cost, Snapshot};
    use isotherm_record::TargetStart;

    use super::*;

    /// Watches one target and uses this CPU time every `period`, for `nr_steps`.
    struct Counter {
        period: Nanos,
        nr_steps: u32,
        work: u64,
        has_begun: bool,
    }

    impl Monitor for Counter {
        fn step(&mut self, now: Nanos, _cpu: CpuLedger, items: &mut Vec<Item>) -> NextStep {
            let from = process_cpu();
            while process_cpu().since(from).0 < self.work {}
            if self.nr_steps == 0 {
                return Ok(None);
            }
            self.nr_steps -= 1;
            if !std::mem::replace(&mut self.has_begun, true) {
                items.push(Item::TargetStart(TargetStart::default()));
            }
            items.push(Item::Snapshot(Snapshot::default()));
            Ok(Some(now + self.period))
        }

        fn status(&self, cpu: CpuLedger) -> MonitorStatus {
            MonitorStatus {
                cost: cpu.of_watching(Cost {
                    monitor_cpu: process_cpu(),
                    ..Cost::default()
                }),
                nr_unknown: 0,
                intervals: Intervals {
                    sample: self.period,
                    aggregation: self.period,
                    update: self.period,
                },
            }
        }
    }

    fn contexts(of: &[(u64, u32, u64)]) -> Contexts {
        let members = of.iter().enumerate().map(|(i, (period, nr_steps, work))| {
            let counter = Counter {
                period: Nanos(*period),
                nr_steps: *nr_steps,
                work: *work,
                has_begun: false,
            };
            let monitor: Box<dyn Monitor> = Box::new(counter);
            (format!("kdamond {i}"), monitor)
        });
        Contexts::new(members.collect())
    }

    #[test]
    fn each_is_stepped_in_its_own_time_and_its_targets_are_told_apart() {
        let mut contexts = contexts(&[(10, 2, 0), (25, 2, 0)]);
        let mut items = Vec::new();
        let mut wakes = vec![0];
        let cpu = CpuLedger::default();
        while let Some(next) = contexts
            .step(Nanos(*wakes.last().expect("one")), cpu, &mut items)
            .expect("fine")
        {
            wakes.push(next.0);
        }
        assert_eq!(wakes, [0, 10, 20, 25, 50]);
        let starts = items.iter().filter_map(|item| match item {
            Item::TargetStart(start) => Some((start.target.0, start.context.clone())),
            _ => None,
        });
        let name = |i| Some(format!("kdamond {i}"));
        assert_eq!(starts.collect::<Vec<_>>(), [(0, name(0)), (1, name(1))]);
        let snapshots = items.iter().filter_map(|item| match item {
            Item::Snapshot(snapshot) => Some(snapshot.target.0),
            _ => None,
        });
        assert_eq!(snapshots.collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(contexts.context_of(TargetId(1)), 1);
        assert_eq!(contexts.status(cpu).intervals.sample, Nanos(10));
    }

    #[test]
    fn what_one_takes_is_not_on_the_others_account_and_all_of_it_is_on_some() {
        const MS: u64 = 1_000_000;
        let mut contexts = contexts(&[(1, 9, 40 * MS), (1, 9, 10 * MS)]);
        let cpu = CpuLedger::default();
        for now in 0..2 {
            let stepped = contexts.step(Nanos(now), cpu, &mut Vec::new());
            let _ = stepped.expect("fine");
        }
        let costs = [0, 1].map(|at| contexts.status_of(at, cpu).cost.monitor_cpu.0 / MS);
        // Other tests of this process take CPU time as well, like the loop's.
        assert!(costs[0] >= 80 && costs[1] >= 20, "{costs:?}");
        // Another test may run between two readings of the clock.
        let is_all_told = || {
            let total = contexts.status(cpu).cost.monitor_cpu.0;
            total.abs_diff(process_cpu().0) < 5 * MS
        };
        let cost = contexts.status(cpu).cost;
        assert!((0..50).any(|_| is_all_told()), "{cost:?}");
    }
}
