//! Pages out single pages from every processor that the target runs on, at the same time.
//!
//! The problem: for each dirty page that is paged out alone, the kernel interrupts every other processor that runs the
//! target, so that it flushes its TLB. The kernel waits for these processors (see `huge_page_reclaim`). A processor
//! that runs us does not run the target.
//!
//! The approach: a call is divided among as many threads as processors run the target, each on one of these. They run
//! at a real-time priority, so that the target runs nowhere meanwhile and needs no interrupt. The saving is in
//! docs/concepts/guard.md, measured by experiments/beside.c.
//!
//! Limits: other programs on these processors wait as well, for one call of at most 4 MiB. Some interrupts remain
//! without CAP_SYS_NICE, and where the scheduler moves the target meanwhile. Programs of more than [`THREADS_MAX`] threads
//! are not examined; those that run on more than [`CPUS_MAX`] processors are interrupted on the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLock, mpsc};
use std::thread;

use isotherm_engine::{AddressRange, Nanos};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::clock;
use crate::pressure::stat_fields;
use crate::process::{Advised, Process, ProcessError};

/// Maximum number of processors: more threads would contend for locks of the kernel.
const CPUS_MAX: usize = 8;
/// Maximum number of threads that are examined: reading one takes some 10 us.
const THREADS_MAX: usize = 32;
/// Ranges that a thread takes at a time.
const RANGES_AT_ONCE: usize = 32;

type Part = (usize, Vec<Advised>);
/// Parts that a thread took, and its CPU time.
type Done = (Result<Vec<Part>, ProcessError>, Nanos);

/// Advises the kernel to page out `ranges`, from all of `cpus` at once. `outcomes` receives one entry for each range.
///
/// # Errors
///
/// As [`Process::advise`]: the process is gone, or may not be advised.
pub(super) fn page_out(
    process: &Process,
    cpus: &[usize],
    ranges: &[AddressRange],
    outcomes: &mut Vec<Advised>,
) -> Result<(), ProcessError> {
    let at_once = ranges.len().div_ceil(4 * cpus.len().max(1));
    let at_once = at_once.clamp(1, RANGES_AT_ONCE);
    let parts: Vec<&[AddressRange]> = ranges.chunks(at_once).collect();
    let next = AtomicUsize::new(0);
    let take_parts = || {
        let mut done: Vec<Part> = Vec::new();
        loop {
            let nr = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(nr) else {
                return Ok(done);
            };
            let mut advised = Vec::with_capacity(part.len());
            process.advise(part, libc::MADV_PAGEOUT, &mut advised)?;
            done.push((nr, advised));
        }
    };
    let gate = RwLock::new(());
    let (ready, are_ready) = mpsc::channel();
    let results: Vec<Done> = thread::scope(|scope| {
        let closed = gate.write();
        let threads: Vec<_> = cpus
            .iter()
            .map_while(|cpu| {
                let (ready, gate) = (ready.clone(), &gate);
                let run = move || {
                    let real_time = RealTime::begin_on(*cpu);
                    // The receiver lives until all threads have begun.
                    ready.send(()).ok();
                    drop(gate.read());
                    let done = take_parts();
                    drop(real_time);
                    (done, clock::thread_cpu())
                };
                thread::Builder::new().spawn_scoped(scope, run).ok()
            })
            .collect();
        for _ in &threads {
            are_ready.recv().ok();
        }
        drop(closed);
        let of_threads = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let mut results: Vec<_> = of_threads.collect();
        // All parts, if no thread could be started.
        results.push((take_parts(), Nanos(0)));
        results
    });
    let mut done = Vec::with_capacity(parts.len());
    for (result, took) in results {
        clock::add_helper(took);
        done.extend(result?);
    }
    done.sort_unstable_by_key(|(nr, _)| *nr);
    outcomes.clear();
    outcomes.extend(done.into_iter().flat_map(|(_, advised)| advised));
    Ok(())
}

/// A real-time priority of this thread, until dropped: it runs before all threads that have none.
#[derive(Debug)]
pub(super) struct RealTime {
    /// Policy and priority before; `None` if the kernel refused to raise it.
    before: Option<(i32, i32)>,
}

impl RealTime {
    /// Raises this thread's priority. A refusal is harmless.
    pub(super) fn begin() -> Self {
        let mut before = 0_i32;
        // By number: musl's functions of these names refuse. The kernel's parameter is one number.
        // SAFETY: these concern this thread only; the second writes the parameter.
        let (policy, has_read) = unsafe {
            let parameter = &raw mut before;
            (
                libc::syscall(libc::SYS_sched_getscheduler, 0) as i32,
                libc::syscall(libc::SYS_sched_getparam, 0, parameter) == 0,
            )
        };
        let is_raised = policy >= 0 && has_read && set_policy(libc::SCHED_FIFO, 1);
        Self {
            before: is_raised.then_some((policy, before)),
        }
    }

    /// Raises this thread's priority, and moves it to `cpu` if it may run there. It stays there.
    fn begin_on(cpu: usize) -> Self {
        let this = Self::begin();
        if cpu < CpuSet::MAX_CPU {
            let mut there = CpuSet::new();
            there.set(cpu);
            sched_setaffinity(None, &there).ok();
        }
        this
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        if let Some((policy, priority)) = self.before {
            set_policy(policy, priority);
        }
    }
}

fn set_policy(policy: i32, priority: i32) -> bool {
    let parameter = &raw const priority;
    // SAFETY: sched_setscheduler(2) reads the parameter, and concerns this thread only.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, parameter) == 0 }
}

/// Returns the processors on which threads of a process run: those with the most threads, at most [`CPUS_MAX`]. Empty if
/// the process has more than [`THREADS_MAX`] threads, or one that runs at a real-time priority.
pub(super) fn cpus_of(pid: u32) -> Vec<usize> {
    let mut nr_on: BTreeMap<usize, usize> = BTreeMap::new();
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    for (nr, thread) in threads.into_iter().flatten().enumerate() {
        if nr == THREADS_MAX {
            return Vec::new();
        }
        match thread.ok().and_then(|thread| running_on(&thread.path())) {
            // Ours would never run beside it.
            Some((_, true)) => return Vec::new(),
            Some((cpu, false)) => *nr_on.entry(cpu).or_default() += 1,
            None => {}
        }
    }
    let mut cpus: Vec<usize> = nr_on.keys().copied().collect();
    cpus.sort_by_key(|cpu| Reverse(nr_on[cpu]));
    cpus.truncate(CPUS_MAX);
    cpus
}

/// Returns the processor on which a thread runs or waits to run, and whether it has a real-time priority.
fn running_on(thread: &Path) -> Option<(usize, bool)> {
    let text = fs::read_to_string(thread.join("stat")).ok()?;
    let mut fields = stat_fields(&text)?;
    let state = fields.next()?;
    // Fields 3, 39 and 40.
    let cpu = fields.nth(35)?.parse().ok()?;
    (state == "R").then_some((cpu, fields.next()? != "0"))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use isotherm_engine::PAGE_SIZE;
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn every_range_has_its_own_outcome() {
        const PAGES: usize = 1000;
        let memory = vec![1_u8; (PAGES + 1) * PAGE_SIZE as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_SIZE);
        let mut ranges: Vec<AddressRange> = (0..PAGES as u64)
            .map(|page| start + page * PAGE_SIZE)
            .map(|at| AddressRange::new(at, at + PAGE_SIZE))
            .collect();
        // Nothing is mapped there.
        ranges[777] = AddressRange::new(PAGE_SIZE, 2 * PAGE_SIZE);
        let process = Process::open(std::process::id()).expect("this process");
        for cpus in [&[0, 1][..], &[0; CPUS_MAX], &[]] {
            let mut outcomes = Vec::new();
            page_out(&process, cpus, &ranges, &mut outcomes).expect("it lives");
            let refused: Vec<usize> = (0..outcomes.len())
                .filter(|n| outcomes[*n] != Advised::Taken)
                .collect();
            assert_eq!((outcomes.len(), refused), (PAGES, vec![777]));
        }
        assert!(memory.iter().all(|byte| *byte == 1));
    }

    fn program(script: &str) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).spawn().expect("a shell")
    }

    #[test]
    fn processors_of_a_program_are_found_while_it_runs() {
        let home = sched_getaffinity(None).expect("ours");
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| home.is_set(*cpu)).take(2) {
            let mut there = CpuSet::new();
            there.set(cpu);
            sched_setaffinity(None, &there).expect("one of ours");
            let mut busy = program("while :; do :; done");
            sched_setaffinity(None, &home).expect("ours");
            while cpus_of(busy.id()) != [cpu] {
                thread::yield_now();
            }
            busy.kill().expect("our child");
            busy.wait().expect("our child");
            assert!(cpus_of(busy.id()).is_empty(), "it has ended");
        }
        let mut idle = program("exec sleep 100");
        while !cpus_of(idle.id()).is_empty() {
            thread::yield_now();
        }
        idle.kill().expect("our child");
        idle.wait().expect("our child");
    }
}
