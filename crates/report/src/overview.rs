//! The overview of a record, target by target and mapping by mapping. The summary of a record and the comparison of two
//! are built from it.
//!
//! The working set is the mean over time; everything else is as of the target's last snapshot. Where the record's
//! source cannot identify memory, resident bytes are the process's RSS, and idle bytes are bytes of addresses.

use std::collections::BTreeMap;

use isotherm_engine::{MemoryTotals, Nanos, RegionSnapshot, TargetId};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use super::frames_once::{FramesOnce, idle_for};
use super::idle::{IdleBytes, by_idle_time, count_idle_once};
use super::latest::{Kept, Latest};
use super::mapping::MappingTable;
use super::series::TimeMean;
use isotherm_record::item::{CostSample, Header, Item};
use isotherm_record::machine::ChargedMemory;

pub(crate) const IDLE_TIMES: [Nanos; 4] = [
    Nanos::from_millis(1_000),
    IDLE,
    Nanos::from_millis(30_000),
    Nanos::from_millis(120_000),
];
/// The idle time after which the preset `prcl` pages memory out.
pub(crate) const IDLE: Nanos = Nanos::from_millis(5_000);
/// The label of addresses outside the mappings that the record knows.
const NO_MAPPING: &str = "(not mapped)";

/// A target, or the sum of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetOverview {
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Time for which the target was watched.
    pub watched_ns: Nanos,
    /// Resident bytes; RSS where the monitor cannot tell, `null` where the record has neither.
    pub resident_bytes: Option<u64>,
    /// Swapped-out bytes, from the same sources.
    pub swapped_bytes: Option<u64>,
    /// Mean working set, at most the resident bytes; `null` where every interval is unknown.
    pub working_set_bytes: Option<u64>,
    /// Bytes by minimum idle time.
    pub idle: Vec<IdleBytes>,
    /// Bytes idle for [`IDLE`] or longer in unreclaimable mappings; for all targets together, also those that several
    /// targets map.
    pub unreclaimable_bytes: u64,
    /// Bytes of unknown state.
    pub unknown_bytes: u64,
    /// Bytes of watched addresses, with or without memory behind them.
    pub monitored_bytes: u64,
    /// Whether bytes of memory are known; otherwise idle and unknown bytes are bytes of addresses.
    pub is_exact: bool,
}

impl TargetOverview {
    /// Returns the bytes idle for [`IDLE`] or longer, as far as they can be memory. Returns `None` if the target was
    /// watched for less than that time.
    pub fn idle_bytes(&self) -> Option<u64> {
        let mut idle = self.idle.iter();
        let idle = idle.find(|idle| idle.at_least_ns == IDLE)?.bytes?;
        let used = self.working_set_bytes.unwrap_or_default();
        Some(match self.resident_bytes {
            Some(resident) if !self.is_exact => idle.min(resident.saturating_sub(used)),
            _ => idle,
        })
    }

    /// Returns the part of [`Self::idle_bytes`] that can be paged out.
    pub fn reclaimable_bytes(&self) -> Option<u64> {
        let idle = self.idle_bytes()?;
        Some(idle.saturating_sub(self.unreclaimable_bytes))
    }
}

/// All mappings of a target with one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappingOverview {
    #[serde(flatten)]
    pub target: TargetInfo,
    /// The name.
    pub mapping: String,
    /// Resident bytes; `null` where the monitor cannot tell: then idle bytes are bytes of addresses.
    pub resident_bytes: Option<u64>,
    /// Resident bytes that were idle for [`IDLE`] or longer.
    pub idle_bytes: u64,
    /// Idle bytes in unreclaimable mappings.
    pub unreclaimable_bytes: u64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Overview {
    /// The record that the overview is based on.
    pub record: RecordInfo,
    /// Time from the beginning to the last snapshot.
    pub duration_ns: Nanos,
    /// The targets, the largest first.
    pub targets: Vec<TargetOverview>,
    /// The sum of all targets. Memory that several targets map counts once if [`Self::counts_pages_once`], else for
    /// each target.
    pub total: TargetOverview,
    /// Whether the record has samples of frames, so that memory that several targets map counts once.
    pub counts_pages_once: bool,
    /// Charge of the control group that was watched.
    pub charged: Option<ChargedMemory>,
    /// Mappings, the most idle bytes first.
    pub mappings: Vec<MappingOverview>,
    /// Number of targets that had ended before.
    pub ended_targets: usize,
    /// CPU time of the monitor, as a share of one CPU.
    pub monitor_cpu_share: Option<f64>,
    /// Options that select the same targets in another command.
    #[serde(skip)]
    pub target_options: String,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Overviews {
    header: Header,
    context: RecordContext,
    live: BTreeMap<TargetId, u32>,
    latest: Latest,
    mappings: MappingTable,
    working_sets: BTreeMap<TargetId, TimeMean>,
    rss: BTreeMap<u32, u64>,
    swap: BTreeMap<u32, u64>,
    frames: FramesOnce,
    end: Nanos,
    costs: Option<(CostSample, CostSample)>,
}

impl Overviews {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            header: header.clone(),
            context: RecordContext::new(header, scope),
            frames: FramesOnce::new(header, scope),
            ..Self::default()
        }
    }

    fn target(&self, kept: &Kept) -> TargetOverview {
        let snapshot = &kept.snapshot;
        let totals: MemoryTotals = snapshot.totals();
        let idle = snapshot.regions.iter().filter(|region| region.idle() > 0);
        let idle = idle.map(|region| (kept.idle_for(region), region.idle()));
        let idle: Vec<(Nanos, u64)> = idle.collect();
        let watched_ns = snapshot.end.since(kept.watched_since);
        let id = snapshot.target.0;
        let working_set = self.working_sets.get(&snapshot.target);
        let working_set = working_set.map(TimeMean::mean);
        let resident_bytes = totals.known_resident().or(self.rss.get(&id).copied());
        let swapped_bytes = totals.known_swapped().or(self.swap.get(&id).copied());
        TargetOverview {
            target: self.context.target_info(snapshot.target),
            watched_ns,
            resident_bytes,
            swapped_bytes,
            working_set_bytes: working_set.map(|used| used.min(resident_bytes.unwrap_or(u64::MAX))),
            idle: by_idle_time(&idle, watched_ns, &IDLE_TIMES),
            unreclaimable_bytes: self.unreclaimable(kept),
            unknown_bytes: totals.unknown,
            monitored_bytes: totals.addresses,
            is_exact: totals.is_exact,
        }
    }

    /// Sums up idle bytes in unreclaimable mappings.
    fn unreclaimable(&self, kept: &Kept) -> u64 {
        let snapshot = &kept.snapshot;
        let long = snapshot.regions.iter();
        let long = long.filter(|region| region.idle() > 0 && kept.idle_for(region) >= IDLE);
        let bytes = long.map(|region| self.unreclaimable_of(snapshot.target, region));
        bytes.fold(0, u64::saturating_add)
    }

    fn unreclaimable_of(&self, target: TargetId, region: &RegionSnapshot) -> u64 {
        let parts = self.mappings.unreclaimable(target, region.range);
        let idle = parts.map(|part| region.part(part).idle());
        idle.fold(0, u64::saturating_add)
    }

    fn mappings_of(&self, kept: &Kept) -> Vec<MappingOverview> {
        let snapshot = &kept.snapshot;
        let mut by_name: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
        for region in &snapshot.regions {
            let label = self.mappings.label(snapshot.target, region.range);
            let name = label.map_or_else(|| NO_MAPPING.to_owned(), |label| label.name.to_string());
            let (resident, idle, unreclaimable) = by_name.entry(name).or_default();
            *resident = resident.saturating_add(region.resident());
            if kept.idle_for(region) >= IDLE {
                *idle = idle.saturating_add(region.idle());
                let part = self.unreclaimable_of(snapshot.target, region);
                *unreclaimable = unreclaimable.saturating_add(part);
            }
        }
        let is_exact = snapshot.totals().is_exact;
        let overview =
            |(mapping, (resident_bytes, idle_bytes, unreclaimable_bytes))| MappingOverview {
                target: self.context.target_info(snapshot.target),
                mapping,
                resident_bytes: is_exact.then_some(resident_bytes),
                idle_bytes,
                unreclaimable_bytes,
            };
        by_name.into_iter().map(overview).collect()
    }
}

impl Accumulate for Overviews {
    type Report = Overview;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::TargetStart(start) if self.context.admits_target(start.target) => {
                self.live.insert(start.target, start.pid);
            }
            Item::TargetExit(exit) => drop(self.live.remove(&exit.target)),
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Snapshot(snapshot) => {
                if self.context.admits(snapshot) {
                    self.end = self.end.max(self.context.offset(snapshot.end));
                    let totals = snapshot.totals();
                    // A snapshot without known memory has no known unused memory either.
                    if totals.unknown < totals.resident || totals.resident == 0 {
                        let length = snapshot.end.since(snapshot.start);
                        let mean = self.working_sets.entry(snapshot.target).or_default();
                        mean.push(length, totals.touched);
                    }
                }
                self.latest.push(&mut self.context, snapshot, 0);
            }
            Item::Usage(usage) if self.context.admits_time(usage.time) => {
                self.rss.extend(&usage.rss);
                self.swap.extend(&usage.swap);
            }
            Item::Machine(sample) if self.context.admits_time(sample.time) => {
                self.frames.push(sample);
            }
            Item::Cost(cost) if self.context.admits_time(cost.time) => match &mut self.costs {
                Some((_, last)) => *last = *cost,
                None => self.costs = Some((*cost, *cost)),
            },
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Overview {
        self.context.end(end);
        let (kept, ended_targets) = std::mem::take(&mut self.latest).finish();
        let mut targets: Vec<TargetOverview> = kept.iter().map(|kept| self.target(kept)).collect();
        let size = |t: &TargetOverview| t.resident_bytes.unwrap_or(t.monitored_bytes);
        targets.sort_by_key(|target| std::cmp::Reverse(size(target)));
        let mappings = kept.iter().flat_map(|kept| self.mappings_of(kept));
        let mut mappings: Vec<MappingOverview> = mappings.collect();
        mappings.sort_by(|a, b| {
            let key = |m: &MappingOverview| (m.idle_bytes, m.resident_bytes);
            key(b).cmp(&key(a)).then_with(|| a.mapping.cmp(&b.mapping))
        });
        let monitor_cpu_share = self.costs.and_then(|(first, last)| {
            let seconds = last.time.since(first.time).as_secs_f64();
            let cpu = last.cost.monitor_cpu.since(first.cost.monitor_cpu);
            (seconds > 0.0).then(|| cpu.as_secs_f64() / seconds)
        });
        let mut total = total(&targets);
        let counts_pages_once = count_once(&mut total, &targets, &self.frames);
        if let [one] = &mut targets[..] {
            // With one target, only pages that KSM has merged would count twice.
            let target = std::mem::replace(one, total.clone()).target;
            one.target = target;
        }
        let live: Vec<u32> = self.live.into_values().collect();
        Overview {
            target_options: self.header.target_options(&live),
            record: self.context.record_info(),
            duration_ns: self.end,
            counts_pages_once,
            charged: self.frames.charged().cloned(),
            total,
            targets,
            mappings,
            ended_targets,
            monitor_cpu_share,
        }
    }
}

/// Counts memory that several targets map once, where the record has samples of frames. Returns whether it has.
fn count_once(total: &mut TargetOverview, targets: &[TargetOverview], frames: &FramesOnce) -> bool {
    let Some((all, working_set)) = frames.of(targets.iter().map(|of| &of.target)) else {
        return false;
    };
    total.resident_bytes = Some(all.total());
    total.unknown_bytes = all.unknown;
    let used = total.working_set_bytes;
    total.working_set_bytes = used.map(|bytes| bytes.min(working_set));
    count_idle_once(&mut total.idle, &all);
    let alone = targets.iter().filter_map(|of| {
        let alone = frames.idle_alone(of.target.target?, IDLE);
        Some(alone.min(of.reclaimable_bytes()?))
    });
    let reclaimable = alone.fold(0, u64::saturating_add);
    let idle = idle_for(&all, IDLE).unwrap_or(0);
    total.unreclaimable_bytes = idle.saturating_sub(reclaimable);
    true
}

fn total(targets: &[TargetOverview]) -> TargetOverview {
    let sum = |of: fn(&TargetOverview) -> Option<u64>| -> Option<u64> {
        let mut each = targets.iter().map(of);
        each.try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?)))
    };
    let sum_known = |of: fn(&TargetOverview) -> u64| -> u64 {
        targets.iter().map(of).fold(0, u64::saturating_add)
    };
    let idle = IDLE_TIMES.iter().enumerate().map(|(at, &at_least_ns)| {
        let bytes = targets.iter().filter_map(|t| t.idle.get(at)?.bytes);
        IdleBytes {
            at_least_ns,
            bytes: bytes.reduce(u64::saturating_add),
        }
    });
    let watched = targets.iter().map(|t| t.watched_ns);
    let used = targets.iter().filter_map(|t| t.working_set_bytes);
    TargetOverview {
        target: TargetInfo::all(),
        watched_ns: watched.max().unwrap_or_default(),
        resident_bytes: sum(|t| t.resident_bytes),
        swapped_bytes: sum(|t| t.swapped_bytes),
        working_set_bytes: used.reduce(u64::saturating_add),
        idle: idle.collect(),
        unreclaimable_bytes: sum_known(|t| t.unreclaimable_bytes),
        unknown_bytes: sum_known(|t| t.unknown_bytes),
        monitored_bytes: sum_known(|t| t.monitored_bytes),
        is_exact: targets.iter().all(|t| t.is_exact),
    }
}
