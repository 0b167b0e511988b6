//! damo's formats: read as damo reads them, and back again.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::export::Exporter;
use super::{Imported, json as damo_json, perf, units};
use crate::Item;
use crate::tests::{every_item, header, snapshot};
use isotherm_engine::{Nanos, Snapshot};

fn snapshots(imported: &Imported) -> Vec<Snapshot> {
    let snapshots = imported.items.iter().filter_map(|item| match item {
        Item::Snapshot(snapshot) => Some(snapshot.clone()),
        _ => None,
    });
    snapshots.collect()
}

fn exported(items: Vec<Item>) -> Exporter {
    let mut exporter = Exporter::new(&header());
    for item in items {
        exporter.push(item);
    }
    exporter
}

#[test]
fn units_are_read_as_damo_reads_them() {
    let time = |text: &str| units::time(&json!(text), 1000);
    assert_eq!(time("700 ms"), Some(700_000_000));
    assert_eq!(time("3 h 25 m 45 s 700 ms"), Some(12_345_700_000_000));
    assert_eq!(time("1,500"), Some(1_500_000));
    assert_eq!(time("2.5s"), Some(2_500_000_000));
    assert_eq!(time("max"), Some(u64::MAX));
    assert_eq!(time("4 parsecs"), None);
    assert_eq!(units::time(&json!(7.5), 1000), Some(7500));
    let bytes = |text: &str| units::bytes(&json!(text));
    assert_eq!(bytes("4,096"), Some(4096));
    assert_eq!(bytes("1.5 KiB"), Some(1536));
    assert_eq!(bytes("2M"), Some(2 << 20));
    assert_eq!(bytes("0 B"), Some(0));
    assert_eq!(bytes("18446744073709551615"), Some(u64::MAX));
    assert_eq!(bytes("-1"), None);
}

#[test]
fn units_are_written_as_damo_writes_them() {
    assert_eq!(units::grouped(4096), "4,096");
    assert_eq!(units::grouped(999), "999");
    assert_eq!(units::grouped(1_234_567), "1,234,567");
    assert_eq!(units::exact_time(0), "0 ns");
    assert_eq!(
        units::exact_time(12_345_700_000_000),
        "3 h 25 m 45 s 700 ms"
    );
}

#[test]
fn json_comes_back_without_what_was_unknown() {
    let exporter = exported(every_item());
    assert_eq!(exporter.left_out().unknown_regions, 2);
    let (mut plain, mut compressed) = (Vec::new(), Vec::new());
    exporter.write(&mut plain).expect("writes");
    exporter.write_compressed(&mut compressed).expect("writes");
    assert_eq!(compressed[0], 0x78, "`file` knows zlib by it");
    let mut wanted: Vec<Snapshot> = every_item()
        .into_iter()
        .filter_map(|item| match item {
            Item::Snapshot(snapshot) => Some(snapshot),
            _ => None,
        })
        .collect();
    for snapshot in &mut wanted {
        snapshot.regions.retain(|r| r.nr_accesses.is_some());
    }
    let read = damo_json::read(&*plain).expect("reads");
    assert_eq!(snapshots(&read), wanted);
    assert!(read.warnings.is_empty());
    assert_eq!(read.header.sample_interval, Nanos::from_millis(5));
    let read = damo_json::read_compressed(&*compressed).expect("reads");
    assert_eq!(snapshots(&read), wanted);
}

#[test]
fn another_number_of_checks_is_another_record() {
    let mut second = snapshot(0, 1, "[0,4)=9@2");
    second.nr_samples = 40;
    let first = snapshot(0, 0, "[0,4)=9@2");
    let exporter = exported(vec![Item::Snapshot(first), Item::Snapshot(second)]);
    let mut plain = Vec::new();
    exporter.write(&mut plain).expect("writes");
    let value: Value = serde_json::from_slice(&plain).expect("is JSON");
    let samples = [0, 1].map(|i: usize| value[i]["intervals"]["sample_us"].clone());
    assert_eq!(samples, [json!("5000"), json!("2500")]);
    assert_eq!(value[0]["scheme_filters"], json!([]));
    assert_eq!(value[0]["snapshots"][0]["regions"][0]["start"], json!("0"));
    assert_eq!(
        value[0]["snapshots"][0]["regions"][0]["end"],
        json!("16,384")
    );
}

#[test]
fn what_damo_may_leave_out_is_not_missed() {
    let text = r#"[{"target_id": 18446623435582458880, "intervals": null, "snapshots": [
        {"start_time": "1 s", "end_time": 1100000000, "regions": [
            {"start": "8K", "end": "12,288", "nr_accesses": {"percent": 50}, "age": {"usec": "1 s", "aggr_intervals": null}},
            {"start": 0, "end": "4 KiB"}, {"start": 0, "end": 0}]}]}]"#;
    let read = damo_json::read(text.as_bytes()).expect("reads");
    let found = &snapshots(&read)[0];
    assert_eq!((found.target.0, found.nr_samples), (0, 20));
    assert_eq!(found.regions.len(), 2);
    assert_eq!(found.regions[0].nr_accesses, None);
    assert_eq!(found.regions[1].nr_accesses, Some(10.0));
    assert_eq!(found.regions[1].age, 10);
    assert_eq!(read.warnings.len(), 1);
}

#[test]
fn what_cannot_be_right_is_refused() {
    let error = |regions: &str| {
        let text = format!(
            r#"[{{"snapshots": [{{"start_time": 1, "end_time": 2, "regions": [{regions}]}}]}}]"#
        );
        damo_json::read(text.as_bytes())
            .expect_err("is wrong")
            .to_string()
    };
    assert!(error(r#"{"start": 5, "end": 4}"#).contains("before it starts"));
    assert!(error(r#"{"start": 1, "end": 5}, {"start": 4, "end": 9}"#).contains("overlap"));
    assert!(error(r#"{"start": "x", "end": 5}"#).contains("start"));
    assert!(
        error(r#"{"start": 1, "end": 5, "nr_accesses": {"samples": -1}}"#).contains("accesses")
    );
}

const PERF: &str = "\
kdamond.0  4452 [000] 100.100000: damon:damon_aggregated: target_id=18446623435582458880 nr_regions=2 4096-8192: 0 3
kdamond.0  4452 [000] 100.100000: damon:damon_aggregated: target_id=18446623435582458880 nr_regions=2 8192-12288: 7 4
kdamond.0  4452 [000] 100.150000: damon:damon_monitor_intervals_tune: sample_us=80000
kdamond.0  4452 [000] 100.200000: damon:damon_aggregated: target_id=18446623435582458880 nr_regions=1 4096-12288: 20
";

#[test]
fn perf_script_is_read() {
    let read = perf::read(PERF.as_bytes()).expect("reads");
    let found = snapshots(&read);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].start, Nanos(100_000_000_000));
    assert_eq!(found[0].end, found[1].start);
    assert_eq!(found[0].nr_samples, 20);
    assert_eq!(found[0].regions[1].nr_accesses, Some(7.0));
    assert_eq!(found[0].regions[1].age_ns, Nanos::from_millis(400));
    assert_eq!(found[1].regions[0].age, 0);
    assert_eq!(read.header.aggregation_interval, Nanos::from_millis(100));
}

#[test]
fn damos_fake_snapshot_only_gives_the_length() {
    let text = "kdamond.x xxxx xxxx 5.5: damon:damon_aggregated: target_id=0 nr_regions=1 0-4096: 1 2\n\
                kdamond.x xxxx xxxx 7.5: damon:damon_aggregated: target_id=0 nr_regions=1 0-0: -1 -1\n";
    let found = snapshots(&perf::read(text.as_bytes()).expect("reads"));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].start, Nanos::from_millis(3500));
}

#[test]
fn perf_script_says_which_line_is_wrong() {
    let text = PERF.replace("8192-12288: 7", "8192-x: 7");
    let error = perf::read(text.as_bytes())
        .expect_err("is wrong")
        .to_string();
    assert!(error.contains("line 2"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = damo_json::read(&*bytes);
        let _ = damo_json::read_compressed(&*bytes);
        let _ = perf::read(&*bytes);
    }

    #[test]
    fn damaged_files_never_panic(damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
        let mut json = Vec::new();
        exported(every_item()).write(&mut json).expect("writes");
        for (mut bytes, is_perf) in [(json, false), (PERF.as_bytes().to_vec(), true)] {
            for (at, byte) in &damage {
                let length = bytes.len();
                bytes[at % length] = *byte;
            }
            if is_perf {
                let _ = perf::read(&*bytes);
            } else {
                let _ = damo_json::read(&*bytes);
            }
        }
    }
}
