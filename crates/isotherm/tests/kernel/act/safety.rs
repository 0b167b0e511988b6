//! Attempts of other processes to mislead or harm, and memory that cannot be known.

use std::fs;
use std::process::Command;

use crate::common::{
    Finished, Record, Running, at_once, isotherm, owning_swap, pause, python, range, record_file,
    record_pid, recorded, run, seen, shared, skip, until_written,
};
use crate::turns::Turn;

/// Maps 64 MiB, touches them once, and starts a KVM guest that may use them at any time.
const GUEST: &str = r#"
import ctypes, fcntl, mmap, os, time
kvm = os.open("/dev/kvm", os.O_RDWR)
vm = fcntl.ioctl(kvm, 0xAE01, 0)
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, len(m), 4096):
    m[i] = 1
start = ctypes.addressof(ctypes.c_char.from_buffer(m))
print(f"range {start:x}-{start + len(m):x}", flush=True)
print("ready", flush=True)
time.sleep(60)
"#;

#[test]
fn idle_memory_of_a_kvm_guest_is_unknown() {
    let Some(_turn) = shared() else { return };
    let mut guest = Running::start(&mut python(GUEST));
    pause(1.0);
    if !guest.is_running() {
        return skip("/dev/kvm makes no guest here");
    }
    guest.line("ready");
    let memory = range(&guest.line("range "));
    // In the default mode, the monitor asks the probe itself.
    let ways = [
        (&["--pages"][..], 0),
        (&["--faithful"], memory.len() / 4),
        (&[], u64::MAX),
    ];
    at_once(&ways, |&(flags, idle_max)| {
        let flags = [&["--duration", "4s"], flags].concat();
        let record = recorded(guest.pid(), &flags);
        let notes = record.notes();
        assert!(notes.contains("it runs a KVM guest"), "{notes}");
        let last = record.snapshots().next_back().expect("a snapshot");
        let seen = seen(last, &[memory]);
        assert!(seen.idle <= idle_max, "{flags:?}: {seen:?}");
    });
    // Memory that only appears idle is not acted on.
    let pid = guest.pid().to_string();
    let scheme = ["--scheme", "4K max 0 0 500ms max cold"];
    let done = run(isotherm(["run", "--duration", "5s", "--pid", &pid]).args(scheme)).success();
    done.warns("scheme 0, cold: 0 B of");
}

const NAMED: &str = r#"
import time
open("/proc/self/comm", "w").write("\x1b[31mred")
print("ready", flush=True)
time.sleep(30)
"#;

#[test]
fn a_name_reaches_no_terminal_as_it_is() {
    let Some(_turn) = shared() else { return };
    let target = Running::ready(&mut python(NAMED));
    let (directory, path) = record_file();
    record_pid(target.pid(), &path, &["--duration", "2s"]).succeed();
    let is_escaped = |text: &str| !text.contains('\u{1b}') && text.contains("u{1b}[31mred");
    for (what, format) in [
        ("access", "text"),
        ("heatmap", "svg"),
        ("wss", "text"),
        ("idle", "html"),
        ("summary", "text"),
        ("summary", "svg"),
        ("heatmap", "text"),
    ] {
        let mut command = isotherm(["report", what, "--format", format]);
        let shown = run(command.arg(&path)).success().stdout;
        assert!(is_escaped(&shown), "{what}: {shown:?}");
    }
    let both = [&path, &path];
    let diff = run(isotherm(["report", "diff"]).args(both)).success();
    assert!(!diff.stdout.contains('\u{1b}'), "{diff:?}");
    // The daemon's status is escaped, too.
    let socket = directory.path().join("socket");
    let at = ["--socket", socket.to_str().expect("plain")];
    let mut start = isotherm(["start", "--detach", "--dry-run", "--preset", "prcl"]);
    start.args(["--pid", &target.pid().to_string()]);
    let started = run(start.args(at)).success();
    started.prints(&at.join(" "));
    let status = run(isotherm(["status"]).args(at)).success().stdout;
    run(isotherm(["stop"]).args(at)).success();
    assert!(is_escaped(&status), "{status:?}");
}

/// Runs a script as root with a `/run/isotherm` of its own.
fn alone_with_state(script: &str) -> Finished {
    with_state_of_mode("700", script)
}

fn with_state_of_mode(mode: &str, script: &str) -> Finished {
    let script = format!(
        "set -e; mkdir -p /run/isotherm; mount -t tmpfs -o mode={mode} none /run/isotherm; I={}; {script}",
        env!("CARGO_BIN_EXE_isotherm")
    );
    run(Command::new("unshare").args(["--mount", "sh", "-c", &script]))
}

/// Takes a turn for a test that sets up swap by a `/run/isotherm` of its own.
fn making_swap() -> Option<Turn> {
    let turn = owning_swap()?;
    can_make_swap().then_some(turn)
}

fn can_make_swap() -> bool {
    let can = nix::unistd::Uid::effective().is_root()
        && fs::metadata("/sys/class/zram-control/hot_add").is_ok()
        && alone_with_state("true").status.success();
    if !can {
        skip("root, zram and mount namespaces are needed");
    }
    can
}

#[test]
fn swap_is_set_up_and_taken_away_whole() {
    let Some(_turn) = making_swap() else { return };
    let script = "$I swap zram --size 64M; d=$(cut -d' ' -f1 /run/isotherm/zram-swap); \
         stat -c %a /run/isotherm/zram-swap; cat /sys/block/$d/mm_stat; \
         $I swap off; test ! -e /sys/block/$d; ! $I swap off";
    let done = alone_with_state(script).success();
    let begins = "64 MiB of swap on /dev/zram";
    assert!(done.stdout.starts_with(begins), "{done:?}");
    done.prints("\n600\n");
    done.prints("taken away");
    done.warns("no swap was set up");
}

/// The state is that after a command was killed between two steps.
#[test]
fn swap_that_was_not_finished_is_cleaned_up() {
    let Some(_turn) = making_swap() else { return };
    let begin = "n=$(cat /sys/class/zram-control/hot_add); \
                 echo zram$n 0123456789abcdef0123456789abcdef 67108864 added > /run/isotherm/zram-swap; ";
    for steps in ["", "echo 67108864 > /sys/block/zram$n/disksize; "] {
        for end in ["$I swap off", "$I swap zram --size 32M; $I swap off"] {
            let script = format!(
                "{begin}{steps}{end}; test ! -e /sys/block/zram$n || grep -qv zram$n /proc/swaps"
            );
            alone_with_state(&script).success().prints("taken away");
        }
    }
}

#[test]
fn swap_of_somebody_else_is_left_alone() {
    let Some(_turn) = making_swap() else { return };
    let script = "n=$(cat /sys/class/zram-control/hot_add); \
         echo zram$n 0123456789abcdef0123456789abcdef 67108864 added > /run/isotherm/zram-swap; \
         echo 67108864 > /sys/block/zram$n/disksize; mkswap -q /dev/zram$n; \
         $I swap off; cat /sys/block/zram$n/disksize; \
         echo 1 > /sys/block/zram$n/reset; echo $n > /sys/class/zram-control/hot_remove";
    let done = alone_with_state(script).success();
    done.prints("nothing was done to it\n67108864\n");
}

#[test]
fn a_state_directory_that_others_may_write_is_refused() {
    let Some(_turn) = shared() else { return };
    if !can_make_swap() {
        return;
    }
    with_state_of_mode("1777", "$I swap zram --size 64M")
        .refused("/run/isotherm is not safe: others may write");
}

/// CAP_DAC_OVERRIDE, DAC_READ_SEARCH, KILL, NET_ADMIN, SYS_PTRACE, SYS_NICE, PERFMON, BPF.
const MAY_KEEP: u64 = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 12 | 1 << 19 | 1 << 23 | 1 << 38 | 1 << 39;
const SYS_ADMIN: u64 = 1 << 21;

fn effective_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(effective.expect("a line").trim(), 16).expect("hexadecimal")
}

/// Maps memory of its own, as another user.
const ANOTHERS: &str = r#"
import mmap, os, time
m = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, len(m), 4096):
    m[i] = 1
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
if os.fork() == 0:
    time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"#;

#[test]
fn capabilities_are_given_up_once_they_are_needed_no_longer() {
    let Some(_turn) = shared() else { return };
    if !nix::unistd::Uid::effective().is_root() || effective_of(std::process::id()) & SYS_ADMIN == 0
    {
        return skip("root with CAP_SYS_ADMIN is needed");
    }
    let target = Running::ready(&mut python(ANOTHERS));
    at_once(&["--children", "--pages", "--faithful"], |flag| {
        let (_directory, path) = record_file();
        let flags = ["--duration", "4s", flag];
        let recorder = record_pid(target.pid(), &path, &flags);
        until_written(&path);
        let kept = effective_of(recorder.pid());
        assert_eq!(kept & !MAY_KEEP, 0, "{flags:?} keeps {kept:x}");
        recorder.succeed();
        // It still sees another user's memory.
        let record = Record::whole(&path);
        let last = record.snapshots().next_back().expect("a snapshot").totals();
        assert!(last.untouched > 8 << 20, "{flags:?}: {last:?}");
    });
    let pid = target.pid().to_string();
    let scheme = ["--scheme", "4K max 0 0 500ms max cold"];
    // With this budget a busy machine also has a snapshot in time.
    let mut command = isotherm(["run", "--duration", "6s", "--cpu-budget", "20%"]);
    let run = Running::start(command.args(["--pid", &pid]).args(scheme));
    pause(2.0);
    let kept = effective_of(run.pid());
    assert_eq!(kept & !MAY_KEEP, 0, "run keeps {kept:x}");
    let done = run.finish();
    done.warns("scheme 0, cold: ");
    assert!(!done.stderr.contains("cold: 0 B of"), "{done:?}");
}

#[test]
fn a_command_keeps_its_callers_capabilities() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--quiet", "-o"]);
    let script = "sleep 2; sh -c 'grep CapEff /proc/self/status'";
    let done = run(command.arg(&path).args(["--", "sh", "-c", script])).success();
    done.prints(&format!("{:016x}", effective_of(std::process::id())));
}

#[test]
fn on_a_full_disk_a_file_stays_as_it_was() {
    let Some(_turn) = shared() else { return };
    if !nix::unistd::Uid::effective().is_root() || !alone_with_state("true").status.success() {
        return skip("root and mount namespaces are needed");
    }
    let script = "cd /run/isotherm; mkdir disk; \
         $I record --quiet -o record --duration 2s --stop-command -- sleep 9; \
         mount -t tmpfs -o size=16k none disk; echo old > disk/a.json; \
         ! $I convert record disk/a.json; ! $I report heatmap record -o disk/a.html; \
         $I report heatmap record > heat.txt; cat disk/a.json; ls -A disk";
    let done = alone_with_state(script).success();
    assert_eq!(done.stdout, "old\na.json\n", "{done:?}");
}
