//! Shared parts of the acting scenarios: a workload whose content never changes, `isotherm run` on it, and the places
//! of its hot and cold memory afterwards.
//!
//! All parts are shell lines, as in `workload`. `vm-guest pages` reads the places of memory from the kernel, in ways
//! that the actuators do not use. The time that acting takes says nothing here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Report;
use super::workload::Workload;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::pages::{Pages, Part};
use crate::vm::{Vm, VmOutput};

/// A hot quarter of 32 MiB, in pieces here and there, of random content that is only read.
pub(super) const STILL: Workload = Workload::Exercise(
    "heap, 32MiB, /tmp/data\n\nserve\n600000\nheap, 1, 64, 1, ro, hot=8MiB piece=2MiB seed=1\n",
);
/// [`STILL`] with all hot memory in one piece, which contains whole huge pages wherever regions end.
pub(super) const STILL_IN_ONE: Workload = Workload::Exercise(
    "heap, 32MiB, /tmp/data\n\nserve\n600000\nheap, 1, 64, 1, ro, hot=8MiB piece=8MiB seed=1\n",
);
pub(super) const HOT: u64 = 8 << 20;
pub(super) const COLD: u64 = 24 << 20;

/// Options of the table monitor, with more than enough CPU time for emulation.
pub(super) const TABLES: &str = "--cpu-budget 20%";

/// Shell functions for scripts, and the content of cold and hot memory.
pub(super) const FUNCTIONS: &str = include_str!("acting.sh");

/// Returns a machine that has everything these scenarios need, with this workload.
pub(super) fn vm(workload: &Workload, kernel: Kernel, script: &str) -> Result<Vm> {
    let script = format!("{FUNCTIONS}{script}");
    Ok(workload.vm(kernel, &script)?.zram())
}

/// Reads the result of `look NAME`.
pub(super) fn pages(output: &VmOutput, name: &str) -> Result<Pages> {
    output.json(name)
}

/// Counters of the first scheme of `act NAME`.
#[derive(Deserialize)]
pub(super) struct Deed {
    pub(super) action: String,
    #[serde(rename = "sz_tried")]
    pub(super) tried: u64,
    #[serde(rename = "sz_applied")]
    pub(super) applied: u64,
    refused: BTreeMap<String, u64>,
    moved: Vec<NodeMove>,
    /// Stops of all schemes.
    #[serde(skip)]
    pub(super) guard_stops: u64,
}

/// The summary of `act NAME`.
#[derive(Deserialize)]
struct Summary {
    schemes: Vec<Deed>,
    guard_stops: u64,
}

#[derive(Deserialize)]
struct NodeMove {
    from: u32,
    to: u32,
    bytes: u64,
}

impl Deed {
    pub(super) fn moved(&self, from: u32, to: u32) -> u64 {
        let ways = self.moved.iter();
        let ways = ways.filter(|way| (way.from, way.to) == (from, to));
        ways.map(|way| way.bytes).sum()
    }

    pub(super) fn refused(&self, why: &str) -> u64 {
        self.refused.get(why).copied().unwrap_or(0)
    }

    /// Lists the reasons except "not present", which also counts holes and pages that are already in the wanted state.
    pub(super) fn reasons(&self) -> String {
        let reasons = self.refused.iter().filter(|(why, _)| *why != "not_present");
        let reasons = reasons.map(|(why, bytes)| format!("{why} {}", mib(*bytes)));
        let reasons: Vec<String> = reasons.collect();
        if reasons.is_empty() {
            "nothing".to_owned()
        } else {
            reasons.join(", ")
        }
    }
}

/// Reads the counters of `act NAME`.
pub(super) fn deed(output: &VmOutput, name: &str) -> Result<Deed> {
    let summary: Summary = output.json(name)?;
    let deed = summary.schemes.into_iter().next();
    let deed = deed.ok_or_else(|| VmError::Wrong(format!("{name}.json lacks a scheme")))?;
    Ok(Deed {
        guard_stops: summary.guard_stops,
        ..deed
    })
}

/// Returns a configuration in damo's format, of one context.
pub(super) fn configuration(
    operations: &str,
    [sample, aggregation]: [&str; 2],
    [min, max]: [&str; 2],
    schemes: &[Value],
) -> String {
    json!({"kdamonds": [{"contexts": [{
        "ops": operations,
        "targets": [{"pid": null, "regions": []}],
        "intervals": {"sample_us": sample, "aggr_us": aggregation, "ops_update_us": "10 s"},
        "nr_regions": {"min": min, "max": max},
        "schemes": schemes,
    }]}]})
    .to_string()
}

/// Returns an access pattern for regions of a page or more.
pub(super) fn pattern(rate: [&str; 2], age: [&str; 2]) -> Value {
    let range = |[min, max]: [&str; 2]| json!({"min": min, "max": max});
    json!({
        "sz_bytes": range(["4.000 KiB", "max"]),
        "nr_accesses": range(rate),
        "age": range(age),
    })
}

/// Returns a scheme that moves memory to node 1 if it has been cold for `age`.
pub(super) fn demote(age: &str) -> Value {
    json!({
        "action": "migrate_cold",
        "target_nid": 1,
        "access_pattern": pattern(["0 %", "0 %"], [age, "max"]),
    })
}

/// Returns a scheme that moves memory to node 0 if its access rate has been at least `rate` for `age`.
pub(super) fn promote(rate: &str, age: &str) -> Value {
    json!({
        "action": "migrate_hot",
        "dests": [{"id": 0, "weight": 1}],
        "access_pattern": pattern([rate, "100 %"], [age, "max"]),
    })
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Adds lines to the report for a deed and for the places of memory afterwards.
fn say(report: &mut Report, deed: &Deed, after: &Pages) {
    let nodes = |part: &Part| {
        let nodes = part.nodes.iter();
        let nodes = nodes.map(|(node, bytes)| format!("{} on node {node}", mib(*bytes)));
        let nodes: Vec<String> = nodes.collect();
        if nodes.len() > 1 || part.nodes.contains_key(&1) {
            format!(" ({})", nodes.join(", "))
        } else {
            String::new()
        }
    };
    report.say(format!(
        "{:<12} applied {}, refused: {}",
        deed.action,
        mib(deed.applied),
        deed.reasons()
    ));
    report.say(format!(
        "    then hot in memory {}{}, cold {}{}, in swap {}, huge {}, referenced {}",
        mib(after.hot.present),
        nodes(&after.hot),
        mib(after.cold.present),
        nodes(&after.cold),
        mib(after.hot.swapped + after.cold.swapped),
        mib(after.anon_huge),
        mib(after.referenced),
    ));
}

/// Reads the results of `act DID` and of the following `look AFTER`, and adds them to the report.
pub(super) fn done(
    report: &mut Report,
    output: &VmOutput,
    did: &str,
    after: &str,
) -> Result<(Deed, Pages)> {
    let (deed, after) = (deed(output, did)?, pages(output, after)?);
    say(report, &deed, &after);
    Ok((deed, after))
}

pub(super) fn intact(before: &Pages, after: &Pages, when: &str) -> Result<()> {
    let sums = |pages: &Pages| (pages.hot.sum, pages.cold.sum);
    let (then, now) = (sums(before), sums(after));
    ensure!(
        matches!(then, (Some(_), Some(_))) && then == now,
        "the workload's memory changed {when}: {then:?}, now {now:?}"
    );
    Ok(())
}

/// Fails unless all of these are what they should be: a name, the bytes, the right bytes, and the slack.
pub(super) fn about(all: &[(&str, u64, u64, u64)]) -> Result<()> {
    for (what, bytes, want, slack) in all {
        let is_about = bytes.abs_diff(*want) <= *slack;
        let [bytes, want, slack] = [bytes, want, slack].map(|bytes| mib(*bytes));
        ensure!(is_about, "{what}: {bytes}, not {want} (within {slack})");
    }
    Ok(())
}
