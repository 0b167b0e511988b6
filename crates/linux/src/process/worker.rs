//! The memory of a process whose main thread has ended before the others.
//!
//! Problem: `/proc/PID` and a pidfd refer to the main thread. Once that has ended, they show no memory, although the
//! other threads still have it.
//!
//! Approach: another thread is read instead, by `/proc/PID/task/TID`.
//!
//! Limits: process_madvise(2) finds processes only by their main thread (`pidfd_get_task` in kernel/pid.c), so such
//! memory cannot be advised. It is watched by `clear_refs`, and can be moved between nodes.

use std::fs;
use std::io;
use std::sync::atomic::Ordering;

use super::Process;

impl Process {
    /// Returns the thread whose `/proc` files show the memory: the main thread, or another once that has ended.
    pub(crate) fn memory_thread(&self) -> u32 {
        match self.other_thread.load(Ordering::Relaxed) {
            0 => self.pid,
            tid => tid,
        }
    }

    /// Whether process_madvise(2) accepts the process: not after its main thread has ended.
    pub fn takes_advice(&self) -> bool {
        self.memory_thread() == self.pid
    }

    /// Returns the path of a `/proc/PID` file about the process's memory.
    pub(crate) fn memory_path(&self, file: &str) -> String {
        match self.memory_thread() {
            tid if tid == self.pid => format!("/proc/{tid}/{file}"),
            tid => format!("/proc/{}/task/{tid}/{file}", self.pid),
        }
    }

    /// Clears the accessed bits of all memory that the process maps, by `/proc/PID/clear_refs`. Returns `false` if the
    /// process has ended.
    pub(crate) fn clear_refs(&self) -> io::Result<bool> {
        // "1" is for all pages, including those of files.
        match fs::write(self.memory_path("clear_refs"), "1") {
            Err(error) if self.is_alive() => Err(error),
            _ => Ok(self.is_alive()),
        }
    }

    /// Looks for another thread after the current one showed no memory. Returns `false` if there is none.
    pub(super) fn find_memory_thread(&self) -> bool {
        let tid = thread_with_memory(self.pid).filter(|_| self.is_alive());
        let other = tid.filter(|tid| *tid != self.memory_thread());
        if let Some(tid) = other {
            self.other_thread.store(tid, Ordering::Relaxed);
        }
        other.is_some()
    }
}

/// Returns the main thread of process `pid` if it has memory, else the thread with the lowest number that has.
pub(super) fn thread_with_memory(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut tids: Vec<u32> = tasks
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    // Thread ids wrap around, so the main thread's need not be the lowest.
    tids.sort_unstable_by_key(|tid| (*tid != pid, *tid));
    tids.into_iter().find(|tid| {
        let statm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/statm"));
        statm.is_ok_and(|statm| !statm.starts_with("0 "))
    })
}

/// Returns the resident bytes of process `pid` (`/proc/PID/statm`); 0 if it has ended or is a kernel thread.
pub fn resident_bytes(pid: u32) -> u64 {
    match resident_of(&format!("/proc/{pid}")) {
        0 if has_ended_main_thread(pid) => {
            thread_with_memory(pid).map_or(0, |tid| resident_of(&format!("/proc/{pid}/task/{tid}")))
        }
        bytes => bytes,
    }
}

fn resident_of(folder: &str) -> u64 {
    let statm = fs::read_to_string(format!("{folder}/statm")).unwrap_or_default();
    let pages = statm.split_whitespace().nth(1);
    let pages = pages.and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * crate::arch::page_bytes()
}

/// Whether the main thread of process `pid` has ended while other threads may still run.
fn has_ended_main_thread(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = crate::pressure::stat_fields(&stat).into_iter().flatten();
    fields.next() == Some("Z") && fields.nth(16).is_some_and(|threads| threads != "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_is_asked_while_it_runs() {
        let us = std::process::id();
        let me = Process::open(us).expect("we exist");
        assert_eq!(me.memory_thread(), us);
        assert_eq!(thread_with_memory(us), Some(us));
        assert!(!me.find_memory_thread());
        assert_eq!(me.memory_path("maps"), format!("/proc/{us}/maps"));
    }

    #[test]
    fn other_threads_are_asked_once_the_main_thread_has_ended() {
        // A thread that sleeps, and a main thread that exits alone.
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(60,)).start()\n\
                      ctypes.CDLL(None).syscall(60, 0)\n";
        let Ok(mut child) = std::process::Command::new("python3")
            .args(["-c", script])
            .spawn()
        else {
            println!("SKIP other_threads_are_asked_once_the_main_thread_has_ended: no python3");
            return;
        };
        let process = Process::open(child.id()).expect("our child");
        let stat = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        for _ in 0..500 {
            if stat().contains(") Z ") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(stat().contains(") Z "), "{}", stat());
        assert!(process.is_alive());
        let usage = process.usage().expect("a thread tells");
        assert!(usage.rss > 0);
        let mappings = process.mappings().expect("a thread tells");
        assert!(!mappings.is_empty());
        assert_ne!(process.memory_thread(), child.id());
        assert!(!process.takes_advice());
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
}
