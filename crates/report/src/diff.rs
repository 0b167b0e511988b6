//! Two records side by side: the changes of resident memory, working set and idle memory, by target name and by
//! mapping.
//!
//! Targets of the same name are summed, since processes rarely have the same id in two records.
//!
//! JSON: [`DiffReport`].

use std::collections::BTreeMap;

use serde::Serialize;

use super::context::RecordInfo;
use super::idle::IdleBytes;
use super::overview::{Overview, TargetOverview};

/// Number of mappings that are shown, the largest changes first.
const MAPPINGS: usize = 20;

/// The targets of one name in one record.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Figures {
    /// Number of targets.
    pub targets: usize,
    /// Resident bytes at the end; `null` where the record lacks them.
    pub resident_bytes: Option<u64>,
    /// Swapped-out bytes at the end; `null` where the record lacks them.
    pub swapped_bytes: Option<u64>,
    /// Mean working set; `null` where one is unknown.
    pub working_set_bytes: Option<u64>,
    /// Bytes by minimum idle time, at the end.
    pub idle: Vec<IdleBytes>,
}

/// The targets of one name in both records; `null` where only one record has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetDiff {
    /// The name.
    pub name: String,
    /// Figures of the first record.
    pub a: Option<Figures>,
    /// Figures of the second record.
    pub b: Option<Figures>,
}

/// A mapping of the targets of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappingDiff {
    /// The targets' name.
    pub name: String,
    /// The mapping's name.
    pub mapping: String,
    /// Resident bytes in the first and the second record; `null` where they are unknown.
    pub resident_bytes: [Option<u64>; 2],
    /// Resident bytes that were idle for 5 s or more.
    pub idle_bytes: [u64; 2],
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiffReport {
    /// `diff`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The first record.
    pub a: RecordInfo,
    /// The second record.
    pub b: RecordInfo,
    /// Targets by name, the largest first.
    pub targets: Vec<TargetDiff>,
    /// Mappings, the largest changes first.
    pub mappings: Vec<MappingDiff>,
}

impl DiffReport {
    /// Compares two records.
    pub fn new(a: Overview, b: Overview) -> Self {
        let mut targets: BTreeMap<String, TargetDiff> = BTreeMap::new();
        let mut mappings: BTreeMap<(String, String), MappingDiff> = BTreeMap::new();
        for (side, overview) in [&a, &b].into_iter().enumerate() {
            for target in &overview.targets {
                let name = name_of(target.target.name.as_ref());
                let diff = targets.entry(name.clone()).or_default();
                diff.name = name;
                let figures = if side == 0 { &mut diff.a } else { &mut diff.b };
                figures.get_or_insert_default().add(target);
            }
            for mapping in &overview.mappings {
                let name = name_of(mapping.target.name.as_ref());
                let key = (name.clone(), mapping.mapping.clone());
                let diff = mappings.entry(key).or_default();
                (diff.name, diff.mapping) = (name, mapping.mapping.clone());
                let add = |sum: &mut u64, bytes| *sum = sum.saturating_add(bytes);
                if let Some(bytes) = mapping.resident_bytes {
                    add(diff.resident_bytes[side].get_or_insert(0), bytes);
                }
                add(&mut diff.idle_bytes[side], mapping.idle_bytes);
            }
        }
        let resident = |figures: &Option<Figures>| figures.as_ref().and_then(|f| f.resident_bytes);
        let mut targets: Vec<TargetDiff> = targets.into_values().collect();
        targets.sort_by_key(|t| std::cmp::Reverse(resident(&t.a).max(resident(&t.b))));
        let mut mappings: Vec<MappingDiff> = mappings.into_values().collect();
        mappings.sort_by_key(|m| std::cmp::Reverse(change(m)));
        mappings.retain(|m| change(m) > 0);
        mappings.truncate(MAPPINGS);
        Self {
            report: "diff",
            version: crate::VERSION,
            a: a.record,
            b: b.record,
            targets,
            mappings,
        }
    }
}

fn name_of(name: Option<&String>) -> String {
    name.cloned().unwrap_or_else(|| "(no name)".into())
}

fn change(mapping: &MappingDiff) -> u64 {
    let of = |[a, b]: [u64; 2]| a.abs_diff(b);
    of(mapping.resident_bytes.map(Option::unwrap_or_default)).max(of(mapping.idle_bytes))
}

impl Figures {
    fn add(&mut self, target: &TargetOverview) {
        let plus = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        if self.targets == 0 {
            (self.resident_bytes, self.swapped_bytes) = (Some(0), Some(0));
            self.working_set_bytes = Some(0);
        }
        self.targets += 1;
        self.resident_bytes = plus(self.resident_bytes, target.resident_bytes);
        self.swapped_bytes = plus(self.swapped_bytes, target.swapped_bytes);
        self.working_set_bytes = plus(self.working_set_bytes, target.working_set_bytes);
        if self.idle.is_empty() {
            self.idle.clone_from(&target.idle);
            return;
        }
        for (sum, idle) in self.idle.iter_mut().zip(&target.idle) {
            let known = sum.bytes.into_iter().chain(idle.bytes);
            sum.bytes = known.reduce(u64::saturating_add);
        }
    }
}
