//! Shared parts of the acting scenarios: a workload whose content never changes, `isotherm run` on it, and the places
//! of its hot and cold memory afterwards.
//!
//! All parts are shell lines, as in `workload`. `vm-guest pages` reads the places of memory from the kernel, in ways
//! that the actuators do not use. The time that acting takes says nothing here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Report;
use super::workload::Workload;
use crate::error::VmError;
use crate::kernel::Kernel;
use crate::product;
use crate::vm::{Vm, VmOutput};

/// A hot quarter of 32 MiB, in pieces here and there, of random content that is only read.
pub(super) const STILL: Workload = Workload::Exercise(
    "heap, 32MiB, /tmp/data\n\nserve\n600000\nheap, 1, 64, 1, ro, hot=8MiB piece=2MiB seed=1\n",
);
/// [`STILL`] with all hot memory in one piece, which contains whole huge pages wherever regions end.
pub(super) const STILL_IN_ONE: Workload = Workload::Exercise(
    "heap, 32MiB, /tmp/data\n\nserve\n600000\nheap, 1, 64, 1, ro, hot=8MiB piece=8MiB seed=1\n",
);
/// Hot bytes of the workload.
pub(super) const HOT: u64 = 8 << 20;
/// Cold bytes of the workload.
pub(super) const COLD: u64 = 24 << 20;

/// Options of the table monitor, with more than enough CPU time for emulation.
pub(super) const TABLES: &str = "--cpu-budget 20%";

/// Shell functions for scripts, and the content of cold and hot memory.
pub(super) const FUNCTIONS: &str = include_str!("acting.sh");

/// Returns a machine that has everything these scenarios need.
pub(super) fn vm(kernel: Kernel, script: &str) -> Result<Vm, VmError> {
    vm_with(&STILL, kernel, script)
}

/// Returns such a machine with another workload than [`STILL`].
pub(super) fn vm_with(workload: &Workload, kernel: Kernel, script: &str) -> Result<Vm, VmError> {
    product::isotherm_with("run", &["--scheme", "--no-guard", "--max-psi"])?;
    let script = format!("{FUNCTIONS}{script}");
    Ok(workload.vm(kernel, &script)?.zram())
}

/// Places of a workload's memory, in bytes.
#[derive(Deserialize)]
pub(super) struct Pages {
    pub(super) hot: Part,
    pub(super) cold: Part,
    pub(super) anon_huge: u64,
    pub(super) referenced: u64,
    pub(super) numa_maps: BTreeMap<u32, u64>,
}

/// Bytes of the hot or the cold part, by place.
#[derive(Deserialize)]
pub(super) struct Part {
    pub(super) present: u64,
    pub(super) swapped: u64,
    pub(super) nodes: BTreeMap<u32, u64>,
    /// Bytes in mappings that are advised to have huge pages, and not to.
    pub(super) advised_huge: u64,
    pub(super) advised_small: u64,
    /// Bytes on the active list, if `look NAME --active` counted them.
    active: Option<u64>,
    sum: Option<u64>,
}

impl Part {
    /// Returns the bytes on the active list, which `look NAME --active` counts.
    pub(super) fn active(&self) -> Result<u64, VmError> {
        let wrong = || VmError::Wrong("active pages were not counted".to_owned());
        self.active.ok_or_else(wrong)
    }

    /// Returns the bytes on a node.
    pub(super) fn on(&self, node: u32) -> u64 {
        self.nodes.get(&node).copied().unwrap_or(0)
    }
}

/// Reads the result of `look NAME`.
pub(super) fn pages(output: &VmOutput, name: &str) -> Result<Pages, VmError> {
    parsed(output, name)
}

/// Counters of the first scheme of `act NAME`.
pub(super) struct Deed {
    pub(super) action: String,
    pub(super) tried: u64,
    pub(super) applied: u64,
    refused: BTreeMap<String, u64>,
    moved: Vec<NodeMove>,
    pub(super) guard_stops: u64,
}

/// Bytes that went from one node to another.
#[derive(Deserialize)]
struct NodeMove {
    from: u32,
    to: u32,
    bytes: u64,
}

impl Deed {
    /// Returns the bytes that went from one node to another.
    pub(super) fn moved(&self, from: u32, to: u32) -> u64 {
        let ways = self.moved.iter();
        ways.filter(|way| (way.from, way.to) == (from, to))
            .map(|way| way.bytes)
            .sum()
    }

    /// Returns the bytes refused for this reason.
    pub(super) fn refused(&self, why: &str) -> u64 {
        self.refused.get(why).copied().unwrap_or(0)
    }

    /// Lists the reasons except "not present", which also counts holes and pages that are already in the wanted state.
    fn reasons(&self) -> String {
        let reasons = self.refused.iter().filter(|(why, _)| *why != "not_present");
        let reasons: Vec<String> = reasons
            .map(|(why, bytes)| format!("{why} {}", mib(*bytes)))
            .collect();
        if reasons.is_empty() {
            "nothing".to_owned()
        } else {
            reasons.join(", ")
        }
    }
}

/// Reads the counters of `act NAME`.
pub(super) fn deed(output: &VmOutput, name: &str) -> Result<Deed, VmError> {
    let summary: Value = parsed(output, name)?;
    let scheme = &summary["schemes"][0];
    let number = |value: &Value| {
        value
            .as_u64()
            .ok_or_else(|| VmError::Wrong(format!("{name}.json lacks a count: {summary}")))
    };
    let refused = serde_json::from_value(scheme["refused"].clone())
        .map_err(|e| VmError::Wrong(format!("{name}.json, `refused`: {e}")))?;
    let moved = serde_json::from_value(scheme["moved"].clone())
        .map_err(|e| VmError::Wrong(format!("{name}.json, `moved`: {e}")))?;
    Ok(Deed {
        action: scheme["action"].as_str().unwrap_or_default().to_owned(),
        tried: number(&scheme["sz_tried"])?,
        applied: number(&scheme["sz_applied"])?,
        refused,
        moved,
        guard_stops: number(&summary["guard_stops"])?,
    })
}

/// Parses the file `NAME.json` that the script left.
pub(super) fn parsed<T: for<'a> Deserialize<'a>>(
    output: &VmOutput,
    name: &str,
) -> Result<T, VmError> {
    serde_json::from_slice(output.bytes(&format!("{name}.json"))?)
        .map_err(|e| VmError::Wrong(format!("{name}.json: {e}")))
}

/// Formats bytes as MiB.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Adds lines to the report for a deed and for the places of memory afterwards.
fn say(report: &mut Report, deed: &Deed, after: &Pages) {
    let nodes = |part: &Part| {
        let nodes: Vec<String> = part
            .nodes
            .iter()
            .map(|(node, bytes)| format!("{} on node {node}", mib(*bytes)))
            .collect();
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
) -> Result<(Deed, Pages), VmError> {
    let (deed, after) = (deed(output, did)?, pages(output, after)?);
    say(report, &deed, &after);
    Ok((deed, after))
}

/// Fails unless the content of memory is unchanged.
pub(super) fn intact(before: &Pages, after: &Pages, when: &str) -> Result<(), VmError> {
    let sums = |pages: &Pages| (pages.hot.sum, pages.cold.sum);
    let (then, now) = (sums(before), sums(after));
    ensure!(
        matches!(then, (Some(_), Some(_))) && then == now,
        "the workload's memory changed {when}: {then:?}, now {now:?}"
    );
    Ok(())
}

/// Fails unless `bytes` is `want`, give or take `slack`.
pub(super) fn about(
    report: &Report,
    what: &str,
    bytes: u64,
    want: u64,
    slack: u64,
) -> Result<(), VmError> {
    ensure!(
        bytes.abs_diff(want) <= slack,
        "{what}: {}, not {} (within {})\n{report}",
        mib(bytes),
        mib(want),
        mib(slack)
    );
    Ok(())
}
