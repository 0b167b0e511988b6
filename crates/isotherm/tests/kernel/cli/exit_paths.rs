//! Recordings that end early: by a signal, by a full disk, with their target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::common::{
    Record, Running, at_once, is_alive, isotherm, pause, python, record_file, record_pid, run,
    scratch, shared, skip, stop_once, until_snapshot, until_so,
};

/// Holds 64 MiB of known content, touches it all the time, and prints at the end whether it is unchanged.
const KEEPER: &str = r#"
import signal, sys, time, zlib, random
memory = bytearray(random.Random(7).randbytes(64 << 20))
before = zlib.crc32(memory)
stop = False
def end(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, end)
print("ready")
while not stop:
    assert zlib.crc32(memory) == before, "memory changed"
    time.sleep(0.05)
print("whole" if zlib.crc32(memory) == before else "changed")
"#;

/// Starts a keeper, and returns when its memory is populated.
fn keeper() -> Running {
    Running::ready(&mut python(KEEPER))
}

/// Ends a keeper, which must have run until now with its memory unchanged.
fn check_unharmed(mut keeper: Running) {
    assert!(keeper.is_running(), "the target ended");
    keeper.signal(Signal::SIGTERM);
    assert!(keeper.succeed().stdout.ends_with("whole\n"));
}

/// A signal to the recorder alone also ends the command that it started.
#[test]
fn a_signal_to_the_recorder_ends_its_command() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let path = directory.path().join(signal.as_str());
        let mut command = isotherm(["record", "-o"]);
        let recorder = Running::start(command.arg(&path).args(["--", "sleep", "600"]));
        until_snapshot(&path);
        recorder.signal(signal);
        let done = recorder.finish();
        assert_eq!(done.code(), 143, "{done:?}");
        done.warns("recorded");
        done.warns("wrote");
        let record = Record::read(&path);
        assert_eq!(record.truncated, None);
        let pid = record.starts()[0].pid;
        assert!(!is_alive(pid), "the command {pid} still runs");
    }
}

#[test]
fn a_killed_recorder_harms_no_target_and_leaves_a_readable_record() {
    let Some(_turn) = shared() else { return };
    let (directory, keeper) = (scratch(), keeper());
    let ways = [
        &[][..],
        &["--pages", "--max-stall", "1s"],
        &["--faithful"],
        &["--pages", "--clear-by", "clear-refs", "--max-stall", "1s"],
    ];
    for (i, flags) in ways.iter().enumerate() {
        let path = directory.path().join(format!("record {i}"));
        let recorder = record_pid(keeper.pid(), &path, flags);
        until_snapshot(&path);
        // The recorder is killed in the middle of its work.
        pause(0.7);
        recorder.signal(Signal::SIGKILL);
        assert_eq!(recorder.finish().code(), 137);
        let record = Record::read(&path);
        assert!(record.truncated.is_some(), "nobody finished it");
        let nr = record.snapshots().count();
        assert!(nr > 0, "{flags:?}: what was seen is lost");
        for report in ["wss", "access", "heatmap", "idle", "footprint"] {
            let done = run(isotherm(["report", report]).arg(&path)).success();
            assert!(!done.stdout.is_empty());
        }
    }
    check_unharmed(keeper);
}

#[test]
fn a_target_that_ends_ends_the_recording() {
    let Some(_turn) = shared() else { return };
    let ways = [&[][..], &["--pages"], &["--faithful"]];
    at_once(&ways, |flags| {
        let ((_directory, path), keeper) = (record_file(), keeper());
        let recorder = record_pid(keeper.pid(), &path, flags);
        until_snapshot(&path);
        keeper.signal(Signal::SIGKILL);
        keeper.finish();
        recorder.succeed();
        let record = Record::whole(&path);
        let exits = record.exits();
        assert_eq!(exits.len(), 1, "{flags:?}: {exits:?}");
        let mut starts = record.snapshots().map(|snapshot| snapshot.start);
        let is_late = starts.any(|start| start > exits[0].time);
        assert!(!is_late, "{flags:?}: snapshots after its end");
    });
}

/// If one of several targets ends, the recording of the others continues.
#[test]
fn the_other_targets_are_recorded_on() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let (first, second) = (keeper(), keeper());
    let pids = format!("{},{}", first.pid(), second.pid());
    let recorder = Running::start(isotherm(["record", "--pid", &pids, "-o"]).arg(&path));
    until_snapshot(&path);
    first.signal(Signal::SIGKILL);
    first.finish();
    let what = "more snapshots after an exit";
    stop_once(what, recorder, &path, |record| {
        let exits = record.exits();
        exits.first().is_some_and(|exit| {
            let after = record.snapshots().filter(|s| s.start > exit.time);
            after.count() > 3
        })
    });
    let record = Record::whole(&path);
    let [exit] = record.exits()[..] else {
        panic!("{:?}", record.exits())
    };
    let mut after = record.snapshots().filter(|s| s.start > exit.time);
    assert!(after.all(|s| s.target != exit.target));
    check_unharmed(second);
}

/// A file system of a size in KiB that is unmounted when it goes out of scope.
struct SmallDisk {
    directory: TempDir,
}

/// Mounts a small disk; prints a skip and returns `None` where that is not possible.
fn small_disk(kib: u32) -> Option<SmallDisk> {
    let directory = scratch();
    let options = format!("size={kib}k");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]);
    let done = run(mount.arg(directory.path()));
    if done.code() != 0 {
        skip(&done.stderr);
        return None;
    }
    Some(SmallDisk { directory })
}

impl SmallDisk {
    fn path(&self) -> PathBuf {
        self.directory.path().join("record")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy: a recorder of a failed test may still have its file open.
        let mut umount = Command::new("umount");
        umount.arg("-l").arg(self.directory.path()).status().ok();
    }
}

fn check_readable(path: &Path) {
    let nr = Record::read(path).snapshots().count();
    assert!(nr > 0, "nothing of what was seen can be read");
    run(isotherm(["report", "wss"]).arg(path)).success();
}

#[test]
fn a_full_disk_is_named_and_what_was_written_is_readable() {
    let Some(_turn) = shared() else { return };
    let Some(disk) = small_disk(512) else { return };
    // The sampling interval is fixed, so that the disk is full within seconds.
    let fast = "--sample-interval 5ms --aggregation-interval 20ms --regions 500-1000";
    let fast: Vec<&str> = fast.split(' ').collect();
    let keeper = keeper();
    let done = record_pid(keeper.pid(), &disk.path(), &fast).finish();
    let path = disk.path().display().to_string();
    for word in [path.as_str(), "No space left", "readable"] {
        done.refused(word);
    }
    assert_eq!(done.stderr.matches("readable").count(), 1, "{done:?}");
    check_readable(&disk.path());
    check_unharmed(keeper);
}

/// The command continues to its own end, unrecorded, which a message reports at once.
#[test]
fn a_full_disk_does_not_end_the_command() {
    let Some(_turn) = shared() else { return };
    let Some(disk) = small_disk(64) else { return };
    let directory = scratch();
    let (go, trace) = (directory.path().join("go"), directory.path().join("done"));
    let (go_name, name) = (go.display(), trace.display());
    let script = format!("until [ -e {go_name} ]; do sleep 0.2; done; touch {name}");
    let mut command = isotherm(["record", "--sample-interval", "2ms"]);
    command.args(["--aggregation-interval", "4ms", "--regions", "500-1000"]);
    command.arg("-o").arg(disk.path());
    let recorder = Running::start(command.args(["--", "sh", "-c", &script]));
    until_so("the recorder to give up", || {
        recorder.stderr().contains("goes on")
    });
    fs::write(&go, "").expect("a file");
    let done = recorder.finish();
    done.refused("goes on");
    assert_eq!(done.stderr.matches("readable").count(), 1, "{done:?}");
    assert!(trace.exists(), "the command was ended");
    check_readable(&disk.path());
}
