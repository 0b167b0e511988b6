//! What a session does: which memory is watched and how, and what is done about it.
//!
//! One type for every front end. Flags, configuration files and the daemon's requests say parts of it
//! ([`crate::Request`]), and lower into it with every default filled in; a live machine, a simulated
//! one and a replay run it. It is plain data: it can be compared, written down and read back.

use std::ffi::OsString;
use std::path::PathBuf;

use isotherm_engine::guard::GuardLimits;
use isotherm_engine::scheme::Scheme;
use isotherm_engine::table::TableAttributes;
use isotherm_engine::{AddressRange, Attributes, Nanos, Strategy};
use serde::{Deserialize, Serialize};

/// A whole session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// At least one. Each has its monitor, schemes and guard; all share one loop and one record.
    pub contexts: Vec<ContextSpec>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Who watches and acts.
    #[serde(default)]
    pub world: World,
    /// Whose code touches memory first is told, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<StacksSpec>,
}

impl SessionSpec {
    /// Whether anything is acted on, or would be if this were no dry run.
    pub fn acts(&self) -> bool {
        self.contexts.iter().any(|context| context.acting.is_some())
    }

    /// Share of one CPU that watching may take, of all contexts together; `None` where one has no budget.
    pub fn cpu_budget(&self) -> Option<f64> {
        let budgets = self.contexts.iter();
        budgets.map(|context| context.monitor.cpu_budget()).sum()
    }

    /// Longest time of idleness that a scheme asks for; zero if none does.
    pub fn idle_for(&self) -> Nanos {
        let schemes = self.contexts.iter().flat_map(ContextSpec::schemes);
        let times = schemes.filter_map(Scheme::idle_for);
        times.max().unwrap_or_default()
    }
}

/// How stacks of page faults are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StacksSpec {
    /// Most CPU time for it, with what it takes from the targets, as a share of one CPU.
    pub cpu_budget: f64,
}

/// Who watches and acts on a live machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum World {
    /// Isotherm itself, on any kernel.
    #[default]
    Linux,
    /// The kernel's DAMON, where it has one; Isotherm sets it up, and tells what it sees and does.
    Kernel,
}

/// One context: DAMON's word for a monitor with what it watches and its schemes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextSpec {
    /// What tells it from the session's other contexts; `None` where it is the only one.
    pub name: Option<String>,
    /// Whose memory.
    pub targets: TargetSpec,
    /// Only these addresses (DAMON's initial regions); empty for all.
    pub ranges: Vec<AddressRange>,
    /// How it is watched.
    pub monitor: MonitorSpec,
    /// What is done about it; `None`: it is only watched.
    pub acting: Option<ActingSpec>,
}

impl ContextSpec {
    /// The context's name, or that of the context at this place among others.
    pub fn name_or(&self, at: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("context {at}"))
    }

    /// Whether frames are sampled, as DAMON does: they are the target then. Otherwise physical memory is watched
    /// and acted on as its processes' memory.
    pub const fn samples_frames(&self) -> bool {
        self.targets.is_physical() && matches!(self.monitor, MonitorSpec::Regions(_))
    }

    /// What it does to memory, if it does anything.
    pub fn schemes(&self) -> &[Scheme] {
        self.acting.as_ref().map_or(&[], |acting| &acting.schemes)
    }
}

/// Words of a command line, which are bytes, and only on Unix known to be.
#[cfg(unix)]
mod words {
    use std::ffi::OsString;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(words: &[OsString], out: S) -> Result<S::Ok, S::Error> {
        words.serialize(out)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<OsString>, D::Error> {
        Vec::deserialize(from)
    }
}

/// Where nothing can be run (a browser), no command is read or written.
#[cfg(not(unix))]
mod words {
    use std::ffi::OsString;

    use serde::{Deserializer, Serializer, de, ser};

    pub(super) fn serialize<S: Serializer>(_: &[OsString], _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("commands are of Unix"))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(_: D) -> Result<Vec<OsString>, D::Error> {
        Err(de::Error::custom("commands are of Unix"))
    }
}

/// Whose memory is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetSpec {
    /// Running processes.
    Processes {
        /// At least one; on a simulated machine, all of whose processes are watched, none.
        processes: Vec<ProcessSpec>,
        /// Those that descend from them as well.
        children: bool,
    },
    /// A command that the session starts.
    Command {
        /// The program and its arguments; at least the program.
        #[serde(with = "words")]
        command: Vec<OsString>,
        /// Those that descend from it as well.
        children: bool,
        /// Its output goes nowhere and it has no input, as somebody draws on the terminal.
        is_silent: bool,
        /// Which huge pages its first faults get.
        #[serde(default)]
        thp: ThpPolicy,
    },
    /// Every process of a control group (v1 or v2) and of those below it, as they come and go.
    Cgroup(PathBuf),
    /// Every process of the machine, as they come and go. Kernel threads have no memory of their own, and who
    /// watches does not watch itself.
    All {
        /// But not these.
        exclude: Vec<ProcessSpec>,
    },
    /// Physical memory, whoever maps it: of every process of the machine, as they come and go.
    Physical {
        /// Of this NUMA node only.
        node: Option<u32>,
        /// But not what only these map.
        #[serde(default)]
        exclude: Vec<ProcessSpec>,
    },
    /// A simulated process of 1 GiB, where real ones cannot be watched.
    Simulated,
}

impl TargetSpec {
    /// All physical memory.
    pub const fn all_physical() -> Self {
        Self::Physical {
            node: None,
            exclude: Vec::new(),
        }
    }

    /// Whether addresses are physical.
    pub const fn is_physical(&self) -> bool {
        matches!(self, Self::Physical { .. })
    }

    /// Whether all of the machine's processes are watched.
    pub const fn is_machine(&self) -> bool {
        matches!(self, Self::All { .. } | Self::Physical { .. })
    }

    /// Whether processes that descend from the targets are watched as they come.
    pub const fn follows_children(&self) -> bool {
        match self {
            Self::Processes { children, .. } | Self::Command { children, .. } => *children,
            Self::Cgroup(_) | Self::All { .. } | Self::Physical { .. } => true,
            Self::Simulated => false,
        }
    }

    /// Running processes that are named one by one.
    pub fn processes(&self) -> &[ProcessSpec] {
        match self {
            Self::Processes { processes, .. } => processes,
            _ => &[],
        }
    }

    /// DAMON's name for the kind of address space.
    pub const fn operations(&self) -> &'static str {
        if self.is_physical() { "paddr" } else { "vaddr" }
    }
}

/// A process as the user names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessSpec {
    /// By its id.
    Pid(u32),
    /// All that have this command name.
    Name(String),
}

impl std::fmt::Display for ProcessSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pid(pid) => pid.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl std::str::FromStr for ProcessSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("no process has the id 0".into()),
            Ok(pid) => Ok(Self::Pid(pid)),
            Err(_) if text.is_empty() || text.bytes().all(|c| c.is_ascii_digit() || c == b'-') => {
                Err(format!("'{text}' is neither a process id nor a name"))
            }
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

/// How memory is watched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MonitorSpec {
    /// Page tables in bulk: the default for processes.
    Tables(TableAttributes),
    /// DAMON's regions, as they are or with improvements on them.
    Regions(Attributes),
    /// Every page at every look.
    Pages(PageAttributes),
}

impl MonitorSpec {
    /// A word for it, as records have it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Tables(_) => "tables",
            Self::Regions(_) => "regions",
            Self::Pages(_) => "pages",
        }
    }

    /// Share of one CPU that watching may take; `None` where no budget rules how often is looked.
    pub fn cpu_budget(&self) -> Option<f64> {
        match self {
            Self::Tables(attributes) => Some(attributes.cpu_budget),
            Self::Regions(attributes) => attributes.cpu_budget.map(|budget| budget.share),
            Self::Pages(_) => None,
        }
    }

    /// Whether it is DAMON's sampling as it is.
    pub fn is_faithful(&self) -> bool {
        matches!(self, Self::Regions(attributes)
            if attributes.strategy == Strategy::faithful() && attributes.cpu_budget.is_none())
    }
}

/// How every page is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAttributes {
    /// Time between two looks.
    pub interval: Nanos,
    /// Longest time that one look may hold the target up.
    pub max_stall: Nanos,
    /// How accessed bits are cleared.
    pub clear_by: ClearBy,
}

impl Default for PageAttributes {
    fn default() -> Self {
        Self {
            interval: Nanos::from_millis(1000),
            max_stall: Nanos::from_millis(10),
            clear_by: ClearBy::Auto,
        }
    }
}

/// How accessed bits of all pages are cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClearBy {
    /// Whichever costs less, of those that stay within the longest stall.
    #[default]
    Auto,
    /// `process_madvise(MADV_COLD)`, in chunks: the target goes on meanwhile.
    Madvise,
    /// `/proc/PID/clear_refs`: cheap, but holds the target's faults up; pages in the TLB may look idle.
    ClearRefs,
}

/// Huge pages at the first faults of a command that a session starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThpPolicy {
    /// As the system does it.
    #[default]
    Inherit,
    /// Only where the program, or a scheme, asks for them.
    Advised,
    /// Not at all, and not by schemes.
    Never,
}

/// What is done to memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActingSpec {
    /// In order.
    pub schemes: Vec<Scheme>,
    /// Nothing is done: it is said and recorded what would be.
    pub is_dry_run: bool,
    /// It begins paused: it watches, and does not act.
    pub is_paused: bool,
    /// What targets may lose.
    pub limits: GuardLimits,
    /// Share of one CPU that acting may take from busy CPUs; `None`: any.
    pub act_budget: Option<f64>,
    /// Share of the targets' memory that huge pages of schemes may waste; `None`: any.
    #[serde(default)]
    pub max_waste: Option<f64>,
    /// A command that prints how far the targets have got: a number that counts up.
    pub progress_command: Option<String>,
    /// Until when schemes page out; `None`: as long as there is memory of their pattern.
    #[serde(default)]
    pub goal: Option<MemoryGoal>,
}

/// How much memory there is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryGoal {
    /// So many bytes of the targets are to be out of memory.
    Save(u64),
    /// This share is to be free, 0 to 1: of the machine's memory, of a node's where one is watched, of a control
    /// group's limit where one is.
    KeepFree(f64),
}
