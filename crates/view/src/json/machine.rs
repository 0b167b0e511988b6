//! The use of the machine's memory at the last sample, and the memory of its nodes over time.

use isotherm_engine::Nanos;
use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes};
use isotherm_report::machine::ClassMemory;
use isotherm_report::{MachineReport, TiersReport};
use serde_json::{Value, json};

use super::{list, series};
use crate::container::Arrays;

const MOST: usize = 1000;

pub(super) fn json(of: &MachineReport) -> Value {
    let nodes = list(&of.nodes, |node| {
        json!({
            "node": node.node,
            "total": node.total_bytes,
            "used": node.used_bytes,
            "classes": list(&node.classes, class),
        })
    });
    let processes = list(
        of.processes.iter().take(MOST),
        |process| json!({"label": process.target.label(), "group": process.group, "ages": ages(&process.ages)}),
    );
    let groups = of.page_cache.iter().flat_map(|cache| &cache.groups);
    let cached = list(
        groups.take(MOST),
        |group| json!({"group": group.group, "ages": ages(&group.bytes.ages)}),
    );
    json!({
        "time_s": of.time_ns.as_secs_f64(),
        "total": of.total_bytes,
        "used": of.used_bytes,
        "known_use": of.known_use,
        "known_age": of.known_age,
        "age_bounds_s": AGE_BOUNDS.map(Nanos::as_secs_f64),
        "classes": list(&of.classes, class),
        "nodes": nodes,
        "processes": processes,
        "several": ages(&of.several),
        "cached": cached,
        // The text of the report has more details.
        "text": super::text(of),
    })
}

fn class(of: &ClassMemory) -> Value {
    json!({"class": of.class, "bytes": of.bytes, "ages": of.ages.as_ref().map(ages)})
}

/// Returns bytes by age: touched, idle by age, unknown.
fn ages(of: &AgeBytes) -> Vec<u64> {
    let mut all = vec![of.touched];
    all.extend(of.idle);
    all.push(of.unknown);
    all
}

pub(super) fn tiers(of: &TiersReport, arrays: &mut Arrays) -> Value {
    let nodes = list(&of.nodes, |node| {
        json!({
            "node": node.node,
            "total": node.total_bytes,
            "used": series(&node.used, arrays),
            "mapped": series(&node.mapped, arrays),
            "idle": series(&node.idle, arrays),
        })
    });
    let ways = list(&of.ways, |way| {
        let course = series(&way.points, arrays);
        json!({"from": way.from, "to": way.to, "bytes": way.bytes, "course": course})
    });
    let counters = list(
        &of.counters,
        |of| json!({"name": of.name, "pages": of.pages, "course": series(&of.points, arrays)}),
    );
    json!({"nodes": nodes, "ways": ways, "counters": counters})
}
