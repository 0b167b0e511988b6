//! Samples at 1 Hz of the machine's and a workload's memory, and counters over a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use crate::RunMeasurements;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::{node, pressure, process, swap};

const INTERVAL: Duration = Duration::from_secs(1);
/// Time of the first sample: the middle of the first second.
const FIRST: Duration = Duration::from_millis(500);
const PAGE_KIB: u64 = isotherm_engine::PAGE_SIZE >> 10;

/// Processes that belong to a workload.
pub(super) enum Root<'a> {
    /// This process, its descendants and its process group.
    Process(u32),
    /// All processes of a control group.
    Cgroup(&'a Cgroup),
}

impl Root<'_> {
    fn tree(&self) -> Tree {
        match self {
            Self::Process(root) => tree_of(*root, process::all().filter_map(stat_of).collect()),
            Self::Cgroup(cgroup) => sum_of(cgroup.members().into_iter().filter_map(stat_of)),
        }
    }
}

pub(super) struct Sampler<'a> {
    root: Root<'a>,
    started: Instant,
    next: Instant,
    samples: u64,
    memused_kib: u64,
    memused_end_kib: u64,
    rss_kib: u64,
    rss_end_kib: u64,
    /// Pool of compressed swap when sampling began, and the sum of its growth over the samples.
    pool_before_kib: u64,
    pool_kib: u64,
    before: Tree,
    counters: BTreeMap<String, u64>,
    pressure: Option<(u64, u64)>,
}

impl<'a> Sampler<'a> {
    pub(super) fn start(root: Root<'a>) -> Self {
        let started = Instant::now();
        let before = root.tree();
        Self {
            root,
            started,
            next: started + FIRST,
            samples: 0,
            memused_kib: 0,
            memused_end_kib: 0,
            rss_kib: 0,
            rss_end_kib: 0,
            pool_before_kib: swap::pool_bytes() >> 10,
            pool_kib: 0,
            before,
            counters: counters(),
            pressure: pressure::memory_us(),
        }
    }

    /// Takes a sample when one is due; callers call it often.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        // A late sample must not be followed by a burst.
        self.next = (self.next + INTERVAL).max(now + INTERVAL / 2);
        if let Some(used) = memused_kib() {
            self.samples += 1;
            self.memused_kib += used;
            self.memused_end_kib = used;
            self.rss_end_kib = self.root.tree().pages * PAGE_KIB;
            self.rss_kib += self.rss_end_kib;
            let pool_kib = swap::pool_bytes() >> 10;
            self.pool_kib += pool_kib.saturating_sub(self.pool_before_kib);
        }
    }

    /// Ends sampling. Returns `None` if the run was too short for any sample.
    pub(super) fn finish(self) -> Option<RunMeasurements> {
        let workload = self.root.tree();
        let cpu_s = workload.cpu_s() - self.before.cpu_s();
        let faults = |after: u64, before: u64| Some(after.saturating_sub(before));
        let runtime_s = self.started.elapsed().as_secs_f64();
        let after = counters();
        let grown = |name: &str| Some(after.get(name)?.saturating_sub(*self.counters.get(name)?));
        let pressure = pressure::memory_us().zip(self.pressure);
        (self.samples > 0).then(|| RunMeasurements {
            runtime_s,
            // The time of processes that were not waited for is lost.
            cpu_s: (cpu_s > 0.0).then_some(cpu_s),
            samples: self.samples,
            memused_kib: self.memused_kib as f64 / self.samples as f64,
            rss_kib: self.rss_kib as f64 / self.samples as f64,
            pgmajfaults: grown("pgmajfault").unwrap_or(0),
            psi_mem_some_us: pressure.map(|(after, before)| after.0.saturating_sub(before.0)),
            psi_mem_full_us: pressure.map(|(after, before)| after.1.saturating_sub(before.1)),
            pswpin: grown("pswpin").unwrap_or(0),
            pswpout: grown("pswpout").unwrap_or(0),
            thp_fault_alloc: grown("thp_fault_alloc"),
            thp_collapse_alloc: grown("thp_collapse_alloc"),
            thp_split_page: grown("thp_split_page"),
            rss_end_kib: Some(self.rss_end_kib as f64),
            memused_end_kib: Some(self.memused_end_kib as f64),
            pool_kib: Some(self.pool_kib as f64 / self.samples as f64),
            majflt: faults(workload.majflt, self.before.majflt),
            minflt: faults(workload.minflt, self.before.minflt),
            refault_anon: grown("workingset_refault_anon"),
            swap_cache_hits: grown("swap_ra_hit"),
            ..RunMeasurements::default()
        })
    }
}

/// Returns used memory, KiB. Free memory on lists of single processors is not used: memory that programs free goes
/// there first.
fn memused_kib() -> Option<u64> {
    let memory = Meminfo::read();
    let free = memory.get("MemFree")? + node::free_on_lists();
    Some(memory.get("MemTotal")?.saturating_sub(free) >> 10)
}

fn counters() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pairs = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    pairs.collect()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tree {
    /// Resident pages. Shared pages count for each process that maps them, as in the `rss.avg` of *DAMON Evaluation*.
    pages: u64,
    /// CPU time, with that of processes that ended and were waited for, in the kernel's ticks.
    ticks: u64,
    /// Faults, with those of processes that ended and were waited for.
    minflt: u64,
    majflt: u64,
}

impl Tree {
    fn cpu_s(&self) -> f64 {
        // Times in /proc are in hundredths of a second on every Linux (USER_HZ).
        self.ticks as f64 / 100.0
    }
}

/// Reads the statistics of a process; `None` for a process that has just ended, which has no memory.
fn stat_of(pid: u32) -> Option<ProcessStat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &stat)
}

struct ProcessStat {
    pid: u32,
    parent: u32,
    group: u32,
    pages: u64,
    ticks: u64,
    minflt: u64,
    majflt: u64,
}

/// Parses `/proc/PID/stat`. The name may hold any character, so fields are counted from its closing parenthesis.
fn parse_stat(pid: u32, stat: &str) -> Option<ProcessStat> {
    let words: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    // utime, stime, cutime and cstime.
    let ticks = (11..15).map(number).sum::<Option<u64>>()?;
    Some(ProcessStat {
        pid,
        parent: words.get(1)?.parse().ok()?,
        group: words.get(2)?.parse().ok()?,
        pages: number(21)?,
        ticks,
        minflt: number(7)? + number(8)?,
        majflt: number(9)? + number(10)?,
    })
}

fn tree_of(root: u32, processes: Vec<ProcessStat>) -> Tree {
    let members = members_of(root, &processes);
    sum_of(processes.into_iter().filter(|p| members.contains(&p.pid)))
}

fn members_of(root: u32, processes: &[ProcessStat]) -> BTreeSet<u32> {
    let mut members = BTreeSet::from([root]);
    // A child may precede its parent in the list.
    loop {
        let before = members.len();
        for process in processes {
            if process.group == root || members.contains(&process.parent) {
                members.insert(process.pid);
            }
        }
        if members.len() == before {
            return members;
        }
    }
}

fn sum_of(processes: impl Iterator<Item = ProcessStat>) -> Tree {
    let mut tree = Tree::default();
    for process in processes {
        tree.pages += process.pages;
        tree.ticks += process.ticks;
        tree.minflt += process.minflt;
        tree.majflt += process.majflt;
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_its_descendants_and_its_group() {
        let process = |pid, parent, group, pages| ProcessStat {
            pid,
            parent,
            group,
            pages,
            ticks: pages / 10,
            minflt: 2,
            majflt: 1,
        };
        let processes = [
            process(9, 8, 5, 1),
            process(5, 1, 5, 10),
            process(7, 5, 7, 100),
            process(8, 1, 5, 1000),
            process(6, 7, 6, 10_000),
            process(4, 1, 4, 100_000),
        ];
        let expected = Tree {
            pages: 11_111,
            ticks: 1_111,
            minflt: 10,
            majflt: 5,
        };
        assert_eq!(tree_of(5, processes.into()), expected);
    }

    #[test]
    fn stat_is_parsed() {
        let stat = "12 (a) b (c) S 3 4 5 6 7 8 9 10 11 12 300 40 11 12 20 0 1 0 5 6 777 8";
        let process = parse_stat(12, stat).expect("a line of stat");
        assert_eq!((process.parent, process.group, process.pages), (3, 4, 777));
        assert_eq!((process.minflt, process.majflt), (9 + 10, 11 + 12));
        assert_eq!(process.ticks, 300 + 40 + 11 + 12);
    }
}
