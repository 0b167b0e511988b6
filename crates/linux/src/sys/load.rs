//! Load of the processors: `/proc/stat`.

use std::fs;

use isotherm_engine::Nanos;

use crate::{clock, text};

/// Idle time of the processors since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Idle time of all CPUs together; waiting for a disk is idle.
    pub idle: Nanos,
    pub nr: u32,
}

impl CpuTimes {
    /// Reads the times of this machine; `None` if they cannot be read.
    pub fn read() -> Option<Self> {
        parse(&fs::read_to_string("/proc/stat").ok()?)
    }
}

fn parse(stat: &str) -> Option<CpuTimes> {
    let ticks: Vec<u64> = text::value(stat, "cpu ")?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let is_cpu = |line: &&str| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or(0);
    Some(CpuTimes {
        idle: clock::of_ticks(idle),
        nr: stat.lines().filter(is_cpu).count() as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_cpus_are_found() {
        let stat = "cpu  10 0 5 200 30 0 1 2 0 0\ncpu0 5 0 2 100 15\ncpu1 5 0 3 100 15\nintr 7\n";
        let times = parse(stat).expect("known");
        assert_eq!((times.idle, times.nr), (Nanos(2_300_000_000), 2));
        assert_eq!(parse("nothing"), None);
        assert!(CpuTimes::read().is_some_and(|times| times.nr > 0));
    }
}
