//! Drops the capabilities that are no longer needed after set-up.
//!
//! A recorder runs for weeks as root and reads data that other programs wrote (names, records, requests). It needs few
//! of root's privileges, and most of these only at the start. Reading the frame number of our own page and the map of
//! physical memory takes CAP_SYS_ADMIN. Opening `/proc/kpageflags` takes CAP_DAC_READ_SEARCH if the user is not root.
//! So all files are opened first, and then [`keep_only`] leaves:
//!
//! | capability | for | kept for |
//! |---|---|---|
//! | CAP_BPF, CAP_PERFMON | running BPF programs where unprivileged BPF is off, by kernel | all |
//! | CAP_SYS_PTRACE | `/proc/PID/maps`, process_madvise and move_pages of others' processes | all |
//! | CAP_SYS_NICE | process_madvise and move_pages of others' processes | all |
//! | CAP_DAC_READ_SEARCH | `/proc/PID/fd` of others' processes (KVM guests, devices) | all |
//! | CAP_DAC_OVERRIDE | paging out other users' files; `/proc/PID/clear_refs` | [`Work::acts`], [`Work::clears_refs`] |
//! | CAP_FOWNER | opening other users' files without updating their access time | [`Work::opens_files`] |
//! | CAP_NET_ADMIN | the kernel's delay accounting | [`Work::reads_delays`] |
//! | CAP_KILL | ending a command that has become another user | [`Work::ends_command`] |
//!
//! Programs that are started later gain no privileges either (`no_new_privs`): those of root would otherwise get all of
//! them back.
//!
//! Limits: capabilities belong to a thread. A thread that was started before (`--progress-cmd`) keeps the capabilities
//! of the caller, as do its programs.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use thiserror::Error;

/// Work that remains after set-up, besides watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is needed or not by itself"
)]
pub struct Work {
    pub acts: bool,
    /// Whether accessed bits may be cleared by `/proc/PID/clear_refs`.
    pub clears_refs: bool,
    pub opens_files: bool,
    pub reads_delays: bool,
    /// Whether a command of ours may have to be terminated.
    pub ends_command: bool,
}

/// Reason why capabilities could not be dropped.
#[derive(Debug, Error)]
#[error("cannot give up the capabilities that are needed no longer: {0}")]
pub struct PrivilegeError(#[from] io::Error);

/// Reduces this thread's capabilities to those that `work` needs. Neither the thread nor a program that it starts gains
/// others.
pub fn keep_only(work: Work) -> Result<(), PrivilegeError> {
    let permitted = capabilities(None).map_err(io::Error::from)?.permitted;
    keep(permitted & needed(work))
}

/// Drops all capabilities of this thread, and of programs that it starts.
pub fn keep_none() -> Result<(), PrivilegeError> {
    keep(CapabilitySet::empty())
}

fn keep(kept: CapabilitySet) -> Result<(), PrivilegeError> {
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    let set = set_no_new_privs(true).and_then(|()| set_capabilities(None, sets));
    Ok(set.map_err(io::Error::from)?)
}

/// Whether this thread may set up swap and remove it.
pub(crate) fn may_swap() -> bool {
    effective().contains(CapabilitySet::SYS_ADMIN)
}

/// Returns the capabilities of this thread; none if they cannot be read.
pub(crate) fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
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
