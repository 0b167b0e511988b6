//! Functions that made idle memory (`record --stacks`), also in hard cases: recorders that are killed, forged files,
//! code that is loaded late, and more stacks than the recorder can keep. The programs are in tests/blame/programs/hostile.c.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isotherm_engine::Nanos;
use isotherm_record::Item;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    MIB, Record, Running, at_once, isotherm, now, pause, proc_bytes, record_pid, run, scratch,
    shared, skip, until, until_snapshot,
};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/blame/programs/hostile.c"
);

/// The directory of the program that was built.
struct Hostile(TempDir);

/// Builds the program; prints a skip and returns `None` without a compiler.
fn hostile() -> Option<Hostile> {
    let hostile = Hostile(scratch());
    let library = ["-fPIC", "-shared", "-DLIBRARY"];
    let is_built = compile(&["-fno-optimize-sibling-calls"], &hostile.path("hostile"))
        && compile(&library, &hostile.path("hostile.so"));
    if !is_built {
        skip("there is no gcc to compile a program with");
    }
    is_built.then_some(hostile)
}

impl Hostile {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("hostile"));
        command.args(arguments);
        command
    }

    /// Records it from its start until its touched memory is old enough for ages of 2 s. The recorder prints nothing.
    fn record(&self, flags: &[&str], arguments: &[&str]) -> Record {
        let path = self.path("record");
        let mut command = isotherm(["record", "--quiet", "-o"]);
        command.arg(&path).args(flags).arg("--");
        command.arg(self.path("hostile")).args(arguments);
        let recorder = Running::ready(&mut command);
        until_old(&path);
        recorder.signal(Signal::SIGINT);
        let done = recorder.finish();
        assert_eq!(done.code(), 128 + 15, "its command is ended, too: {done:?}");
        let record = Record::whole(&path);
        for start in record.starts() {
            // A JIT leaves this file.
            let map = format!("/tmp/perf-{}.map", start.pid);
            fs::remove_file(&map).ok();
            fs::remove_file(map + ".other").ok();
        }
        assert_eq!(done.complaints(), "");
        record
    }

    /// Starts it, and a recorder once it has touched half of its memory; returns when it has touched the rest.
    fn record_from_its_middle(&self) -> (Running, Running) {
        let mut target = Running::start(&mut self.command(&["asked"]));
        target.line("waiting");
        let path = self.path("record");
        let recorder = record_pid(target.pid(), &path, &["--stacks"]);
        until_snapshot(&path);
        target.signal(Signal::SIGUSR1);
        target.line("ready");
        (target, recorder)
    }

    fn report(&self, flags: &[&str]) -> String {
        let mut command = isotherm(["report", "blame", "--idle", "2s"]);
        let done = run(command.arg(self.path("record")).args(flags));
        assert!([0, 1].contains(&done.code()), "{done:?}");
        assert!(!has_raw_control(&done.stderr), "{:?}", done.stderr);
        done.stdout
    }

    /// Returns the report by function.
    fn blame(&self) -> Value {
        self.blame_of("idle")
    }

    fn blame_of(&self, which: &str) -> Value {
        serde_json::from_str(&self.report(&["--json", "--of", which])).expect("JSON")
    }

    /// Returns the report by function of a run in this mode, which is recorded.
    fn blame_run(&self, arguments: &[&str]) -> Value {
        self.record(&["--stacks"], arguments);
        self.blame()
    }
}

/// Waits until memory touched by now has been seen to be idle for 2 s.
fn until_old(record: &Path) {
    let touched = now();
    until("a snapshot of old memory", || {
        let record = Record::try_read(record)?;
        let mut snapshots = record.snapshots().filter(|s| s.start >= touched);
        let idle = snapshots.find(|s| s.totals().untouched >= 16 * MIB)?;
        let old_from = idle.end + Nanos::from_millis(2_500);
        snapshots.any(|s| s.start >= old_from).then_some(())
    });
}

fn compile(flags: &[&str], program: &Path) -> bool {
    let mut compiler = Command::new("gcc");
    let common = ["-std=gnu11", "-O2", "-fomit-frame-pointer", "-pthread"];
    compiler.args(common).args(flags).arg(SOURCE).arg("-o");
    let status = compiler.arg(program).status();
    status.is_ok_and(|status| status.success())
}

/// Returns whether a terminal could take part of the text for a command.
fn has_raw_control(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\n')
        || text.contains(['\u{202e}', '\u{2066}', '\u{200f}'])
}

fn bytes_of(report: &Value, function: &str) -> u64 {
    let blamed = report["blamed"].as_array().expect("a list");
    let of = blamed.iter().find(|blamed| blamed["name"] == function);
    of.map_or(0, |of| of["bytes"].as_u64().expect("a number"))
}

/// Asserts that a function has `mib` MiB, within 5 %.
fn expect(report: &Value, function: &str, mib: u64) {
    let (found, true_bytes) = (bytes_of(report, function), mib * MIB);
    let (differ, blamed) = (found.abs_diff(true_bytes), &report["blamed"]);
    assert!(differ <= true_bytes / 20, "{function}: {found}: {blamed}");
}

#[test]
fn idle_memory_is_laid_to_who_touched_it_first() {
    let Some(_turn) = shared() else { return };
    let Some(hostile) = hostile() else { return };
    let record = hostile.record(&["--stacks"], &["hot"]);
    let is_symbols = |item: &Item| matches!(item, Item::Symbols(_));
    assert!(record.items.iter().any(is_symbols), "names are recorded");
    let report = hostile.blame();
    expect(&report, "touch_before", 40);
    let hot = bytes_of(&report, "touch_again");
    assert!(hot < MIB, "it is in use: {}", report["blamed"]);
    let unknown = |key: &str| report["unknown"][key].as_u64().expect("a number");
    let bytes = |key: &str| report[key].as_u64().expect("a number");
    assert_eq!(unknown("before_sampling"), 0);
    let blamed = bytes("blamed_bytes") + unknown("not_sampled");
    assert_eq!(bytes("total_bytes"), blamed, "{report}");
    expect(&hostile.blame_of("resident"), "touch_again", 24);
}

#[test]
fn what_was_touched_before_a_recorder_came_is_nobodys_and_what_comes_after_is_told() {
    let Some(_turn) = shared() else { return };
    let Some(hostile) = hostile() else { return };
    let (_target, recorder) = hostile.record_from_its_middle();
    until_old(&hostile.path("record"));
    recorder.interrupt();
    let report = hostile.blame();
    expect(&report, "touch_after", 64);
    assert_eq!(bytes_of(&report, "touch_before"), 0, "{report}");
    let unknown = &report["unknown"];
    let before = unknown["before_sampling"].as_u64().expect("bytes");
    assert!(before.abs_diff(64 * MIB) < 4 * MIB, "{unknown}");
}

#[test]
fn a_recorder_that_is_killed_leaves_a_record_that_names_functions() {
    let Some(_turn) = shared() else { return };
    let Some(hostile) = hostile() else { return };
    let (_target, recorder) = hostile.record_from_its_middle();
    pause(7.0);
    recorder.signal(Signal::SIGKILL);
    assert_eq!(recorder.finish().code(), 128 + 9);
    assert!(Record::read(&hostile.path("record")).truncated.is_some());
    expect(&hostile.blame(), "touch_after", 64);
    // The files are gone, too: only places in files remain.
    fs::remove_file(hostile.path("hostile")).expect("removed");
    let report = hostile.blame();
    let names = report["blamed"].to_string();
    assert!(names.contains("hostile+0x"), "{names}");
}

#[test]
fn maps_of_names_that_lie_mislead_nobody() {
    let Some(_turn) = shared() else { return };
    let kinds = [
        ("none", "run_made_code"),
        ("plain", "made_code"),
        ("million", "made_code"),
        // Any user may write to /tmp.
        ("symlink", "run_made_code"),
        ("foreign", "run_made_code"),
        ("fifo", "run_made_code"),
        (
            "control",
            "made\\u{1b}[31m\\r\\u{8}\\u{7}\\u{202e}\u{fffd}_code",
        ),
    ];
    at_once(&kinds, |(kind, name)| {
        let Some(hostile) = hostile() else { return };
        let report = hostile.blame_run(&["code", kind]);
        expect(&report, name, 32);
        if *kind == "none" {
            let stacks = report["stacks"].to_string();
            assert!(stacks.contains("[code made at run time]"), "{stacks}");
        }
        for flags in [&["--by", "stack"][..], &["--export", "folded"], &[]] {
            let text = hostile.report(flags);
            assert!(!has_raw_control(&text), "{kind} {flags:?}: {text:?}");
        }
    });
}

#[test]
fn code_that_changes_while_it_runs_is_told_all_the_same() {
    let Some(_turn) = shared() else { return };
    let modes = [
        ("exec", "touch_after", 32),
        ("deep", "descend", 32),
        ("threads", "touch_on_thread", 75),
        ("deleted", "touch_before", 32),
        ("replaced", "touch_before", 32),
        ("library", "", 0),
    ];
    at_once(&modes, |&(mode, function, mib)| {
        let Some(hostile) = hostile() else { return };
        let library = hostile.path("hostile.so").display().to_string();
        let report = hostile.blame_run(&[mode, &library]);
        if mode == "library" {
            // The file was cut to a page: no names are left, but the library is known.
            let names = report["blamed"].to_string();
            assert!(names.contains("hostile.so+0x"), "{names}");
        } else {
            expect(&report, function, mib);
        }
        if mode == "exec" {
            assert_eq!(bytes_of(&report, "touch_before"), 0, "{report}");
        }
    });
}

#[test]
fn memory_that_moves_as_it_grows_is_still_whose_it_was() {
    let Some(_turn) = shared() else { return };
    let Some(hostile) = hostile() else { return };
    let report = hostile.blame_run(&["grow"]);
    expect(&report, "grow_alone", 96);
    // Two at once are sometimes confused, and a part of their memory is far from any sample.
    let both = bytes_of(&report, "grow_in_turns");
    assert!(both > 48 * MIB && both < 66 * MIB, "{report}");
}

#[test]
fn pages_of_huge_pages_that_were_never_written_are_laid_to_who_touched_them_first() {
    let Some(_turn) = shared() else { return };
    let Some(hostile) = hostile() else { return };
    let target = Running::ready(&mut hostile.command(&["huge"]));
    if proc_bytes(target.pid(), "smaps_rollup", "AnonHugePages:") < 128 * MIB {
        return skip("programs get no huge pages by asking for them");
    }
    drop(target);
    hostile.record(&["--stacks"], &["huge"]);
    let of_waste = |flags: &[&str]| hostile.report(&[&["--of", "waste"], flags].concat());
    let report = hostile.blame_of("waste");
    assert_eq!(report["huge"]["bytes"], 128 * MIB);
    // At the end of a recording there is time for more than these 64.
    assert_eq!(report["huge"]["read_bytes"], 128 * MIB);
    expect(&report, "touch_sparsely", 48);
    for function in ["touch_fully", "only_read"] {
        assert_eq!(bytes_of(&report, function), 0, "{report}");
    }
    let text = of_waste(&[]);
    let wanted = "Huge pages: 128 MiB, of which 128 MiB were read: 48 MiB never written";
    assert!(text.contains(wanted), "{text}");
    let folded = of_waste(&["--export", "folded"]);
    assert!(folded.contains("main;touch_sparsely "), "{folded}");
    // Nothing of this program is huge.
    hostile.record(&["--stacks"], &["deep"]);
    let text = of_waste(&[]);
    assert!(text.contains("there are no huge pages"), "{text}");
}

/// Records faults that each have a unique stack of 35 frames; the last 64 MiB become idle.
fn many_stacks(count: &str, flags: &[&str]) {
    let Some(hostile) = hostile() else { return };
    let record = hostile.record(flags, &["stacks", count]);
    let rss_mib = record.peak_rss_and_unknown().0 / MIB;
    let report = hostile.blame();
    let (samples, lost) = (&report["nr_samples"], &report["nr_lost"]);
    eprintln!("{samples} samples, {lost} lost, recorder {rss_mib} MiB");
    assert!(rss_mib < 512, "{rss_mib} MiB");
    let mib = |name: &str| report[name].as_u64().expect("bytes") / MIB;
    let whole = (mib("total_bytes"), mib("blamed_bytes"));
    assert!(whole.0 >= 60 && whole.1 >= 40, "{whole:?}");
    let folded = hostile.report(&["--export", "folded"]);
    assert!(folded.contains("zero;one") && folded.contains("one;zero"));
}

#[test]
fn a_million_stacks_are_kept_within_bounds() {
    let Some(_turn) = shared() else { return };
    many_stacks("1015808", &["--stacks"]);
}

#[test]
#[ignore = "long: as many samples as there can be, for half a minute"]
fn as_many_stacks_as_there_can_be_are_kept_within_bounds() {
    let Some(_turn) = shared() else { return };
    // The count is a multiple of the pages of 64 MiB.
    many_stacks("10010624", &["--stacks=50%"]);
}
