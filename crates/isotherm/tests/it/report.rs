//! `isotherm report` from a user's view: files, pipes, formats, and messages of errors.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use isotherm_engine::{Nanos, Snapshot, TargetId};
use isotherm_record::{Header, Item, TargetStart, UsageSample, Writer};
use tempfile::TempDir;

use crate::common::{self, Ended, isotherm};
use crate::records::{STARTED, snapshot_of_second};

/// Returns a record of five seconds: one hot, one idle and one unknown region.
fn record() -> Vec<u8> {
    let header = Header {
        started: Nanos(STARTED),
        command: vec!["demo".into()],
        operations: "vaddr".into(),
        ..Header::default()
    };
    let mut writer = Writer::create(Vec::new(), &header).expect("a writer");
    let at = |second: u64| Nanos(STARTED + second * 1_000_000_000);
    let start = TargetStart::new(at(0), TargetId(0), 7, "demo");
    writer.write(&Item::TargetStart(start)).expect("written");
    for second in 0..5 {
        let snapshot = snapshot_of_second(second);
        writer.write(&Item::Snapshot(snapshot)).expect("written");
        let usage = UsageSample {
            time: at(second),
            rss: [(0, 3 << 20)].into(),
            ..UsageSample::default()
        };
        writer.write(&Item::Usage(usage)).expect("written");
    }
    writer.finish().expect("finished")
}

fn run(directory: &Path, arguments: &[&str], stdin: &[u8]) -> Output {
    let mut command = isotherm();
    command.arg("report").args(arguments).current_dir(directory);
    command.env_remove("NO_COLOR").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("isotherm starts");
    let mut input = child.stdin.take().expect("a pipe");
    // A report that refuses its arguments does not read.
    let _ = input.write_all(stdin);
    drop(input);
    child.wait_with_output().expect("isotherm ends")
}

/// Checks the output, the messages beside it, and the exit code.
fn check(arguments: &[&str], stdin: &[u8], out: &str, said: &str, code: i32) {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("a.isotherm"), record()).expect("written");
    let output = run(directory.path(), arguments, stdin);
    let (stdout, stderr) = (common::text(&output.stdout), output.errors());
    assert!(stdout.contains(out), "{out:?} is not in {stdout}");
    assert!(stderr.contains(said), "{said:?} is not in {stderr}");
    assert_eq!(output.status.code(), Some(code), "{stderr}");
}

#[test]
fn every_report_reads_the_newest_record_by_default() {
    let access = "hot 1 MiB, cold 0 B, idle 1 MiB, unknown 1 MiB";
    for (report, out) in [
        ("access", access),
        ("heatmap", "|@@@@@|"),
        ("wss", "mean 1 MiB of 3 MiB resident"),
        ("idle", ">= 5 s  1 MiB"),
        ("footprint", "resident"),
    ] {
        check(&[report], b"", out, "reading a.isotherm", 0);
    }
}

#[test]
fn reports_read_what_other_programs_wrote() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("rec.isotherm"), record()).expect("written");
    let ours = run(directory.path(), &["wss", "rec.isotherm", "--json"], &[]);
    for name in ["copy.parquet", "copy.json", "copy.damo"] {
        common::run(directory.path(), &["convert", "rec.isotherm", name]).success();
        // The content determines the format, not the name; from a pipe, too.
        let any = path("any");
        fs::rename(path(name), &any).expect("renamed");
        let theirs = run(directory.path(), &["wss", "any", "--json"], &[]);
        let bytes = fs::read(&any).expect("read");
        let piped = run(directory.path(), &["wss", "-", "--json"], &bytes);
        assert_eq!(piped.stdout, theirs.stdout);
        let theirs = theirs.json();
        assert_eq!(theirs["report"], "wss");
        if name == "copy.parquet" {
            assert_eq!(theirs, ours.json());
        }
    }
}

#[test]
fn every_report_is_json() {
    for report in ["access", "heatmap", "wss", "idle", "footprint", "summary"] {
        let directory = TempDir::new().expect("a directory");
        let line = [report, "-", "--format", "json"];
        let output = run(directory.path(), &line, &record());
        let value = output.json();
        assert_eq!(value["report"], report);
        assert_eq!(value["version"], 2);
        assert_eq!(value["record"]["started_ns"], STARTED.to_string());
        let short = run(directory.path(), &[report, "-", "--json"], &record());
        assert_eq!(short.stdout, output.stdout);
    }
}

#[test]
fn the_output_files_name_says_the_format() {
    for (name, begins) in [
        ("x.html", "<!doctype html>"),
        ("x.svg", "<svg"),
        ("x.csv", "target,"),
        ("x.json", "{"),
        ("x", "access rate"),
    ] {
        let directory = TempDir::new().expect("a directory");
        let output = run(directory.path(), &["heatmap", "-", "-o", name], &record());
        assert!(output.status.success() && output.stdout.is_empty());
        let written = fs::read_to_string(directory.path().join(name)).expect("a report");
        assert!(written.starts_with(begins), "{name}: {written}");
    }
}

#[test]
fn a_torn_record_is_reported_on_as_far_as_it_goes() {
    let record = record();
    let torn = &record[..record.len() - 20];
    let said = "standard input: the record was not finished";
    check(&["wss", "-"], torn, "Working set", said, 0);
}

#[test]
fn json_says_that_a_record_is_torn_or_damaged_and_damage_is_told_by_the_exit_code() {
    let whole = record();
    let json = |bytes: &[u8], report: &str| {
        let directory = TempDir::new().expect("a directory");
        let output = run(directory.path(), &[report, "-", "--format", "json"], bytes);
        (output.json()["record"].clone(), output.status.code())
    };
    for report in ["wss", "access", "summary"] {
        let (said, code) = json(&whole, report);
        assert!(said["truncated"].is_null() && said["damaged"].is_null());
        assert_eq!(code, Some(0));
        let (said, code) = json(&whole[..whole.len() - 20], report);
        assert!(said["truncated"]["bytes_read"].as_u64() > Some(0), "{said}");
        assert_eq!(code, Some(0));
        let mut damaged = whole.clone();
        // Only the end mark is behind the last message.
        damaged.truncate(whole.len() - 8);
        damaged.extend([0xff; 64]);
        let (said, code) = json(&damaged, report);
        assert!(said["damaged"].as_str().is_some(), "{report}: {said}");
        assert_eq!(code, Some(1));
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let absent = "cannot open the record absent";
    check(&["wss", "absent"], b"", "", absent, 2);
    check(&["diff", "a.isotherm", "absent"], b"", "", absent, 2);
    let unreadable = "cannot read standard input as a record";
    check(&["wss", "-"], b"not a record", "", unreadable, 2);
    let empty = TempDir::new().expect("a directory");
    let said = run(empty.path(), &["wss"], b"").errors();
    assert!(said.contains("no *.isotherm file"), "{said}");
}

#[test]
fn pages_of_interest_are_the_shown_regions_in_memtierds_form() {
    let directory = TempDir::new().expect("a directory");
    let at = directory.path();
    fs::write(at.join("a.isotherm"), record()).expect("written");
    let access = ["access", "--max-rate", "0%", "--pages-of-interest"];
    run(at, &[&access[..], &["absent"]].concat(), b"").refused("cannot lock absent/lock");
    let output = run(at, &[&access[..], &["."]].concat(), b"");
    assert!(output.status.success(), "{}", output.errors());
    let idle = [2 << 20, 3 << 20].map(u64::to_le_bytes).concat();
    assert_eq!(fs::read(at.join("7.vab")).expect("of process 7"), idle);
    assert!(at.join("lock").exists());
}

#[test]
fn wishes_that_make_no_sense_are_refused() {
    for (arguments, said) in [
        (&["access", "--min-size", "2 apples"][..], "2M"),
        (&["access", "--min-rate", "150%"], "0% to 100%"),
        (
            &["access", "--snapshot", "all", "--format", "svg"],
            "one picture cannot show all snapshots",
        ),
        (&["wss", "-o", "x.pdf"], "say --format"),
        (&["wss", "-o", "/dev/full"], "cannot write the report"),
    ] {
        check(arguments, b"", "", said, 2);
    }
}

#[test]
fn a_report_about_nothing_is_an_error_and_leaves_no_file() {
    for (arguments, said) in [
        (&["access", "--snapshot", "99"][..], "no such snapshot"),
        (
            &["access", "--at", "999s"],
            "no snapshot at 16 min 39 s: the record ends at 5 s",
        ),
        (&["idle", "--at", "999s"], "the record ends at 5 s"),
        (
            &["heatmap", "--target", "7"],
            "no snapshot of target 7: the record has 0",
        ),
        (&["wss", "--from", "60s"], "no snapshot in this part"),
        (&["summary", "--target", "7"], "no snapshot of target 7"),
        (&["fragmentation"], "says nothing of fragmentation"),
        (&["actions"], "has no schemes"),
    ] {
        let directory = TempDir::new().expect("a directory");
        fs::write(directory.path().join("a.isotherm"), record()).expect("written");
        let mut arguments = arguments.to_vec();
        arguments.extend(["-o", "report.html"]);
        run(directory.path(), &arguments, b"").refused(said);
        let left = fs::read_dir(directory.path()).expect("readable").count();
        assert_eq!(left, 1, "{arguments:?} left a file behind");
    }
}

#[test]
fn a_dash_is_standard_output_and_a_device_is_written_to() {
    check(&["wss", "-o", "-"], b"", "Working set", "", 0);
    check(&["wss", "-o", "/dev/null"], b"", "", "", 0);
}

#[test]
fn a_summary_says_what_is_in_use_and_what_to_do_next() {
    let verdict = "demo uses 1 MiB of 3 MiB resident (33 %); 1 MiB (33 %) has been idle for 5 s";
    check(&["summary"], b"", verdict, "", 0);
    let next = "Next: isotherm run --dry-run --preset prcl --duration 1min --pid 7";
    check(&["summary"], b"", next, "", 0);
    for format in ["json", "csv", "svg", "html"] {
        check(&["summary", "--format", format], b"", "", "", 0);
    }
}

#[test]
fn a_record_compared_with_itself_has_not_changed() {
    check(&["diff", "a.isotherm", "a.isotherm"], b"", "+0 B", "", 0);
    let piped = ["diff", "a.isotherm", "-"];
    check(&piped, &record(), "no mapping changed", "", 0);
    for format in ["json", "csv", "svg", "html"] {
        let arguments = ["diff", "a.isotherm", "a.isotherm", "--format", format];
        check(&arguments, b"", "", "", 0);
    }
}

#[test]
fn colours_only_where_wanted() {
    let directory = TempDir::new().expect("a directory");
    let coloured = |arguments: &[&str]| {
        let output = run(directory.path(), arguments, &record());
        output.stdout.contains(&0x1b)
    };
    assert!(!coloured(&["heatmap", "-"]));
    assert!(coloured(&["heatmap", "-", "--color", "always"]));
    assert!(!coloured(&["heatmap", "-", "--color", "never"]));
}

#[test]
fn stacks_are_written_for_the_tool_that_the_files_name_says() {
    let directory = TempDir::new().expect("a directory");
    let settings = [("stacks".to_owned(), "0.5 %".to_owned())];
    let header = Header {
        started: Nanos(STARTED),
        settings: settings.into(),
        ..Header::default()
    };
    let mut writer = Writer::create(Vec::new(), &header).expect("a writer");
    let times = (Nanos(STARTED), Nanos(STARTED + 1_000_000_000));
    let snapshot = Snapshot::new(TargetId(0), times, 0, Vec::new());
    writer.write(&Item::Snapshot(snapshot)).expect("written");
    let record = writer.finish().expect("a whole record");
    fs::write(directory.path().join("s.isotherm"), record).expect("written");
    let reported = |name: &str| {
        let line = ["blame", "s.isotherm", "--of", "refaulted", "-o", name];
        run(directory.path(), &line, b"")
    };
    for (name, begins) in [
        ("x.folded", &b""[..]),
        ("x.speedscope.json", b"{\"$schema\""),
        ("x.pb.gz", b"\x1f\x8b"),
        ("x.pprof", b"\x1f\x8b"),
        ("x.json", b"{\n"),
    ] {
        reported(name).success();
        let written = fs::read(directory.path().join(name)).expect("it is there");
        assert!(written.starts_with(begins), "{name}: {written:?}");
    }
    reported("x.gz").refused("the extension .gz");
}
