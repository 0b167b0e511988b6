//! Counters of threads.

use std::fs;
use std::mem::MaybeUninit;

use isotherm_engine::Nanos;

/// Returns the CPU time that a thread has used, including kernel threads (`/proc/PID/schedstat`). Returns `None` if it
/// has ended or the kernel does not report it.
pub fn task_cpu(pid: u32) -> Option<Nanos> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let ns = text.split_whitespace().next()?.parse().ok()?;
    Some(Nanos(ns))
}

/// Returns the counters of this thread.
pub(crate) fn thread_usage() -> libc::rusage {
    let mut usage = MaybeUninit::zeroed();
    // SAFETY: a valid rusage to fill; a zeroed one is valid.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    }
}
