//! What memory costs a process that waits for it: major faults, its CPU time, pressure (PSI).

use std::fs;
use std::path::Path;

use isotherm_engine::{Nanos, PAGE_SIZE};

use crate::process::Process;

/// Counters of one process; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Faults that found their page in memory, or needed none.
    pub minor_faults: u64,
    /// Faults that had to wait for a page: from swap or a file.
    pub major_faults: u64,
    /// CPU time of all its threads.
    pub cpu: Nanos,
    /// Bytes that it has in memory, as of the last time that each of its threads counted.
    pub resident: u64,
}

/// A process's counters; `None` if it has gone.
pub fn progress(process: &Process) -> Option<Progress> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    let mut progress = process.is_alive().then(|| parse_stat(&stat)).flatten()?;
    if progress.resident == 0 {
        // The main thread has ended before others.
        progress.resident = process.usage().ok()?.rss;
    }
    Some(progress)
}

/// The fields of `/proc/PID/stat` behind the name, which may hold anything: the state, field 3 of proc(5), first.
pub(crate) fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// Of `/proc/PID/stat`.
fn parse_stat(stat: &str) -> Option<Progress> {
    let words: Vec<&str> = stat_fields(stat)?.collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    // SAFETY: no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Some(Progress {
        minor_faults: number(7)?,
        major_faults: number(9)?,
        cpu: Nanos((number(11)? + number(12)?).saturating_mul(1_000_000_000 / ticks)),
        resident: number(21)?.saturating_mul(PAGE_SIZE),
    })
}

/// Microseconds in which some task waited for memory, since the start: of the system, or of the
/// control group (version 2) at `group`. `None` where the kernel does not tell.
pub fn some_memory_us(group: Option<&Path>) -> Option<u64> {
    let path = group.map_or_else(
        || "/proc/pressure/memory".into(),
        |group| group.join("memory.pressure"),
    );
    let text = fs::read_to_string(path).ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split("total=").nth(1)?;
    total.trim().parse().ok()
}

/// Pages that the whole system has read from swap, since its start; those read ahead, too.
pub fn swapped_in() -> Option<u64> {
    counter(&fs::read_to_string("/proc/vmstat").ok()?, "pswpin ")
}

/// Pages that the whole system has written to swap, since its start.
pub fn swapped_out() -> Option<u64> {
    counter(&fs::read_to_string("/proc/vmstat").ok()?, "pswpout ")
}

/// A line of `/proc/vmstat`, by its name and the space behind it.
fn counter(vmstat: &str, name: &str) -> Option<u64> {
    let value = vmstat.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().parse().ok()
}

/// What the kernel did to files' pages, since the start of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileReclaim {
    /// Pages that it reclaimed as memory was short (by kswapd, which works before anything else does).
    pub reclaimed: u64,
    /// Pages that it, or whoever else, had reclaimed, and that were read again before others that stayed.
    pub refaulted: u64,
}

impl FileReclaim {
    /// By `/proc/vmstat`, where it tells.
    pub fn now() -> Option<Self> {
        let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
        let refaulted = counter(&vmstat, "workingset_refault_file ");
        Some(Self {
            reclaimed: counter(&vmstat, "pgsteal_kswapd ")?,
            // One for all until 5.9.
            refaulted: refaulted.or_else(|| counter(&vmstat, "workingset_refault "))?,
        })
    }
}

/// What all block devices have read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskReads {
    /// Pages that they read.
    pub pages: u64,
    /// The time of all reads together.
    pub time: Nanos,
}

impl DiskReads {
    /// Since the start of the system.
    pub fn now() -> Option<Self> {
        Some(Self::parse(&fs::read_to_string("/proc/diskstats").ok()?))
    }

    /// Those after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            pages: self.pages.saturating_sub(before.pages),
            time: self.time.since(before.time),
        }
    }

    /// `/proc/diskstats` (Documentation/admin-guide/iostats.rst): memory that is a disk is left out.
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
        assert_eq!(parse_stat("nonsense"), None);
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
