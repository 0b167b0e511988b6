//! Swap for tests: zram that is set up for them and removed.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::act::compaction::drop_caches;
use crate::common::{Running, isotherm, meminfo, owning_swap, python, run, skip, until_so};

/// With less free memory the kernel itself pages out, which tests would count as Isotherm's.
const FREE_MIN: u64 = 3 << 30;

/// Swap for a test.
pub(crate) struct Swap {
    ours: bool,
}

impl Swap {
    pub(crate) fn set_up() -> Option<Self> {
        if there_is_swap() {
            return Some(Self { ours: false });
        }
        // Enough for all tests that share it: no test's memory may reach the system's reserve.
        Self::of("4G")
    }

    /// Sets up swap of a size, on a machine without any.
    pub(crate) fn of(size: &str) -> Option<Self> {
        if meminfo("MemFree:") < FREE_MIN {
            drop_caches();
        }
        let done = run(&mut isotherm(["swap", "zram", "--size", size]));
        if done.code() != 0 {
            skip(done.stderr.trim());
            return None;
        }
        Some(Self { ours: true })
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if self.ours {
            let done = run(&mut isotherm(["swap", "off"]));
            // A second panic would end all tests.
            if !std::thread::panicking() {
                done.success();
            }
        }
    }
}

pub(crate) fn there_is_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

/// Pages 32 MiB out and reads them back; prints what went to swap and to zswap, in KiB, and whether all came back.
const OUT_AND_BACK: &str = r"
import hashlib, mmap, time
def kib(file, name): return next((int(line.split()[1]) for line in open(file) if line.startswith(name)), 0)
memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(32 << 8):
    memory[page << 12:page + 1 << 12] = (f'page {page} of text, ' * 400).encode()[:4096]
before = hashlib.sha256(memory).digest()
held = kib('/proc/meminfo', 'Zswapped:')
memory.madvise(21)
out, held = kib('/proc/self/status', 'VmSwap:'), kib('/proc/meminfo', 'Zswapped:') - held
print('back', out, held, before == hashlib.sha256(memory).digest(), flush=True)
print('ready', flush=True)
time.sleep(1000)
";

const NOTE: &str = "/run/isotherm/zram-swap";

/// Returns the settings of zswap, and all swap; prints a skip without zswap, or if `swap off` would take another's swap.
fn state() -> Option<Vec<String>> {
    let Ok(files) = fs::read_dir("/sys/module/zswap/parameters") else {
        skip("this kernel has no zswap");
        return None;
    };
    if fs::exists(NOTE).unwrap_or(true) {
        skip("isotherm has set up swap here before");
        return None;
    }
    let mut files: Vec<_> = files.map(|file| file.expect("listed").path()).collect();
    files.sort();
    let read = |path: &Path| fs::read_to_string(path).expect("readable");
    let settings = files.iter().map(|file| read(file));
    let swaps = read(Path::new("/proc/swaps"));
    let areas = swaps
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    Some(settings.chain(areas.map(str::to_owned)).collect())
}

#[test]
fn zswap_holds_pages_and_all_is_as_before_once_it_is_taken_away() {
    let Some(_turn) = owning_swap() else { return };
    let Some(before) = state() else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = folder.path().join("swap");
    let zswap = [
        "swap",
        "zswap",
        "--size",
        "256M",
        "--max-pool",
        "30%",
        "--file",
    ];
    for (size, compressor, words) in [
        ("256M", "none-such", "/proc/crypto"),
        ("9000T", "lzo", "16 TiB"),
    ] {
        let mut zswap = isotherm(["swap", "zswap", "--size", size, "--compressor", compressor]);
        let done = run(zswap.arg("--file").arg(&file));
        done.refused(words);
        assert_eq!(state().as_ref(), Some(&before), "nothing half done remains");
    }
    run(isotherm(zswap).arg(&file).args(["--priority", "32767"]))
        .success()
        .prints("(priority 32767)");
    let swap = Swap { ours: true };
    let back = Running::ready(&mut python(OUT_AND_BACK)).line("back");
    let words: Vec<&str> = back.split(' ').collect();
    let kib = |at: usize| words[at].parse::<u64>().expect("a number");
    assert!(
        kib(0) > 30 << 10 && kib(1) > 24 << 10 && words[2] == "True",
        "{back}"
    );
    drop(swap);
    assert!(!file.exists());
    assert_eq!(state(), Some(before));
}

#[test]
fn advice_measures_both_and_leaves_nothing_even_if_it_is_killed() {
    let Some(_turn) = owning_swap() else { return };
    let Some(before) = state() else { return };
    let target = Running::ready(&mut python(OUT_AND_BACK));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = folder.path().join("scratch");
    let advise = |more: &[&str]| {
        let mut command = isotherm(["swap", "advise", "--json", "--pid"]);
        command
            .arg(target.pid().to_string())
            .arg("--file")
            .arg(&file)
            .args(more);
        command
    };
    let said = run(&mut advise(&["--idle", "2s"])).success().json();
    for kind in [0, 1] {
        let ratio = said["measured"][kind]["ratio"]["median"].as_f64();
        assert!(ratio > Some(3.0), "{said}");
    }
    let idle = said["need"]["idle_bytes"].as_u64();
    assert!(
        idle > Some(30 << 20) && said["sample"]["is_idle"] == true,
        "{said}"
    );
    assert_eq!(state().as_ref(), Some(&before));
    let killed = Running::start(&mut advise(&["--no-watch"]));
    let note = || fs::read_to_string(NOTE).unwrap_or_default();
    until_so("a file of the killed one", || note().contains("file "));
    killed.signal(Signal::SIGKILL);
    drop(killed);
    run(&mut isotherm(["swap", "off"]))
        .success()
        .prints("again");
    assert!(!file.exists());
    assert_eq!(state(), Some(before));
}
