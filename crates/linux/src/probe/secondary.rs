//! Finds other users of a process's memory that have page tables of their own.
//!
//! The problem: accesses of a KVM guest, a GPU or a network card set accessed bits in their own tables, or none, but
//! not in the process's. There this memory looks idle however hot it is, and paged-out pages fault in again at once. So
//! memory that looks idle there is unknown.
//!
//! Approach: the kernel notifies owners of such tables of changes (MMU notifiers), and a BPF program reads whether any
//! is registered. This remains so until the process ends or calls exec, also if the guest ended before. A driver that
//! pins memory instead needs no notifiers; it is recognised by its open device files.
//!
//! Limits: open files are read when a process is added and at intervals after that. A device that is opened, used and
//! closed, but keeps its mappings, is not seen.

use std::fmt;
use std::fs;
use std::path::Path;

use super::walker::SpaceFacts;
use crate::process::Process;

/// Maximum number of open files of a process that are read.
const FILES_MAX: usize = 4096;
/// Number of refreshes between two reads of the open files.
const TURNS: u32 = 16;

/// Reason why a process's accesses cannot all be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondaryTables {
    Kvm,
    Vfio,
    Rdma,
    Gpu,
    Notified,
}

impl fmt::Display for SecondaryTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "it runs a KVM guest (`isotherm record` inside it shows them)",
            Self::Vfio => "a device works on its memory (vfio)",
            Self::Rdma => "network cards work on its memory (RDMA)",
            Self::Gpu => "a GPU may work on its memory",
            Self::Notified => "a hypervisor or device has page tables of its memory",
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Secondary {
    by_file: Option<SecondaryTables>,
    notified: bool,
    /// Refreshes until open files are read again.
    rest: u32,
}

impl Secondary {
    pub(super) fn of(process: &Process, facts: SpaceFacts) -> Self {
        let mut secondary = Self::default();
        secondary.look(process, facts);
        secondary
    }

    pub(super) fn look(&mut self, process: &Process, facts: SpaceFacts) {
        let is_news = facts.notified && !self.notified;
        self.notified = facts.notified;
        self.rest = self.rest.saturating_sub(1);
        if self.rest == 0 || is_news {
            self.rest = TURNS;
            self.by_file = by_files(&format!("/proc/{}/fd", process.pid()));
        }
    }

    pub(super) fn found(self) -> Option<SecondaryTables> {
        self.by_file
            .or_else(|| self.notified.then_some(SecondaryTables::Notified))
    }
}

fn by_files(directory: &str) -> Option<SecondaryTables> {
    let files = fs::read_dir(directory).ok()?.flatten().take(FILES_MAX);
    files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .find_map(|link| by_file(&link))
}

/// Returns the kind of secondary page tables that the name of an open file implies.
fn by_file(link: &Path) -> Option<SecondaryTables> {
    let link = link.to_str()?;
    let begins = |start: &str| link.starts_with(start);
    if begins("anon_inode:kvm-vm") || begins("anon_inode:kvm-vcpu") {
        Some(SecondaryTables::Kvm)
    } else if begins("/dev/vfio/") && link != "/dev/vfio/vfio" || begins("/dev/iommu") {
        Some(SecondaryTables::Vfio)
    } else if begins("/dev/infiniband/") {
        Some(SecondaryTables::Rdma)
    } else if begins("/dev/dri/")
        || begins("/dev/kfd")
        || begins("/dev/nvidia")
        || begins("/dev/accel/")
    {
        Some(SecondaryTables::Gpu)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_their_files() {
        let check = |link: &str, wanted| assert_eq!(by_file(Path::new(link)), wanted, "{link}");
        check("anon_inode:kvm-vm", Some(SecondaryTables::Kvm));
        check("anon_inode:kvm-vcpu:0", Some(SecondaryTables::Kvm));
        check("/dev/vfio/12", Some(SecondaryTables::Vfio));
        check("/dev/vfio/devices/vfio0", Some(SecondaryTables::Vfio));
        check("/dev/iommu", Some(SecondaryTables::Vfio));
        check("/dev/infiniband/uverbs0", Some(SecondaryTables::Rdma));
        check("/dev/dri/renderD128", Some(SecondaryTables::Gpu));
        check("/dev/kfd", Some(SecondaryTables::Gpu));
        check("/dev/nvidia0", Some(SecondaryTables::Gpu));
        // Open files without a device or guest behind them.
        for harmless in [
            "/dev/kvm",
            "/dev/vfio/vfio",
            "/dev/null",
            "/home/a/dev/dri/x",
            "socket:[12]",
        ] {
            check(harmless, None);
        }
    }

    #[test]
    fn open_files_of_a_process_are_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_str().expect("text").to_owned();
        let link = |to, name| {
            std::os::unix::fs::symlink(to, directory.path().join(name)).expect("a link");
        };
        link("/dev/null", "0");
        assert_eq!(by_files(&path), None);
        link("/dev/infiniband/uverbs0", "1");
        assert_eq!(by_files(&path), Some(SecondaryTables::Rdma));
        drop(directory);
        assert_eq!(by_files(&path), None);
    }
}
