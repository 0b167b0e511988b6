//! `isotherm tier plan`, run as a user runs it; described machines need no privilege.

use std::path::Path;
use std::process::Output;

use crate::common::{Ended, run, text};

/// The nodes of `crates/config/tests/fixtures/make.py`.
const NODES: [&str; 4] = [
    "--node",
    "0=0x100000000-0x400000000",
    "--node",
    "1=0x500000000-0x800000000",
];
const HMSDK: &str = include_str!("../../../config/tests/fixtures/hmsdk.yaml");

fn plan(folder: &Path, args: &[&str]) -> Output {
    run(folder, &[&["tier", "plan"], args].concat())
}

#[test]
fn hmsdks_file_is_written_for_its_options() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for options in [
        &["-m", "0", "1"][..],
        &["--demote", "0", "1", "-p", "1", "0"],
    ] {
        let done = plan(folder.path(), &[options, &NODES].concat()).success();
        assert_eq!(text(&done.stdout) + "\n", HMSDK, "{options:?}");
        assert_eq!(text(&done.stderr), "");
    }
}

#[test]
fn a_written_file_is_fine_for_check() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = "nodes:\n- {id: 0, size: 512 GiB}\n- {id: 2, size: 96 GiB}\n";
    std::fs::write(folder.path().join("machine.yaml"), machine).expect("a folder of ours");
    for (name, options) in [
        ("plan.yaml", &["-g"][..]),
        ("plan.json", &["-s", "32G"]),
        ("goals.yaml", &["-g", "--goals", "--format", "json"]),
        ("temporal.yaml", &["--goals", "temporal"]),
    ] {
        let common = ["-m", "0", "2", "--topology", "machine.yaml", "-o", name];
        let done = plan(folder.path(), &[&common, options].concat()).success();
        assert_eq!(text(&[done.stdout, done.stderr].concat()), "");
        let written = std::fs::read_to_string(folder.path().join(name)).expect("written");
        let is_json = name.ends_with("json") || options.contains(&"json");
        assert_eq!(written.starts_with('{'), is_json, "{name}");
        // This machine may lack the nodes, which the report states; the file itself has no fault.
        let report = run(folder.path(), &["check", "--json", name]).json();
        assert_eq!(report["findings"], serde_json::json!([]), "{name}");
        let pieces = if name == "plan.json" { 16 + 3 } else { 2 };
        assert_eq!(report["contexts"], pieces, "{name}");
        assert_eq!(report["schemes"], pieces, "{name}");
    }
}

#[test]
fn what_cannot_be_planned_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("bad.yaml"), "nodes: [{id: 0}]").expect("a folder of ours");
    for (args, expected) in [
        ("-m 0 2", "no NUMA node 2 with memory, only 0, 1"),
        ("-m 1 1", "node 1 cannot be both"),
        ("-m 0 1 -d 0 1", "node 0 is a source more than once"),
        ("-d 0 1 -d 1 0", "cold memory of node 0 would come back"),
        ("-g", "nothing is to be moved"),
        ("-m 0 1 -s 1000", "a multiple of 4 KiB"),
        ("-m 0 1 -s 4K", "give a larger size"),
        ("-m 0 1 -s 4M", "give a larger --region-max-size"),
        ("-m 0", "2 values required"),
        ("-m 0 1 --topology bad.yaml", "cannot be used with"),
        ("-m 0 1 -o /nowhere/x", "cannot write /nowhere/x"),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        plan(folder.path(), &[&args[..], &NODES].concat()).refused(expected);
    }
    for (args, expected) in [
        (
            ["--topology", "bad.yaml"],
            ["bad.yaml describes no machine", "nodes[0]"],
        ),
        (["--node", "0=1G"], ["node 0 is the only one", "--topology"]),
    ] {
        let said = plan(folder.path(), &[&["-m", "0", "1"][..], &args].concat()).errors();
        assert!(expected.iter().all(|words| said.contains(words)), "{said}");
    }
}

#[test]
fn this_machines_nodes_are_known() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let done = plan(folder.path(), &["-g", "-m", "0", "1"]);
    let said = done.errors();
    if said.contains("run as root") {
        eprintln!("SKIP this_machines_nodes_are_known: not root");
        return;
    }
    match nodes.trim() {
        "0" => assert!(said.contains("node 0 is the only one"), "{said}"),
        "0-1" => assert!(done.status.success(), "{said}"),
        other => eprintln!("SKIP this_machines_nodes_are_known: nodes {other:?}"),
    }
}
