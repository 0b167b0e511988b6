//! What memory costs a process that waits for it: major faults, its CPU time, pressure (PSI).

use std::fs;
use std::path::Path;
use std::time::Instant;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE};

use crate::process::Process;

/// Counters of one process; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Faults that had to wait for a page: from swap or a file.
    pub major_faults: u64,
    /// CPU time of all its threads.
    pub cpu: Nanos,
}

/// A process's counters; `None` if it has gone.
pub fn progress(process: &Process) -> Option<Progress> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    process.is_alive().then(|| parse_stat(&stat)).flatten()
}

/// `/proc/PID/stat`: the name may hold anything, so count from its closing parenthesis.
fn parse_stat(stat: &str) -> Option<Progress> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let words: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    // SAFETY: no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Some(Progress {
        major_faults: number(9)?,
        cpu: Nanos((number(11)? + number(12)?).saturating_mul(1_000_000_000 / ticks)),
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
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("pswpin "))?;
    line.trim().parse().ok()
}

/// What bringing a page back from swap costs on this machine now: the mean of some of our own, with
/// those that come by reading ahead. `None` if there is no swap to measure.
pub fn refault_cost() -> Option<Nanos> {
    const PAGES: u64 = 64;
    crate::swap::facts().refusal().is_none().then_some(())?;
    let bytes = (PAGES * PAGE_SIZE) as usize;
    // Each page holds something else, or it would be swapped for free.
    let mut memory: Vec<u64> = (0..(2 * bytes / 8) as u64)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_SIZE);
    let first = (start - memory.as_ptr() as u64) as usize / 8;
    let me = Process::open(std::process::id()).ok()?;
    let range = AddressRange::new(start, start + PAGES * PAGE_SIZE);
    me.advise(&[range], libc::MADV_PAGEOUT, &mut Vec::new())
        .ok()?;
    let before = (progress(&me)?.major_faults, swapped_in()?);
    let started = Instant::now();
    for page in 0..PAGES as usize {
        let word = &mut memory[first + page * (PAGE_SIZE as usize / 8)];
        *word = std::hint::black_box(*word).wrapping_add(1);
    }
    let took = Nanos::from(started.elapsed());
    let after = (progress(&me)?.major_faults, swapped_in()?);
    // Some may have been kept by the kernel. Reading ahead makes one fault of many pages.
    let came_back = (after.0 - before.0).max(after.1.saturating_sub(before.1).min(PAGES));
    (came_back >= PAGES / 2 && after.0 > before.0).then_some(Nanos(took.0 / PAGES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_confuse() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 99 10 300 40 11 12 20 0 1 0 5";
        let progress = parse_stat(stat).expect("a line of stat");
        assert_eq!(progress.major_faults, 99);
        assert_eq!(progress.cpu, Nanos(3_400_000_000));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn our_own_progress_is_known() {
        let me = Process::open(std::process::id()).expect("we exist");
        assert!(progress(&me).is_some());
    }
}
