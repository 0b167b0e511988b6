//! Gives up the capabilities that are needed no longer once everything is set up.
//!
//! A recorder runs for weeks as root and reads what other programs wrote (names, records, requests). What
//! it needs root for is little, and most of that is needed only at the start: reading the frame number of
//! our own page and the map of physical memory takes CAP_SYS_ADMIN, opening `/proc/kpageflags` takes
//! CAP_DAC_READ_SEARCH where we are not root. So all is opened first, and then [`keep_only`] leaves:
//!
//! | capability | for | kept for |
//! |---|---|---|
//! | CAP_BPF, CAP_PERFMON | running BPF programs where unprivileged BPF is off, by kernel | all |
//! | CAP_SYS_PTRACE | `/proc/PID/maps`, process_madvise and move_pages of others' processes | all |
//! | CAP_SYS_NICE | process_madvise and move_pages of others' processes | all |
//! | CAP_DAC_READ_SEARCH | `/proc/PID/fd` of others' processes (KVM guests, devices) | all |
//! | CAP_DAC_OVERRIDE | paging out files that are another's; `/proc/PID/clear_refs` | [`Work::acts`], [`Work::clears_refs`] |
//! | CAP_FOWNER | opening others' files without setting when they were read last | [`Work::opens_files`] |
//! | CAP_NET_ADMIN | the kernel's delay accounting | [`Work::reads_delays`] |
//! | CAP_KILL | ending a command that has become another user | [`Work::ends_command`] |
//!
//! Programs that are started later gain nothing either (`no_new_privs`): root's would get all back.
//!
//! Limits: capabilities are a thread's. A thread that was started before (`--progress-cmd`) keeps what
//! the caller had, as does what it runs.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use thiserror::Error;

/// What is still to be done, besides watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is needed or not by itself"
)]
pub struct Work {
    /// Memory is acted on.
    pub acts: bool,
    /// Accessed bits may be cleared by `/proc/PID/clear_refs`.
    pub clears_refs: bool,
    /// Files that are cached are opened.
    pub opens_files: bool,
    /// Delay accounting is read.
    pub reads_delays: bool,
    /// A command of ours may have to be ended.
    pub ends_command: bool,
}

/// Why capabilities were not given up.
#[derive(Debug, Error)]
#[error("cannot give up the capabilities that are needed no longer: {0}")]
pub struct PrivilegeError(#[from] io::Error);

/// From now on this thread has only what `work` needs of the capabilities that it had, and neither it nor
/// a program that it starts gets others.
pub fn keep_only(work: Work) -> Result<(), PrivilegeError> {
    let set = || -> rustix::io::Result<()> {
        let kept = capabilities(None)?.permitted & needed(work);
        set_no_new_privs(true)?;
        set_capabilities(
            None,
            CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: CapabilitySet::empty(),
            },
        )
    };
    Ok(set().map_err(io::Error::from)?)
}

/// From now on this thread has no capability at all, nor has a program that it starts.
pub fn keep_none() -> Result<(), PrivilegeError> {
    let set = || -> rustix::io::Result<()> {
        set_no_new_privs(true)?;
        set_capabilities(
            None,
            CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            },
        )
    };
    Ok(set().map_err(io::Error::from)?)
}

/// Whether this thread may set up swap and take it away.
pub fn may_swap() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn needed(work: Work) -> CapabilitySet {
    let always = CapabilitySet::BPF
        | CapabilitySet::PERFMON
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::SYS_NICE
        | CapabilitySet::DAC_READ_SEARCH;
    let more = [
        (work.acts || work.clears_refs, CapabilitySet::DAC_OVERRIDE),
        (work.opens_files, CapabilitySet::FOWNER),
        (work.reads_delays, CapabilitySet::NET_ADMIN),
        (work.ends_command, CapabilitySet::KILL),
    ];
    let more = more.into_iter().filter(|(is_needed, _)| *is_needed);
    more.fold(always, |all, (_, capability)| all | capability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_needs_less_than_acting() {
        let check = |work, wanted: u64| assert_eq!(needed(work).bits(), wanted, "{work:?}");
        let watching = 1 << 2 | 1 << 19 | 1 << 23 | 1 << 38 | 1 << 39;
        check(Work::default(), watching);
        let acting = Work {
            acts: true,
            reads_delays: true,
            ends_command: true,
            ..Work::default()
        };
        check(acting, watching | 1 << 1 | 1 << 12 | 1 << 5);
        let files = Work {
            opens_files: true,
            ..Work::default()
        };
        check(files, watching | 1 << 3);
    }

    #[test]
    fn a_thread_gives_up_what_it_may_not_take_back() {
        let given_up = std::thread::spawn(|| {
            let before = capabilities(None).expect("our own");
            keep_only(Work::default()).expect("giving up is always allowed");
            let after = capabilities(None).expect("our own");
            let lost = before.permitted - after.permitted;
            let again = set_capabilities(None, before);
            (lost, again)
        });
        let (lost, again) = given_up.join().expect("no panic");
        assert!(lost.is_empty() || again.is_err(), "{lost:?}");
    }
}
