//! A process that always exists and has no memory, for calls that require a process.

use std::fs;

use crate::pressure::stat_fields;

/// Process id of the first kernel thread, the parent of the others.
pub(crate) const KTHREADD: u32 = 2;
/// `PF_KTHREAD` of `include/linux/sched.h`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Returns the process id of a kernel thread. Returns `None` in a pid namespace of our own, where none is visible.
pub fn kernel_thread() -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{KTHREADD}/stat")).ok()?;
    is_of_kernel(&text)?.then_some(KTHREADD)
}

/// Whether `/proc/PID/stat` is that of a kernel thread (field 9: flags).
fn is_of_kernel(stat: &str) -> Option<bool> {
    let flags: u64 = stat_fields(stat)?.nth(6)?.parse().ok()?;
    Some(flags & KERNEL_THREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_are_told_by_their_flags() {
        let check = |stat, wanted| assert_eq!(is_of_kernel(stat), wanted, "{stat}");
        check("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0", Some(true));
        check("2 (a) b) S 1 2 2 0 -1 4194560 0 0", Some(false));
        check("2 (kthreadd) S 0", None);
        let ours = fs::read_to_string("/proc/self/stat").expect("we exist");
        assert_eq!(is_of_kernel(&ours), Some(false));
    }
}
