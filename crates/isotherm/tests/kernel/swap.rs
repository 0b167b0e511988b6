//! Swap for tests: zram that is set up for them and removed.

use std::fs;

use crate::act::compaction::drop_caches;
use crate::common::{isotherm, meminfo, run, skip};

/// With less free memory the kernel itself pages out, which tests would count as Isotherm's.
const FREE_MIN: u64 = 3 << 30;

/// Swap for a test.
pub(crate) struct Swap {
    ours: bool,
}

impl Swap {
    pub(crate) fn set_up() -> Option<Self> {
        if there_is_swap() {
            return Some(Self { ours: false });
        }
        // Enough for all tests that share it: no test's memory may reach the system's reserve.
        Self::of("4G")
    }

    /// Sets up swap of a size, on a machine without any.
    pub(crate) fn of(size: &str) -> Option<Self> {
        if meminfo("MemFree:") < FREE_MIN {
            drop_caches();
        }
        let done = run(&mut isotherm(["swap", "zram", "--size", size]));
        if done.code() != 0 {
            skip(done.stderr.trim());
            return None;
        }
        Some(Self { ours: true })
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if self.ours {
            let done = run(&mut isotherm(["swap", "off"]));
            // A second panic would end all tests.
            if !std::thread::panicking() {
                done.success();
            }
        }
    }
}

pub(crate) fn there_is_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}
