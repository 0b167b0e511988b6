//! Runs the acting thread on the processor that the target runs on.
//!
//! The problem: for each dirty page that is paged out alone, the kernel interrupts every other processor that runs the
//! target, so that it flushes its TLB. The kernel waits for these processors (see `huge_page_reclaim`). A processor
//! that runs us does not run the target.
//!
//! The approach: before each call the acting thread moves to the processor on which most of the target's threads run,
//! if any does. Otherwise the target would lose as much time by interrupts elsewhere as the call takes. The saving is
//! in docs/concepts/guard.md, measured by experiments/beside.c.
//!
//! Limits: a program that runs on several processors at once is still interrupted on the others. A program that the
//! scheduler moves meanwhile is interrupted until the next call. Programs of more than [`THREADS_MAX`] threads are not
//! examined.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::pressure::stat_fields;

/// Maximum number of threads that are examined: reading one takes some 10 us.
const THREADS_MAX: usize = 32;

/// Affinity of this thread while single pages are paged out; restored on drop.
#[derive(Debug)]
pub(super) struct CpuPin {
    /// Original affinity; `None` if the thread cannot move.
    home: Option<CpuSet>,
    is_away: bool,
}

impl CpuPin {
    /// Returns a state in which the thread has not moved.
    pub(super) fn unpinned() -> Self {
        let home = sched_getaffinity(None).ok();
        Self {
            home: home.filter(|home| home.count() > 1),
            is_away: false,
        }
    }

    /// Moves to the processor on which most of a process's threads run. Returns home if none runs or the processor is
    /// unknown.
    pub(super) fn pin_to_cpu_of(&mut self, pid: u32) {
        let Some(home) = self.home else { return };
        let Some(cpu) = busiest(pid).filter(|cpu| *cpu < CpuSet::MAX_CPU && home.is_set(*cpu))
        else {
            return self.come_back();
        };
        let mut there = CpuSet::new();
        there.set(cpu);
        // A failure is harmless: the processor may have been taken offline.
        self.is_away |= sched_setaffinity(None, &there).is_ok();
    }

    fn come_back(&mut self) {
        if let Some(home) = self.home.filter(|_| self.is_away) {
            // Refused only if all of these are offline by now: the kernel has chosen others then.
            self.is_away = sched_setaffinity(None, &home).is_err();
        }
    }
}

impl Drop for CpuPin {
    fn drop(&mut self) {
        self.come_back();
    }
}

/// Returns the processor on which most threads of a process run, if any does.
fn busiest(pid: u32) -> Option<usize> {
    let mut nr_on: Vec<usize> = Vec::new();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    for (nr, thread) in threads.enumerate() {
        if nr == THREADS_MAX {
            return None;
        }
        if let Some(cpu) = running_on(&thread.ok()?.path()) {
            nr_on.resize(nr_on.len().max(cpu + 1), 0);
            nr_on[cpu] += 1;
        }
    }
    let counted = nr_on.into_iter().enumerate().filter(|(_, nr)| *nr > 0);
    counted.max_by_key(|(_, nr)| *nr).map(|(cpu, _)| cpu)
}

/// Returns the processor on which a thread runs or waits to run.
fn running_on(thread: &Path) -> Option<usize> {
    let text = fs::read_to_string(thread.join("stat")).ok()?;
    let mut fields = stat_fields(&text)?;
    let state = fields.next()?;
    // Fields 3 and 39.
    fields.nth(35)?.parse().ok().filter(|_| state == "R")
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn here() -> usize {
        rustix::thread::sched_getcpu()
    }

    /// Starts a program that only sleeps, or only runs.
    fn program(script: &str) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).spawn().expect("a shell")
    }

    #[test]
    fn it_goes_where_the_target_runs_and_comes_back() {
        let home = sched_getaffinity(None).expect("ours");
        if home.count() < 2 {
            println!("SKIP it_goes_where_the_target_runs_and_comes_back: one processor");
            return;
        }
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| home.is_set(*cpu)).take(2) {
            let mut there = CpuSet::new();
            there.set(cpu);
            sched_setaffinity(None, &there).expect("one of ours");
            let mut busy = program("while :; do :; done");
            sched_setaffinity(None, &home).expect("ours");
            while busiest(busy.id()) != Some(cpu) {
                std::thread::yield_now();
            }
            let mut beside = CpuPin::unpinned();
            beside.pin_to_cpu_of(busy.id());
            let was = here();
            drop(beside);
            busy.kill().expect("our child");
            busy.wait().expect("our child");
            assert_eq!(was, cpu);
            assert_eq!(sched_getaffinity(None).expect("ours"), home);
        }
    }

    #[test]
    fn who_sleeps_or_is_gone_runs_nowhere() {
        let mut idle = program("exec sleep 100");
        while running_on(Path::new(&format!("/proc/{}", idle.id()))).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(busiest(idle.id()), None);
        idle.kill().expect("our child");
        idle.wait().expect("our child");
        assert_eq!(busiest(idle.id()), None);
    }
}
