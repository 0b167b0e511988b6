//! Several contexts in one `run` and one daemon: each with its own targets, schemes and guard.

use std::collections::BTreeSet;
use std::fs;

use isotherm_record::ActionSample;
use serde_json::{Value, json};

use crate::common::{
    MIB, Running, Workload, daemon_status, isotherm, paced_workload, record_until, run, scratch,
    shared, skip, until,
};
use crate::watch::physical::some_ram;

/// The configuration of HMSDK's generator for two nodes.
const HMSDK: &str = include_str!("../../../../config/tests/fixtures/hmsdk.yaml");

/// Returns a kdamond with a context that applies `action` to all memory of a process that is idle for a second.
fn kdamond(pid: u32, action: &str, paused: bool) -> Value {
    json!({"contexts": [{
        "ops": "vaddr",
        "targets": [{"pid": pid, "regions": []}],
        "pause": paused,
        "schemes": [{
            "action": action,
            "access_pattern": {
                "sz_bytes": {"min": "4 KiB", "max": "max"},
                "nr_accesses": {"min": "0 %", "max": "0 %"},
                "age": {"min": "1 s", "max": "max"},
            },
        }],
    }]})
}

fn configuration(kdamonds: &[Value]) -> String {
    json!({"kdamonds": kdamonds}).to_string()
}

fn applied(scheme: &Value) -> u64 {
    let stats = scheme.get("stats").unwrap_or(scheme);
    stats["sz_applied"].as_u64().expect("a number")
}

#[test]
fn two_processes_are_watched_and_acted_on_by_contexts_of_their_own() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let workloads = [(); 3].map(|()| Workload::start(&paced_workload(64, 4), &[]));
    let pids = workloads.each_ref().map(Workload::pid);
    let file = directory.path().join("kdamonds.json");
    let text = configuration(&[
        kdamond(pids[0], "cold", false),
        kdamond(pids[1], "stat", false),
        kdamond(pids[2], "cold", true),
    ]);
    fs::write(&file, text).expect("a file");
    let output = directory.path().join("record");
    let mut command = isotherm(["run", "--json", "--no-guard", "-c"]);
    let what = "32 MiB to be acted on in two contexts, and looks at the third";
    let (done, record) = record_until(what, command.arg(&file), &output, |record| {
        let acted_on = |name: &str, number: fn(&ActionSample) -> u64| -> u64 {
            let of = record.actions();
            let of = of.filter(|action| action.context.as_deref() == Some(name));
            of.map(number).sum()
        };
        acted_on("kdamond 0", |action| action.sz_applied) > 32 * MIB
            && acted_on("kdamond 1", |action| action.sz_tried) > 32 * MIB
            && record.snapshots().filter(|s| s.target.0 == 2).count() > 3
    });
    let summary = done.json();
    let schemes = summary["schemes"].as_array().expect("a list");
    let names: Vec<_> = schemes.iter().map(|s| s["context"].as_str()).collect();
    let wanted = ["kdamond 0", "kdamond 1", "kdamond 2"];
    assert_eq!(names, wanted.map(Some), "{summary}");
    assert!(applied(&schemes[0]) > 32 * MIB, "{summary}");
    let tried = schemes[1]["sz_tried"].as_u64();
    assert!(tried > Some(32 * MIB), "{summary}");
    assert_eq!(schemes[2]["sz_tried"], 0, "it is paused: {summary}");
    let starts = record.starts().into_iter();
    let starts: BTreeSet<_> = starts
        .map(|start| (start.target.0, start.pid, start.context.as_deref()))
        .collect();
    let of = |i: usize| (i as u32, pids[i], Some(wanted[i]));
    assert_eq!(starts, BTreeSet::from([of(0), of(1), of(2)]));
    let seen: BTreeSet<u32> = record.snapshots().map(|s| s.target.0).collect();
    assert_eq!(seen, BTreeSet::from([0, 1, 2]), "a paused one is watched");
    let acted: BTreeSet<_> = record
        .actions()
        .map(|action| (action.context.as_deref(), action.action.as_str()))
        .collect();
    let by = |i: usize, action| (Some(wanted[i]), action);
    assert_eq!(acted, BTreeSet::from([by(0, "cold"), by(1, "stat")]));
    assert!(record.notes().contains("kdamond 2: watching took"));
    let report = run(isotherm(["report", "wss"]).arg(&output)).success();
    for name in wanted {
        report.prints(name);
    }
}

#[test]
fn a_daemon_of_several_contexts_is_asked_tuned_and_ended_as_one() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let workloads = [(); 2].map(|()| Workload::start(&paced_workload(64, 4), &[]));
    let pids = workloads.each_ref().map(Workload::pid);
    let socket = directory.path().join("socket");
    let write = |name: &str, kdamonds: &[Value]| {
        let path = directory.path().join(name);
        fs::write(&path, configuration(kdamonds)).expect("a file");
        path
    };
    let cold = |of: usize, paused| kdamond(pids[of], "cold", paused);
    let first = write("first", &[cold(0, false), cold(1, true)]);
    let mut command = isotherm(["start", "--socket"]);
    let daemon = Running::start(command.arg(&socket).arg("-c").arg(&first));
    let command = |what: &str| {
        let mut command = isotherm([what, "--socket"]);
        command.arg(&socket);
        command
    };
    let say = |what: &str| run(&mut command(what)).success();
    let tune = |file| run(command("tune").arg("-c").arg(file));
    let status = || daemon_status(&socket);
    // The claims of siblings do not block each other.
    let before = until("something done by the first", || {
        status().filter(|s| applied(&s["contexts"][0]["schemes"][0]) > 16 * MIB)
    });
    assert_eq!(before["contexts"][0]["name"], "kdamond 0");
    assert_eq!(before["contexts"][0]["paused"], false);
    assert_eq!(before["contexts"][1]["paused"], true);
    assert_eq!(before["paused"], false, "not all of it");
    assert_eq!(before["targets"][1]["context"], "kdamond 1");
    let stat = kdamond(pids[0], "stat", false);
    tune(write("one", std::slice::from_ref(&stat))).refused("2 are at work");
    tune(write("other", &[stat, cold(1, false)])).success();
    let after = until("something done by the second", || {
        status().filter(|s| applied(&s["contexts"][1]["schemes"][0]) > 16 * MIB)
    });
    assert_eq!(after["contexts"][0]["schemes"][0]["action"], "stat");
    let text = say("status");
    text.prints("kdamond 1:");
    text.prints("guard");
    say("pause");
    let paused = status().expect("it is there");
    assert_eq!(paused["paused"], true);
    assert_eq!(paused["contexts"][1]["paused"], true);
    say("stop");
    daemon.succeed();
    assert!(!socket.exists());
}

/// Returns a scheme whose goal is a share of its memory on `node`.
fn with_goal(pid: u32, node: u32) -> String {
    let mut kdamond = kdamond(pid, "stat", false);
    kdamond["contexts"][0]["schemes"][0]["quotas"] = json!({
        "time_ms": 0, "sz_bytes": 0, "reset_interval_ms": 1000,
        "weights": {"sz_permil": 0, "nr_accesses_permil": 0, "age_permil": 0},
        "goals": [{
            "metric": "node_eligible_mem_bp", "nid": node, "target_value": "90 %",
            "current_value": 0,
        }],
    });
    configuration(&[kdamond])
}

#[test]
fn the_share_of_matching_memory_on_a_node_is_measured() {
    let Some(_turn) = shared() else { return };
    if fs::metadata("/sys/devices/system/node/node1").is_ok() {
        return skip("there are several nodes: the test does not know the node of each page");
    }
    let directory = scratch();
    let workload = Workload::start(&paced_workload(64, 4), &[]);
    let socket = directory.path().join("socket");
    let file = directory.path().join("file");
    fs::write(&file, with_goal(workload.pid(), 3)).expect("a file");
    run(isotherm(["run", "--duration", "1s", "-c"]).arg(&file)).refused("node 3");
    fs::write(&file, with_goal(workload.pid(), 0)).expect("a file");
    let mut command = isotherm(["start", "--no-guard", "--socket"]);
    let _daemon = Running::start(command.arg(&socket).arg("-c").arg(&file));
    let goal = until("a measurement", || {
        let status = daemon_status(&socket)?;
        let goal = status["contexts"][0]["schemes"][0]["quota"]["goals"][0].clone();
        goal["current"].is_u64().then_some(goal)
    });
    assert_eq!(goal["current"], 10_000, "there is one node: {goal}");
    assert_eq!(goal["score_bp"], 11_111);
}

#[test]
fn what_hmsdk_writes_for_two_nodes_is_run_dry_on_one_machine() {
    let Some(_turn) = shared() else { return };
    let Some(ram) = some_ram().filter(|ram| ram.end > 0) else {
        return skip("/proc/iomem shows no addresses");
    };
    let start = ram.start.next_multiple_of(4096);
    let middle = (start + ram.len() / 2) & !(2 * MIB - 1);
    let end = ram.end & !4095;
    let text = HMSDK
        .replace("4,294,967,296", &start.to_string())
        .replace("17,179,869,184", &middle.to_string())
        .replace("21,474,836,480", &middle.to_string())
        .replace("34,359,738,368", &end.to_string());
    let directory = scratch();
    let file = directory.path().join("hmsdk.yaml");
    fs::write(&file, text).expect("a file");
    let output = directory.path().join("record");
    let mut command = isotherm(["run", "--dry-run", "--json", "-c"]);
    let what = "snapshots of both halves";
    let (done, record) = record_until(what, command.arg(&file), &output, |record| {
        let of = |target| {
            let mut snapshots = record.snapshots();
            snapshots.any(|s| s.target.0 == target && !s.regions.is_empty())
        };
        of(0) && of(1)
    });
    let summary = done.json();
    for (at, action) in ["migrate_cold", "migrate_hot"].into_iter().enumerate() {
        let scheme = &summary["schemes"][at];
        assert_eq!(scheme["context"], format!("kdamond {at}"), "{summary}");
        assert_eq!(scheme["action"], action, "{summary}");
    }
    assert_eq!(record.header.operations, "paddr");
    for (target, half) in [(0, start..middle), (1, middle..end)] {
        let snapshots = record.snapshots().filter(|s| s.target.0 == target);
        let mut regions = snapshots.flat_map(|snapshot| &snapshot.regions);
        assert!(regions.all(|r| half.start <= r.range.start && r.range.end <= half.end));
    }
}
