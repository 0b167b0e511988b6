//! Recording must not touch the kernel's own DAMON, and a target's huge pages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{
    Record, Workload, paced_workload, pause, proc_bytes, record_pid, scratch, seen, shared, skip,
    stop_once,
};

const DAMON: &str = "/sys/kernel/mm/damon/admin";

/// Collects every readable file below a directory, with its content. Reads only.
fn contents(directory: &Path, into: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => contents(&path, into),
            Ok(kind) if kind.is_file() => {
                // Files that only the kernel's owner may write read as an error, which stays the same.
                let text = fs::read_to_string(&path).unwrap_or_else(|e| format!("error: {e}"));
                into.insert(path, text);
            }
            _ => {}
        }
    }
}

fn damon() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    contents(Path::new(DAMON), &mut found);
    found
}

#[test]
fn kernel_damon_is_left_as_it_is() {
    let Some(_turn) = shared() else { return };
    if !Path::new(DAMON).is_dir() {
        return skip("this kernel has no DAMON in sysfs");
    }
    // Another process' kdamond may count in its files: files that change anyway are not compared.
    let earlier = damon();
    pause(1.5);
    let before = damon();
    let directory = scratch();
    let workload = Workload::start(&paced_workload(64, 8), &[]);
    for flags in [
        &["--duration", "3s"][..],
        &["--duration", "3s", "--faithful"],
    ] {
        let path = directory.path().join("record");
        record_pid(workload.pid(), &path, flags).succeed();
    }
    let after = damon();
    assert!(before.keys().eq(after.keys()), "files came or went");
    let changes_anyway = |path: &PathBuf| earlier.get(path) != before.get(path);
    let paths = before.keys().filter(|path| !changes_anyway(path));
    let ours: Vec<_> = paths.filter(|path| before[*path] != after[*path]).collect();
    assert!(ours.is_empty(), "changed: {ours:?}");
}

#[test]
fn huge_pages_stay_huge() {
    let Some(_turn) = shared() else { return };
    let workload = Workload::start(&paced_workload(256, 16), &["--hugepages", "always"]);
    let huge = || proc_bytes(workload.pid(), "smaps_rollup", "AnonHugePages:");
    let before = huge();
    if before < 128 << 20 {
        return skip(&format!("the kernel gave only {before} B of huge pages"));
    }
    let directory = scratch();
    let hot = workload.hot();
    // Another monitor on this machine may have cleared bits without a flush, just before a snapshot.
    let most = |record: &Record| record.snapshots().map(|s| seen(s, &hot).accessed).max();
    for flags in [&[][..], &["--pages"], &["--faithful"]] {
        let path = directory.path().join(format!("record{}", flags.concat()));
        let recorder = record_pid(workload.pid(), &path, flags);
        stop_once("snapshots of hot memory", recorder, &path, |record| {
            record.snapshots().count() > 3 && most(record) > Some(16 << 20)
        });
        let after = huge();
        assert!(after >= before / 10 * 9, "{flags:?}: {before}, {after}");
    }
}
