//! Causes of a process's huge pages, or of their absence, and the settings that change them.
//!
//! Sources: Documentation/admin-guide/mm/transhuge.rst; the GNU C library's manual, "Memory Allocation Tunables";
//! jemalloc(3), `opt.thp`; the JDK's `java` page, `UseTransparentHugePages`; Go's `runtime` package, `GODEBUG`; redis.conf.

use std::fs;

use isotherm_linux::process::Runtime;
use serde::Serialize;

use super::sizes::{SYSTEM, chosen};

/// Cause of huge pages, or of their absence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// Fact, with the setting or flag that shows it.
    pub fact: String,
    /// The setting that changes it; `null` if none does.
    pub setting: Option<String>,
    /// Whether no huge page is possible because of it, whatever else is set.
    pub prevents_all: bool,
}

impl Cause {
    fn new(fact: impl Into<String>, setting: Option<&str>) -> Self {
        Self {
            fact: fact.into(),
            setting: setting.map(str::to_owned),
            prevents_all: false,
        }
    }
}

/// Files of a process and of the system that causes are read from; an unreadable one is empty.
#[derive(Clone, Debug, Default)]
struct Sources {
    status: String,
    environ: String,
    command_line: String,
    maps: String,
    runtime: Option<Runtime>,
    /// Policy of pages of 2 MiB.
    enabled: String,
    /// Sizes below 2 MiB with a policy of their own (mTHP), in KiB, and their policies.
    sizes: Vec<(u64, String)>,
}

/// Returns the causes for the process `pid`, those of the system first. `policies` are those of each page size, in KiB.
pub(super) fn causes(pid: u32, policies: Vec<(u64, String)>) -> Vec<Cause> {
    let of_process = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let general = || fs::read_to_string(format!("{SYSTEM}/enabled"));
    // Since Linux 6.8 this size has a policy of its own, unless it inherits the general one.
    let own = policies
        .iter()
        .find(|(size, policy)| *size == 2048 && chosen(policy) != "inherit");
    let of_2_mib = own.map(|(_, policy)| policy.clone());
    found(&Sources {
        status: of_process("status"),
        environ: of_process("environ"),
        command_line: of_process("cmdline"),
        maps: of_process("maps"),
        runtime: Runtime::of_process(pid),
        enabled: of_2_mib.unwrap_or_else(|| general().unwrap_or_default()),
        sizes: policies,
    })
}

fn found(of: &Sources) -> Vec<Cause> {
    let mut causes = vec![of_system(&of.enabled)];
    let small = of.sizes.iter().filter(|(size, _)| *size < 2048);
    let on: Vec<String> = small
        .filter(|(_, policy)| !matches!(chosen(policy), "never" | ""))
        .map(|(size, policy)| format!("{size} KiB {}", chosen(policy)))
        .collect();
    if !on.is_empty() {
        let fact = format!("smaller huge pages (mTHP): {}", on.join(", "));
        causes.push(Cause::new(fact, None));
    }
    if of
        .status
        .lines()
        .any(|line| line.replace('\t', " ") == "THP_enabled: 0")
    {
        let is_redis = of.command_line.contains("redis") || of.command_line.contains("valkey");
        let setting = if is_redis {
            "for more: disable-thp no in redis.conf"
        } else {
            "for more: start it without prctl(PR_SET_THP_DISABLE), which children inherit"
        };
        causes.push(Cause {
            prevents_all: true,
            ..Cause::new(
                "the process has huge pages disabled (PR_SET_THP_DISABLE)",
                Some(setting),
            )
        });
    }
    causes.extend(of_allocator(of));
    causes
}

fn of_system(enabled: &str) -> Cause {
    match chosen(enabled) {
        "always" => Cause::new(
            "the system makes huge pages everywhere (enabled: always)",
            Some(
                "for fewer, in all processes: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
        ),
        "madvise" => Cause::new(
            "the system makes huge pages only where a program asks for them (enabled: madvise)",
            Some(
                "for more, in all processes: echo always > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
        ),
        "never" => Cause::new(
            "the system makes no huge pages by itself (enabled: never)",
            Some(
                "for more, in programs that ask: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
        ),
        _ => Cause {
            prevents_all: true,
            ..Cause::new(
                "no policy can be read: is CONFIG_TRANSPARENT_HUGEPAGE set, and /sys mounted?",
                None,
            )
        },
    }
}

/// Returns the behavior of the program's allocator or run time.
fn of_allocator(of: &Sources) -> Option<Cause> {
    let variable = |name: &str| {
        of.environ
            .split('\0')
            .find_map(|one| one.strip_prefix(name))
    };
    let has_library = |name: &str| of.maps.contains(name);
    let asks = |what: &str, is_on: bool, setting: &str| {
        let fact = if is_on { "asks" } else { "does not ask" };
        let setting = (!is_on).then(|| format!("for more: restart it with {setting}"));
        Some(Cause {
            setting,
            ..Cause::new(format!("{what} {fact} for huge pages"), None)
        })
    };
    let configured = variable("MALLOC_CONF=");
    if of.runtime == Some(Runtime::Jvm) {
        let option = "-XX:+UseTransparentHugePages";
        asks("the JVM", of.command_line.contains(option), option)
    } else if of.runtime == Some(Runtime::Go) {
        let fact = "Go's run time does not ask for huge pages; the system's policy decides";
        Some(Cause::new(fact, None))
    } else if has_library("jemalloc") || configured.is_some() {
        let is_on = configured.is_some_and(|conf| conf.contains("thp:always"));
        asks("jemalloc", is_on, "MALLOC_CONF=thp:always")
    } else if has_library("tcmalloc") {
        let fact = "tcmalloc leaves huge pages to the system's policy";
        Some(Cause::new(fact, None))
    } else if has_library("/libc.so.6") {
        let tunable = "glibc.malloc.hugetlb=1";
        let tunables = variable("GLIBC_TUNABLES=").unwrap_or("");
        let setting = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (glibc 2.35 or later)";
        asks("glibc's malloc", tunables.contains(tunable), setting)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(maps: &str, environ: &str, command_line: &str) -> Sources {
        Sources {
            maps: maps.to_owned(),
            runtime: maps.contains("jvm").then_some(Runtime::Jvm),
            environ: environ.to_owned(),
            command_line: command_line.to_owned(),
            enabled: "always [madvise] never".to_owned(),
            ..Sources::default()
        }
    }

    /// Checks that one cause has these beginnings of a fact and a setting; none if that is empty.
    fn check(of: &Sources, fact: &str, setting: &str) {
        let causes = found(of);
        let is_meant = |cause: &Cause| {
            let set = cause.setting.as_deref().unwrap_or("");
            cause.fact.starts_with(fact)
                && set.starts_with(setting)
                && set.is_empty() == setting.is_empty()
        };
        assert!(causes.iter().any(is_meant), "{fact}: {causes:?}");
    }

    #[test]
    fn each_cause_is_recognised_with_its_setting() {
        let (libc, jvm) = ("7f0-7f1 r-xp 0 08:01 1 /usr/lib/libc.so.6", "/x/libjvm.so");
        let glibc = "A=b\0GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
        let huge = "java\0-XX:+UseTransparentHugePages";
        let (system, restart) = ("the system makes huge pages only", "for more: restart");
        check(&of("", "", ""), system, "for more, in all");
        check(&of(libc, "", ""), "glibc's malloc does not ask", restart);
        check(&of(libc, glibc, ""), "glibc's malloc asks", "");
        let jar = "java\0-jar";
        check(&of(jvm, "", jar), "the JVM does not ask", restart);
        check(&of(jvm, "", huge), "the JVM asks", "");
        let jemalloc = of("/libjemalloc.so.2", "", "");
        check(&jemalloc, "jemalloc does not ask", restart);
        let asks = of("", "MALLOC_CONF=thp:always", "");
        check(&asks, "jemalloc asks", "");
        let disabled = Sources {
            status: "Name:\tredis\nTHP_enabled:\t0\n".to_owned(),
            sizes: vec![
                (64, "[inherit] never".to_owned()),
                (2048, "[inherit]".to_owned()),
            ],
            runtime: Some(Runtime::Go),
            ..of("", "", "redis-server")
        };
        let setting = "for more: disable-thp no in redis.conf";
        check(&disabled, "the process has huge pages disabled", setting);
        check(&disabled, "smaller huge pages (mTHP): 64 KiB inherit", "");
        check(&disabled, "Go's run time", "");
        assert!(found(&Sources::default())[0].prevents_all);
    }
}
