//! What a program's first faults get: huge pages as the system does it, none, or only where they were asked for.
//!
//! No call says so of another process. But a process has a flag (`prctl(PR_SET_THP_DISABLE)`) that its children
//! inherit and keep when they call exec: so it is set on ourselves while a command is started, and then set back.
//!
//! `never` also keeps what schemes make from being huge. `advised` does not, and is what `hugepage` and
//! `nohugepage` want where the system's policy is `always`: memory faults in as small pages, and becomes huge where
//! a scheme, or the program (`MADV_HUGEPAGE`), says so.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst; include/uapi/linux/prctl.h of Linux 6.18.

use std::io;

use thiserror::Error;

use crate::host;

const PR_SET_THP_DISABLE: i32 = 41;
const PR_GET_THP_DISABLE: i32 = 42;
/// But for memory that was advised, and what is collapsed on demand; since Linux 6.18.
const PR_THP_DISABLE_EXCEPT_ADVISED: u64 = 1 << 1;

/// Huge pages of a command that is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThpPolicy {
    /// As the system does it.
    #[default]
    Inherit,
    /// Only where the program, or a scheme, asks for them.
    Advised,
    /// Not at all.
    Never,
}

/// The kernel does not do that.
#[derive(Debug, Error)]
pub enum ThpError {
    /// `advised` is younger than this kernel.
    #[error(
        "huge pages only where they are advised came with Linux 6.18, and this is {release}; leave --thp advised \
         out, or use --thp never (then no scheme makes huge pages either)"
    )]
    TooOld {
        /// The kernel's release.
        release: String,
    },
    /// The call failed.
    #[error("cannot set the policy of huge pages for a command: {0}")]
    Failed(#[source] io::Error),
}

/// Does `start`, which starts a process, so that what it starts has `policy`.
pub fn started_with<T>(policy: ThpPolicy, start: impl FnOnce() -> T) -> Result<T, ThpError> {
    let flags = match policy {
        ThpPolicy::Inherit => return Ok(start()),
        ThpPolicy::Advised => (1, PR_THP_DISABLE_EXCEPT_ADVISED),
        ThpPolicy::Never => (1, 0),
    };
    let before = get().map_err(ThpError::Failed)?;
    set(flags).map_err(|error| {
        if policy == ThpPolicy::Advised && error.raw_os_error() == Some(libc::EINVAL) {
            let release = host::kernel_release();
            ThpError::TooOld { release }
        } else {
            ThpError::Failed(error)
        }
    })?;
    let started = start();
    // As it was: `before` is the flags with a bit for whether it is disabled at all.
    set((before & 1, before & !1)).map_err(ThpError::Failed)?;
    Ok(started)
}

fn set((is_disabled, flags): (u64, u64)) -> io::Result<()> {
    // SAFETY: no pointers; it concerns this process only.
    let done = unsafe { libc::prctl(PR_SET_THP_DISABLE, is_disabled, flags, 0_u64, 0_u64) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn get() -> io::Result<u64> {
    // SAFETY: no pointers.
    let flags = unsafe { libc::prctl(PR_GET_THP_DISABLE, 0_u64, 0_u64, 0_u64, 0_u64) };
    u64::try_from(flags).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_command_has_the_policy_and_we_have_it_not() {
        let before = get().expect("Linux 3.15");
        let enabled = |policy| {
            let status = || Command::new("cat").arg("/proc/self/status").output();
            let output = match started_with(policy, status) {
                Err(ThpError::TooOld { .. }) => return None,
                output => output.expect("set").expect("cat(1)"),
            };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("THP_enabled:"));
            line.map(|value| value.trim().to_owned())
        };
        assert_eq!(enabled(ThpPolicy::Never).as_deref(), Some("0"));
        // What is advised may be huge.
        if let Some(advised) = enabled(ThpPolicy::Advised) {
            assert_eq!(advised, "1");
        }
        assert_eq!(get().expect("as before"), before);
    }
}
