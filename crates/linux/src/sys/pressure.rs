//! Costs of memory for a process that waits for it: major faults, CPU time, pressure (PSI).

use std::fs;
use std::path::Path;

use isotherm_engine::{Nanos, PAGE_SIZE};

use crate::arch;
use crate::cgroup;
use crate::clock;
use crate::process::Process;
use crate::text::{counter, value};

/// Counters of one process; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Faults whose page was in memory, or that needed none.
    pub minor_faults: u64,
    /// Faults that waited for a page from swap or a file.
    pub major_faults: u64,
    /// CPU time of all threads.
    pub cpu: Nanos,
    /// Resident bytes, as of the last update of each thread's counter.
    pub resident: u64,
    /// Time of its start, since boot.
    pub started: Nanos,
}

impl Progress {
    /// Returns the time since the start of the process.
    pub fn lived(&self) -> Nanos {
        clock::since_boot().since(self.started)
    }
}

/// Reads a process's counters; `None` if it has ended.
pub fn progress(process: &Process) -> Option<Progress> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    let mut progress = process.is_alive().then(|| parse_stat(&stat)).flatten()?;
    progress.cpu = clock::cpu_of(process.pid()).unwrap_or(progress.cpu);
    if progress.resident == 0 {
        // The main thread has ended before others.
        progress.resident = process.usage().ok()?.rss;
    }
    Some(progress)
}

/// Splits the fields of `/proc/PID/stat` after the name, which may hold any characters. The first is the state, field 3
/// of proc(5).
pub(crate) fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

fn parse_stat(stat: &str) -> Option<Progress> {
    let words: Vec<&str> = stat_fields(stat)?.collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    Some(Progress {
        minor_faults: number(7)?,
        major_faults: number(9)?,
        cpu: clock::of_ticks(number(11)? + number(12)?),
        resident: number(21)?.saturating_mul(arch::page_bytes()),
        started: clock::of_ticks(number(19)?),
    })
}

/// Returns the microseconds so far in which some task waited for memory: of the system, or of the control group at
/// `group`. Groups of version 1 have no pressure; that of version 2 with the same processes may have. Returns `None` if
/// the kernel does not report it.
pub fn some_memory_us(group: Option<&Path>) -> Option<u64> {
    const NAME: &str = "memory.pressure";
    let text = match group {
        None => fs::read_to_string("/proc/pressure/memory"),
        Some(group) => fs::read_to_string(group.join(NAME))
            .or_else(|_| fs::read_to_string(cgroup::twin(group).unwrap_or_default().join(NAME))),
    };
    total(&text.ok()?, "some ")
}

/// Returns the microseconds so far in which some, and all, tasks of the system waited for memory.
pub fn memory_us() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    Some((total(&text, "some ")?, total(&text, "full ")?))
}

fn total(pressure: &str, kind: &str) -> Option<u64> {
    let total = value(pressure, kind)?.split("total=").nth(1)?;
    total.trim().parse().ok()
}

/// Returns the number of pages of 4 KiB that the whole system has read from swap since boot, including read-ahead.
pub fn swapped_in() -> Option<u64> {
    pages_counted("pswpin")
}

/// Returns the number of pages of 4 KiB that the whole system has written to swap since boot.
pub fn swapped_out() -> Option<u64> {
    pages_counted("pswpout")
}

fn pages_counted(name: &str) -> Option<u64> {
    let pages = counter(&fs::read_to_string("/proc/vmstat").ok()?, name)?;
    Some(pages << arch::frame_shift())
}

/// Counters of the kernel's page cache reclaim since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileReclaim {
    /// Pages reclaimed because memory was short (by kswapd, which works before any other reclaim).
    pub reclaimed: u64,
    /// Pages that were read again sooner than retained ones, after reclaim by the kernel or another program.
    pub refaulted: u64,
}

impl FileReclaim {
    /// Reads `/proc/vmstat`; `None` if the counters are missing.
    pub fn now() -> Option<Self> {
        let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
        let refaulted = counter(&vmstat, "workingset_refault_file");
        Some(Self {
            reclaimed: counter(&vmstat, "pgsteal_kswapd")?,
            // A single counter until 5.9.
            refaulted: refaulted.or_else(|| counter(&vmstat, "workingset_refault"))?,
        })
    }
}

/// Reads of all block devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskReads {
    pub pages: u64,
    /// Sum over all reads; it may exceed the elapsed time.
    pub time: Nanos,
}

impl DiskReads {
    /// Reads the counters since boot.
    pub fn now() -> Option<Self> {
        Some(Self::parse(&fs::read_to_string("/proc/diskstats").ok()?))
    }

    /// Returns the increase since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            pages: self.pages.saturating_sub(before.pages),
            time: self.time.since(before.time),
        }
    }

    /// Parses `/proc/diskstats` (Documentation/admin-guide/iostats.rst) and skips disks in memory.
    fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(name), Some(sectors), Some(ms)) = (words.get(2), words.get(5), words.get(6))
            else {
                continue;
            };
            if name.starts_with("zram") || name.starts_with("ram") {
                continue;
            }
            let sectors: u64 = sectors.parse().unwrap_or(0);
            all.pages += sectors * 512 / PAGE_SIZE;
            all.time = all.time + Nanos::from_millis(ms.parse().unwrap_or(0));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_confuse() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 99 10 300 40 11 12 20 0 1 0 5 4096000 7 0";
        let progress = parse_stat(stat).expect("a line of stat");
        assert_eq!((progress.minor_faults, progress.major_faults), (7, 99));
        assert_eq!(progress.cpu, Nanos(3_400_000_000));
        assert_eq!(progress.resident, 7 * PAGE_SIZE);
        assert_eq!(progress.started, Nanos(50_000_000));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn pressure_is_parsed() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total(text, "some "), Some(42));
        assert_eq!(total(text, "full "), Some(7));
        assert_eq!(total("nonsense", "some "), None);
    }

    #[test]
    fn reads_of_disks_are_summed() {
        let text = " 254       0 vda 10 0 800 30 5 0 40 9 0 0 0 0\n 252 0 zram0 9 0 8000 1 0 0 0 0 0 0 0\nx\n";
        let reads = DiskReads::parse(text);
        let wanted = DiskReads {
            pages: 100,
            time: Nanos::from_millis(30),
        };
        assert_eq!(reads, wanted);
        assert_eq!(reads.since(wanted), DiskReads::default());
    }

    #[test]
    fn our_own_progress_is_known() {
        let me = Process::open(std::process::id()).expect("we exist");
        assert!(progress(&me).is_some());
    }
}
