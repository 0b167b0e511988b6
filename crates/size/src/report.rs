//! The result of sizing.

use isotherm_engine::Nanos;
use isotherm_report::RecordInfo;
use serde::Serialize;

use crate::growth::Growth;

/// A number of bytes with bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizeEstimate {
    /// The estimate.
    pub bytes: u64,
    /// Lower bound.
    pub low_bytes: u64,
    /// Upper bound.
    pub high_bytes: u64,
}

impl SizeEstimate {
    /// Returns a number that is known exactly.
    pub const fn exactly(bytes: u64) -> Self {
        Self {
            bytes,
            low_bytes: bytes,
            high_bytes: bytes,
        }
    }

    pub(crate) fn map(self, of: impl Fn(u64) -> u64) -> Self {
        Self {
            bytes: of(self.bytes),
            low_bytes: of(self.low_bytes),
            high_bytes: of(self.high_bytes),
        }
    }

    /// Returns the number moved between its bounds.
    pub(crate) fn in_order(self) -> Self {
        let low_bytes = self.low_bytes.min(self.high_bytes);
        let bytes = self.bytes.clamp(low_bytes, self.high_bytes);
        Self {
            bytes,
            low_bytes,
            ..self
        }
    }

    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            low_bytes: self.low_bytes + other.low_bytes,
            high_bytes: self.high_bytes + other.high_bytes,
        }
    }
}

/// The numbers to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizeAdvice {
    /// Memory that the program needs at the allowed loss: the request of a container.
    pub request: SizeEstimate,
    /// `memory.high`: above it, the kernel reclaims, and the program waits for that.
    pub high: SizeEstimate,
    /// `memory.max`, the limit of a container: above it, the kernel kills.
    pub limit: SizeEstimate,
    /// Swap that holds the rest.
    pub swap: SizeEstimate,
}

/// Memory by kind, at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizedMemory {
    /// All memory at its peak: the control group's charge, or what processes map.
    pub peak_bytes: u64,
    /// Mapped memory, mean over time.
    pub mapped_mean_bytes: u64,
    /// Mapped memory at its peak.
    pub mapped_peak_bytes: u64,
    /// Mapped memory that only swap can hold: anonymous and shared memory.
    pub swap_backed_peak_bytes: u64,
    /// Mapped memory of files.
    pub file_peak_bytes: u64,
    /// Mapped memory whose use is unknown, mean over time. It counts as needed.
    pub unknown_mean_bytes: u64,
    /// Swapped-out memory at its peak. It counts as not needed.
    pub swapped_peak_bytes: u64,
    /// Kernel memory of the control group; `null` where no group was watched.
    pub kernel_peak_bytes: Option<u64>,
    /// Part of it that the kernel frees when memory is short, when it was largest; `null` where that is not known.
    pub kernel_reclaimable_bytes: Option<u64>,
    /// Anonymous memory of the control group that no scan saw, at its peak: of processes that end before. It counts as
    /// needed while it is there; `null` where no whole group was watched.
    pub unseen_peak_bytes: Option<u64>,
    /// Page cache that is charged to the control group and not mapped, at its peak.
    pub unmapped_peak_bytes: Option<u64>,
    /// The part of it that is needed; `null` where its ages are not known.
    pub unmapped_needed: Option<SizeEstimate>,
    /// Mapped memory that other control groups are charged for, such as libraries that another program read first. Limits
    /// of this group do not count it; `null` where that is not known.
    pub foreign_bytes: Option<u64>,
}

/// Present limits of the control group; `null` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizeToday {
    /// `memory.high`.
    pub high_bytes: Option<u64>,
    /// `memory.max`, or version 1's `memory.limit_in_bytes`.
    pub limit_bytes: Option<u64>,
    /// `memory.swap.max`.
    pub swap_bytes: Option<u64>,
}

/// A program's own bound on its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgramSetting {
    /// Process id.
    pub pid: u32,
    /// The program, or what runs it.
    pub program: &'static str,
    /// Name of the setting.
    pub setting: &'static str,
    /// The present value, as the program was given it; `null` where nothing was found.
    pub now: Option<String>,
    /// The value to set, and the reason.
    pub advice: String,
}

/// Loss at one limit, with swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizePoint {
    /// Limit of mapped memory.
    pub limit_bytes: u64,
    /// Pages read back per second.
    pub refaults_per_s: f64,
    /// Share of its time that the program would lose.
    pub slowdown: f64,
}

/// Time that the program loses by a refault, the page-out of another page included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RefaultCosts {
    /// A page of anonymous or shared memory, from swap.
    pub swap_ns: Nanos,
    /// Lower bound of the same.
    pub low_swap_ns: Nanos,
    /// Upper bound of the same.
    pub high_swap_ns: Nanos,
    /// A page of a file.
    pub file_ns: Nanos,
    /// Whether the time for swap was measured with the record.
    pub is_measured: bool,
}

/// A limit that was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriedLimit {
    /// The limit of the control group.
    pub limit_bytes: u64,
    /// Memory in use at the end of the trial.
    pub used_bytes: u64,
    /// Share of its time that the group lost.
    pub slowdown: f64,
    /// Major faults per second.
    pub major_faults_per_s: f64,
    /// Mean number of threads that ran at once.
    pub nr_running: f64,
    /// Time over which this was measured, in seconds.
    pub seconds: f64,
    /// Whether the limit is enough: it was reached, the loss stayed within the allowed share, and the group did enough to
    /// show it.
    pub fits: bool,
}

/// The reason why trials ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrialsEnd {
    /// The least limit that fits is known to a twentieth.
    Found,
    /// Even all of its memory does not fit: it waits for memory without a limit, too.
    NeverFits,
    /// The user ended them.
    Stopped,
    /// The group's processes ended.
    Ended,
    /// The group did far less than while it was watched, without a limit, too.
    Idle,
    /// There were enough of them.
    Enough,
}

/// Limits that were tried on the running group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verified {
    /// The trials, in their order.
    pub trials: Vec<TriedLimit>,
    /// The reason why they ended.
    pub end: TrialsEnd,
    /// The least limit that fits; `null` if none does.
    pub least_bytes: Option<u64>,
    /// Limit that was left in place; `null`: what was set before was set again.
    pub applied_bytes: Option<u64>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizeReport {
    /// `size`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Names of the targets, each once.
    pub names: Vec<String>,
    /// Time from the first scan to the last.
    pub duration_ns: Nanos,
    /// Mean interval of scans.
    pub scan_interval_ns: Nanos,
    /// Whether most of the memory appeared during the record.
    pub has_seen_start: bool,
    /// Time after the beginning at which mapped memory was at its peak.
    pub peak_at_ns: Nanos,
    /// The loss that the user allows, as a share of the program's time.
    pub max_slowdown: f64,
    /// Mean number of threads that ran at once. A refault delays one of them.
    pub nr_running: f64,
    /// The share of its time that the program lost while it was watched, by reading back what had been reclaimed. The
    /// kernel counts such reads by control group; `null` without one.
    pub present_slowdown: Option<f64>,
    /// Size of the machine's swap; `null` where the record does not say it.
    pub machine_swap_bytes: Option<u64>,
    /// Cost of refaults.
    pub costs: RefaultCosts,
    /// Memory by kind.
    pub memory: SizedMemory,
    /// The numbers to set where swap takes what does not fit.
    pub with_swap: SizeAdvice,
    /// The numbers to set without swap: only memory of files can be reclaimed.
    pub without_swap: SizeAdvice,
    /// Present limits, if a control group was watched.
    pub today: Option<SizeToday>,
    /// Bounds that programs have themselves, of what runs now.
    pub programs: Vec<ProgramSetting>,
    /// Limits that were tried; `null` if none was asked for.
    pub verified: Option<Verified>,
    /// Price of what `request` is below the peak, for a month; `null` without a price.
    pub saved_per_month: Option<f64>,
    /// Trend of mapped memory; `null` if the record is too short.
    pub growth: Option<Growth>,
    /// Memory that appeared during the record, and was not used in its last quarter.
    pub grown_idle_bytes: u64,
    /// Watch for at least this long: if all idle memory is then read back once, the loss is what is allowed.
    pub trusted_after_ns: Nanos,
    /// Loss by limit, from the least limit.
    pub points: Vec<SizePoint>,
}

impl SizeReport {
    /// Returns the numbers that hold here, and whether swap takes what does not fit: not if the machine has none, or the
    /// control group may use none.
    pub fn advice(&self) -> (SizeAdvice, bool) {
        let is_forbidden = self.today.is_some_and(|today| today.swap_bytes == Some(0));
        let has_swap = self.machine_swap_bytes != Some(0) && !is_forbidden;
        let advice = if has_swap {
            self.with_swap
        } else {
            self.without_swap
        };
        (advice, has_swap)
    }
}
