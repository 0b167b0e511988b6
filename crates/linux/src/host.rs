//! What this machine and kernel can do, found by trying: the facts behind `isotherm doctor`.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use thiserror::Error;

use crate::node;
use crate::probe::{PageTableProbe, ProbeError, Walker};
use crate::process::Process;

/// How a check turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is there.
    Ok,
    /// It is missing, and what needs it does not work.
    Missing,
    /// Not needed, but good to know.
    Note,
}

/// One fact about this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it turned out.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// What would enable it, where it is missing.
    pub remedy: Option<String>,
}

/// Something a user may want to do, and whether it works here.
#[derive(Clone, Debug, Serialize)]
pub struct Ability {
    /// What, in the words of the command line.
    pub name: &'static str,
    /// Whether it works here, now, for this user.
    pub works: bool,
    /// Why it does not.
    pub why_not: Option<String>,
}

/// All that is known.
#[derive(Clone, Debug, Serialize)]
pub struct HostReport {
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// The facts.
    pub checks: Vec<Check>,
    /// What follows from them.
    pub abilities: Vec<Ability>,
}

/// Looks at everything. Changes nothing.
pub fn examine() -> HostReport {
    let mut checks = essentials();
    let walker = Walker::new();
    checks.push(bpf(&walker));
    checks.push(madvise());
    checks.push(frame_facts());
    checks.push(clear_refs());
    checks.push(physical_map());
    checks.extend([
        control_groups(),
        kernel_damon(),
        swap(),
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

/// What everything else depends on.
fn essentials() -> Vec<Check> {
    vec![architecture(), kernel(), btf(), capabilities(), lockdown()]
}

/// What this machine or this user lacks for a probe that could not be made.
pub fn explain(source: ProbeError) -> NoProbe {
    let lacking: Vec<String> = essentials()
        .into_iter()
        .filter(|check| check.outcome == Outcome::Missing)
        .map(|check| match check.remedy {
            Some(remedy) => format!("{} ({remedy})", check.found),
            None => check.found,
        })
        .collect();
    if lacking.is_empty() {
        NoProbe::Failed(source)
    } else {
        NoProbe::Lacking(lacking.join("; "))
    }
}

/// Why page tables cannot be read here.
#[derive(Debug, Error)]
pub enum NoProbe {
    /// Something that can be named is missing.
    #[error("page tables cannot be read here: {0}; `isotherm doctor` tells more")]
    Lacking(String),
    /// All that it needs is there, as far as can be seen, and still.
    #[error(transparent)]
    Failed(#[from] ProbeError),
}

/// This machine's name.
pub fn hostname() -> String {
    read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".into())
}

/// The running kernel's release, e.g. `6.1.0-56-cloud-amd64`.
pub fn kernel_release() -> String {
    read("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into())
}

/// The running kernel's version, e.g. `(6, 1)`.
pub fn kernel_version() -> (u32, u32) {
    let release = kernel_release();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned())
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        outcome: Outcome::Ok,
        found: found.into(),
        remedy: None,
    }
}

fn note(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        outcome: Outcome::Note,
        found: found.into(),
        remedy: None,
    }
}

fn missing(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check {
        name,
        outcome: Outcome::Missing,
        found: found.into(),
        remedy: Some(remedy.into()),
    }
}

fn architecture() -> Check {
    match std::env::consts::ARCH {
        "x86_64" => ok("architecture", "x86_64"),
        other => missing(
            "architecture",
            other,
            "page tables are read on x86_64 only, so far",
        ),
    }
}

fn kernel() -> Check {
    let release = kernel_release();
    if kernel_version() >= (5, 17) {
        ok("kernel", release)
    } else {
        missing(
            "kernel",
            release,
            "Linux 5.17 or later (the BPF program needs bpf_loop)",
        )
    }
}

fn btf() -> Check {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        ok("BTF", "/sys/kernel/btf/vmlinux")
    } else {
        missing(
            "BTF",
            "no /sys/kernel/btf/vmlinux",
            "a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's, Ubuntu's, Fedora's and SUSE's have it); is /sys mounted?",
        )
    }
}

fn capabilities() -> Check {
    const SYS_ADMIN: u32 = 21;
    // CAP_DAC_READ_SEARCH opens /proc/kpageflags, whose lack is told by its own check.
    const NEEDED: [(&str, u32); 5] = [
        ("CAP_SYS_PTRACE", 19),
        ("CAP_SYS_ADMIN", SYS_ADMIN),
        ("CAP_SYS_NICE", 23),
        ("CAP_PERFMON", 38),
        ("CAP_BPF", 39),
    ];
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let lacking: Vec<&str> = NEEDED
        .iter()
        // CAP_SYS_ADMIN stands for the two that were once a part of it, which have the highest numbers.
        .filter(|(_, bit)| {
            let has = |bit: u32| effective >> bit & 1 == 1;
            !(has(*bit) || *bit >= 38 && has(SYS_ADMIN))
        })
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        return ok(
            "capabilities",
            "CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_NICE",
        );
    }
    let remedy = "run as root, or give the program these capabilities: setcap cap_bpf,cap_perfmon,cap_sys_admin,cap_sys_ptrace,cap_sys_nice,cap_dac_read_search+ep";
    missing(
        "capabilities",
        format!("without {}", lacking.join(", ")),
        remedy,
    )
}

fn lockdown() -> Check {
    match read("/sys/kernel/security/lockdown") {
        Ok(modes) if modes.contains("[confidentiality]") => missing(
            "lockdown",
            "confidentiality",
            "boot with lockdown=integrity or none: in confidentiality mode BPF may not read kernel memory",
        ),
        Ok(modes) if modes.contains("[integrity]") => ok("lockdown", "integrity (does not hinder)"),
        _ => ok("lockdown", "none"),
    }
}

fn bpf(walker: &Result<Walker, crate::probe::WalkerError>) -> Check {
    match walker {
        Ok(walker) => ok(
            "page tables by BPF",
            format!(
                "program loaded, {}-level tables calibrated",
                walker.levels()
            ),
        ),
        Err(error) => missing(
            "page tables by BPF",
            error.to_string(),
            "what is missing above; in a container, also a seccomp profile that allows bpf(2)",
        ),
    }
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

fn clear_refs() -> Check {
    if Path::new("/proc/self/clear_refs").exists() {
        ok(
            "clear_refs",
            "there (only --pages --clear-by clear-refs uses it)",
        )
    } else {
        note("clear_refs", "not there; --pages clears by process_madvise")
    }
}

fn physical_map() -> Check {
    match node::ram(None) {
        Ok(ranges) => {
            let bytes: u64 = ranges.iter().map(|range| range.len()).sum();
            ok(
                "physical memory map",
                format!("{} MiB of RAM in {} ranges", bytes >> 20, ranges.len()),
            )
        }
        Err(error) => missing(
            "physical memory map",
            error.to_string(),
            "root, to see /proc/iomem",
        ),
    }
}

fn control_groups() -> Check {
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    let has = |kind: &str| {
        mounts
            .lines()
            .any(|line| line.split_whitespace().nth(2) == Some(kind))
    };
    match (has("cgroup2"), has("cgroup")) {
        (false, false) => note(
            "control groups",
            "not mounted; --cgroup has nothing to follow",
        ),
        (v2, v1) => ok(
            "control groups",
            if v2 && v1 {
                "v1 and v2"
            } else if v2 {
                "v2"
            } else {
                "v1"
            },
        ),
    }
}

/// Reads only: another service may own the kdamonds.
fn kernel_damon() -> Check {
    let admin = "/sys/kernel/mm/damon/admin/kdamonds";
    let Ok(count) = read(&format!("{admin}/nr_kdamonds")) else {
        return note("kernel DAMON", "not in this kernel (not needed)");
    };
    let count: u32 = count.parse().unwrap_or(0);
    let running = (0..count)
        .filter(|i| read(&format!("{admin}/{i}/state")).is_ok_and(|s| s == "on"))
        .count();
    let found = match running {
        0 => "there, not running".to_owned(),
        n => format!("there; {n} of {count} kdamonds run, which somebody else owns: left alone"),
    };
    note("kernel DAMON", found)
}

fn swap() -> Check {
    let swaps = read("/proc/swaps").unwrap_or_default();
    match swaps.lines().count().saturating_sub(1) {
        0 => note("swap", "none (recording needs none)"),
        n => note("swap", format!("{n} area{}", if n == 1 { "" } else { "s" })),
    }
}

fn huge_pages() -> Check {
    let mode = read("/sys/kernel/mm/transparent_hugepage/enabled");
    note(
        "transparent huge pages",
        mode.unwrap_or_else(|_| "not in this kernel".into()),
    )
}

fn numa() -> Check {
    let online = read("/sys/devices/system/node/online").unwrap_or_else(|_| "0".into());
    let balancing = match read("/proc/sys/kernel/numa_balancing").as_deref() {
        Ok("0") | Err(_) => "",
        Ok(_) => ", balancing on",
    };
    note("NUMA nodes", format!("{online}{balancing}"))
}

fn abilities(checks: &[Check]) -> Vec<Ability> {
    let lacking = |needed: &[&str]| {
        let lacking: Vec<String> = checks
            .iter()
            .filter(|check| check.outcome == Outcome::Missing && needed.contains(&check.name))
            .map(|check| format!("{} ({})", check.name, check.found))
            .collect();
        (!lacking.is_empty()).then(|| lacking.join("; "))
    };
    let needs = ["architecture", "page tables by BPF", "process_madvise"];
    let ability = |name, why_not: Option<String>| Ability {
        name,
        works: why_not.is_none(),
        why_not,
    };
    let physical: Vec<&str> = needs
        .iter()
        .copied()
        .chain(["physical memory map"])
        .collect();
    vec![
        ability("record, top (processes, control groups)", lacking(&needs)),
        ability("record --pages", lacking(&needs)),
        ability("record --physical", lacking(&physical)),
        ability(
            "report, convert, exercise, simulate, paper, top --replay",
            None,
        ),
    ]
}

/// Whether processes can be recorded here; the reason if not.
pub fn can_record() -> Result<(), String> {
    PageTableProbe::new()
        .map(drop)
        .map_err(|error| explain(error).to_string())
}
