//! One run of QEMU: in virtual time or under KVM, with a limit, and the time that it took.
//!
//! In virtual time (`-icount`) the guest's clock counts instructions, and time in which no processor has anything to do
//! passes at once. What a guest sees then does not depend on how busy the host is. One thread of the host executes all
//! of the guest's processors in turn.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Result, VmError};

/// Time after which a machine is killed, even if it has only waited for a processor of the host.
const LONGEST: Duration = Duration::from_mins(40);
const POLL: Duration = Duration::from_millis(20);

/// Returns QEMU's options for the accelerator of `$ISOTHERM_VM_ACCEL`: `tcg`, which is the default (emulation in virtual
/// time, in which an instruction takes 2^`instruction_ns_log2` nanoseconds), or `kvm` (the host's processor, in real time).
pub(crate) fn accelerator(instruction_ns_log2: u32, is_arm64: bool) -> Result<Vec<String>> {
    let value = std::env::var_os("ISOTHERM_VM_ACCEL");
    // The host's processor is no arm64 one.
    let value = value.filter(|_| !is_arm64).unwrap_or_else(|| "tcg".into());
    let icount = format!("shift={instruction_ns_log2},sleep=off");
    let options = match value.to_str() {
        Some("tcg") => vec!["-accel", "tcg,thread=single", "-icount", &icount],
        Some("kvm") => vec!["-accel", "kvm"],
        _ => {
            return Err(VmError::Wrong(format!(
                "ISOTHERM_VM_ACCEL is {}; set it to `tcg` or `kvm`",
                value.display()
            )));
        }
    };
    Ok(options.into_iter().map(str::to_owned).collect())
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Time from its start to its end.
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

thread_local! {
    static SPENT: Cell<Spent> = const { Cell::new(Spent { wall: Duration::ZERO, cpu: Duration::ZERO }) };
}

/// Returns the host time of all machines that this thread has run since the last call.
pub(crate) fn take_spent() -> Spent {
    SPENT.take()
}

/// A running QEMU, killed when dropped.
pub(crate) struct Qemu {
    child: Child,
    started: Instant,
    cpu: Duration,
}

impl Qemu {
    /// Starts `program` (`qemu-system-x86_64` or another) with these arguments; its error messages go to `stderr`.
    pub(crate) fn start(program: &str, arguments: &[String], stderr: &Path) -> Result<Self> {
        // setpriv would report a missing QEMU only by its own exit code.
        match Command::new(program).arg("--version").output() {
            Ok(output) if output.status.success() => {}
            other => {
                return Err(VmError::Unavailable {
                    what: "QEMU".to_owned(),
                    why: format!("{program} --version: {other:?}"),
                    fix: "install Debian's qemu-system-x86 and qemu-system-arm".to_owned(),
                });
            }
        }
        // Through setpriv, so that QEMU dies with the thread that waits for it.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(stderr).map_or_else(|_| Stdio::null(), Stdio::from));
        let child = command.spawn().map_err(|e| VmError::Command {
            command: format!("{command:?}"),
            why: e.to_string(),
        })?;
        Ok(Self {
            child,
            started: Instant::now(),
            cpu: Duration::ZERO,
        })
    }

    /// Waits for QEMU and returns its exit status. Returns `None` if QEMU was killed because it used more processor
    /// time than `limit` or ran for too long.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        while self.started.elapsed() < LONGEST && self.cpu < limit {
            self.cpu = cpu_time(self.child.id()).unwrap_or(self.cpu);
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            thread::sleep(POLL);
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(None)
    }

    /// Returns the host time up to now; the processor time is that of the last check.
    pub(crate) fn spent(&self) -> Spent {
        Spent {
            wall: self.started.elapsed(),
            cpu: self.cpu,
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // The process has ended already, except after a panic; `drop` cannot report an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let before = SPENT.get();
        let own = self.spent();
        SPENT.set(Spent {
            wall: before.wall + own.wall,
            cpu: before.cpu + own.cpu,
        });
    }
}

/// Reads the processor time of a process with all its threads (`/proc/PID/stat`, in hundredths of a second).
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may hold spaces; user and system time are the 14th and 15th field.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_processor_time_until_it_is_reaped() {
        assert!(cpu_time(std::process::id()).is_some());
        assert!(cpu_time(u32::MAX).is_none());
    }
}
