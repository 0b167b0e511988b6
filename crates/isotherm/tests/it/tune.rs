//! `isotherm tune` of a record, run as a user runs it.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::{Ended, run};
use crate::records::page_record;

fn tune(folder: &Path, args: &[&str]) -> Output {
    run(folder, &[&["tune"], args].concat())
}

/// Returns a folder with the record of a program, three quarters of whose memory are idle.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    page_record(&folder.path().join("app.isotherm"), 20, true);
    page_record(&folder.path().join("regions.isotherm"), 4, false);
    folder
}

const SMALL: [&str; 5] = ["app.isotherm", "--preset", "prcl", "--param", "age=3s,8s"];

#[test]
fn a_record_gives_a_configuration_a_page_and_numbers() {
    let folder = folder();
    let files = ["-o", "tuned.yaml", "--page", "tune.html"];
    let done = tune(folder.path(), &[&SMALL[..], &files].concat()).success();
    done.prints("2 of 2 settings tried");
    done.prints("recommended: age 3 s");
    for (name, part) in [
        ("tuned.yaml", "min: 3 s"),
        ("tuned.yaml", "max_slowdown: 1 %"),
        ("tune.html", "Tuning traced"),
    ] {
        let written = fs::read_to_string(folder.path().join(name)).expect("written");
        assert!(written.contains(part), "{part}: {written}");
    }
    let names = fs::read_dir(folder.path()).expect("ours").count();
    assert_eq!(names, 4, "the journal is gone");
    let again = ["app.isotherm", "-c", "tuned.yaml", "--param", "age=3s,8s"];
    let json = tune(folder.path(), &[&again[..], &["--json"]].concat()).json();
    assert_eq!(json["given"], json["recommended"]);
    let slowdown = &json["recommended"]["prediction"]["slowdown"];
    let [value, high] = ["value", "high"].map(|name| slowdown[name].as_f64());
    assert!(high > value, "how sure that is: {slowdown}");
    let report = run(folder.path(), &["check", "--json", "tuned.yaml"]).json();
    assert_eq!(report["findings"], serde_json::json!([]));
}

#[test]
fn a_limit_that_nothing_meets_is_told_and_writes_nothing() {
    let folder = folder();
    let limit = ["--max-memory", "64K", "-o", "tuned.json"];
    let done = tune(folder.path(), &[&SMALL[..], &limit].concat());
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    done.prints("no setting is within the limit");
    assert!(!folder.path().join("tuned.json").exists());
}

#[test]
fn what_cannot_be_tuned_says_what_to_do() {
    let folder = folder();
    for (args, said) in [
        ("", "name the record of a program"),
        ("app.isotherm", "name a --preset"),
        ("regions.isotherm --preset prcl", "record --pages"),
        ("nothing.isotherm --preset prcl", "nothing.isotherm"),
        ("app.isotherm --preset prcl --param x=1", "quota"),
        (
            "app.isotherm --preset prcl --socket x",
            "cannot be used with",
        ),
        ("-c tuned.yaml --preset prcl", "-c, or --preset"),
        ("--preset prcl --param age=1s", "RECORD"),
        ("-c tuned.yaml --budget 7", "RECORD"),
    ] {
        let args: Vec<&str> = args.split_whitespace().collect();
        tune(folder.path(), &args).refused(said);
    }
    // Without a record the options are for the daemon.
    fs::write(folder.path().join("tuned.yaml"), "").expect("ours");
    for schemes in [["-c", "tuned.yaml"], ["--preset", "prcl"]] {
        let args = [&schemes[..], &["--socket", "none.sock"]].concat();
        let said = tune(folder.path(), &args).errors();
        assert!(said.contains("no isotherm answers at none.sock"), "{said}");
    }
}
