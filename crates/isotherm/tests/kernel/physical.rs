//! The machine's physical memory.

use std::fs;

use isotherm_engine::AddressRange;

use crate::common::{
    Record, Workload, alone, isotherm, range, run, scratch, shared, static_workload,
};

#[test]
fn physical_memory_is_recorded_and_what_nobody_maps_is_unknown() {
    let test = "physical_memory_is_recorded_and_what_nobody_maps_is_unknown";
    let Some(_turn) = alone(test) else { return };
    let directory = scratch();
    let path = directory.path().join("record");
    let _workload = Workload::start(&static_workload(256, 128), &[]);
    let mut command = isotherm(["record", "--physical", "--json", "--duration", "8s", "-o"]);
    let done = run(command.arg(&path)).success();
    let record = Record::whole(&path);
    assert_eq!(record.header.operations, "paddr");
    let notes = record.notes();
    eprintln!("{test}: {notes}{}", done.stdout);
    assert!(
        notes.contains("frames") && notes.contains("unknown"),
        "{notes}"
    );
    let (_, unknown) = record.peak_rss_and_unknown();
    assert!(unknown > 0, "most frames are mapped by nobody");
    let accessed: u64 = record
        .snapshots()
        .flat_map(|s| &s.regions)
        .filter(|region| region.nr_accesses > Some(0.0))
        .map(|region| region.range.len())
        .sum();
    assert!(accessed > 0, "256 MiB are touched all the time");
}

/// RAM above 4 GiB, or whatever there is, from `/proc/iomem`.
fn some_ram() -> Option<AddressRange> {
    let map = fs::read_to_string("/proc/iomem").ok()?;
    let ram = map
        .lines()
        .filter_map(|line| line.strip_suffix(" : System RAM"))
        .map(|text| range(text.trim()));
    ram.max_by_key(|ram| ram.len())
}

#[test]
fn a_physical_range_is_recorded_alone() {
    let Some(_turn) = shared("a_physical_range_is_recorded_alone") else {
        return;
    };
    let directory = scratch();
    let path = directory.path().join("record");
    let ram = some_ram().expect("RAM, and its addresses for root");
    let start = ram.start.next_multiple_of(2 << 20) + (64 << 20);
    let limit = AddressRange::new(start, start + (256 << 20));
    let text = format!("{:#x}-{:#x}", limit.start, limit.end);
    let mut command = isotherm([
        "record",
        "--physical",
        "--duration",
        "4s",
        "--range",
        &text,
        "-o",
    ]);
    run(command.arg(&path)).success();
    let record = Record::whole(&path);
    for snapshot in record.snapshots() {
        let bytes: u64 = snapshot.regions.iter().map(|r| r.range.len()).sum();
        let within = snapshot
            .regions
            .iter()
            .all(|r| r.range.intersection(limit) == Some(r.range));
        assert!(within && bytes == limit.len(), "{snapshot:?}");
    }
}

#[test]
fn a_node_that_is_not_there_is_refused() {
    let Some(_turn) = shared("a_node_that_is_not_there_is_refused") else {
        return;
    };
    let directory = scratch();
    let path = directory.path().join("record");
    let done = run(isotherm(["record", "--physical", "--node", "1023", "-o"]).arg(&path));
    assert_eq!(done.code(), 2, "{done:?}");
    assert!(
        done.stderr.contains("no NUMA node 1023") && done.stderr.contains("has 0"),
        "{done:?}"
    );
    assert!(!path.exists());
    let mut command = isotherm([
        "record",
        "--physical",
        "--node",
        "0",
        "--duration",
        "2s",
        "-o",
    ]);
    run(command.arg(&path)).success();
}
