//! Common parts of all reports: the scope within the record, the beginning of time, the names of targets.

use std::collections::BTreeMap;

use isotherm_engine::page_cache::PAGE_CACHE;
use isotherm_engine::{Nanos, Snapshot, TargetId};
use serde::Serialize;

use isotherm_record::item::{Header, Item, TargetStart};
use isotherm_record::{PageSnapshot, Truncated};

/// The part of a record that a report covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The only target to include.
    pub target: Option<TargetId>,
    /// Time since the beginning; earlier data is left out.
    pub from: Option<Nanos>,
    /// Time since the beginning; data from then on is left out.
    pub to: Option<Nanos>,
}

/// The record that a report is based on; repeated in each result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordInfo {
    /// Name of the machine.
    pub host: String,
    /// Kernel release of the machine.
    pub kernel: String,
    /// The recorded command.
    pub command: Vec<String>,
    /// `vaddr` or `paddr`.
    pub operations: String,
    /// Start of the record since the Unix epoch, as text in JSON. All other times count from here.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(serialize_with = "crate::exact::epoch")]
    pub started_ns: Nanos,
    /// The end of the record, where it is not whole.
    #[serde(flatten)]
    pub end: RecordEnd,
}

/// The end of a record that is not whole. The report covers the part before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordEnd {
    /// The part of an unfinished record: its recorder was killed, or still runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncated>,
    /// Description and place of the damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// A target, or the sum of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetInfo {
    /// Number of the target in the record; `null` for the sum of all targets.
    pub target: Option<TargetId>,
    /// Process id; 0 for physical memory, `null` where the record lacks it.
    pub pid: Option<u32>,
    /// Command name, where the record has it.
    pub name: Option<String>,
    /// The target's context, in a record of several contexts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl TargetInfo {
    pub(crate) fn all() -> Self {
        Self {
            name: Some("all targets".into()),
            ..Self::default()
        }
    }

    /// Returns a label for display: `target 0: redis-server (pid 1234)`, with its context where there are several.
    pub fn label(&self) -> String {
        let Some(target) = self.target else {
            return self.name.clone().unwrap_or_default();
        };
        let mut label = format!("target {}", target.0);
        if let Some(name) = &self.name {
            label = format!("{label}: {name}");
        }
        let pid = self.pid.filter(|pid| *pid > 0);
        let pid = pid.map(|pid| format!("pid {pid}"));
        let inside: Vec<String> = pid.into_iter().chain(self.context.clone()).collect();
        if inside.is_empty() {
            return label;
        }
        format!("{label} ({})", inside.join(", "))
    }
}

/// Tracks the scope, the beginning and the target names through the record.
#[derive(Clone, Debug, Default)]
pub struct RecordContext {
    scope: Scope,
    record: RecordInfo,
    origin: Option<Nanos>,
    targets: BTreeMap<TargetId, TargetStart>,
    /// The newest target of each process, in each context.
    newest: BTreeMap<(u32, Option<String>), TargetId>,
    /// The earlier target of each process that has executed another program.
    predecessors: BTreeMap<TargetId, TargetId>,
}

impl RecordContext {
    /// Creates the context of a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            scope,
            record: RecordInfo {
                host: header.host.clone(),
                kernel: header.kernel.clone(),
                command: header.command.clone(),
                operations: header.operations.clone(),
                started_ns: header.started,
                end: RecordEnd::default(),
            },
            ..Self::default()
        }
    }

    /// Stores the end of a record that is not whole.
    pub fn end(&mut self, end: RecordEnd) {
        self.record.end = end;
    }

    /// Stores target names.
    pub fn observe(&mut self, item: &Item) {
        let Item::TargetStart(start) = item else {
            return;
        };
        self.targets.insert(start.target, start.clone());
        if start.pid == 0 {
            return;
        }
        let process = (start.pid, start.context.clone());
        let before = self.newest.insert(process, start.target);
        if let Some(before) = before.filter(|before| *before != start.target) {
            self.predecessors.insert(start.target, before);
        }
    }

    pub(crate) fn predecessor(&self, target: TargetId) -> Option<TargetId> {
        self.predecessors.get(&target).copied()
    }

    /// Sets the start of the whole record, where only a part of it is read.
    pub fn set_origin(&mut self, origin: Nanos) {
        self.origin = Some(origin);
        self.record.started_ns = origin;
    }

    /// Returns the time since the beginning of the record.
    ///
    /// The beginning is the header's, unless it has none or the first item is older: converted records may lack a start
    /// time.
    pub fn offset(&mut self, time: Nanos) -> Nanos {
        let started = self.record.started_ns;
        let origin = *self.origin.get_or_insert(match started {
            Nanos(0) => time,
            started => started.min(time),
        });
        self.record.started_ns = origin;
        time.since(origin)
    }

    /// Returns whether the report covers this target.
    pub fn admits_target(&self, target: TargetId) -> bool {
        self.scope.target.is_none_or(|only| only == target)
    }

    /// Returns whether the report covers this moment.
    pub fn admits_time(&mut self, time: Nanos) -> bool {
        let offset = self.offset(time);
        self.scope.from.is_none_or(|from| from <= offset)
            && self.scope.to.is_none_or(|to| offset < to)
    }

    /// Returns whether the report covers this snapshot: its target, and any moment of its interval.
    pub fn admits(&mut self, snapshot: &Snapshot) -> bool {
        let (start, end) = (self.offset(snapshot.start), self.offset(snapshot.end));
        self.admits_target(snapshot.target)
            && self.scope.from.is_none_or(|from| from < end)
            && self.scope.to.is_none_or(|to| start < to)
    }

    /// Returns whether the report covers this scan: its target, and the start of its interval.
    pub(crate) fn admits_scan(&mut self, pages: &PageSnapshot) -> bool {
        self.admits_target(pages.target) && self.admits_time(pages.start)
    }

    /// Describes `target`.
    pub fn target_info(&self, target: TargetId) -> TargetInfo {
        let start = self.targets.get(&target);
        if target == PAGE_CACHE {
            return TargetInfo {
                target: Some(target),
                name: Some("page cache".into()),
                ..TargetInfo::default()
            };
        }
        let name = start.map(|s| isotherm_record::printable(&s.name).into_owned());
        TargetInfo {
            target: Some(target),
            pid: start.map(|s| s.pid),
            name: name.filter(|name| !name.is_empty()),
            context: start.and_then(|s| s.context.clone()),
        }
    }

    /// Describes the record that the report is based on.
    pub fn record_info(&self) -> RecordInfo {
        self.record.clone()
    }
}
