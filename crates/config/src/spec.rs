//! Specification of a session: the watched memory, the method, and the actions.
//!
//! All front ends use one type. Flags, configuration files and the daemon's requests set parts of it
//! ([`crate::Request`]), and become a specification with every default filled in. A live machine, a simulated one and a
//! replay run it. It is plain data: it can be compared, written and read back.

use std::ffi::OsString;
use std::path::PathBuf;

use isotherm_engine::table::TableAttributes;
use isotherm_engine::{AddressRange, Attributes, KernelSettings, Nanos};
use isotherm_policy::guard::GuardLimits;
use isotherm_policy::scheme::Scheme;
use serde::{Deserialize, Serialize};

pub use isotherm_policy::ThpPolicy;

/// Specification of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// Contexts, at least one. Each has its own monitor, schemes and guard; all share one loop and one record.
    pub contexts: Vec<ContextSpec>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Isotherm or the kernel's DAMON.
    #[serde(default)]
    pub world: World,
    /// Sampling of stacks, which show the code that touches memory first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<StacksSpec>,
}

impl SessionSpec {
    /// Whether the session acts, or would act without a dry run.
    pub fn acts(&self) -> bool {
        self.contexts.iter().any(|context| context.acting.is_some())
    }

    /// CPU budget of watching in all contexts, as a share of one CPU; `None` if a context has no budget.
    pub fn cpu_budget(&self) -> Option<f64> {
        let budgets = self.contexts.iter();
        budgets.map(|context| context.monitor.cpu_budget()).sum()
    }

    /// Longest idle time that a scheme requires; zero if none does.
    pub fn idle_for(&self) -> Nanos {
        let schemes = self.contexts.iter().flat_map(ContextSpec::schemes);
        let times = schemes.filter_map(Scheme::idle_for);
        times.max().unwrap_or_default()
    }
}

/// Settings of the sampling of page faults' stacks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StacksSpec {
    /// CPU budget as a share of one CPU, including the time that sampling takes from the targets.
    pub cpu_budget: f64,
}

/// Program that watches and acts on a live machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum World {
    /// Isotherm itself, on any kernel.
    #[default]
    Linux,
    /// The kernel's DAMON, if the kernel has it; Isotherm configures it and reports its results.
    Kernel,
    /// The kernel's DAMON as others have configured it; Isotherm only listens.
    Attached,
}

/// One context: DAMON's term for a monitor with its targets and schemes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextSpec {
    /// Name that distinguishes it from the session's other contexts; `None` if it is the only one.
    pub name: Option<String>,
    pub targets: TargetSpec,
    /// Watched addresses (DAMON's initial regions); empty for all.
    pub ranges: Vec<AddressRange>,
    pub monitor: MonitorSpec,
    /// Settings that only the kernel's DAMON has; the default ones in any other world.
    #[serde(default)]
    pub kernel: KernelSettings,
    /// Actions; `None` if it only watches.
    pub acting: Option<ActingSpec>,
}

impl ContextSpec {
    /// Returns the context's name, or a name with its index `at`.
    pub fn name_or(&self, at: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("context {at}"))
    }

    /// Whether frames are the target and are sampled, as DAMON does. Otherwise physical memory is watched and acted on
    /// as its processes' memory.
    pub const fn samples_frames(&self) -> bool {
        self.targets.is_physical() && matches!(self.monitor, MonitorSpec::Regions(_))
    }

    /// Schemes of the context, if any.
    pub fn schemes(&self) -> &[Scheme] {
        self.acting.as_ref().map_or(&[], |acting| &acting.schemes)
    }
}

/// Refuses commands where none can be run (a browser): only on Unix their words are known to be bytes.
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

/// Targets to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetSpec {
    Processes {
        /// At least one; none on a simulated machine, where all processes are watched.
        processes: Vec<ProcessSpec>,
        /// Set to watch their descendants as well.
        children: bool,
    },
    /// A command that the session starts.
    Command {
        /// Program and its arguments; at least the program.
        #[cfg_attr(not(unix), serde(with = "words"))]
        command: Vec<OsString>,
        /// Set to watch its descendants as well.
        children: bool,
        /// Set if it runs without input and output, as another program draws on the terminal.
        is_silent: bool,
        /// Huge pages for its first faults.
        #[serde(default)]
        thp: ThpPolicy,
    },
    /// Every process of a control group (v1 or v2) and of its descendants, as they come and go.
    Cgroup(PathBuf),
    /// Every process of the machine, as they come and go. Kernel threads have no memory of their own, and the watching
    /// process does not watch itself.
    All { exclude: Vec<ProcessSpec> },
    /// Physical memory of every process of the machine, as they come and go.
    Physical {
        /// NUMA node to watch; `None` for all.
        node: Option<u32>,
        /// Processes whose own memory is excluded; memory that others map as well is not.
        #[serde(default)]
        exclude: Vec<ProcessSpec>,
    },
    /// A simulated process of 1 GiB, where real ones cannot be watched.
    Simulated,
}

impl TargetSpec {
    /// These processes without their descendants.
    pub const fn named(processes: Vec<ProcessSpec>) -> Self {
        Self::Processes {
            processes,
            children: false,
        }
    }

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

    /// Whether descendants of the targets are watched as they come.
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
    Pid(u32),
    /// Command name, for all processes that have it.
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

/// Method of watching memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MonitorSpec {
    /// Page tables in bulk: the default for processes.
    Tables(TableAttributes),
    /// DAMON's regions.
    Regions(Attributes),
    /// Every page in every scan.
    Pages(PageAttributes),
}

impl MonitorSpec {
    /// Name in records.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Tables(_) => "tables",
            Self::Regions(_) => "regions",
            Self::Pages(_) => "pages",
        }
    }

    /// CPU budget of watching as a share of one CPU; `None` if no budget sets the rate.
    pub fn cpu_budget(&self) -> Option<f64> {
        match self {
            Self::Tables(attributes) => Some(attributes.cpu_budget),
            Self::Regions(_) | Self::Pages(_) => None,
        }
    }
}

/// Settings of page scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAttributes {
    /// Time between two scans.
    pub interval: Nanos,
    /// Longest time that one scan may stall the target.
    pub max_stall: Nanos,
    pub clear_by: ClearBy,
    /// Count memory that several targets map once, under the first.
    #[serde(default)]
    pub counts_once: bool,
}

impl Default for PageAttributes {
    fn default() -> Self {
        Self {
            interval: Nanos::from_millis(1000),
            max_stall: Nanos::from_millis(10),
            clear_by: ClearBy::Auto,
            counts_once: false,
        }
    }
}

/// Method of clearing the accessed bits of all pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClearBy {
    /// The cheaper method of those that stay within the longest stall.
    #[default]
    Auto,
    /// `process_madvise(MADV_COLD)`, in chunks: the target continues meanwhile.
    Madvise,
    /// `/proc/PID/clear_refs`: cheap, but stalls the target's faults; pages in the TLB may look idle.
    ClearRefs,
}

/// Actions on memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActingSpec {
    pub schemes: Vec<Scheme>,
    /// Set to report and record actions instead of doing them.
    pub is_dry_run: bool,
    /// Set to start paused: it watches, and does not act.
    pub is_paused: bool,
    pub limits: GuardLimits,
    /// Share of one CPU that acting may take from busy CPUs; `None` for no limit.
    pub act_budget: Option<f64>,
    /// Share of the targets' memory that huge pages of schemes may waste; `None` for no limit.
    #[serde(default)]
    pub max_waste: Option<f64>,
    /// Command that prints the targets' progress: a number that counts up.
    pub progress_command: Option<String>,
    /// Amount of memory until which schemes page out; `None` to page out all memory of their pattern.
    #[serde(default)]
    pub goal: Option<MemoryGoal>,
}

/// Goal of paging out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryGoal {
    /// Bytes of the targets to keep out of memory.
    Save(u64),
    /// Share of memory to keep free, 0 to 1: of the machine's, of a watched node's, or of a watched control group's
    /// limit.
    KeepFree(f64),
}
