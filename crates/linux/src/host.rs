//! Detects the abilities of this machine and kernel by trying: the facts behind `isotherm doctor`.

use std::env::consts::ARCH;
use std::fs;
use std::io;
use std::path::Path;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::units::format_bytes;
use rustix::thread::CapabilitySet;
use serde::Serialize;
use thiserror::Error;

use crate::arch;
use crate::cache::memmap::Memmap;
use crate::delays::Delays;
use crate::node;
use crate::privileges;
use crate::probe::{PageTableProbe, ProbeError, Walker, WalkerError, access_flags};
use crate::process::Process;
use crate::refault_cost::refault_cost_now;

mod ability;

use ability::abilities;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    /// The feature is present.
    Ok,
    /// The feature is missing, and its users do not work.
    Missing,
    /// A fact that is not required, but useful.
    Note,
}

/// One fact about this machine.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// Result of the check.
    pub outcome: CheckOutcome,
    /// Finding, in words.
    pub found: String,
    /// Remedy, if something is missing.
    pub remedy: Option<String>,
}

/// A task of the command line, and whether it works here.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ability {
    /// Name of the task, in the words of the command line.
    pub name: &'static str,
    /// Whether it works here, now, for this user.
    pub works: bool,
    /// Reason why it does not work.
    pub why_not: Option<String>,
}

/// All facts and abilities of this machine.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostReport {
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Results of all checks.
    pub checks: Vec<Check>,
    /// Abilities that follow from the facts.
    pub abilities: Vec<Ability>,
}

/// Runs all checks. Changes nothing.
pub fn examine() -> HostReport {
    let mut checks = essentials();
    let walker = Walker::new();
    checks.push(bpf(&walker));
    checks.push(accessed_bits());
    checks.push(madvise());
    checks.push(frame_facts());
    checks.push(clear_refs());
    checks.push(physical_map());
    checks.push(page_cache());
    checks.extend([
        control_groups(),
        kernel_damon(),
        swap(),
        huge_page_waste(),
        waits(),
        huge_pages(),
        numa(),
    ]);
    let abilities = abilities(&checks);
    HostReport {
        host: hostname(),
        kernel: kernel_release(),
        checks,
        abilities,
    }
}

/// Runs the checks on which everything else depends.
fn essentials() -> Vec<Check> {
    vec![architecture(), kernel(), btf(), capabilities(), lockdown()]
}

/// Explains a failed probe by what this machine or this user lacks.
pub fn explain(source: ProbeError) -> NoProbe {
    let mut missing = essentials();
    missing.retain(|check| check.outcome == CheckOutcome::Missing);
    let is_privilege = missing.iter().all(|check| check.name == CAPABILITIES);
    let lacking: Vec<String> = missing
        .into_iter()
        .map(|check| match check.remedy {
            Some(remedy) => format!("{} ({remedy})", check.found),
            None => check.found,
        })
        .collect();
    if lacking.is_empty() {
        NoProbe::Failed(source)
    } else {
        NoProbe::Lacking {
            what: lacking.join("; "),
            is_privilege,
        }
    }
}

/// Reason why page tables cannot be read here.
#[derive(Debug, Error)]
pub enum NoProbe {
    #[error("page tables cannot be read here: {what}; `isotherm doctor` has the details")]
    Lacking {
        what: String,
        /// Whether only privileges of the user are missing.
        is_privilege: bool,
    },
    /// All known requirements are met, but the probe fails.
    #[error(transparent)]
    Failed(#[from] ProbeError),
}

/// Returns this machine's name.
pub fn hostname() -> String {
    read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".into())
}

/// Returns the running kernel's release, e.g. `6.1.0-56-cloud-amd64`.
pub fn kernel_release() -> String {
    read("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into())
}

/// Whether splitting a huge page frees its pages of zeros at once. Linux maps the shared zero page instead of them
/// since 6.12 (`try_to_map_unused_to_zeropage` in mm/migrate.c). On older kernels they must be paged out, and stay if
/// there is no swap.
pub fn split_gives_back() -> bool {
    kernel_version() >= (6, 12)
}

/// Returns the running kernel's version, e.g. `(6, 1)`.
pub(crate) fn kernel_version() -> (u32, u32) {
    let release = kernel_release();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned())
}

/// Returns the reason why a file could not be read, or `absent` if it does not exist.
fn unread(path: &str, error: &io::Error, absent: &str) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        absent.to_owned()
    } else {
        format!("not known: {path} cannot be read ({error})")
    }
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        outcome: CheckOutcome::Ok,
        ..note(name, found)
    }
}

fn note(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        outcome: CheckOutcome::Note,
        found: found.into(),
        remedy: None,
    }
}

fn missing(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check {
        outcome: CheckOutcome::Missing,
        remedy: Some(remedy.into()),
        ..note(name, found)
    }
}

fn architecture() -> Check {
    let (name, bytes) = ("architecture", arch::page_bytes());
    if bytes == PAGE_SIZE {
        return ok(name, ARCH);
    }
    ok(name, format!("{ARCH}, pages of {}", format_bytes(bytes)))
}

fn kernel() -> Check {
    let release = kernel_release();
    let (major, minor) = arch::OLDEST_KERNEL;
    if kernel_version() >= (major, minor) {
        ok("kernel", release)
    } else {
        let remedy = format!("Linux {major}.{minor} or later");
        missing("kernel", release, remedy)
    }
}

fn btf() -> Check {
    let path = "/sys/kernel/btf/vmlinux";
    match fs::metadata(path) {
        Ok(_) => ok("BTF", path),
        Err(error) => missing(
            "BTF",
            unread(path, &error, "no /sys/kernel/btf/vmlinux"),
            "a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's, Ubuntu's, Fedora's and SUSE's have it); is /sys mounted?",
        ),
    }
}

const CAPABILITIES: &str = "capabilities";

/// Whether this process is in a user namespace of its own: its capabilities count only there.
fn is_in_user_namespace() -> bool {
    read("/proc/self/uid_map").is_ok_and(|map| !maps_every_user(&map))
}

/// Whether the map is that of the initial namespace, which maps every user to the same user.
fn maps_every_user(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn capabilities() -> Check {
    // CAP_DAC_READ_SEARCH opens /proc/kpageflags; its own check reports its lack.
    const NEEDED: [(&str, CapabilitySet); 5] = [
        ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
        ("CAP_SYS_NICE", CapabilitySet::SYS_NICE),
        ("CAP_PERFMON", CapabilitySet::PERFMON),
        ("CAP_BPF", CapabilitySet::BPF),
    ];
    if is_in_user_namespace() {
        return missing(
            CAPABILITIES,
            "those of a user namespace, which count for nothing outside of it",
            "root of the machine: run it outside of `unshare --user` and of rootless containers",
        );
    }
    let mut effective = privileges::effective();
    if effective.contains(CapabilitySet::SYS_ADMIN) {
        // It includes the two that were once a part of it.
        effective |= CapabilitySet::PERFMON | CapabilitySet::BPF;
    }
    let lacking = NEEDED.iter().filter(|(_, one)| !effective.contains(*one));
    let lacking: Vec<&str> = lacking.map(|(name, _)| *name).collect();
    if lacking.is_empty() {
        return ok(
            CAPABILITIES,
            "CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_NICE",
        );
    }
    let remedy = "run as root, or give the program these capabilities: setcap cap_bpf,cap_perfmon,cap_sys_admin,cap_sys_ptrace,cap_sys_nice,cap_dac_read_search+ep";
    missing(
        CAPABILITIES,
        format!("without {}", lacking.join(", ")),
        remedy,
    )
}

fn lockdown() -> Check {
    let path = "/sys/kernel/security/lockdown";
    match read(path) {
        Ok(modes) if modes.contains("[confidentiality]") => missing(
            "lockdown",
            "confidentiality",
            "boot with lockdown=integrity or none: in confidentiality mode BPF may not read kernel memory",
        ),
        Ok(modes) if modes.contains("[integrity]") => ok("lockdown", "integrity (does not hinder)"),
        Ok(_) => ok("lockdown", "none"),
        Err(error) => ok("lockdown", unread(path, &error, "none")),
    }
}

/// Reason why BPF programs do not load in a user namespace, whatever libbpf reports.
const REFUSED: &str = "refused: the kernel loads no BPF program for a user namespace";

fn bpf(walker: &Result<Walker, WalkerError>) -> Check {
    let name = "page tables by BPF";
    let why = match walker {
        Ok(walker) => {
            let levels = walker.format.levels();
            let found = format!("program loaded, {levels}-level tables calibrated");
            return ok(name, found);
        }
        Err(WalkerError::Load { .. }) if is_in_user_namespace() => REFUSED.to_owned(),
        // The error itself refers its reader to this report.
        Err(WalkerError::Load { cause }) => cause.clone(),
        Err(error) => error.to_string(),
    };
    let remedy = "what is missing above; in a container, also a seccomp profile that allows bpf(2)";
    missing(name, why, remedy)
}

fn accessed_bits() -> Check {
    let flags = access_flags();
    let by = if flags.by_faults {
        "the kernel, in a fault at the next access"
    } else {
        "the processor"
    };
    let found = format!("set by {by}, {:.0} ns each", flags.set_again_ns);
    note("accessed bits", found)
}

fn madvise() -> Check {
    let advised = Process::open(std::process::id()).and_then(|me| {
        let page = vec![0u8; 8192];
        let start = (page.as_ptr() as u64).next_multiple_of(4096);
        let range = isotherm_engine::AddressRange::new(start, start + 4096);
        me.advise(&[range], libc::MADV_COLD, &mut Vec::new())
    });
    match advised {
        Ok(()) => ok("process_madvise", "works"),
        Err(error) => missing(
            "process_madvise",
            error.to_string(),
            "Linux 5.10 or later, CAP_SYS_NICE for others' processes",
        ),
    }
}

fn frame_facts() -> Check {
    match crate::frames::Frames::open() {
        Ok(_) => ok("frame flags", "/proc/kpageflags, /proc/kpagecount"),
        Err(error) => missing(
            "frame flags",
            format!("/proc/kpageflags: {error}"),
            "CONFIG_PROC_PAGE_MONITOR=y and root or CAP_DAC_READ_SEARCH; without it, pages in constant use count as unknown",
        ),
    }
}

fn page_cache() -> Check {
    let name = "page cache by BPF";
    match Memmap::new() {
        Ok(_) => ok(name, "program loaded, the kernel's memory map found"),
        Err(error) => {
            let why = if is_in_user_namespace() {
                REFUSED.to_owned()
            } else {
                error.to_string()
            };
            let lost = "with --all, unmapped page cache has no ages and is not dropped";
            note(name, format!("{why}; {lost}"))
        }
    }
}

fn clear_refs() -> Check {
    let name = "clear_refs";
    if Path::new("/proc/self/clear_refs").exists() {
        ok(name, "there (only --pages --clear-by clear-refs uses it)")
    } else {
        note(name, "not there; --pages clears by process_madvise")
    }
}

fn physical_map() -> Check {
    let name = "physical memory map";
    match node::ram(None) {
        Ok(ranges) => {
            let mib = ranges.iter().map(|range| range.len()).sum::<u64>() >> 20;
            ok(name, format!("{mib} MiB of RAM in {} ranges", ranges.len()))
        }
        Err(error) => missing(name, error.to_string(), "root, to see /proc/iomem"),
    }
}

fn control_groups() -> Check {
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    let has = |kind: &str| {
        mounts
            .lines()
            .any(|line| line.split_whitespace().nth(2) == Some(kind))
    };
    let name = "control groups";
    match (has("cgroup2"), has("cgroup")) {
        (false, false) => note(name, "not mounted; --cgroup has nothing to follow"),
        (true, true) => ok(name, "v1 and v2"),
        (true, false) => ok(name, "v2"),
        (false, true) => ok(name, "v1"),
    }
}

/// Checks the kernel's DAMON. Only reads: another service may own the kdamonds.
fn kernel_damon() -> Check {
    let admin = "/sys/kernel/mm/damon/admin/kdamonds";
    let path = format!("{admin}/nr_kdamonds");
    let count: u32 = match read(&path) {
        Ok(count) => count.parse().unwrap_or(0),
        Err(error) => {
            let absent = "not in this kernel (not needed)";
            return note("kernel DAMON", unread(&path, &error, absent));
        }
    };
    let entries = fs::read_dir(admin).into_iter().flatten().flatten();
    let states = entries.map(|entry| read(&format!("{}/state", entry.path().display())));
    let running = states.filter(|state| state.as_deref().is_ok_and(|state| state == "on"));
    let found = match running.count() {
        0 => "there, not running".to_owned(),
        n => format!("there; {n} of {count} kdamonds run, which another program owns: left alone"),
    };
    note("kernel DAMON", found)
}

fn swap() -> Check {
    let path = "/proc/swaps";
    let found = match read(path) {
        Ok(swaps) => match swaps.lines().count().saturating_sub(1) {
            0 => "none (recording needs none)".to_owned(),
            1 => "1 area".to_owned(),
            n => format!("{n} areas"),
        },
        Err(error) => unread(path, &error, "not in this kernel (recording needs none)"),
    };
    note("swap", found)
}

/// Checks the way in which nohugepage would free the waste of huge pages.
fn huge_page_waste() -> Check {
    let found = if split_gives_back() {
        "given back by splitting huge pages (nohugepage)"
    } else {
        "paged out once huge pages are split (nohugepage), which takes swap: Linux 6.12 gives it back by itself"
    };
    note("waste of huge pages", found)
}

/// Checks the source by which the guard would measure the time that targets wait for memory.
fn waits() -> Check {
    let estimated = |why| match refault_cost_now() {
        Some(cost) => {
            let us = cost.as_secs_f64() * 1e6;
            format!("estimated: refaults, at {us:.1} us each as measured now; {why}")
        }
        None => format!("not known, as there is no swap to measure; {why}"),
    };
    let found = Delays::open().map_or_else(estimated, |_| "by delay accounting".to_owned());
    note("waits for memory, for the guard", found)
}

fn huge_pages() -> Check {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let mode = read(path);
    let found = mode.unwrap_or_else(|error| unread(path, &error, "not in this kernel"));
    note("transparent huge pages", found)
}

fn numa() -> Check {
    let path = "/sys/devices/system/node/online";
    let online = read(path).unwrap_or_else(|error| unread(path, &error, "0"));
    let balancing = match read("/proc/sys/kernel/numa_balancing").as_deref() {
        Ok("0") | Err(_) => "",
        Ok(_) => ", balancing on",
    };
    note("NUMA nodes", format!("{online}{balancing}"))
}

/// Checks that processes can be recorded here.
pub fn can_record() -> Result<(), String> {
    PageTableProbe::new()
        .map(drop)
        .map_err(|error| explain(error).to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_user_namespace_is_told_by_its_map() {
        assert!(super::maps_every_user("0          0 4294967295"));
        for map in ["0 0 1", "0 1000 1\n1 100000 65536", ""] {
            assert!(!super::maps_every_user(map), "{map:?}");
        }
    }
}
