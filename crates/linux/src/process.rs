//! A watched process, held by a pidfd, so that a reused process id is never mistaken for it.

mod content;
mod runtime;
mod swap_in;
mod worker;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use isotherm_engine::AddressRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use thiserror::Error;

use crate::arch;
use crate::areas::MappedArea;
use crate::page_map::PageMap;
use crate::system_call::{checked, owned};
use crate::text;

pub use runtime::Runtime;
pub use worker::resident_bytes;

/// Maximum number of ranges in one `process_madvise` call (UIO_MAXIOV).
const MAX_VECTORS: usize = 1024;

/// Maximum bytes that one `process_madvise` call pages out, unless a single range is larger. The kernel holds the
/// target's mmap lock for the whole call: threads that map or unmap memory wait for it, and faults queue behind them. 4
/// MiB take some 5 to 15 ms.
pub(crate) const PAGEOUT_CALL_BYTES: u64 = 4 << 20;

/// Operation of errors of process_madvise(2).
const ADVISE: &str = "advise about memory";
/// Flag of move_pages(2): move pages that only this process maps (include/uapi/linux/mempolicy.h).
const MPOL_MF_MOVE: i32 = 1 << 1;

/// Reason why a process cannot be watched.
#[derive(Debug, Error)]
pub enum ProcessError {
    #[error("process {pid} does not exist; did it end already?")]
    NoSuchProcess { pid: u32 },
    #[error("cannot {what} of process {pid}: {source}")]
    Refused {
        what: &'static str,
        pid: u32,
        source: io::Error,
    },
}

impl ProcessError {
    fn refused(what: &'static str, pid: u32, source: io::Error) -> Self {
        Self::Refused { what, pid, source }
    }
}

/// Memory use of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Resident bytes (VmRSS).
    pub rss: u64,
    /// Swapped-out bytes (VmSwap).
    pub swap: u64,
}

/// Outcome of `process_madvise` for one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advised {
    /// The kernel accepted the whole range.
    Taken,
    /// The kernel refused the range, or a part of it, with this errno.
    Refused(i32),
}

/// A process, held by its pidfd.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
    /// Thread whose `/proc` files are read instead of the main thread's; 0 for none.
    other_thread: AtomicU32,
}

impl Process {
    /// Opens a pidfd for process `pid`.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        // SAFETY: pidfd_open(2) takes plain numbers; a non-negative result is a new descriptor.
        let pidfd = unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)) };
        let error = |source: io::Error| match source.raw_os_error() {
            Some(libc::ESRCH | libc::EINVAL) => ProcessError::NoSuchProcess { pid },
            _ => ProcessError::refused("take hold", pid, source),
        };
        Ok(Self {
            pid,
            pidfd: pidfd.map_err(error)?,
            other_thread: AtomicU32::new(0),
        })
    }

    /// Returns the process id in our pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process still runs (a zombie does not).
    pub fn is_alive(&self) -> bool {
        let now = Timespec::default();
        let mut polls = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A pending signal interrupts even a call that does not wait.
        retry_on_intr(|| poll(&mut polls, Some(&now))) == Ok(0)
    }

    /// Returns the mappings in address order, without the kernel's own (`[vsyscall]`).
    pub fn mappings(&self) -> Result<Vec<MappedArea>, ProcessError> {
        let maps = self.read("maps", "read the mappings")?;
        Ok(maps.lines().filter_map(MappedArea::parse).collect())
    }

    /// Returns the memory use of the process.
    pub fn usage(&self) -> Result<ProcessUsage, ProcessError> {
        let status = self.read("status", "read the memory use")?;
        let kib = |name: &str| {
            let words = text::value(&status, name).map(str::split_whitespace);
            let number = words.and_then(|mut words| words.next()?.parse::<u64>().ok());
            number.unwrap_or(0)
        };
        Ok(ProcessUsage {
            rss: kib("VmRSS:") << 10,
            swap: kib("VmSwap:") << 10,
        })
    }

    /// Returns the command name (`comm`), or an empty string if the process has ended.
    pub fn name(&self) -> String {
        self.read("comm", "read the name")
            .map(|name| name.trim_end().to_owned())
            .unwrap_or_default()
    }

    /// Returns the process ids of the children.
    pub fn children(&self) -> Vec<u32> {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return Vec::new();
        };
        let mut children: Vec<u32> = threads
            .filter_map(Result::ok)
            .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
            .flat_map(|list| pids_in(&list))
            .collect();
        if self.is_alive() {
            children.sort_unstable();
        } else {
            children.clear();
        }
        children
    }

    fn read(&self, file: &str, what: &'static str) -> Result<String, ProcessError> {
        let mut bytes = fs::read(self.memory_path(file));
        if tells_of_no_memory(file, bytes.as_deref().unwrap_or_default())
            && self.find_memory_thread()
        {
            bytes = fs::read(self.memory_path(file));
        }
        // The process is alive after the read, so the content is its own, not that of another process with a reused id.
        match bytes {
            Ok(bytes) if self.is_alive() => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) if self.is_alive() => Err(ProcessError::refused(what, self.pid, source)),
            _ => Err(ProcessError::NoSuchProcess { pid: self.pid }),
        }
    }

    /// Checks that this user may advise the kernel about the process's memory.
    ///
    /// # Errors
    /// Fails with [`ProcessError::Refused`] without CAP_SYS_NICE.
    pub fn may_be_advised(&self) -> Result<(), ProcessError> {
        match self.advise_batch(&[], libc::MADV_COLD) {
            Err(source) if source.raw_os_error() == Some(libc::EPERM) => {
                let source = io::Error::other(format!("{source} (CAP_SYS_NICE is needed)"));
                Err(ProcessError::refused(ADVISE, self.pid, source))
            }
            _ => Ok(()),
        }
    }

    /// Advises the kernel about `ranges` and continues after those that it refuses. `outcomes` receives one entry for
    /// each range. Ranges are widened to whole pages of the kernel. Fails only if the process is gone or may
    /// not be advised at all.
    pub fn advise(
        &self,
        ranges: &[AddressRange],
        advice: i32,
        outcomes: &mut Vec<Advised>,
    ) -> Result<(), ProcessError> {
        outcomes.clear();
        let whole: Vec<AddressRange>;
        let mut ranges = ranges;
        if arch::frame_shift() > 0 {
            whole = ranges.iter().copied().map(arch::whole_pages).collect();
            ranges = &whole;
        }
        while outcomes.len() < ranges.len() {
            let batch = &ranges[outcomes.len()..];
            let batch = &batch[..call_length(batch, advice)];
            let mut taken = match self.advise_batch(batch, advice) {
                Ok(bytes) => bytes,
                Err(source) => {
                    match source.raw_os_error() {
                        Some(libc::ESRCH) => {
                            return Err(ProcessError::NoSuchProcess { pid: self.pid });
                        }
                        Some(libc::EPERM | libc::ENOSYS) => {
                            return Err(ProcessError::refused(ADVISE, self.pid, source));
                        }
                        Some(libc::EINTR) => {}
                        // The first range of the batch was refused.
                        errno => outcomes.push(Advised::Refused(errno.unwrap_or(0))),
                    }
                    continue;
                }
            };
            // The kernel stops at the first refused range and returns the number of bytes before it.
            for range in batch {
                if taken < range.len() {
                    break;
                }
                taken -= range.len();
                outcomes.push(Advised::Taken);
            }
        }
        Ok(())
    }

    pub(crate) fn page_map(&self) -> io::Result<PageMap> {
        let file = fs::File::open(self.memory_path("pagemap"))?;
        // The same check as in `read`.
        if self.is_alive() {
            Ok(PageMap(file))
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    }

    /// Returns the node of each page, or a negative errno where no page is present.
    pub fn nodes_of(&self, pages: &[u64]) -> Result<Vec<i32>, ProcessError> {
        self.call_move_pages(pages, None, "ask for the nodes")
    }

    /// Moves each page to a node. Returns the node of each page afterwards, or a negative errno.
    pub fn move_pages(&self, pages: &[u64], nodes: &[i32]) -> Result<Vec<i32>, ProcessError> {
        assert_eq!(pages.len(), nodes.len(), "a node for each page");
        match self.call_move_pages(pages, Some(nodes), "move the memory") {
            // A node is full: the call ends at the first page that does not fit and reports nothing about the others.
            // Their current nodes are read instead.
            Err(ProcessError::Refused { source, .. })
                if source.raw_os_error() == Some(libc::ENOMEM) =>
            {
                let now = self.nodes_of(pages)?.into_iter().zip(nodes);
                let status = now.map(|(now, wanted)| match now {
                    now if now < 0 || now == *wanted => now,
                    _ => -libc::ENOMEM,
                });
                Ok(status.collect())
            }
            answer => answer,
        }
    }

    fn call_move_pages(
        &self,
        pages: &[u64],
        nodes: Option<&[i32]>,
        what: &'static str,
    ) -> Result<Vec<i32>, ProcessError> {
        let mut status = vec![-libc::ENOENT; pages.len()];
        if pages.is_empty() {
            return Ok(status);
        }
        // move_pages(2) does not take a pidfd: the number is only used while the process is alive.
        if !self.is_alive() {
            return Err(ProcessError::NoSuchProcess { pid: self.pid });
        }
        // SAFETY: the arrays are as long as the count says; the addresses are another process's and
        // are not dereferenced here.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                self.memory_thread(),
                pages.len(),
                pages.as_ptr(),
                nodes.map_or(std::ptr::null(), <[i32]>::as_ptr),
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        // A positive result is the number of pages that did not move; their status shows the reason.
        if result >= 0 {
            return Ok(status);
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            // EINVAL: it has no memory (any more; find_mm_struct() in mm/migrate.c), such as a process that ends a
            // moment before its pidfd reports it.
            Some(libc::ESRCH | libc::EINVAL) => Err(ProcessError::NoSuchProcess { pid: self.pid }),
            // No page has to move (all are already there, or not present).
            Some(libc::ENOENT) => Ok(status),
            _ => Err(ProcessError::refused(what, self.pid, source)),
        }
    }

    /// Duplicates the pidfd and returns another handle of the same process.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            pid: self.pid,
            pidfd: self.pidfd.try_clone()?,
            other_thread: AtomicU32::new(0),
        })
    }

    fn advise_batch(&self, batch: &[AddressRange], advice: i32) -> io::Result<u64> {
        let vectors = batch.iter().map(|r| vector(r.start, r.len() as usize));
        let vectors: Vec<libc::iovec> = vectors.collect();
        // SAFETY: process_madvise(2) reads the vectors; the addresses in them are another
        // process's and are not dereferenced here.
        let result = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.pidfd.as_raw_fd(),
                vectors.as_ptr(),
                vectors.len(),
                advice,
                0,
            )
        };
        checked(result).map(|bytes| bytes as u64)
    }
}

/// Returns a part of memory as system calls take it; its address need not be ours.
pub(crate) fn vector(address: u64, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    }
}

/// Whether the content of a `/proc/PID` file shows no address space.
fn tells_of_no_memory(file: &str, bytes: &[u8]) -> bool {
    match file {
        "maps" | "smaps" => bytes.is_empty(),
        "status" => !bytes.windows(6).any(|part| part == b"VmRSS:"),
        _ => false,
    }
}

/// Returns the number of leading `ranges` that go into one call.
pub(crate) fn call_length(ranges: &[AddressRange], advice: i32) -> usize {
    let most = ranges.len().min(MAX_VECTORS);
    if advice != libc::MADV_PAGEOUT {
        return most;
    }
    let mut bytes = 0;
    let fits = |range: &&AddressRange| {
        bytes += range.len();
        bytes <= PAGEOUT_CALL_BYTES
    };
    ranges[..most].iter().take_while(fits).count().max(1)
}

/// Returns the ancestors of this process, its parent first, without pid 1.
pub fn ancestors() -> Vec<u32> {
    let parents = std::iter::successors(parent_of(std::process::id()), |pid| parent_of(*pid));
    parents.take_while(|pid| *pid > 1).collect()
}

pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text::value(&status, "PPid:")?.parse().ok()
}

/// Iterates over the ids of all processes except this one, kernel threads included.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id())
}

/// Returns the processes with this command name except this one, lowest id first.
pub fn named(name: &str) -> Vec<u32> {
    let mut pids: Vec<u32> = all().filter(|pid| has_name(*pid, name)).collect();
    pids.sort_unstable();
    pids
}

/// Returns the number of pages of a process that KSM has merged with equal pages; 0 where the kernel does not report
/// them (Documentation/admin-guide/mm/ksm.rst).
pub fn merged_pages(pid: u32) -> u64 {
    text::number(format!("/proc/{pid}/ksm_merging_pages")).unwrap_or(0)
}

/// Whether process `pid` has this command name (`/proc/PID/comm`, which the kernel cuts after 15 bytes).
pub fn has_name(pid: u32, name: &str) -> bool {
    let name = &name.as_bytes()[..name.len().min(15)];
    fs::read(format!("/proc/{pid}/comm"))
        .is_ok_and(|comm| comm.strip_suffix(b"\n").unwrap_or(&comm) == name)
}

/// Sends SIGTERM to a child of ours. Does nothing if it has ended already.
pub fn terminate(child: &mut std::process::Child) {
    if let Ok(None) = child.try_wait() {
        // It is not yet waited for, so its number is not reused.
        kill_process(Pid::from_child(child), Signal::TERM).ok();
    }
}

/// Returns the children of this thread. These are the processes that it started and, after `PR_SET_CHILD_SUBREAPER`,
/// their descendants whose own parents have ended.
pub fn children_of_this_thread() -> Vec<u32> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    pids_in(&list)
}

fn pids_in(list: &str) -> Vec<u32> {
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.collect()
}

/// Raises the limit of open files to the hard limit (each target takes some) and returns it. Call it after other
/// programs were started: some do not expect so high a limit.
pub fn raise_file_limit() -> u64 {
    let before = getrlimit(Resource::Nofile);
    let (current, maximum) = (before.maximum, before.maximum);
    let raised = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    let limit = raised.map_or(before.current, |()| maximum);
    // `None` is no limit.
    limit.unwrap_or(u64::MAX)
}

/// Whether process ids here are those of the initial pid namespace.
pub(crate) fn in_initial_pid_namespace() -> bool {
    // PROC_PID_INIT_INO, include/linux/proc_ns.h.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_page_out_are_short() {
        let ranges: Vec<AddressRange> = (0..3000)
            .map(|n| AddressRange::new(n << 20, (n + 1) << 20))
            .collect();
        assert_eq!(call_length(&ranges, libc::MADV_PAGEOUT), 4);
        assert_eq!(call_length(&ranges, libc::MADV_COLD), MAX_VECTORS);
        let large = [
            AddressRange::new(0, 1 << 30),
            AddressRange::new(1 << 30, 1 << 31),
        ];
        assert_eq!(call_length(&large, libc::MADV_PAGEOUT), 1);
    }

    #[test]
    fn our_own_process_is_alive_and_a_dead_one_is_said_to_be() {
        let me = Process::open(std::process::id()).expect("we exist");
        assert!(me.is_alive());
        assert!(me.usage().expect("our own status").rss > 0);
        assert!(!me.mappings().expect("our own maps").is_empty());
        let mut child = std::process::Command::new("true").spawn().expect("true(1)");
        let held = Process::open(child.id()).expect("not yet reaped");
        child.wait().expect("our child");
        assert!(!held.is_alive());
        let mappings = held.mappings();
        assert!(matches!(mappings, Err(ProcessError::NoSuchProcess { .. })));
        let again = Process::open(child.id());
        assert!(matches!(again, Err(ProcessError::NoSuchProcess { .. })));
    }

    #[test]
    fn what_has_no_memory_is_gone_for_who_moves_it() {
        // A kernel thread has no memory, like a process that is just ending.
        let Ok(thread) = Process::open(2) else { return };
        let nodes = thread.nodes_of(&[0x1000]);
        let is_refused = matches!(nodes, Err(ProcessError::Refused { ref source, .. }) if source.raw_os_error() == Some(libc::EPERM));
        let is_gone = matches!(nodes, Err(ProcessError::NoSuchProcess { .. }));
        assert!(is_refused || is_gone, "{nodes:?}");
    }

    #[test]
    fn a_signal_does_not_make_a_process_seem_dead() {
        extern "C" fn nothing(_: i32) {}
        let me = Process::open(std::process::id()).expect("we exist");
        let timer = |tv_usec| {
            let it_value = libc::timeval { tv_sec: 0, tv_usec };
            libc::itimerval {
                it_interval: it_value,
                it_value,
            }
        };
        let (often, never) = (timer(50), timer(0));
        let handler = nothing as extern "C" fn(i32);
        // SAFETY: a handler that does nothing, and valid structs.
        unsafe {
            libc::signal(libc::SIGALRM, handler as libc::sighandler_t);
            libc::setitimer(libc::ITIMER_REAL, &raw const often, std::ptr::null_mut());
        }
        let died = (0..300_000).filter(|_| !me.is_alive()).count();
        // SAFETY: as above.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const never, std::ptr::null_mut()) };
        assert_eq!(died, 0);
    }

    #[test]
    fn pages_are_read_and_those_that_cannot_be_are_left_out() {
        let ours = Process::open(std::process::id()).expect("we exist");
        let memory = vec![0_u8; 16 << 20];
        let first = (memory.as_ptr() as u64).next_multiple_of(4096);
        // More pages than one call takes, with a hole among them.
        let mut pages: Vec<u64> = (0..3000).map(|i| first + i * 4096).collect();
        pages.insert(1500, 4096);
        ours.fault_in(&pages);
        let map = ours.page_map().expect("our own");
        let nr_there = pages.iter().filter(|page| map.is_present(**page)).count();
        assert_eq!(nr_there, 3000);
        assert!(!map.is_present(first + 3500 * 4096));
        drop(memory);
    }
}
