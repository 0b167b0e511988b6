//! `isotherm convert` from a user's view: conversion there and back, messages, and files that remain.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use isotherm_engine::{Nanos, TargetId};
use isotherm_record::{Header, Item, Reader, TargetStart, Writer};
use tempfile::TempDir;

use crate::common::{Ended, run, text};
use crate::records::{STARTED, snapshot_of_second};

/// Five snapshots of a hot, an idle and an unknown region.
fn record() -> Vec<u8> {
    let header = Header {
        started: Nanos(STARTED),
        operations: "vaddr".into(),
        sample_interval: Nanos::from_millis(100),
        aggregation_interval: Nanos::from_millis(1000),
        update_interval: Nanos::from_millis(1000),
        ..Header::default()
    };
    let mut writer = Writer::create(Vec::new(), &header).expect("a writer");
    let start = TargetStart::new(Nanos(STARTED), TargetId(0), 7, "demo");
    writer.write(&Item::TargetStart(start)).expect("written");
    for second in 0..5 {
        let snapshot = snapshot_of_second(second);
        writer.write(&Item::Snapshot(snapshot)).expect("written");
        writer.flush().expect("flushed");
    }
    writer.finish().expect("finished")
}

fn folder() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("rec.isotherm"), record()).expect("written");
    folder
}

fn convert(folder: &Path, arguments: &[&str]) -> Output {
    run(folder, &[&["convert"], arguments].concat())
}

fn check(folder: &Path, arguments: &[&str], code: i32, stdout: &str, stderr: &str) {
    let output = convert(folder, arguments);
    let (said, errors) = (text(&output.stdout), output.errors());
    let found = (output.status.code(), &*said, &*errors);
    assert_eq!(found, (Some(code), stdout, stderr), "{arguments:?}");
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.collect()
}

const LEFT_OUT: &str = "\
5 snapshots, 10 regions, 0 other items
left out: 5 regions of which it is unknown whether they were accessed
left out: 1 starts and ends of targets
";

#[test]
fn says_what_damo_cannot_hold() {
    let folder = folder();
    let folder = folder.path();
    for out in ["a.json", "a.damo", "a.data"] {
        let stdout = format!("{out}: {LEFT_OUT}");
        check(folder, &["rec.isotherm", out], 0, &stdout, "");
    }
    let wanted = "a.isotherm: 5 snapshots, 10 regions, 1 other items\n";
    check(folder, &["a.json", "a.isotherm"], 0, wanted, "");
    let again = "b.isotherm: 5 snapshots, 10 regions, 1 other items\n";
    check(folder, &["a.damo", "b.isotherm"], 0, again, "");
    let read = |name: &str| fs::read(folder.join(name)).expect("there");
    assert_eq!(read("a.isotherm"), read("b.isotherm"));
    assert_eq!(read("a.damo"), read("a.data"));
}

#[test]
fn parquet_gives_the_same_record_back() {
    let folder = folder();
    let folder = folder.path();
    let said = "5 snapshots, 15 regions, 1 other items\n";
    let wanted = format!("a.parquet: {said}");
    check(folder, &["rec.isotherm", "a.parquet"], 0, &wanted, "");
    let wanted = format!("b.isotherm: {said}");
    check(folder, &["a.parquet", "b.isotherm"], 0, &wanted, "");
    let again = fs::read(folder.join("b.isotherm")).expect("there");
    assert_eq!(again, record());
    // A conversion between two foreign formats.
    let wanted = format!("c.json: {LEFT_OUT}");
    check(folder, &["a.parquet", "c.json"], 0, &wanted, "");
}

#[test]
fn writes_to_standard_output_and_says_the_rest_elsewhere() {
    let folder = folder();
    let output = convert(folder.path(), &["rec.isotherm", "-", "--to", "isotherm"]);
    assert_eq!(output.stdout, record());
    let said = output.errors();
    assert_eq!(said, "-: 5 snapshots, 15 regions, 1 other items\n");
}

#[test]
fn flat_tables_stand_beside_each_other() {
    let folder = folder();
    let folder = folder.path();
    let said = "out.parquet: 15 rows\nout.rss.parquet: 0 rows\nout.costs.parquet: 0 rows\n\
                out.actions.parquet: 0 rows\n";
    let line = ["rec.isotherm", "--flat", "out.parquet"];
    check(folder, &line, 0, said, "");
    let files = "out.actions.parquet out.costs.parquet out.parquet out.rss.parquet rec.isotherm";
    assert!(names(folder).iter().eq(files.split(' ')));
    // A conversion from damo's format, too: the content determines the format.
    convert(folder, &["rec.isotherm", "a.json"]);
    let line = ["a.json", "--flat", "b.parquet", "--format", "json"];
    let value = convert(folder, &line).json();
    assert_eq!(value["version"], 1);
    assert_eq!(value["tables"][0]["rows"], 10);
}

#[test]
fn says_it_in_json() {
    let folder = folder();
    let wanted = r#"{"version":1,"input":"rec.isotherm","from":"isotherm","output":"a.json","to":"json","snapshots":5,"regions":10,"items":0,"left_out":{"unknown_regions":5,"others":{"starts and ends of targets":1}},"assumed":[],"truncated":null,"damaged":null}
"#;
    let line = ["rec.isotherm", "a.json", "--json"];
    check(folder.path(), &line, 0, wanted, "");
}

#[test]
fn a_cut_record_is_made_whole() {
    let folder = folder();
    let folder = folder.path();
    let record = record();
    fs::write(folder.join("cut.isotherm"), &record[..record.len() - 12]).expect("written");
    let done = convert(folder, &["cut.isotherm", "whole.isotherm"]).success();
    let warning = "cut.isotherm: the record was not finished";
    assert!(done.errors().contains(warning), "{done:?}");
    let whole = fs::File::open(folder.join("whole.isotherm")).expect("there");
    let mut reader = Reader::open(whole).expect("readable");
    assert!(reader.all(|item| item.is_ok()));
    assert_eq!(reader.truncated(), None);
}

#[test]
fn refuses_with_the_reason_and_leaves_nothing_behind() {
    let folder = folder();
    let folder = folder.path();
    for (name, text) in [
        ("perf.data", "PERFILE2 and so on"),
        ("broken.json", "[{\"snapshots\": [{\"end_time\": 5}]}]"),
        ("words.txt", "some words\n"),
        ("kept.json", "mine"),
    ] {
        fs::write(folder.join(name), text).expect("written");
    }
    let before = names(folder);
    for (arguments, reason) in [
        (
            &["none", "a.json"][..],
            "cannot open none: No such file or directory (os error 2)",
        ),
        (
            &["rec.isotherm", "a.xyz"],
            "the name a.xyz does not say which format to write; add --to json, json_compressed, parquet or isotherm",
        ),
        (
            &["rec.isotherm", "a", "--to", "perf_script"],
            "perf_script can only be read, not written; `json` is what damo reads as well",
        ),
        (
            &["rec.isotherm", "rec.isotherm"],
            "rec.isotherm is the input itself; name another output",
        ),
        (
            &["rec.isotherm", "/dev/null", "--to", "json"],
            "/dev/null is not a file that can be replaced",
        ),
        (
            &["perf.data", "a.isotherm"],
            "cannot convert perf.data: it is a perf.data file; run `perf script -i FILE > trace.txt` and convert that",
        ),
        (
            &["broken.json", "kept.json"],
            "cannot convert broken.json: cannot read this as a record of damo's (json): missing field `regions` at line 1 column 31",
        ),
        (
            &["words.txt", "a.isotherm"],
            "cannot convert words.txt: the trace has no line of `damon:damon_aggregated` or `damon:damos_before_apply`",
        ),
    ] {
        check(folder, arguments, 2, "", &format!("isotherm: {reason}\n"));
    }
    assert_eq!(names(folder), before);
    assert_eq!(fs::read(folder.join("kept.json")).expect("there"), b"mine");
}

#[test]
fn what_is_whole_of_a_damaged_record_is_salvaged_where_that_is_asked_for() {
    let folder = folder();
    let mut damaged = record();
    let at = damaged.len() - 100;
    damaged[at] ^= 0xff;
    fs::write(folder.path().join("damaged.isotherm"), damaged).expect("written");
    convert(folder.path(), &["damaged.isotherm", "out.parquet"]).refused("");
    assert!(!folder.path().join("out.parquet").exists());
    let line = ["--salvage", "--json", "damaged.isotherm", "whole.isotherm"];
    let salvaged = convert(folder.path(), &line).success();
    let said = salvaged.errors();
    assert!(said.contains("what comes before is converted"), "{said}");
    let summary = salvaged.json();
    assert_eq!(summary["snapshots"], 4);
    let damaged = summary["damaged"]
        .as_str()
        .expect("a description of the damage");
    assert!(damaged.contains("byte"), "{damaged}");
    let file = fs::File::open(folder.path().join("whole.isotherm")).expect("there");
    let items = Reader::open(file).expect("a record");
    let items: Vec<Item> = items.map(|item| item.expect("whole")).collect();
    assert_eq!(items.len(), 5, "{items:?}");
}
