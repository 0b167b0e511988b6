//! What a record holds: the header, then items in the order in which they happened.

use std::collections::BTreeMap;

use isotherm_engine::calibration::Calibration;
use isotherm_engine::compaction::{CompactionAttributes, CompactionStatus, NodeFacts};
use isotherm_engine::guard::GuardStatus;
use isotherm_engine::{
    AddressRange, Cost, Nanos, NodeMoves, Operation, Outcome, Refusal, Snapshot, TargetId,
    Unreclaimable,
};
use serde::{Deserialize, Serialize};

use crate::blocks::SnapshotBlocks;
use crate::huge::HugePagesSample;
use crate::machine::MachineSample;
use crate::pages::PageSnapshot;
use crate::stacks::{FrameSymbols, StackSamples};

/// What is said once, at the start of a record (the Arrow schema's metadata).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Header {
    /// Program and version that wrote the record.
    pub writer: String,
    /// Name of the machine.
    pub host: String,
    /// Kernel release, e.g. `6.1.0-56-cloud-amd64`.
    pub kernel: String,
    /// The command that was recorded, or what was asked for (`--pid 12`), word by word.
    pub command: Vec<String>,
    /// When recording began.
    pub started: Nanos,
    /// What addresses are: `vaddr` or `paddr`, DAMON's names; `paddr+vaddr` where contexts differ.
    pub operations: String,
    /// Sampling interval at the start.
    pub sample_interval: Nanos,
    /// Aggregation interval at the start.
    pub aggregation_interval: Nanos,
    /// Update interval.
    pub update_interval: Nanos,
    /// The rest of the configuration, as names and values.
    pub settings: BTreeMap<String, String>,
}

/// One mapping of a target's address space (a line of `/proc/PID/maps`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mapping {
    pub range: AddressRange,
    /// `rwxp` flags as the kernel prints them.
    pub permissions: String,
    /// File path, `[heap]`, `[stack]`, ... or empty for anonymous memory.
    pub name: String,
    /// Why none of its pages can be reclaimed; absent where they can, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreclaimable: Option<Unreclaimable>,
}

/// The mappings of a target that came and went since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappingChange {
    /// When that was seen.
    pub time: Nanos,
    pub target: TargetId,
    /// Mappings that are no more, by range.
    pub removed: Vec<AddressRange>,
    /// New or changed ones.
    pub added: Vec<Mapping>,
}

/// A target appears in the record, or runs another program from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetStart {
    pub time: Nanos,
    /// Its number in this record.
    pub target: TargetId,
    /// Its process id; 0 for physical memory.
    pub pid: u32,
    /// Its command name, or `physical`.
    pub name: String,
    /// The context that it belongs to, where the record is of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// A target is no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetExit {
    /// When that was seen.
    pub time: Nanos,
    pub target: TargetId,
    /// Its exit code, where it was our child.
    pub exit_code: Option<i32>,
    /// The signal that ended it, where it was our child.
    pub signal: Option<i32>,
}

/// Memory use, about once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageSample {
    pub time: Nanos,
    /// Resident bytes of each target.
    pub rss: BTreeMap<u32, u64>,
    /// Swapped-out bytes of each target.
    pub swap: BTreeMap<u32, u64>,
    /// The machine's memory.
    pub system_total: u64,
    /// Free memory (MemFree).
    pub system_free: u64,
    /// Available memory (MemAvailable).
    pub system_available: u64,
    /// CPU time of each target so far; none in older records.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu: BTreeMap<u32, Nanos>,
    /// Time that all CPUs together had nothing to do, since the machine's start; none in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_idle: Option<Nanos>,
    /// What the kernel itself counts of migration, where memory is on several nodes.
    #[serde(default, skip_serializing_if = "KernelMigrations::is_empty")]
    pub migrations: KernelMigrations,
}

/// The kernel's counters of pages that went from node to node since boot, by its own names
/// (`pgpromote_success`, `pgdemote_kswapd`, ...). What Isotherm moves is not in those of promotion and
/// demotion; see the actions' `moved`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KernelMigrations {
    /// Of the machine.
    pub machine: BTreeMap<String, u64>,
    /// By node, as far as the kernel counts by node.
    pub nodes: BTreeMap<u32, BTreeMap<String, u64>>,
}

impl KernelMigrations {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.machine.is_empty() && self.nodes.is_empty()
    }

    /// By how much each counter has grown since `before`; those that have not are left out.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let grown = |now: &BTreeMap<String, u64>, before: Option<&BTreeMap<String, u64>>| {
            let counters = now.iter().filter_map(|(name, now)| {
                let before = before.and_then(|before| before.get(name))?;
                Some((name.clone(), now.saturating_sub(*before)))
            });
            counters.filter(|(_, grown)| *grown > 0).collect()
        };
        let nodes = self.nodes.iter().map(|(node, now)| {
            let grown: BTreeMap<String, u64> = grown(now, before.nodes.get(node));
            (*node, grown)
        });
        Self {
            machine: grown(&self.machine, Some(&before.machine)),
            nodes: nodes.filter(|(_, grown)| !grown.is_empty()).collect(),
        }
    }
}

/// What watching has cost up to a moment, about once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CostSample {
    pub time: Nanos,
    /// Totals since the start.
    pub cost: Cost,
    /// Sampling interval in force.
    pub sample_interval: Nanos,
    /// Aggregation interval in force.
    pub aggregation_interval: Nanos,
    /// Resident bytes of the monitor.
    pub monitor_rss: u64,
    /// Samples about which nothing could be known, since the start, by reason.
    pub unknown: u64,
}

/// What one scheme did after one look, to all targets together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActionSample {
    pub time: Nanos,
    /// The context that the scheme belongs to, where the record is of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The scheme's place in its context.
    pub scheme: u32,
    /// DAMOS's name of what it does.
    pub action: String,
    /// Nothing was done: this says what would have been.
    pub dry_run: bool,
    /// Regions that it was tried on.
    pub nr_tried: u64,
    /// Their bytes.
    pub sz_tried: u64,
    /// Bytes that were acted on, as seen afterwards.
    pub sz_applied: u64,
    /// Bytes that were not, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Time that it took.
    pub took: Nanos,
    /// CPU time that it took, compressing pages included; zero in older records.
    #[serde(default)]
    pub cpu: Nanos,
    /// The scheme's quota then, in bytes a window, where the kernel's DAMON acts and tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Bytes that went from node to node.
    #[serde(default, skip_serializing_if = "NodeMoves::is_empty")]
    pub moved: NodeMoves,
    /// Whose memory it was; none in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetActions>,
}

/// What a scheme did to one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetActions {
    /// Whose memory.
    pub target: TargetId,
    /// Bytes that it was tried on.
    pub sz_tried: u64,
    /// Bytes that were acted on.
    pub sz_applied: u64,
    /// Bytes that were not, by reason; none in older records.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<Refusal, u64>,
}

impl ActionSample {
    /// What came of operations: a sample for each scheme that did something.
    pub fn of_schemes(
        time: Nanos,
        context: Option<&str>,
        dry_run: bool,
        operations: &[Operation],
        outcomes: &[Outcome],
    ) -> Vec<Self> {
        let mut samples: Vec<Self> = Vec::new();
        for (operation, outcome) in operations.iter().zip(outcomes) {
            let scheme = operation.scheme as u32;
            let at = samples.iter().position(|sample| sample.scheme == scheme);
            let at = at.unwrap_or_else(|| {
                samples.push(Self {
                    time,
                    context: context.map(str::to_owned),
                    scheme,
                    action: operation.action.name().to_owned(),
                    dry_run,
                    ..Self::default()
                });
                samples.len() - 1
            });
            samples[at].add(operation, outcome);
        }
        samples
    }

    /// Adds what came of one operation.
    pub fn add(&mut self, operation: &Operation, outcome: &Outcome) {
        self.nr_tried += 1;
        self.sz_tried += operation.bytes;
        self.sz_applied += outcome.applied;
        self.took = self.took + outcome.took;
        self.moved.merge(&outcome.moved);
        let target = operation.target;
        let at = self.targets.iter().rposition(|of| of.target == target);
        let at = at.unwrap_or_else(|| {
            self.targets.push(TargetActions {
                target,
                ..TargetActions::default()
            });
            self.targets.len() - 1
        });
        let of_target = &mut self.targets[at];
        of_target.sz_tried += operation.bytes;
        of_target.sz_applied += outcome.applied;
        for (why, bytes) in outcome.refused_of_tried(operation) {
            *of_target.refused.entry(why).or_default() += bytes;
            *self.refused.entry(why).or_default() += bytes;
        }
    }
}

/// How the guard stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardSample {
    pub time: Nanos,
    /// Which context's, where the record is of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The rest.
    #[serde(flatten)]
    pub status: GuardStatus,
}

/// How fragmented a node is, and how the controller of its compaction stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FragmentationSample {
    pub time: Nanos,
    /// What is wanted.
    pub attributes: CompactionAttributes,
    /// The node's free blocks.
    pub facts: NodeFacts,
    /// How the controller stands.
    pub status: CompactionStatus,
}

/// A round of compaction of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactionSample {
    /// When it ended.
    pub time: Nanos,
    /// Which node.
    pub node: u32,
    /// The node's score before.
    pub score_before: f64,
    /// And after.
    pub score_after: f64,
    /// Why it ended: `at_low`, `kswapd`, `contended`, `to_the_end` (the kernel found nothing more to move) or
    /// `interrupted`.
    pub ended: String,
    /// Time that it took.
    pub took: Nanos,
    /// CPU time of that.
    pub cpu: Nanos,
    /// Pages that were looked at for pages to move; the whole machine's, like those below.
    pub migrate_scanned: u64,
    /// Pages that were looked at for free ones.
    pub free_scanned: u64,
    /// Pages taken out of use, to be moved or to move them to.
    pub isolated: u64,
}

/// What acting costs on the machine of a record, and what decides that of its targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalibrationSample {
    pub time: Nanos,
    /// Targets that let nobody make huge pages of their memory.
    #[serde(default)]
    pub refuse_huge: Vec<TargetId>,
    /// By target, mappings of which other processes map most as well: of these nothing can be paged out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<u32, Vec<AddressRange>>,
    /// What was measured.
    pub costs: Box<Calibration>,
}

/// Anything that stands in a record after its header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// The regions of one target over one aggregation interval.
    Snapshot(Snapshot),
    /// The pages of one target, in a record of page scans (`settings["granularity"] = "page"`).
    Pages(PageSnapshot),
    /// Pages that the snapshot after it tells one by one. Only in the file: [`Reader`](crate::Reader) yields
    /// them within the snapshot, and [`Writer`](crate::Writer) takes them from there.
    Blocks(SnapshotBlocks),
    /// Mappings that came and went.
    Mappings(MappingChange),
    /// A new target.
    TargetStart(TargetStart),
    /// A target's end.
    TargetExit(TargetExit),
    /// Memory use.
    Usage(UsageSample),
    /// Monitoring cost.
    Cost(CostSample),
    /// What a scheme did.
    Action(ActionSample),
    /// How the guard stands, whenever that changes.
    Guard(GuardSample),
    /// How fragmented a node is, about once a second where that is watched.
    Fragmentation(FragmentationSample),
    /// A round of compaction.
    Compaction(CompactionSample),
    /// What acting costs on this machine, measured with what the targets' memory holds.
    Calibration(CalibrationSample),
    /// What the machine's memory is used for, every some seconds where all of it is watched.
    Machine(MachineSample),
    /// Page faults with the stacks that led to them (`settings["stacks"]`).
    Stacks(StackSamples),
    /// What frames of stacks are called.
    Symbols(FrameSymbols),
    /// What huge pages hold, as far as it was read (`settings["stacks"]`).
    HugePages(HugePagesSample),
    /// Something a reader should be told, e.g. that the recorder was stopped by a signal.
    Note { time: Nanos, text: String },
}

impl Item {
    /// What kind of item it is: the key under which JSON has it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "snapshot",
            Self::Pages(_) => "pages",
            Self::Blocks(_) => "blocks",
            Self::Mappings(_) => "mappings",
            Self::TargetStart(_) => "target_start",
            Self::TargetExit(_) => "target_exit",
            Self::Usage(_) => "usage",
            Self::Cost(_) => "cost",
            Self::Action(_) => "action",
            Self::Guard(_) => "guard",
            Self::Fragmentation(_) => "fragmentation",
            Self::Compaction(_) => "compaction",
            Self::Calibration(_) => "calibration",
            Self::Machine(_) => "machine",
            Self::Stacks(_) => "stacks",
            Self::Symbols(_) => "symbols",
            Self::HugePages(_) => "huge_pages",
            Self::Note { .. } => "note",
        }
    }

    /// When it happened; of a snapshot, the end of its interval.
    pub const fn time(&self) -> Option<Nanos> {
        Some(match self {
            Self::Snapshot(snapshot) => snapshot.end,
            Self::Pages(pages) => pages.end,
            Self::Blocks(_) => return None,
            Self::Mappings(change) => change.time,
            Self::TargetStart(start) => start.time,
            Self::TargetExit(exit) => exit.time,
            Self::Usage(usage) => usage.time,
            Self::Cost(cost) => cost.time,
            Self::Action(action) => action.time,
            Self::Guard(guard) => guard.time,
            Self::Fragmentation(sample) => sample.time,
            Self::Compaction(round) => round.time,
            Self::Calibration(sample) => sample.time,
            Self::Machine(sample) => sample.time,
            Self::Stacks(samples) => samples.time,
            Self::Symbols(symbols) => symbols.time,
            Self::HugePages(sample) => sample.time,
            Self::Note { time, .. } => *time,
        })
    }

    /// The target that it is about, where it is about one.
    pub const fn target(&self) -> Option<TargetId> {
        match self {
            Self::Snapshot(snapshot) => Some(snapshot.target),
            Self::Pages(pages) => Some(pages.target),
            Self::Mappings(change) => Some(change.target),
            Self::TargetStart(start) => Some(start.target),
            Self::TargetExit(exit) => Some(exit.target),
            _ => None,
        }
    }
}
