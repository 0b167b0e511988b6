//! The cost of acting on this machine, measured by the command and by `record --pages`, and its use in a replay.

use std::fs;

use isotherm_record::Item;
use serde_json::Value;

use crate::common::{Record, Running, isotherm, owning_swap, python, run, scratch};
use crate::swap::Swap;
use crate::watch::groups::memory_group;

/// Maps 64 MiB of very compressible content and touches an eighth of it all the time. The program refuses huge pages
/// (PR_SET_THP_DISABLE).
const SAME: &str = r"
import ctypes, mmap, time
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(64 << 8):
    memory[page << 12:(page << 12) + 4096] = bytes([page % 251 + 1]) * 4088 + page.to_bytes(8, 'big')
print('ready', flush=True)
while True:
    for page in range(8 << 8):
        memory[page << 12] = 1
    time.sleep(0.2)
";

#[test]
fn what_acting_costs_is_measured_and_replayed() {
    let Some(_turn) = owning_swap() else { return };
    let Some(_swap) = Swap::set_up() else { return };
    let mut target = Running::ready(&mut python(SAME));
    let (folder, pid) = (scratch(), target.pid().to_string());
    let (costs, trace) = (folder.path().join("costs"), folder.path().join("trace"));
    let done = run(isotherm(["calibrate", "--json", "--pid", &pid, "-o"]).arg(&costs)).success();
    let said = done.json();
    let written = fs::read_to_string(&costs).expect("written");
    let written: Value = serde_json::from_str(&written).expect("JSON");
    assert_eq!(said, written);
    let median = |name: &str| said[name]["median"].as_f64().expect("measured");
    for name in ["page_out_whole", "page_out_alone", "refault", "minor_fault"] {
        let ns = median(&format!("{name}_ns"));
        assert!((100.0..1e6).contains(&ns), "{name}: {said}");
    }
    assert!(said["content_pages"].as_u64() > Some(100), "{said}");
    assert!(said["compression_ratio"].as_f64() > Some(5.0), "{said}");
    assert!(target.is_running());

    let record = ["record", "--pages", "--duration", "5s", "--pid", &pid, "-o"];
    run(isotherm(record).arg(&trace)).success();
    let record = Record::whole(&trace);
    let measured = record.items.iter().find_map(|item| match item {
        Item::Calibration(measured) => Some(measured),
        _ => None,
    });
    let measured = measured.expect("it is in the record");
    assert_eq!(measured.refuse_huge.len(), 1, "{measured:?}");
    assert!(measured.costs.compression_ratio > Some(5.0), "{measured:?}");

    // All costs are ten times as high, which must show.
    let acting = |more: &[&str]| {
        let mut simulate = isotherm(["simulate", "--json", "--no-guard"]);
        simulate.args(["--scheme", "4K max 0 0 1s max pageout", "--trace"]);
        let report = run(simulate.arg(&trace).args(more)).success().json();
        report["acting_cpu_seconds"].as_f64().expect("a number")
    };
    let mut dear = written.clone();
    for name in ["page_out_whole_ns", "page_out_alone_ns"] {
        dear[name]["median"] = (10.0 * median(name)).into();
    }
    fs::write(&costs, dear.to_string()).expect("written");
    let costs = costs.to_str().expect("text");
    let (cheap, dear) = (acting(&[]), acting(&["--costs", costs]));
    assert!(cheap > 0.0 && dear > 4.0 * cheap, "{cheap} and {dear} s");
    fs::write(costs, "{\"cpus\": \"two\"}").expect("written");
    let mut wrong = isotherm(["simulate", "--preset", "prcl", "--costs", costs, "--trace"]);
    run(wrong.arg(&trace)).refused("calibrate -o");
}

#[test]
fn memory_nodes_are_measured_and_whose_memory_is_short_is_unknown() {
    let nodes = |said: Value| said["nodes"].as_array().expect("a list").clone();
    let words = ["calibrate", "--nodes", "--json"];
    let all = nodes(run(&mut isotherm(words)).success().json());
    assert!(!all.is_empty());
    for node in all {
        let number = |key: &str| node[key]["median"].as_f64();
        let is_measured =
            number("latency_ns") > Some(1.0) && number("read_bytes_per_s") > Some(1e8);
        assert!(is_measured != node["unknown"].is_string(), "{node}");
    }
    // A group of 48 MiB has no 16 MiB to spare, and nothing in it is killed.
    let Some(group) = memory_group("nodes") else {
        return;
    };
    let limit = group.limit().expect("a limit");
    let kills = limit.with_file_name("memory.max");
    fs::write(if kills.exists() { kills } else { limit }, "48M").expect("limited");
    let words = concat!(
        "exec ",
        env!("CARGO_BIN_EXE_isotherm"),
        " calibrate --nodes --json"
    );
    for node in nodes(run(&mut group.shell(words)).success().json()) {
        let why = node["unknown"].as_str().expect("a reason");
        assert!(why.contains("control group"), "{why}");
    }
}
