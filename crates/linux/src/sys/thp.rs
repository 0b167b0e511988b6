//! Policy of huge pages for a program's first faults: the system's policy, none, or only where they were requested.
//!
//! No call sets this for another process. But a process has a flag (`prctl(PR_SET_THP_DISABLE)`) that its children
//! inherit and keep when they call exec. So the flag is set on this process while a command is started, and then
//! restored.
//!
//! `never` also prevents schemes from making huge pages. `advised` does not. It suits `hugepage` and `nohugepage` if
//! the system's policy is `always`. Memory then faults in as base pages, and becomes huge where a scheme, or the
//! program (`MADV_HUGEPAGE`), requests it.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst; include/uapi/linux/prctl.h of Linux 6.18.

use std::io;

use isotherm_policy::ThpPolicy;
use thiserror::Error;

use crate::host;
use crate::system_call::checked;

const PR_SET_THP_DISABLE: i32 = 41;
const PR_GET_THP_DISABLE: i32 = 42;
/// Flag that excepts advised memory, and memory that is collapsed on demand; since Linux 6.18.
const PR_THP_DISABLE_EXCEPT_ADVISED: u64 = 1 << 1;

/// Reason why the policy cannot be set.
#[derive(Debug, Error)]
pub enum ThpError {
    #[error(
        "huge pages only where they are advised came with Linux 6.18, and this is {release}; leave --thp advised \
         out, or use --thp never (then no scheme makes huge pages either)"
    )]
    TooOld { release: String },
    #[error("cannot set the policy of huge pages for a command: {0}")]
    Failed(#[source] io::Error),
}

/// Calls `start`, which starts a process, so that the started process has `policy`.
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
    // Restores the state: `before` is the flags with a bit that shows whether it is disabled at all.
    set((before & 1, before & !1)).map_err(ThpError::Failed)?;
    Ok(started)
}

fn set((is_disabled, flags): (u64, u64)) -> io::Result<()> {
    // SAFETY: no pointers; it concerns this process only.
    let done = unsafe { libc::prctl(PR_SET_THP_DISABLE, is_disabled, flags, 0_u64, 0_u64) };
    checked(done).map(drop)
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
        // Advised memory may be huge.
        if let Some(advised) = enabled(ThpPolicy::Advised) {
            assert_eq!(advised, "1");
        }
        assert_eq!(get().expect("as before"), before);
    }
}
