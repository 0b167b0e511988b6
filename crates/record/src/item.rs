//! The contents of a record: the header, then items in the order in which they happened.

use std::collections::BTreeMap;

use isotherm_engine::calibration::Calibration;
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{AddressRange, Cost, GroupCharge, Nanos, NodeMoves, Snapshot, TargetId};
use isotherm_policy::compaction::{CompactionAttributes, CompactionStatus, NodeFacts};
use isotherm_policy::guard::GuardStatus;
use isotherm_policy::{Operation, Outcome, Refusal, Unreclaimable};
use serde::{Deserialize, Serialize};

use crate::blocks::SnapshotBlocks;
use crate::huge::HugePagesSample;
use crate::machine::MachineSample;
use crate::pages::PageSnapshot;
use crate::stacks::{FrameSymbols, StackSamples};

/// The header, stated once at the start of a record (the Arrow schema's metadata).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Header {
    /// Program and version that wrote the record.
    pub writer: String,
    /// Name of the machine.
    pub host: String,
    /// Kernel release, e.g. `6.1.0-56-cloud-amd64`.
    pub kernel: String,
    /// The recorded command or request (`--pid 12`), word by word.
    pub command: Vec<String>,
    /// Time at which recording began.
    pub started: Nanos,
    /// The kind of addresses: `vaddr` or `paddr`, DAMON's names; `paddr+vaddr` where contexts differ.
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
    /// The reason why its pages cannot be reclaimed; absent where they can, or where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreclaimable: Option<Unreclaimable>,
}

impl Mapping {
    /// Returns a private mapping that can be read and written.
    pub fn private(range: AddressRange, name: impl Into<String>) -> Self {
        Self {
            range,
            permissions: "rw-p".to_owned(),
            name: name.into(),
            unreclaimable: None,
        }
    }
}

/// The mappings of a target that appeared and vanished since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappingChange {
    /// Time at which the change was seen.
    pub time: Nanos,
    pub target: TargetId,
    /// Ranges of mappings that no longer exist.
    pub removed: Vec<AddressRange>,
    /// New or changed mappings.
    pub added: Vec<Mapping>,
}

impl MappingChange {
    /// Returns a change by which mappings only appear.
    pub fn adding(time: Nanos, target: TargetId, added: Vec<Mapping>) -> Self {
        Self {
            time,
            target,
            removed: Vec::new(),
            added,
        }
    }
}

/// A target appears in the record, or runs another program from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetStart {
    pub time: Nanos,
    /// Number of the target in this record.
    pub target: TargetId,
    /// Process id; 0 for physical memory.
    pub pid: u32,
    /// Command name, or `physical`.
    pub name: String,
    /// The context of the target, in a record of several contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl TargetStart {
    /// Returns the start of a target in a record of one context.
    pub fn new(time: Nanos, target: TargetId, pid: u32, name: impl Into<String>) -> Self {
        Self {
            time,
            target,
            pid,
            name: name.into(),
            context: None,
        }
    }
}

/// A target has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetExit {
    /// Time at which the end was seen.
    pub time: Nanos,
    pub target: TargetId,
    /// Exit code, for a child of the recorder.
    pub exit_code: Option<i32>,
    /// The signal that ended the target, for a child of the recorder.
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
    /// Idle time of all CPUs together since boot; none in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_idle: Option<Nanos>,
    /// Size of all swap of the machine; none in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_swap: Option<u64>,
    /// The kernel's own counters of migration, on a machine with several nodes.
    #[serde(default, skip_serializing_if = "KernelMigrations::is_empty")]
    pub migrations: KernelMigrations,
    /// Charge of the control group that is watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<GroupCharge>,
    /// Unmapped page cache that it is charged for, where that is watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<CachedBytes>,
}

/// The kernel's counters of pages that moved between nodes since boot, by its own names (`pgpromote_success`,
/// `pgdemote_kswapd`, ...). The counters of promotion and demotion exclude Isotherm's moves; see the actions' `moved`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KernelMigrations {
    /// Counters of the machine.
    pub machine: BTreeMap<String, u64>,
    /// Counters by node, as far as the kernel counts by node.
    pub nodes: BTreeMap<u32, BTreeMap<String, u64>>,
}

impl KernelMigrations {
    /// Returns whether there are no counters.
    pub fn is_empty(&self) -> bool {
        self.machine.is_empty() && self.nodes.is_empty()
    }

    /// Returns the growth of each counter since `before`, without counters that have not grown.
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

/// The cost of monitoring up to a moment, about once a second.
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
    /// Number of samples without a result since the start, for all reasons together.
    pub unknown: u64,
}

/// The work of one scheme after one scan, over all targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActionSample {
    pub time: Nanos,
    /// The context of the scheme, in a record of several contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The scheme's index in its context.
    pub scheme: u32,
    /// The DAMOS name of the action.
    pub action: String,
    /// Whether this is a dry run: the numbers predict an action that was not executed.
    pub dry_run: bool,
    /// Number of regions that were tried.
    pub nr_tried: u64,
    /// Bytes of the tried regions.
    pub sz_tried: u64,
    /// Bytes that were acted on, as seen afterwards.
    pub sz_applied: u64,
    /// Bytes that were refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Time that the scheme took.
    pub took: Nanos,
    /// CPU time that the scheme took, page compression included; zero in older records.
    #[serde(default)]
    pub cpu: Nanos,
    /// The scheme's quota at that time, in bytes per window, where the kernel's DAMON acts and reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Bytes that moved between nodes.
    #[serde(default, skip_serializing_if = "NodeMoves::is_empty")]
    pub moved: NodeMoves,
    /// The work by target; none in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetActions>,
}

/// The work of a scheme on one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetActions {
    /// The target.
    pub target: TargetId,
    /// Bytes that were tried.
    pub sz_tried: u64,
    /// Bytes that were acted on.
    pub sz_applied: u64,
    /// Bytes that were refused, by reason; none in older records.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<Refusal, u64>,
}

impl ActionSample {
    /// Summarises the outcomes of operations, with one sample for each scheme that did something.
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

    /// Adds the outcome of one operation.
    pub fn add(&mut self, operation: &Operation, outcome: &Outcome) {
        let refused = outcome.refused_of_tried(operation);
        let sz_tried = outcome.tried(operation, &refused);
        self.nr_tried += 1;
        self.sz_tried += sz_tried;
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
        of_target.sz_tried += sz_tried;
        of_target.sz_applied += outcome.applied;
        for (why, bytes) in refused {
            *of_target.refused.entry(why).or_default() += bytes;
            *self.refused.entry(why).or_default() += bytes;
        }
    }
}

/// The state of the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardSample {
    pub time: Nanos,
    /// The context of the guard, in a record of several contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The guard's status.
    #[serde(flatten)]
    pub status: GuardStatus,
}

/// The fragmentation of a node, and the state of its compaction controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FragmentationSample {
    pub time: Nanos,
    /// The controller's goals and limits.
    pub attributes: CompactionAttributes,
    /// The node's free blocks.
    pub facts: NodeFacts,
    /// State of the controller.
    pub status: CompactionStatus,
}

/// A round of compaction of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactionSample {
    /// Time at which the round ended.
    pub time: Nanos,
    /// Number of the node.
    pub node: u32,
    /// The node's score before.
    pub score_before: f64,
    /// The node's score afterwards.
    pub score_after: f64,
    /// The reason why it ended: `at_low`, `kswapd`, `contended`, `to_the_end` (the kernel found nothing more to move)
    /// or `interrupted`.
    pub ended: String,
    /// Time that the round took.
    pub took: Nanos,
    /// CPU time of the round.
    pub cpu: Nanos,
    /// Pages scanned for pages to move, on the whole machine. The counters below are the whole machine's as well.
    pub migrate_scanned: u64,
    /// Pages scanned for free pages.
    pub free_scanned: u64,
    /// Pages isolated, either to be moved or as destinations.
    pub isolated: u64,
}

/// The cost of actions on the machine of a record, and the properties of its targets that decide it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalibrationSample {
    pub time: Nanos,
    /// Targets that forbid huge pages in their memory.
    #[serde(default)]
    pub refuse_huge: Vec<TargetId>,
    /// Mappings that other processes map mostly as well, by target. Nothing of these can be paged out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<u32, Vec<AddressRange>>,
    /// The measured costs.
    pub costs: Box<Calibration>,
}

/// Any item of a record after its header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// The regions of one target over one aggregation interval.
    Snapshot(Snapshot),
    /// The pages of one target, in a record of page scans (`settings["granularity"] = "page"`).
    Pages(PageSnapshot),
    /// Pages that the next snapshot lists one by one. They exist only in the file: [`Reader`](crate::Reader) yields
    /// them within the snapshot, and [`Writer`](crate::Writer) takes them from there.
    Blocks(SnapshotBlocks),
    /// Mappings that appeared and vanished.
    Mappings(MappingChange),
    /// A new target.
    TargetStart(TargetStart),
    /// A target's end.
    TargetExit(TargetExit),
    /// Memory use.
    Usage(UsageSample),
    /// Monitoring cost.
    Cost(CostSample),
    /// The work of a scheme.
    Action(ActionSample),
    /// The state of the guard, whenever it changes.
    Guard(GuardSample),
    /// The fragmentation of a node, about once a second where it is watched.
    Fragmentation(FragmentationSample),
    /// A round of compaction.
    Compaction(CompactionSample),
    /// The cost of actions on this machine, measured with the contents of the targets' memory.
    Calibration(CalibrationSample),
    /// The use of the machine's memory, at an interval of some seconds where all of it is watched.
    Machine(MachineSample),
    /// Page faults with the stacks that led to them (`settings["stacks"]`).
    Stacks(StackSamples),
    /// The names of the frames of stacks.
    Symbols(FrameSymbols),
    /// The contents of huge pages, as far as they were read (`settings["stacks"]`).
    HugePages(HugePagesSample),
    /// A message for the reader, e.g. that a signal stopped the recorder.
    Note { time: Nanos, text: String },
}

impl Item {
    /// Returns the kind of the item, which is also its key in JSON.
    pub const fn kind(&self) -> &'static str {
        self.names().0
    }

    /// Returns the name of items of this kind in messages.
    pub const fn plural(&self) -> &'static str {
        self.names().1
    }

    const fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Snapshot(_) => ("snapshot", "snapshots"),
            Self::Pages(_) => ("pages", "snapshots"),
            Self::Blocks(_) => ("blocks", "snapshots"),
            Self::Mappings(_) => ("mappings", "mapping changes"),
            Self::TargetStart(_) => ("target_start", "starts and ends of targets"),
            Self::TargetExit(_) => ("target_exit", "starts and ends of targets"),
            Self::Usage(_) => ("usage", "samples of memory use"),
            Self::Cost(_) => ("cost", "samples of monitoring cost"),
            Self::Action(_) => ("action", "actions"),
            Self::Guard(_) => ("guard", "states of the guard"),
            Self::Fragmentation(_) => ("fragmentation", "samples of fragmentation"),
            Self::Compaction(_) => ("compaction", "samples of fragmentation"),
            Self::Calibration(_) => ("calibration", "costs of acting"),
            Self::Machine(_) => ("machine", "samples of the machine's memory"),
            Self::Stacks(_) => ("stacks", "stacks of page faults"),
            Self::Symbols(_) => ("symbols", "stacks of page faults"),
            Self::HugePages(_) => ("huge_pages", "contents of huge pages"),
            Self::Note { .. } => ("note", "notes"),
        }
    }

    /// Returns the time of the item; for a snapshot, the end of its interval.
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

    /// Returns the target that the item is about, if there is exactly one.
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
