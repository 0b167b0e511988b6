//! Results of system calls.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Returns the result of a system call, or the error that it has set if the result is negative.
pub(crate) fn checked(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        failed if failed < 0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Returns the descriptor that a system call has made, or the error that it has set.
///
/// # Safety
/// A result that is not negative is a descriptor without another owner.
pub(crate) unsafe fn owned(result: impl Into<i64>) -> io::Result<OwnedFd> {
    let fd = checked(result)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
