//! Tests of damo's formats: the reading in damo's sense, and the way back.

use flate2::write::ZlibEncoder;
use isotherm_engine::{Nanos, Snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Source, export_json, import};
use crate::convert::{Conversion, ConvertError, Format};
use crate::item::{Header, Item};
use crate::reader::Reader;
use crate::tests::hostile::{damage, damaged};
use crate::tests::{every_item, header, snapshot, write};

struct Read {
    header: Header,
    snapshots: Vec<Snapshot>,
    conversion: Conversion,
    record: Vec<u8>,
}

fn take(source: Source<&[u8]>) -> Result<Read, ConvertError> {
    let mut record = Vec::new();
    let conversion = import(source, &std::env::temp_dir(), &mut record)?;
    let mut reader = Reader::open(&record[..])?;
    let snapshots = reader.snapshots().collect::<Result<_, _>>()?;
    Ok(Read {
        header: reader.header().clone(),
        snapshots,
        conversion,
        record: record.clone(),
    })
}

fn take_json(text: &str) -> Result<Read, ConvertError> {
    take(Source::Json(text.as_bytes()))
}

fn take_trace(text: &str) -> Result<Read, ConvertError> {
    take(Source::PerfScript(text.as_bytes()))
}

/// Returns damo's JSON of a record.
fn export(record: &[u8]) -> (String, Conversion) {
    let mut reader = Reader::open(record).expect("readable");
    let mut json = Vec::new();
    let conversion =
        export_json(&mut reader, &std::env::temp_dir(), &mut json).expect("memory takes all");
    (String::from_utf8(json).expect("text"), conversion)
}

fn exported(items: &[Item]) -> (String, Conversion) {
    export(&write(&header(), items))
}

fn json_of(record: &[u8]) -> Value {
    serde_json::from_str(&export(record).0).expect("is JSON")
}

/// Returns the items without blocks, because pages listed one by one make hundreds of regions.
fn without_blocks() -> Vec<Item> {
    let mut items = every_item();
    items.retain(|item| !matches!(item, Item::Snapshot(s) if !s.blocks.is_empty()));
    items
}

/// Returns the part of the items that damo can hold.
fn holdable(items: Vec<Item>) -> Vec<Snapshot> {
    let snapshots = items.into_iter().filter_map(|item| match item {
        Item::Snapshot(mut snapshot) => {
            snapshot.regions.retain(|r| r.nr_accesses.is_some());
            snapshot.regions.iter_mut().for_each(|r| r.memory = None);
            Some(snapshot)
        }
        _ => None,
    });
    snapshots.collect()
}

#[test]
fn json_comes_back_without_what_was_unknown() {
    let (json, conversion) = exported(&without_blocks());
    assert_eq!(conversion.left_out.unknown_regions, 2);
    assert_eq!(conversion.left_out.others["mapping changes"], 1);
    let memory = conversion.left_out.others["regions' resident and swapped bytes"];
    assert_eq!(memory, 2);
    let read = take_json(&json).expect("reads");
    assert_eq!(read.snapshots, holdable(without_blocks()));
    assert_eq!(read.header.sample_interval, Nanos::from_millis(5));
    assert!(read.conversion.left_out.is_empty());
    let mut zlib = ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut zlib, json.as_bytes()).expect("memory takes all");
    let zlib = zlib.finish().expect("memory takes all");
    assert_eq!(Format::detect(&zlib), Ok(Format::JsonCompressed));
    let read = take(Source::JsonCompressed(&zlib)).expect("reads");
    assert_eq!(read.snapshots, holdable(without_blocks()));
}

#[test]
fn fractions_and_odd_nanoseconds_survive() {
    let mut odd = snapshot(0, 0, "[0,4)=9@2 [4,9)=0@7");
    odd.regions[0].nr_accesses = Some(0.0625);
    odd.regions[1].age_ns = Nanos(700_000_001);
    odd.end = Nanos(odd.end.0 + 1);
    let (json, _) = exported(&[Item::Snapshot(odd.clone())]);
    assert_eq!(take_json(&json).expect("reads").snapshots, [odd]);
}

#[test]
fn another_number_of_checks_is_another_record_of_the_same_target() {
    let mut second = snapshot(0, 1, "[0,4)=9@2");
    second.nr_samples = 40;
    let first = snapshot(0, 0, "[0,4)=9@2");
    let third = snapshot(0, 2, "[0,4)=9@3");
    let items = [first, second, third];
    let (json, _) = exported(&items.clone().map(Item::Snapshot));
    let value: Value = serde_json::from_str(&json).expect("is JSON");
    let samples = [0, 1].map(|i: usize| value[i]["intervals"]["sample_us"].clone());
    assert_eq!(samples, [json!("5000"), json!("2500")]);
    assert_eq!(value[1]["target_id"], value[0]["target_id"]);
    assert_eq!(take_json(&json).expect("reads").snapshots, items);
}

#[test]
fn what_damo_said_of_a_record_goes_back_to_it() {
    let text = r#"[{"kdamond_idx": 1, "context_idx": 2, "scheme_idx": null, "target_id":
        18446623435582458880, "intervals": {"sample_us": "5 ms", "aggr_us": "100,000", "ops_update_us": 1000000},
        "scheme_filters": [{}], "snapshots": [{"start_time": "0", "end_time": "100000000", "regions": [
        {"start": "4,096", "end": "8,192", "nr_accesses": {"samples": 3, "percent": null},
         "age": {"usec": null, "aggr_intervals": "2"}, "probe_hits": [1, 2], "sz_filter_passed": "4 KiB"}],
        "total_bytes": "4096", "damos_stats": {"nr_tried": 1}, "sample_interval_us": null}]}]"#;
    let read = take_json(text).expect("reads");
    let left_out = &read.conversion.left_out.others;
    assert_eq!(left_out["scheme filters"], 1);
    assert_eq!(left_out["scheme statistics"], 1);
    assert_eq!(left_out["probe hits"], 2);
    let value = json_of(&read.record);
    assert_eq!(value[0]["kdamond_idx"], json!(1));
    assert_eq!(value[0]["context_idx"], json!(2));
    assert_eq!(value[0]["target_id"], json!(18_446_623_435_582_458_880_u64));
    assert_eq!(value[0]["intervals"]["sample_us"], json!("5000"));
    let region = &value[0]["snapshots"][0]["regions"][0];
    assert_eq!(region["age"]["usec"], json!("200000"));
    assert_eq!(region["nr_accesses"]["samples"], json!(3));
}

#[test]
fn intervals_go_back_as_they_were_said() {
    let there_and_back = |intervals: &Value| -> Value {
        // In damo's order of names.
        let text = format!(
            r#"[{{"kdamond_idx": 0, "context_idx": 0, "intervals": {intervals}, "scheme_idx": null,
            "target_id": 7, "scheme_filters": [], "snapshots": [{{"start_time": "0",
            "end_time": "2000000000", "regions": [{{"start": "4096", "end": "8192",
            "nr_accesses": {{"samples": 3}}, "age": {{"usec": "0", "aggr_intervals": "2"}}}}]}}]}}]"#
        );
        let read = take_json(&text).expect("reads");
        json_of(&read.record)[0]["intervals"].clone()
    };
    let goal =
        json!({"access_bp": "4 %", "aggrs": "3", "min_sample_us": "5 ms", "max_sample_us": "10 s"});
    for intervals in [
        json!({"sample_us": "5000", "aggr_us": "2000000", "ops_update_us": "1000000"}),
        json!({"sample_us": "5000", "aggr_us": "100000", "ops_update_us": "1000000",
            "intervals_goal": goal}),
        Value::Null,
    ] {
        assert_eq!(there_and_back(&intervals), intervals);
    }
}

#[test]
fn updates_may_be_more_often_than_aggregations() {
    let mut header = header();
    header.update_interval = Nanos::from_millis(10);
    let record = write(&header, &[Item::Snapshot(snapshot(0, 0, "[0,4)=9@2"))]);
    let value = json_of(&record);
    assert_eq!(value[0]["intervals"]["ops_update_us"], json!("10000"));
}

#[test]
fn as_many_targets_as_there_are() {
    let lists = (0..300).map(|target| {
        let end = 1000 - target;
        format!(
            r#"{{"target_id": {target}, "snapshots": [{{"start_time": {target}, "end_time": {end},
            "regions": [{{"start": 0, "end": 4096, "nr_accesses": {{"samples": 1}}}}]}}]}}"#
        )
    });
    let lists: Vec<String> = lists.collect();
    let read = take_json(&format!("[{}]", lists.join(","))).expect("reads");
    let targets: Vec<u32> = read.snapshots.iter().map(|s| s.target.0).collect();
    let wanted: Vec<u32> = (0..300).rev().collect();
    assert_eq!(targets, wanted);
}

#[test]
fn a_torn_last_line_is_noted_and_the_rest_kept() {
    let whole: String = TRACE.split_inclusive('\n').take(2).collect();
    let last = "kdamond.0  4452 [000] 100.300000: damon:damon_aggregated: target_id=18446623435582458880 \
                nr_regions=1 4096-12288: 20 5";
    for length in 60..last.len() - 2 {
        let torn = &last[..length];
        let read = take_trace(&format!("{whole}{torn}")).expect("reads");
        assert_eq!(read.snapshots.len(), 1, "{torn}");
        let left_out = &read.conversion.left_out.others;
        assert_eq!(left_out["torn last lines"], 1, "{torn}");
    }
    let read = take_trace(&format!("{whole}{last}")).expect("reads");
    assert_eq!(read.snapshots.len(), 2);
    assert!(read.conversion.left_out.is_empty());
}

#[test]
fn what_damo_may_leave_out_is_not_missed() {
    let text = r#"[{"target_id": 7, "intervals": null, "snapshots": [
        {"start_time": "1 s", "end_time": 1100000000, "regions": [
            {"start": "8K", "end": "12,288", "nr_accesses": {"percent": 50}, "age": {"usec": "1 s", "aggr_intervals": null}},
            {"start": 0, "end": "4 KiB"}, {"start": 0, "end": 0, "nr_accesses": {"samples": -1}}]}]}]"#;
    let read = take_json(text).expect("reads");
    let found = &read.snapshots[0];
    assert_eq!((found.target.0, found.nr_samples), (0, 20));
    let accesses: Vec<_> = found.regions.iter().map(|r| r.nr_accesses).collect();
    assert_eq!(accesses, [None, Some(10.0)]);
    assert_eq!(found.regions[1].age, 10);
    assert_eq!(read.conversion.assumed.len(), 1);
}

#[test]
fn what_cannot_be_right_is_refused() {
    let error = |text: &str| {
        let error = take_json(text).err().expect("is wrong");
        format!("{error}: {:?}", std::error::Error::source(&error))
    };
    let region = |regions: &str| {
        error(&format!(
            r#"[{{"snapshots": [{{"start_time": 1, "end_time": 2, "regions": [{regions}]}}]}}]"#
        ))
    };
    assert!(region(r#"{"start": 5, "end": 4}"#).contains("starts at 5 and ends at 4"));
    assert!(region(r#"{"start": 1, "end": 5}, {"start": 4, "end": 9}"#).contains("overlap"));
    assert!(region(r#"{"start": "x", "end": 5}"#).contains("number of bytes"));
    let negative = r#"{"start": 1, "end": 5, "nr_accesses": {"samples": -1}}"#;
    assert!(region(negative).contains("-1 accesses"));
    assert!(error("[]").contains("no snapshot"));
    assert!(error("{}").contains("a list of records"));
    assert!(error(r#"[{"snapshots": [], "target_id": 1}]"#).contains("after `snapshots`"));
    let endless = format!(r#"[{{"{}"#, "x".repeat(3 << 20));
    assert!(error(&endless).contains("without a quote"));
}

const TRACE: &str = "\
kdamond.0  4452 [000] 100.100000: damon:damon_aggregated: target_id=18446623435582458880 nr_regions=2 4096-8192: 0 3
kdamond.0  4452 [000] 100.100007: damon:damon_aggregated: target_id=18446623435582458880 nr_regions=2 8192-12288: 7 4
kdamond.0  4452 [000] 100.150000: damon:damon_monitor_intervals_tune: sample_us=80000
kdamond.0  4452 [000] 100.200000: damon:damon_aggregated: target_id=18446623435582458880 nr_regions=1 4096-12288: 20
";

#[test]
fn traces_are_read() {
    let stream = TRACE.replace("kdamond.0  4452 [000]", "<...>-4452 [000] .....");
    let report = stream.replace("damon:damon_agg", "damon_agg");
    for text in [TRACE, &stream, &report] {
        let read = take_trace(text).expect("reads");
        let found = &read.snapshots;
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].start, Nanos(100_000_000_000));
        assert_eq!(found[0].end, found[1].start);
        assert_eq!(found[0].nr_samples, 20);
        assert_eq!(found[0].regions[1].nr_accesses, Some(7.0));
        assert_eq!(found[0].regions[1].age_ns, Nanos::from_millis(400));
        assert_eq!(found[1].regions[0].age, 0);
        let interval = read.header.aggregation_interval;
        assert_eq!(interval, Nanos::from_millis(100));
    }
}

#[test]
fn ages_that_a_trace_does_not_have_are_derived_and_that_is_said() {
    let lines = [(100, 0, 7), (200, 0, 20), (300, 1, 0)].map(|(ms, first, second)| {
        let line = |range: &str, count: u32| {
            format!(
                "kdamond.0 4452 [000] 100.{ms}000: damon:damon_aggregated: target_id=1 nr_regions=2 \
                 {range}: {count}\n"
            )
        };
        line("4096-8192", first) + &line("8192-12288", second)
    });
    let read = take_trace(&lines.concat()).expect("reads");
    let said = read.conversion.assumed.join("; ");
    assert!(said.contains("ages of regions"), "{said}");
    let ages = read.snapshots.iter().map(|snapshot| {
        let ages = snapshot.regions.iter().map(|r| r.age_ns.0 / 1_000_000);
        ages.collect::<Vec<_>>()
    });
    assert_eq!(ages.collect::<Vec<_>>(), [[0, 0], [100, 0], [200, 0]]);
    let with = take_trace(TRACE).expect("reads");
    assert!(!with.conversion.assumed.join("").contains("ages"));
}

#[test]
fn targets_one_after_the_other_come_out_in_the_order_of_time() {
    let other = TRACE.replace("18446623435582458880", "1");
    let read = take_trace(&format!("{TRACE}{other}")).expect("reads");
    let ends: Vec<_> = read.snapshots.iter().map(|s| (s.end, s.target.0)).collect();
    assert!(ends.is_sorted(), "{ends:?}");
    assert_eq!(ends.len(), 4);
}

#[test]
fn a_snapshot_of_which_lines_were_lost_is_not_mixed_with_the_next() {
    let text = TRACE.replace("nr_regions=2", "nr_regions=3");
    let read = take_trace(&text).expect("reads");
    assert_eq!(read.snapshots[0].regions.len(), 2);
    assert_eq!(read.snapshots[1].regions.len(), 1);
    let lost = read.conversion.left_out.others["regions that the trace lost"];
    assert_eq!(lost, 1);
}

#[test]
fn damos_mark_only_gives_the_length() {
    let text = "kdamond.x xxxx xxxx 5.5: damon:damon_aggregated: target_id=0 nr_regions=1 0-4096: 1 2\n\
                kdamond.x xxxx xxxx 7.5: damon:damon_aggregated: target_id=0 nr_regions=1 0-0: -1 -1\n";
    let found = take_trace(text).expect("reads").snapshots;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].start, Nanos::from_millis(3500));
}

#[test]
fn damos_snapshots_have_no_target() {
    let line = |time| {
        format!(
            "kdamond.x xxxx xxxx {time}: damon:damon_aggregated: target_id=None nr_regions=1 4096-8192: 1 2\n"
        )
    };
    let found = take_trace(&(line("5.5") + &line("7.5"))).expect("reads");
    assert_eq!(found.snapshots.len(), 2);
}

#[test]
fn more_accesses_than_the_usual_checks_are_believed() {
    let found = take_trace(&TRACE.replace(": 20", ": 57")).expect("reads");
    assert_eq!(found.snapshots[0].nr_samples, 57);
}

#[test]
fn traces_say_which_line_is_wrong() {
    for (from, to, reason) in [
        ("8192-12288: 7", "8192-x: 7", "broken address"),
        ("100.100007", "99.1", "earlier"),
        ("12288: 7 4", "12288: 7 x", "count"),
        ("2 8192", "99999999 8192", "number of regions"),
    ] {
        let error = take_trace(&TRACE.replace(from, to)).err();
        let error = error.expect("is wrong").to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    assert!(take_trace("hello\n").is_err());
}

proptest! {
    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Format::detect(&bytes);
        let _ = take(Source::Json(&bytes));
        let _ = take(Source::JsonCompressed(&bytes));
        let _ = take(Source::PerfScript(&bytes));
    }

    #[test]
    fn damaged_files_never_panic(damage in damage()) {
        let (json, _) = exported(&without_blocks());
        for (text, trace) in [(json.as_str(), false), (TRACE, true)] {
            let bytes = damaged(text.into(), &damage);
            let _ = take(if trace { Source::PerfScript(&bytes) } else { Source::Json(&bytes) });
        }
    }
}
