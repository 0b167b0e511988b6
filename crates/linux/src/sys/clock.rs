//! Clocks: the only module that reads the time.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use isotherm_engine::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// Whether only this thread's CPU time counts, and not that of the rest of the process.
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
    /// CPU time of threads that this thread has started for its own work.
    static OF_HELPERS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the CPU time that this process has used, kernel work on its behalf included. On a thread that [counts
/// alone](count_thread_alone), returns that of the thread.
pub fn process_cpu() -> Nanos {
    if IS_ALONE.get() {
        return thread_cpu() + Nanos(OF_HELPERS.get());
    }
    read(ClockId::ProcessCPUTime)
}

/// Adds the CPU time of a thread that this thread has started for its own work.
pub(crate) fn add_helper(took: Nanos) {
    OF_HELPERS.set(OF_HELPERS.get() + took.0);
}

/// Counts only this thread's CPU time from now on. The thread watches within a program that has other work, which is no
/// cost of watching.
pub fn count_thread_alone() {
    IS_ALONE.set(true);
}

pub(crate) fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of process `pid`, to the nanosecond; `None` if it has ended.
///
/// Source: `MAKE_PROCESS_CPUCLOCK` and `CPUCLOCK_SCHED` of include/linux/posix-timers.h, as clock_getcpuclockid(3).
pub(crate) fn cpu_of(pid: u32) -> Option<Nanos> {
    const CPUCLOCK_SCHED: libc::clockid_t = 2;
    let clock = (!libc::pid_t::try_from(pid).ok()?) << 3 | CPUCLOCK_SCHED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is valid for writing.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
    Some(Nanos(seconds * 1_000_000_000 + time.tv_nsec as u64))
}

pub(crate) fn monotonic() -> Nanos {
    read(ClockId::Monotonic)
}

/// Returns the time since the machine started, suspended or not.
pub fn since_boot() -> Nanos {
    read(ClockId::Boottime)
}

/// A clock that starts at the time of day and is then monotonic: timestamps never step back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: u64,
}

impl Clock {
    /// Returns a clock that shows the time of day now.
    pub fn start() -> Self {
        let time_of_day = read(ClockId::Realtime);
        Self {
            offset: time_of_day.since(monotonic()).0,
        }
    }

    /// Returns the difference of this clock from CLOCK_MONOTONIC, in nanoseconds.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Returns the nanoseconds since the Unix epoch.
    pub fn now(self) -> Nanos {
        Nanos(self.offset + monotonic().0)
    }

    /// Sleeps until `time`, or until one of `wakes` is readable.
    pub fn sleep_until(self, time: Nanos, wakes: &[BorrowedFd<'_>]) {
        wait(wakes, time.since(self.now()));
    }
}

/// Waits until one of `wakes` is readable, for no longer than `at_most`. Returns whether one is.
pub(crate) fn wait(wakes: &[BorrowedFd<'_>], at_most: Nanos) -> bool {
    let wakes = wakes.iter();
    let mut polls: Vec<PollFd<'_>> = wakes.map(|wake| PollFd::new(wake, PollFlags::IN)).collect();
    let time = Timespec::try_from(Duration::from_nanos(at_most.0)).ok();
    poll(&mut polls, time.as_ref()).is_ok_and(|nr_ready| nr_ready > 0)
}

/// Returns the time of some ticks of the kernel's statistics.
pub(crate) fn of_ticks(ticks: u64) -> Nanos {
    // SAFETY: no preconditions.
    let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Nanos(ticks.saturating_mul(1_000_000_000 / per_s))
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
