//! Compaction that can be stopped: the kernel works in a process of ours, which can be killed.
//!
//! The parent module explains the reason. The process is forked, not executed: it writes one byte to a file and exits.
//! The kernel kills it when the thread that started it ends.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use isotherm_engine::Nanos;
use rustix::pipe::{PipeFlags, pipe_with};

use super::CompactionError;
use crate::clock;

/// File that compacts all nodes; the only way on a kernel without nodes.
const WHOLE: &str = "/proc/sys/vm/compact_memory";

/// Makes the kernel compact one node.
#[derive(Clone, Debug)]
pub struct Trigger {
    path: PathBuf,
}

/// A running compaction. Dropping it stops it.
#[derive(Debug)]
pub struct Compacting {
    path: PathBuf,
    pid: libc::pid_t,
    /// Pipe that is readable at the end, with an error number if the kernel returned one.
    result: File,
    started: Instant,
    is_reaped: bool,
}

/// Result of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    pub took: Nanos,
    pub cpu: Nanos,
    /// Whether it ran until the kernel found nothing more to do.
    pub to_the_end: bool,
}

impl Trigger {
    /// Opens the trigger of `node`, and checks that it is usable.
    pub fn open(node: u32) -> Result<Self, CompactionError> {
        let per_node = PathBuf::from(format!("/sys/devices/system/node/node{node}/compact"));
        let path = [per_node.as_path(), Path::new(WHOLE)]
            .into_iter()
            .find(|path| path.exists());
        let Some(path) = path else {
            return Err(CompactionError::Unsupported {
                per_node: per_node.display().to_string(),
                whole: WHOLE,
            });
        };
        let trigger = Self {
            path: path.to_path_buf(),
        };
        trigger.file()?;
        Ok(trigger)
    }

    /// Returns the file that is written to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts compacting. Compaction stops when the calling thread ends, at the latest.
    pub fn start(&self) -> Result<Compacting, CompactionError> {
        let file = self.file()?;
        let pipe = pipe_with(PipeFlags::CLOEXEC);
        let (result, theirs) = pipe.map_err(|error| CompactionError::NoProcess(error.into()))?;
        // SAFETY: takes nothing and cannot fail.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child has only this thread, so it must not wait for another's lock: it calls async-signal-safe
        // functions alone (signal-safety(7)) and leaves by _exit.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(CompactionError::NoProcess(io::Error::last_os_error())),
            0 => compact(file.as_raw_fd(), theirs.as_raw_fd(), parent),
            _ => Ok(Compacting {
                path: self.path.clone(),
                pid,
                result: result.into(),
                started: Instant::now(),
                is_reaped: false,
            }),
        }
    }

    fn file(&self) -> Result<File, CompactionError> {
        let opened = OpenOptions::new().write(true).open(&self.path);
        opened.map_err(|source| CompactionError::Denied {
            path: self.path.clone(),
            source,
        })
    }
}

impl Compacting {
    /// Waits for the end, for no longer than `at_most`. Returns whether the end has come.
    pub fn wait(&mut self, at_most: Nanos) -> bool {
        clock::wait(&[self.result.as_fd()], at_most)
    }

    /// Stops the compaction, if it still runs.
    pub fn finish(mut self) -> Result<Compacted, CompactionError> {
        let to_the_end = self.wait(Nanos(0));
        if !to_the_end {
            self.kill();
        }
        let cpu = self.reap().map_err(CompactionError::NoProcess)?;
        let took = Nanos::from(self.started.elapsed());
        let mut error = Vec::new();
        self.result.read_to_end(&mut error).ok();
        match error
            .first_chunk()
            .map(|bytes| c_int::from_ne_bytes(*bytes))
        {
            None | Some(libc::EINTR) => Ok(Compacted {
                took,
                cpu,
                to_the_end,
            }),
            Some(number) => Err(CompactionError::Refused {
                path: self.path.clone(),
                source: io::Error::from_raw_os_error(number),
            }),
        }
    }

    fn kill(&self) {
        // SAFETY: our child, which is not reaped yet, so its number is not reused.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Waits for the process to exit, and returns its CPU time.
    fn reap(&mut self) -> io::Result<Nanos> {
        // SAFETY: all-zero is a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: our child; no status is wanted; a valid `rusage` to fill.
            let done = unsafe { libc::wait4(self.pid, std::ptr::null_mut(), 0, &raw mut usage) };
            if done == self.pid {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                self.is_reaped = true;
                return Err(error);
            }
        }
        self.is_reaped = true;
        let nanos = |time: libc::timeval| {
            Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000)
        };
        Ok(nanos(usage.ru_utime) + nanos(usage.ru_stime))
    }
}

impl Drop for Compacting {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
            self.reap().ok();
        }
    }
}

/// Runs the whole child. Nothing here may allocate or lock.
fn compact(file: c_int, result: c_int, parent: libc::pid_t) -> ! {
    // SAFETY: all of these are async-signal-safe; the pointers are to bytes that outlive the calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The death signal is not sent if the parent died before the line above.
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        // The write is at offset 0: a file below /proc/sys accepts no other offset.
        let one = c"1";
        if libc::pwrite(file, one.as_ptr().cast(), 1, 0) < 0 {
            let error = (*libc::__errno_location()).to_ne_bytes();
            libc::write(result, error.as_ptr().cast(), error.len());
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compacts by a file that is no compaction control, so that the child's write can be seen.
    fn check(path: &str, outcome: impl FnOnce(Result<Compacted, CompactionError>)) {
        let trigger = Trigger {
            path: PathBuf::from(path),
        };
        let mut compacting = trigger.start().expect("a process");
        assert!(compacting.wait(Nanos::from_millis(60_000)), "it never ends");
        outcome(compacting.finish());
    }

    #[test]
    fn the_end_is_noticed_and_its_cost_known() {
        check("/dev/null", |done| {
            let done = done.expect("written");
            assert!(done.to_the_end && done.took > Nanos(0));
        });
    }

    #[test]
    fn the_kernels_refusal_is_passed_on() {
        check("/dev/full", |done| {
            let text = done.expect_err("the device is full").to_string();
            assert!(text.contains("/dev/full"), "{text}");
            assert!(text.contains("No space"), "{text}");
        });
    }

    #[test]
    fn one_that_is_dropped_leaves_no_process() {
        let trigger = Trigger {
            path: PathBuf::from("/dev/null"),
        };
        let compacting = trigger.start().expect("a process");
        let pid = compacting.pid;
        drop(compacting);
        // SAFETY: asks for a child that should not exist; no status is wanted.
        let found = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!(found, -1);
    }

    #[test]
    fn what_cannot_be_opened_is_said() {
        let trigger = Trigger {
            path: PathBuf::from("/nonexistent/compact"),
        };
        let text = trigger.start().expect_err("no such file").to_string();
        assert!(text.contains("run as root"), "{text}");
    }
}
