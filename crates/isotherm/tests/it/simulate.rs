//! `isotherm simulate`: scenarios and traces, from the command line.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;

use isotherm_engine::BLOCK_SIZE;
use isotherm_record::{Item, Reader};
use serde_json::Value;

use crate::common::{self, Ended};
use crate::records::page_record;

fn isotherm(arguments: &[&str]) -> Output {
    common::run(Path::new("."), arguments)
}

fn simulated(arguments: &[&str]) -> Value {
    let output = isotherm(&[&["simulate", "--json"], arguments].concat());
    output.success().json()
}

fn scenario(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/scenarios");
    Path::new(root).join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

#[test]
fn a_scheme_saves_what_it_says_it_would() {
    let server = scenario("server.yaml");
    let run = |flags: &[&str]| simulated(&[&[text(&server), "--duration", "30s"], flags].concat());
    let alone = run(&[]);
    let prcl = run(&["--preset", "prcl", "--no-guard"]);
    let rss = |report: &Value| {
        let mean = &report["processes"][0]["rss_mean_bytes"];
        mean.as_f64().expect("bytes")
    };
    assert!(rss(&prcl) < 0.7 * rss(&alone), "{prcl}");
    assert!(prcl["processes"][0]["major_faults"].as_u64() > Some(1000));
    assert!(prcl["monitor_cpu_percent"].as_f64() < Some(1.2));
    assert_eq!(prcl["schemes"][0]["action"], "pageout");
    let dry = run(&["--preset", "prcl", "--dry-run"]);
    assert_eq!(dry["processes"][0]["major_faults"], 0);
}

#[test]
fn what_goes_wrong_in_a_scenario_does_not_stop_it() {
    let bad_day = scenario("bad_day.yaml");
    let report = simulated(&[text(&bad_day), "--preset", "prcl", "--no-guard"]);
    let refused = &report["schemes"][0]["refused_bytes"];
    for why in ["swap_full", "locked"] {
        assert!(refused[why].as_u64() > Some(0), "{why}: {report}");
    }
    let seconds = report["processes"][1]["seconds"].as_f64();
    assert!(seconds < Some(26.0), "{report}");
}

#[test]
fn the_record_is_the_same_for_the_same_seed_and_reports_read_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record");
    let server = scenario("server.yaml");
    let mut bytes = Vec::new();
    for seed in ["3", "3", "4"] {
        let mut line = vec!["simulate", text(&server), "--duration", "12s"];
        line.extend(["--preset", "prcl", "--seed", seed, "-o", text(&record)]);
        isotherm(&line).success();
        bytes.push(fs::read(&record).expect("a record"));
    }
    assert!(bytes[0] == bytes[1], "the same seed, other bytes");
    assert!(bytes[1] != bytes[2], "another seed, the same bytes");
    for report in ["heatmap", "wss", "footprint", "access", "idle"] {
        let output = isotherm(&["report", report, text(&record)]).success();
        assert!(!output.stdout.is_empty(), "{report}");
    }
}

#[test]
fn fragmented_memory_is_compacted_and_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = directory.path().join("record");
    let smaller = directory.path().join("smaller.yaml");
    let whole = fs::read_to_string(scenario("fragmented.yaml")).expect("a scenario");
    let small = whole
        .replace("64 GiB", "4 GiB")
        .replace("16 GiB", "1 GiB")
        .replace("60 GiB", "3.75 GiB")
        .replace("32 GiB", "2 GiB");
    fs::write(&smaller, &small).expect("written");
    let ahead = simulated(&[text(&smaller), "-o", text(&record)]);
    assert_eq!(ahead["huge_pages"]["faults"], 1024, "{ahead}");
    assert_eq!(ahead["huge_pages"]["compaction_stall_seconds"], 0.0);
    assert!(ahead["huge_pages"]["kcompactd_cpu_seconds"].as_f64() > Some(0.0));
    let report = isotherm(&["report", "fragmentation", "--format", "json", text(&record)]).json();
    let at_low = report["nodes"][0]["rounds"]["ended"]["at_low"].as_u64();
    assert!(at_low > Some(0), "{report}");
    let off = small.replace("proactiveness: 60", "proactiveness: 0");
    fs::write(&smaller, off).expect("written");
    let direct = simulated(&[text(&smaller)]);
    assert_eq!(direct["huge_pages"]["kcompactd_cpu_seconds"], 0.0);
    let compacted_for = direct["huge_pages"]["compacted_for"].as_u64();
    assert!(compacted_for > Some(500), "{direct}");
    assert!(direct["processes"][1]["lost_seconds"]["compaction"].as_f64() > Some(0.0));
}

#[test]
fn hmsdks_files_run_on_two_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = folder.path().join("tier.yaml");
    let mut line = vec!["tier", "plan", "-m", "0", "1", "-g", "-o", text(&plan)];
    line.extend(["--node", "0=64GiB", "--node", "1=64GiB"]);
    isotherm(&line).success();
    let far = scenario("far_memory.yaml");
    let tiered = simulated(&[text(&far), "-c", text(&plan), "--duration", "100s"]);
    let schemes = tiered["schemes"].as_array().expect("schemes").iter();
    let demoting = schemes.filter(|scheme| scheme["action"] == "migrate_cold");
    let applied = demoting.filter_map(|scheme| scheme["applied_bytes"].as_u64());
    assert!(applied.sum::<u64>() > 1 << 30, "{tiered}");
}

/// A configuration of two contexts that watch all processes, each with one scheme.
const TWO_CONTEXTS: &str = "\
kdamonds:
- contexts:
  - ops: vaddr
    targets: []
    schemes: [{action: stat, access_pattern: {sz_bytes: {min: 0, max: max},
      nr_accesses: {min: 0 %, max: 100 %}, age: {min: 0, max: max}}}]
- contexts:
  - ops: vaddr
    targets: []
    schemes: [{action: pageout, access_pattern: {sz_bytes: {min: 4 KiB, max: max},
      nr_accesses: {min: 0 %, max: 0 %}, age: {min: 5 s, max: max}}}]
";

#[test]
fn a_dry_run_says_so_and_counts_a_byte_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = directory.path().join("dry.isotherm");
    let server = scenario("server.yaml");
    let line = ["--duration", "30s", "--preset", "prcl", "--dry-run", "-o"];
    let report = simulated(&[&[text(&server)], &line[..], &[text(&record)]].concat());
    let mut applied = 0;
    for item in items(&record) {
        if let Item::Action(action) = item {
            assert!(action.dry_run);
            applied += action.sz_applied;
        }
    }
    let resident = &report["processes"][0]["rss_max_bytes"];
    let resident = resident.as_u64().expect("bytes");
    // A tenth is touched meanwhile, and may be paged out again.
    let most = resident + resident / 4;
    assert!((1..=most).contains(&applied), "{applied}: {report}");
}

#[test]
fn two_contexts_have_targets_and_costs_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let [record, config] = ["two.isotherm", "two.yaml"].map(|name| directory.path().join(name));
    fs::write(&config, TWO_CONTEXTS).expect("a file");
    let server = scenario("server.yaml");
    let line = ["--duration", "20s", "--dry-run", "-c", text(&config), "-o"];
    let report = simulated(&[&[text(&server)], &line[..], &[text(&record)]].concat());
    let nr_processes = report["processes"].as_array().expect("a list").len();
    let (mut contexts, mut seen, mut cost) = (Vec::new(), Vec::new(), 0);
    for item in items(&record) {
        match item {
            Item::TargetStart(start) => contexts.push((start.target.0, start.context)),
            Item::Snapshot(snapshot) => seen.push(snapshot.target.0),
            Item::Cost(sample) => cost = sample.cost.monitor_cpu.0,
            _ => {}
        }
    }
    assert_eq!(contexts.len(), 2 * nr_processes, "{contexts:?}");
    for (at, (target, context)) in contexts.iter().enumerate() {
        assert_eq!(*target as usize, at);
        assert!(seen.contains(target), "target {target} is never seen");
        let name = format!("kdamond {}", at % 2);
        assert_eq!(context.as_deref(), Some(name.as_str()));
    }
    let alone = ["--duration", "20s", "--preset", "prcl", "--dry-run", "-o"];
    simulated(&[&[text(&server)], &alone[..], &[text(&record)]].concat());
    let of_one = items(&record).into_iter().filter_map(|item| match item {
        Item::Cost(sample) => Some(sample.cost.monitor_cpu.0),
        _ => None,
    });
    // Each has its part of one budget, but the fixed cost of every sample is spent twice.
    assert!(Some(cost) > of_one.max().map(|one| one / 2));
}

fn items(path: &Path) -> Vec<Item> {
    let file = File::open(path).expect("written");
    let reader = Reader::open(std::io::BufReader::new(file)).expect("a record");
    reader.map(|item| item.expect("whole")).collect()
}

#[test]
fn a_trace_is_replayed_under_a_scheme() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    page_record(&trace, 40, true);
    let alone = simulated(&["--trace", text(&trace)]);
    assert_eq!(alone["processes"][0]["name"], "traced");
    let seconds = alone["simulated_seconds"].as_f64().expect("s");
    assert!((seconds - 40.0).abs() < 0.5, "{alone}");
    assert_eq!(alone["processes"][0]["rss_max_bytes"], BLOCK_SIZE);
    let prcl = simulated(&["--trace", text(&trace), "--preset", "prcl", "--no-guard"]);
    let process = &prcl["processes"][0];
    // A quarter stays resident.
    let mean = process["rss_mean_bytes"].as_f64().expect("bytes") / BLOCK_SIZE as f64;
    assert!((0.27..0.55).contains(&mean), "{prcl}");
    assert!(process["major_faults"].as_u64() < Some(20), "{prcl}");
    // Without the beginning less memory is resident, and more is saved.
    let steady = prcl["steady_resident_mean_bytes"].as_f64();
    assert!(steady < prcl["resident_mean_bytes"].as_f64(), "{prcl}");
    let predicted = &prcl["prediction"];
    let mean = predicted["saved_percent"]["value"].as_f64();
    assert!(predicted["steady_saved_percent"].as_f64() > mean, "{prcl}");
    let scheme = "4K max 0 0 30s max pageout";
    let said = isotherm(&["simulate", "--trace", text(&trace), "--scheme", scheme]).errors();
    assert!(said.contains("record 1 min to answer this"), "{said}");
}

#[test]
fn what_cannot_be_simulated_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let regions = folder.path().join("regions");
    page_record(&regions, 3, false);
    let endless = folder.path().join("endless.yaml");
    let scenario = "processes: [{mappings: [{name: heap, size: 1 MiB}]}]";
    fs::write(&endless, scenario).expect("a file");
    for (arguments, wanted) in [
        (&[][..], "--trace"),
        (&["--trace", text(&regions)], "record --pages"),
        (&["/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (&[text(&endless)], "--duration"),
        (
            &[text(&endless), "--duration", "1s", "--preset", "none"],
            "there is no preset",
        ),
        (&[text(&endless), "--duration", "1s", "--pages"], "--pages"),
    ] {
        isotherm(&[&["simulate"], arguments].concat()).refused(wanted);
    }
}
