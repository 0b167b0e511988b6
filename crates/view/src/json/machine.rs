//! The use of the machine's memory at the last sample.

use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes};
use isotherm_report::MachineReport;
use isotherm_report::machine::{ClassMemory, MemoryClass};
use serde::Serialize;

/// The largest number of processes, groups and files that are shown.
const MOST: usize = 1000;

#[derive(Serialize)]
pub(super) struct MachineJson<'a> {
    time_s: f64,
    total: u64,
    used: u64,
    known_use: f64,
    known_age: f64,
    /// Lower bounds of the idle ages, in seconds.
    age_bounds_s: Vec<f64>,
    classes: Vec<ClassJson>,
    nodes: Vec<NodeJson>,
    processes: Vec<MachineProcessJson<'a>>,
    /// Ages of memory that several processes map.
    several: Ages,
    cached: Vec<CachedJson<'a>>,
    /// Text of the report, which has more details.
    text: String,
}

/// Bytes by age: touched, idle by age, unknown.
type Ages = Vec<u64>;

#[derive(Serialize)]
struct ClassJson {
    class: MemoryClass,
    bytes: u64,
    ages: Option<Ages>,
}

#[derive(Serialize)]
struct NodeJson {
    node: u32,
    total: u64,
    used: u64,
    classes: Vec<ClassJson>,
}

#[derive(Serialize)]
struct MachineProcessJson<'a> {
    label: String,
    group: Option<&'a str>,
    ages: Ages,
}

/// Unmapped page cache of a control group; the group is null where it is unknown.
#[derive(Serialize)]
struct CachedJson<'a> {
    group: Option<&'a str>,
    ages: Ages,
}

impl<'a> MachineJson<'a> {
    pub(super) fn of(of: &'a MachineReport) -> Self {
        Self {
            time_s: of.time_ns.as_secs_f64(),
            total: of.total_bytes,
            used: of.used_bytes,
            known_use: of.known_use,
            known_age: of.known_age,
            age_bounds_s: AGE_BOUNDS.iter().map(|bound| bound.as_secs_f64()).collect(),
            classes: of.classes.iter().map(class).collect(),
            nodes: { of.nodes.iter() }
                .map(|node| NodeJson {
                    node: node.node,
                    total: node.total_bytes,
                    used: node.used_bytes,
                    classes: node.classes.iter().map(class).collect(),
                })
                .collect(),
            processes: { of.processes.iter().take(MOST) }
                .map(|process| MachineProcessJson {
                    label: process.target.label(),
                    group: process.group.as_deref(),
                    ages: ages(&process.ages),
                })
                .collect(),
            several: ages(&of.several),
            cached: { of.page_cache.iter().flat_map(|cache| &cache.groups) }
                .take(MOST)
                .map(|group| CachedJson {
                    group: group.group.as_deref(),
                    ages: ages(&group.bytes.ages),
                })
                .collect(),
            text: super::text(of),
        }
    }
}

fn class(of: &ClassMemory) -> ClassJson {
    ClassJson {
        class: of.class,
        bytes: of.bytes,
        ages: of.ages.as_ref().map(ages),
    }
}

fn ages(of: &AgeBytes) -> Ages {
    let mut all = vec![of.touched];
    all.extend(of.idle);
    all.push(of.unknown);
    all
}
