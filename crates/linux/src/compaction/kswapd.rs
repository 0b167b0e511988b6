//! Detects whether a node's kswapd is active.
//!
//! Problem: the kernel's proactive compaction backs off while kswapd runs on the node. It checks the thread's state for
//! that (`kswapd_is_running` in mm/internal.h). No file exports it.
//!
//! Approach: the thread is found by its name and its parent (kthreadd). It is active while its state in
//! `/proc/PID/stat` is running or waiting for a disk. It also counts as active if it used a tenth of the time since the
//! last check (`/proc/PID/schedstat`): a check every 500 ms would otherwise miss most of its work.
//!
//! Limits: if kernel threads are not visible (a container with its own PID namespace), pages scanned by kswapd, in
//! `/proc/vmstat`, are used instead. These are of all nodes together.

use std::fs;
use std::time::Instant;

use isotherm_engine::Nanos;

use crate::cpu::task_cpu;
use crate::kernel_thread::KTHREADD;
use crate::pressure::stat_fields;
use crate::{process, text};

/// Minimum CPU share that counts as active.
const ACTIVE_SHARE: f64 = 0.1;
/// Minimum time in seconds over which a share is significant.
const TIME_MIN_S: f64 = 0.01;

/// Watches one node's kswapd.
#[derive(Debug)]
pub struct Kswapd {
    /// Process id; without one, the pages that any node's kswapd scanned show whether it is active.
    thread: Option<u32>,
    /// Time of the last check, and the work done by then: CPU time in ns, or pages scanned.
    last: Option<(Instant, u64)>,
}

impl Kswapd {
    /// Looks for the thread of `node`.
    pub fn of_node(node: u32) -> Self {
        Self {
            thread: find(&format!("kswapd{node}")),
            last: None,
        }
    }

    /// Whether kswapd is active now, or was since the last call.
    pub fn is_active(&mut self) -> bool {
        let now = Instant::now();
        if let Some(pid) = self.thread {
            return self.is_thread_active(pid, now);
        }
        let scanned = pages_scanned();
        let before = self.last.replace((now, scanned));
        before.is_some_and(|(_, before)| scanned > before)
    }

    fn is_thread_active(&mut self, pid: u32, now: Instant) -> bool {
        let is_running = state(pid).is_some_and(|state| matches!(state, 'R' | 'D'));
        let Some(Nanos(cpu)) = task_cpu(pid) else {
            return is_running;
        };
        let (then, cpu_then) = *self.last.get_or_insert((now, cpu));
        let elapsed = now.duration_since(then).as_secs_f64();
        if elapsed < TIME_MIN_S {
            return is_running;
        }
        self.last = Some((now, cpu));
        let used = cpu.saturating_sub(cpu_then) as f64 / 1e9;
        is_running || used >= ACTIVE_SHARE * elapsed
    }
}

fn find(name: &str) -> Option<u32> {
    let mut named = process::named(name).into_iter();
    // Any program may have this name.
    named.find(|pid| process::parent_of(*pid) == Some(KTHREADD))
}

fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat_fields(&text)?.next()?.chars().next()
}

fn pages_scanned() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    text::counters(&text)
        .filter(|(name, _)| name.starts_with("pgscan_kswapd"))
        .map(|(_, pages)| pages)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_node_no_thread() {
        let mut kswapd = Kswapd::of_node(4_000_000);
        assert_eq!(kswapd.thread, None);
        assert!(!kswapd.is_active(), "nothing to compare with yet");
    }

    #[test]
    fn the_first_node_has_one() {
        let test = "the_first_node_has_one";
        let mut kswapd = Kswapd::of_node(0);
        if kswapd.thread.is_none() {
            eprintln!("SKIP {test}: kernel threads cannot be seen here");
            return;
        }
        // Its first answer may be either, but comes at once.
        kswapd.is_active();
        assert!(kswapd.last.is_some());
    }
}
