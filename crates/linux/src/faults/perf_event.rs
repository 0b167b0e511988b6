//! Software events of perf, one for each processor: they count page faults, and run a program once per sampling period.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{
    PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_TYPE_SOFTWARE,
    perf_event_attr,
};

use crate::system_call::{checked, owned};

/// `PERF_EVENT_IOC_PERIOD`: `_IOW('$', 4, __u64)`.
const IOC_PERIOD: libc::Ioctl = 0x4008_2404;

/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`: `_IO('$', 0)` and `_IO('$', 1)`.
const IOC_ENABLE: libc::Ioctl = 0x2400;
const IOC_DISABLE: libc::Ioctl = 0x2401;
/// `PERF_FLAG_FD_CLOEXEC`.
const FD_CLOEXEC: libc::c_ulong = 8;

/// Minor faults, which waited for nothing: first touches, and pages that were in memory already.
pub(super) const MINOR: u32 = PERF_COUNT_SW_PAGE_FAULTS_MIN;
/// Major faults, which waited for a device or for swap.
pub(super) const MAJOR: u32 = PERF_COUNT_SW_PAGE_FAULTS_MAJ;

/// Starts counting the faults of all processes on one processor.
///
/// # Errors
/// Fails with `EACCES` or `EPERM` without CAP_PERFMON, and with `ENODEV` if the processor is not online.
pub(super) fn open(what: u32, cpu: u32, period: u64) -> io::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: what.into(),
        ..perf_event_attr::default()
    };
    attributes.__bindgen_anon_1.sample_period = period;
    let (everybody, no_group) = (-1, -1);
    // SAFETY: perf_event_open(2) reads an attribute of the size that it says; the rest are numbers, and a
    // result that is not negative is a new descriptor.
    unsafe {
        owned(libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            everybody,
            cpu as libc::c_int,
            no_group,
            FD_CLOEXEC,
        ))
    }
}

/// Runs the program at every `period`-th fault from now on.
pub(super) fn set_period(event: &OwnedFd, period: u64) -> io::Result<()> {
    // SAFETY: this ioctl reads one number (perf_event_set_period in kernel/events/core.c).
    let done = unsafe { libc::ioctl(event.as_raw_fd(), IOC_PERIOD, &raw const period) };
    checked(done).map(drop)
}

pub(super) fn set_counting(event: &OwnedFd, counts: bool) -> io::Result<()> {
    let what = if counts { IOC_ENABLE } else { IOC_DISABLE };
    // SAFETY: these ioctls take a flag, here none.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), what, 0) };
    checked(done).map(drop)
}
