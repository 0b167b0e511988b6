//! Delay accounting: the time for which the threads of a process have waited for memory. It comes from the kernel's
//! taskstats (generic netlink; Documentation/accounting/delay-accounting.rst).
//!
//! Limits: only while `kernel.task_delayacct` is 1, and only for threads that started after it was set; for others the
//! kernel reports zero. This program never switches it on. Needs CAP_NET_ADMIN.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use isotherm_engine::Nanos;

use crate::system_call::owned;
use crate::text;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const TASKSTATS_CMD_GET: u8 = 1;
const TASKSTATS_CMD_ATTR_TGID: u16 = 2;
const TASKSTATS_TYPE_STATS: u16 = 3;
const TASKSTATS_TYPE_AGGR_TGID: u16 = 5;
/// Fields of `struct taskstats` (include/uapi/linux/taskstats.h), which only grows at its end.
const SWAPIN_DELAY: usize = 56;
const FREEPAGES_DELAY: usize = 320;
const THRASHING_DELAY: usize = 336;
/// `struct nlmsghdr` and `struct genlmsghdr`.
const HEADERS: usize = 20;

/// Connection to the kernel's delay accounting.
#[derive(Debug)]
pub struct Delays {
    socket: OwnedFd,
    family: u16,
}

/// Whether the kernel keeps these accounts.
pub fn is_on() -> bool {
    text::number::<u32>("/proc/sys/kernel/task_delayacct") == Some(1)
}

impl Delays {
    /// Opens the kernel's accounts.
    pub fn open() -> io::Result<Self> {
        if !is_on() {
            return Err(io::Error::other(
                "delay accounting is off (`sysctl kernel.task_delayacct=1` turns it on, for \
                 programs that start after)",
            ));
        }
        // SAFETY: plain numbers; a non-negative result is a new descriptor.
        let socket = unsafe {
            owned(libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_GENERIC,
            ))
        }?;
        let request = message(
            GENL_ID_CTRL,
            CTRL_CMD_GETFAMILY,
            CTRL_ATTR_FAMILY_NAME,
            b"TASKSTATS\0",
        );
        let reply = ask(&socket, &request)?;
        let id = attribute(&reply, CTRL_ATTR_FAMILY_ID).and_then(|id| id.get(..2));
        let id = id.ok_or_else(|| io::Error::other("the kernel names no TASKSTATS family"))?;
        let delays = Self {
            socket,
            family: u16::from_ne_bytes([id[0], id[1]]),
        };
        delays.waited(std::process::id())?;
        Ok(delays)
    }

    /// Returns the total time for which the threads of process `pid` have waited for refaults, since each began.
    pub fn waited(&self, pid: u32) -> io::Result<Nanos> {
        Ok(self.delays_of(pid)?[0])
    }

    /// Returns the same, and the time for which they have reclaimed memory themselves.
    pub fn waited_for_memory(&self, pid: u32) -> io::Result<Nanos> {
        let [refaults, reclaim] = self.delays_of(pid)?;
        Ok(refaults + reclaim)
    }

    fn delays_of(&self, pid: u32) -> io::Result<[Nanos; 2]> {
        let request = message(
            self.family,
            TASKSTATS_CMD_GET,
            TASKSTATS_CMD_ATTR_TGID,
            &pid.to_ne_bytes(),
        );
        let reply = ask(&self.socket, &request)?;
        let stats = attribute(&reply, TASKSTATS_TYPE_AGGR_TGID)
            .and_then(|group| attribute(group, TASKSTATS_TYPE_STATS))
            .ok_or_else(|| io::Error::other("the kernel's answer holds no statistics"))?;
        let number = |at: usize| {
            let bytes = stats.get(at..at + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        // Waiting for a page that thrashes is counted in both.
        let swapin = number(SWAPIN_DELAY).unwrap_or(0);
        let refaults = swapin.max(number(THRASHING_DELAY).unwrap_or(0));
        Ok([refaults, number(FREEPAGES_DELAY).unwrap_or(0)].map(Nanos))
    }
}

fn message(family: u16, command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let padded = value.len().next_multiple_of(4);
    let mut bytes = Vec::with_capacity(HEADERS + 4 + padded);
    bytes.extend(((HEADERS + 4 + padded) as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Number and port: there is one request at a time, and the kernel knows the sender.
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(HEADERS + 4 + padded, 0);
    bytes
}

/// Sends a request, and returns the attributes of the answer.
fn ask(socket: &OwnedFd, request: &[u8]) -> io::Result<Vec<u8>> {
    let fd = socket.as_raw_fd();
    // SAFETY: the buffer has the given length.
    let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = vec![0_u8; 8192];
    // SAFETY: as above.
    let got = unsafe { libc::recv(fd, reply.as_mut_ptr().cast(), reply.len(), 0) };
    reply.truncate(usize::try_from(got).map_err(|_| io::Error::last_os_error())?);
    let is_error = reply.get(4..6) == Some(&(libc::NLMSG_ERROR as u16).to_ne_bytes()[..]);
    if let Some(errno) = reply.get(16..20).filter(|_| is_error) {
        let errno = i32::from_ne_bytes([errno[0], errno[1], errno[2], errno[3]]);
        return Err(io::Error::from_raw_os_error(-errno));
    }
    Ok(reply.split_off(HEADERS.min(reply.len())))
}

/// Returns the value of the first attribute of this kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    while bytes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_broken_ones_are_not_followed() {
        let built = message(7, 1, 2, b"abcde");
        assert_eq!(built.len(), 32);
        assert_eq!(attribute(&built[HEADERS..], 2), Some(&b"abcde"[..]));
        assert_eq!(attribute(&built[HEADERS..], 3), None);
        assert_eq!(attribute(&[200, 0, 2, 0, 1], 2), None);
        assert_eq!(attribute(&[0, 0, 2, 0, 1, 2, 3, 4], 2), None);
    }

    #[test]
    fn it_is_said_where_accounts_are_off() {
        match Delays::open() {
            Ok(delays) => assert!(delays.waited(std::process::id()).is_ok()),
            Err(error) if is_on() => assert!(error.raw_os_error().is_some(), "{error}"),
            Err(error) => assert!(error.to_string().contains("task_delayacct"), "{error}"),
        }
    }
}
