//! Golden outputs of every report on a small record, and properties of all reports.
//!
//! After a wanted change, `UPDATE_GOLDEN=1 cargo test -p isotherm-report` writes the files anew; read the difference
//! before committing it.

mod resident;

use crate::Accumulate;
use std::path::Path;

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot, TargetId};
use proptest::prelude::*;

use super::access::{OptionalBounds, SortBy, Which};
use super::idle::IdleBytes;
use super::render::{AccessWriter, write};
use super::temperature::{TemperatureByTarget, TemperatureOptions};
use super::test_records::machine::{BETWEEN, machine_record};
use super::test_records::{
    actions_record, fragmentation_record, header, small_record, snapshot_at,
};
use super::{
    Access, AccessOptions, Actions, Footprint, Fragmentation, Heatmap, HeatmapOptions,
    HeatmapReport, Idle, IdleOptions, Machine, MachineReport, Overviews, Render, ReportFormat,
    Scope, Style, Wss, WssOptions,
};
use isotherm_record::item::Item;

const ALL: [(ReportFormat, &str); 5] = [
    (ReportFormat::Text, "txt"),
    (ReportFormat::Json, "json"),
    (ReportFormat::CSV, "csv"),
    (ReportFormat::Svg, "svg"),
    (ReportFormat::Html, "html"),
];

/// Compares with the golden file, or writes it if the environment requests it.
fn compare(name: &str, output: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden");
    let path = golden.join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, output).expect("the golden directory is writable");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let is_same = expected == output;
    assert!(is_same, "{name}; expected:\n{expected}\nfound:\n{output}");
}

fn finished<A: Accumulate>(mut report: A, items: &[Item]) -> A::Report {
    for item in items {
        report.push(item);
    }
    report.finish()
}

fn rendered(report: &impl Render, format: ReportFormat, style: &Style) -> String {
    let mut out = Vec::new();
    write(report, format, style, &mut out).expect("writing to memory");
    String::from_utf8(out).expect("UTF-8")
}

/// Compares text, JSON and CSV; checks that pictures are complete and need nothing from elsewhere, and that the table
/// has values of its columns' types.
fn check(name: &str, report: &impl Render) {
    assert!(report.table().num_rows() > 0, "{name} has no rows");
    let style = Style {
        over_time: true,
        ..Style::default()
    };
    for (format, extension) in ALL {
        let output = rendered(report, format, &style);
        check_output(name, format, extension, &output);
    }
}

fn check_output(name: &str, format: ReportFormat, extension: &str, output: &str) {
    match format {
        ReportFormat::Svg | ReportFormat::Html => {
            let end = format!("</{extension}>\n");
            assert!(output.ends_with(&end), "{name}.{extension} is incomplete");
            let elsewhere = output.replace("http://www.w3.org/2000/svg", "");
            for foreign in ["http://", "https://", "NaN", "inf\"", "__ISOTHERM"] {
                let at = elsewhere.find(foreign);
                // The page's own script tests for neither of these words.
                assert_eq!(at, None, "{name}.{extension} has {foreign}");
            }
        }
        _ => compare(&format!("{name}.{extension}"), output),
    }
}

fn access(options: &AccessOptions, format: ReportFormat, style: Style) -> String {
    let mut report = Access::new(&header(), Scope::default(), options.clone());
    let mut out = Vec::new();
    let mut writer = AccessWriter::new(format, style, &mut out);
    for item in small_record() {
        if let Some(table) = report.push(&item) {
            writer.table(&report.record_info(), &table).expect("memory");
        }
    }
    let record = report.record_info();
    for table in report.finish().0 {
        writer.table(&record, &table).expect("memory");
    }
    writer.finish(&record).expect("memory");
    String::from_utf8(out).expect("UTF-8")
}

fn heatmap(items: &[Item], scope: Scope, options: HeatmapOptions) -> HeatmapReport {
    finished(Heatmap::new(&header(), scope, options), items)
}

#[test]
fn access_reports_are_as_before() {
    let options = AccessOptions::default();
    for (format, extension) in ALL {
        let output = access(&options, format, Style::default());
        check_output("access", format, extension, &output);
    }
}

#[test]
fn access_json_of_all_snapshots_parses() {
    let options = AccessOptions {
        which: Which::All,
        ..AccessOptions::default()
    };
    let json = access(&options, ReportFormat::Json, Style::default());
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["snapshots"].as_array().map(Vec::len), Some(8));
    assert!(value["snapshots"][0]["regions"][3]["access_rate"].is_null());
}

/// Checks the addresses (in pages) that are shown, in order.
fn check_access(options: &AccessOptions, expected: &[u64]) {
    let json = access(options, ReportFormat::Json, Style::default());
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let regions = value["snapshots"][0]["regions"].as_array();
    let starts = regions.into_iter().flatten().map(|r| r["start"].as_u64());
    let pages: Vec<u64> = starts.flatten().map(|start| start / 4096).collect();
    assert_eq!(pages, expected);
}

#[test]
fn access_sorts_and_filters() {
    let default = AccessOptions::default;
    let sorted = |sort, reverse| AccessOptions {
        sort,
        reverse,
        ..default()
    };
    check_access(&sorted(SortBy::Address, false), &[16, 24, 64, 9000]);
    check_access(&sorted(SortBy::Size, false), &[64, 16, 24, 9000]);
    check_access(&sorted(SortBy::Rate, false), &[16, 24, 9000, 64]);
    check_access(&sorted(SortBy::Age, true), &[9000, 24, 64, 16]);
    check_access(&sorted(SortBy::Mapping, false), &[64, 16, 24, 9000]);
    let rate = OptionalBounds::new(Some(0.05), Some(0.7));
    check_access(&AccessOptions { rate, ..default() }, &[24, 9000]);
    let size = OptionalBounds::new(Some(8 * 4096), None);
    check_access(&AccessOptions { size, ..default() }, &[16, 24, 64]);
    let age = OptionalBounds::new(None, Some(Nanos::from_millis(2000)));
    check_access(&AccessOptions { age, ..default() }, &[24, 9000]);
    let first_of_heap = AccessOptions {
        mapping: Some("heap".into()),
        limit: Some(1),
        ..default()
    };
    check_access(&first_of_heap, &[16]);
    let hot_earlier = AccessOptions {
        which: Which::At(Nanos::from_millis(1500)),
        rate: OptionalBounds::new(Some(0.5), None),
        ..default()
    };
    check_access(&hot_earlier, &[16]);
}

#[test]
fn reports_are_as_before() {
    let (header, scope, small) = (header(), Scope::default(), small_record());
    let wss = Wss::new(&header, scope, WssOptions::default());
    check("wss", &finished(wss, &small));
    let idle = Idle::new(&header, scope, IdleOptions::default());
    check("idle", &finished(idle, &small));
    let weights = TemperatureOptions {
        at: None,
        rate_weight: 1.0,
        age_weight: 1.0,
    };
    let temperature = TemperatureByTarget::new(&header, scope, weights);
    check("temperature", &finished(temperature, &small));
    let fragmentation = Fragmentation::new(&header, scope);
    let fragmentation = finished(fragmentation, &fragmentation_record());
    check("fragmentation", &fragmentation.expect("there are samples"));
    check("machine", &machine(scope).expect("there are samples"));
    let options = HeatmapOptions {
        columns: 8,
        rows: 14,
        targets: 1,
        ..HeatmapOptions::default()
    };
    check("heatmap", &heatmap(&small, scope, options));
}

#[test]
fn wss_of_several_targets_is_summed_at_the_same_time() {
    let mut report = Wss::new(&header(), Scope::default(), WssOptions::default());
    for second in 0..4 {
        let (from, to) = (second * 1000, second * 1000 + 1000);
        report.push(&Item::Snapshot(snapshot_at(0, from, to, "[0,4)=1 [4,8)=0")));
        if second < 2 {
            report.push(&Item::Snapshot(snapshot_at(1, from, to, "[0,2)=1")));
        }
    }
    let total = report.finish().total.expect("two targets");
    let values: Vec<u64> = total.percentiles.iter().map(|p| p.value / 4096).collect();
    // The second target is missed for two of its intervals before it counts as gone.
    assert_eq!((values[0], values[4]), (6, 6));
    assert_eq!(total.snapshots, 4);
}

#[test]
fn what_was_not_watched_long_enough_is_not_zero() {
    let options = IdleOptions {
        at_least: [1, 30].map(|s| Nanos::from_millis(s * 1000)).to_vec(),
        ..IdleOptions::default()
    };
    let mut report = Idle::new(&header(), Scope::default(), options);
    let snapshot = snapshot_at(0, 0, 2000, "[0,4)=0 [4,6)=1 [6,7)=?");
    report.push(&Item::Snapshot(snapshot));
    let idle = &report.finish().targets[0];
    assert_eq!(idle.idle[0].bytes, Some(4 * 4096));
    assert_eq!(idle.idle[1].bytes, None);
    assert_eq!((idle.accessed_bytes, idle.unknown_bytes), (2 * 4096, 4096));
}

/// Region monitors count the first interval in the age of new regions as well.
#[test]
fn the_summary_and_the_idle_report_agree_on_what_was_not_watched_long_enough() {
    let mut idle = Idle::new(&header(), Scope::default(), IdleOptions::default());
    let mut overviews = Overviews::new(&header(), Scope::default());
    for from in [0, 2000] {
        let mut snapshot = snapshot_at(0, from, from + 2000, "[0,4)=0");
        snapshot.regions[0].age_ns = Nanos::from_millis(from + 2000);
        idle.push(&Item::Snapshot(snapshot.clone()));
        overviews.push(&Item::Snapshot(snapshot));
    }
    let overview = overviews.finish();
    let at_least_ns = Nanos::from_millis(5000);
    let of_5_s = |all: &[IdleBytes]| {
        let found = all.iter().find(|idle| idle.at_least_ns == at_least_ns);
        found.expect("5 s").bytes
    };
    assert_eq!(of_5_s(&overview.targets[0].idle), None);
    assert_eq!(of_5_s(&idle.finish().targets[0].idle), None);
}

#[test]
fn nothing_was_idle_for_longer_than_it_was_watched() {
    let longest = |first_age: u64| {
        let mut report = Idle::new(&header(), Scope::default(), IdleOptions::default());
        for (number, from) in [0, 100, 200].into_iter().enumerate() {
            let mut snapshot = snapshot_at(0, from, from + 100, "[0,4)=0");
            // Each age includes its own interval.
            let age = (first_age + number as u64) * 100;
            snapshot.regions[0].age_ns = Nanos::from_millis(age);
            report.push(&Item::Snapshot(snapshot));
        }
        let percentiles = report.finish().targets[0].percentiles.clone();
        percentiles.last().expect("of 100 %").value
    };
    let nanos = |ms: u64| Nanos::from_millis(ms).0;
    assert_eq!(longest(1), nanos(300));
    assert_eq!(longest(0), nanos(300));
    // The ages come from a monitor that ran before the record.
    assert_eq!(longest(50), nanos(5300));
}

#[test]
fn footprint_reports_are_as_before() {
    let report = Footprint::new(&header(), Scope::default(), None);
    let report = finished(report, &small_record()).expect("there are samples");
    check("footprint", &report);
    let html = rendered(&report, ReportFormat::Html, &Style::default());
    // Each picture names its target.
    for heading in ["Memory footprint of all targets<", "Memory of the machine<"] {
        assert_eq!(html.matches(heading).count(), 1, "{heading}");
    }
}

fn machine(scope: Scope) -> Option<MachineReport> {
    finished(Machine::new(&header(), scope), &machine_record())
}

#[test]
fn all_of_the_machines_memory_is_told_once() {
    let report = machine(Scope::default()).expect("there are samples");
    let bytes: u64 = report.classes.iter().map(|class| class.bytes).sum();
    assert_eq!(bytes, report.total_bytes);
    for node in &report.nodes {
        let bytes: u64 = node.classes.iter().map(|class| class.bytes).sum();
        assert_eq!(bytes, node.total_bytes);
    }
    for class in &report.classes {
        let known = class.ages.map_or(class.bytes, |ages| ages.total());
        assert_eq!(class.bytes, known, "{class:?}");
    }
    let earlier = Scope {
        to: Some(BETWEEN),
        ..Scope::default()
    };
    let earlier = machine(earlier).expect("one sample");
    let redis = |report: &MachineReport| {
        let mut processes = report.processes.iter();
        let found = processes.find(|process| process.target.pid == Some(100));
        found.expect("redis").clone()
    };
    assert_eq!(redis(&report).bytes - redis(&earlier).bytes, 100 << 20);
    let group = redis(&report).group;
    assert_eq!(group.as_deref(), Some("/a.slice/redis"));
    let none = Scope {
        from: Some(Nanos::from_millis(9000)),
        ..Scope::default()
    };
    assert!(machine(none).is_none());
}

#[test]
fn action_reports_are_as_before() {
    let actions = || Actions::new(&header(), Scope::default());
    assert_eq!(finished(actions(), &[]), None);
    let report = finished(actions(), &actions_record()).expect("there were actions");
    check("actions", &report);
    for format in [ReportFormat::Svg, ReportFormat::Html] {
        let output = rendered(&report, format, &Style::default());
        assert!(output.contains("pageout"), "{output}");
    }
}

#[test]
fn a_record_without_fragmentation_has_no_report_of_it() {
    let report = Fragmentation::new(&header(), Scope::default());
    assert_eq!(finished(report, &small_record()), None);
}

#[test]
fn heatmap_keeps_the_scope() {
    let scope = Scope {
        from: Some(Nanos::from_millis(2000)),
        to: Some(Nanos::from_millis(4000)),
        target: Some(TargetId(0)),
    };
    let mut items = small_record();
    items.push(Item::Snapshot(snapshot_at(7, 3000, 4000, "[0,4)=1")));
    let report = heatmap(&items, scope, HeatmapOptions::default());
    assert_eq!((report.targets.len(), report.columns), (1, 2));
    assert_eq!(report.start_ns, Nanos::from_millis(2000));
}

/// Checks that bytes times time times rate is kept, for any length of the record and any intervals.
#[test]
fn heatmap_loses_no_access() {
    let mut items = Vec::new();
    let mut now = 0;
    for index in 0..3000_u64 {
        let length = [10, 40, 100][index as usize / 1000];
        let rate = index % 11;
        let shift = index % 7;
        let end = 10 + shift;
        let picture = format!("[0,{end})={rate} [{end},40)=0 [500,520)=5");
        items.push(Item::Snapshot(snapshot_at(0, now, now + length, &picture)));
        now += length;
    }
    let exact: f64 = items.iter().map(byte_seconds).sum();
    let report = heatmap(&items, Scope::default(), HeatmapOptions::default());
    assert!(report.columns > 256 && report.columns <= 512);
    let target = &report.targets[0];
    let mut found = 0.0;
    for (row, facts) in target.rows.iter().enumerate() {
        for cell in target.cells.row(row) {
            let seen = facts.bytes as f64 * report.column_ns / 1e9 * f64::from(cell.monitored);
            found += seen * f64::from(cell.access_rate.unwrap_or(0.0));
        }
    }
    // A short snapshot counts for the column of its middle, which may then hold more time than it is
    // wide; the share of it that was monitored is cut at 1.
    assert!((found / exact - 1.0).abs() < 0.03, "{found} of {exact}");
}

fn byte_seconds(item: &Item) -> f64 {
    let Item::Snapshot(snapshot) = item else {
        return 0.0;
    };
    let seconds = snapshot.end.since(snapshot.start).as_secs_f64();
    let rate = |r| f64::from(snapshot.access_rate(r).unwrap_or(0.0));
    let regions = snapshot.regions.iter();
    let each = regions.map(|r| r.range.len() as f64 * rate(r) * seconds);
    each.sum()
}

/// A build forks thousands of compilers; memory stays bounded, and the report states the number of targets left out.
#[test]
fn heatmap_of_very_many_targets_keeps_the_largest() {
    let mut report = Heatmap::new(&header(), Scope::default(), HeatmapOptions::default());
    let many = (0..64).map(|i| format!("[{},{})=1 ", 3 * i, 3 * i + 1));
    let many: String = many.collect();
    for target in 0..40_000_u32 {
        let picture = if target == 7 { "[0,9999)=3" } else { &many };
        let from = u64::from(target);
        let snapshot = snapshot_at(target, from, from + 1, picture);
        report.push(&Item::Snapshot(snapshot));
    }
    let report = report.finish();
    let shown = report.targets.len();
    assert_eq!((shown, report.targets_left_out), (16, 39_984));
    let mut targets = report.targets.iter();
    assert!(targets.any(|t| t.target.target == Some(TargetId(7))));
}

#[test]
fn nothing_recorded_is_said() {
    let scope = Scope {
        from: Some(Nanos::from_millis(60_000)),
        ..Scope::default()
    };
    let report = heatmap(&small_record(), scope, HeatmapOptions::default());
    for (format, _) in ALL {
        rendered(&report, format, &Style::default());
    }
    let report = Idle::new(&header(), scope, IdleOptions::default());
    let report = finished(report, &small_record());
    let text = rendered(&report, ReportFormat::Text, &Style::default());
    assert_eq!(text, "no snapshot in this part of the record\n");
}

/// Generates content of a foreign record: times that run backwards, regions that overlap, the last address.
fn wild_snapshots() -> impl Strategy<Value = Vec<Snapshot>> {
    let accesses = any::<Option<u8>>();
    let region = (any::<u64>(), 1_u64..=u64::MAX, accesses, any::<u64>());
    let region = region.prop_map(|(start, size, accesses, age)| {
        let range = AddressRange::new(start.min(u64::MAX - 1), start.saturating_add(size));
        RegionSnapshot::new(range, accesses.map(f32::from)).aged(age as u32, Nanos(age))
    });
    let regions = proptest::collection::vec(region, 0..20);
    let snapshot = (0_u32..3, any::<u64>(), any::<u64>(), any::<u32>(), regions);
    let snapshot = snapshot.prop_map(|(target, start, end, nr_samples, regions)| {
        let times = (Nanos(start), Nanos(end));
        Snapshot::new(TargetId(target), times, nr_samples, regions)
    });
    proptest::collection::vec(snapshot, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_record_makes_a_report_panic(snapshots in wild_snapshots(), started in any::<u64>()) {
        let header = isotherm_record::item::Header { started: Nanos(started), ..header() };
        let options = HeatmapOptions { columns: 30, rows: 20, targets: 2, ..HeatmapOptions::default() };
        let mut heatmap = Heatmap::new(&header, Scope::default(), options);
        let mut wss = Wss::new(&header, Scope::default(), WssOptions::default());
        let mut idle = Idle::new(&header, Scope::default(), IdleOptions::default());
        let mut footprint = Footprint::new(&header, Scope::default(), Some(0.1));
        let mut access = Access::new(&header, Scope::default(), AccessOptions::default());
        for snapshot in snapshots {
            let item = Item::Snapshot(snapshot);
            heatmap.push(&item);
            wss.push(&item);
            idle.push(&item);
            footprint.push(&item);
            access.push(&item);
        }
        let heatmap = heatmap.finish();
        for cell in heatmap.targets.iter().flat_map(|target| &target.cells.cells) {
            prop_assert!(cell.access_rate.is_none_or(|rate| (0.0..=1.0).contains(&rate)));
        }
        let (wss, idle, footprint) = (wss.finish(), idle.finish(), footprint.finish());
        for (format, _) in ALL {
            let mut out = Vec::new();
            let style = Style::default();
            write(&heatmap, format, &style, &mut out)?;
            write(&wss, format, &style, &mut out)?;
            write(&idle, format, &style, &mut out)?;
            if let Some(footprint) = &footprint {
                write(footprint, format, &style, &mut out)?;
            }
            let record = access.record_info();
            let mut writer = AccessWriter::new(format, style, &mut out);
            for table in &access_tables(&mut access) {
                writer.table(&record, table)?;
            }
            writer.finish(&record)?;
        }
    }
}

/// Finishes `report` once, and leaves an empty one.
fn access_tables(report: &mut Access) -> Vec<super::AccessTable> {
    let empty = Access::new(&header(), Scope::default(), AccessOptions::default());
    std::mem::replace(report, empty).finish().0
}

#[test]
fn blame() {
    let report = super::blame::samples::report();
    check("blame", &report);
    compare("blame.svg", &report.svg());
    let hostile = super::blame::samples::hostile_report();
    for (format, extension) in [(ReportFormat::Svg, "svg"), (ReportFormat::Html, "html")] {
        let output = rendered(&hostile, format, &Style::default());
        check_output("blame of hostile names", format, extension, &output);
        assert!(!output.contains("<b>"), "{output}");
    }
}
