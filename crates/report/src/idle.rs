//! The idle report: the amount of memory that was not accessed, by idle time.
//!
//! A region without access in a snapshot has been idle for its age and the snapshot's own interval. DAMON_STAT's
//! `memory_idle_ms_percentiles` counts it in the same way (`mm/damon/stat.c`). A region with an access has no idle
//! time. Unknown memory is neither, and is reported apart. A record of 30 s cannot show memory that has been idle for 2
//! min: such an answer is `null`, never zero.
//!
//! Idle bytes are bytes of memory: holes and swapped-out pages are counted apart. The untouched rest of a partly
//! touched region has been idle for less than an interval. Where the record's source knows of addresses only (DAMON),
//! idle bytes are bytes of *address space*. They can exceed the resident size, which is shown beside them.
//!
//! JSON: [`IdleReport`].

use std::collections::BTreeMap;

use isotherm_engine::frames::AgeBytes;
use isotherm_engine::{MemoryTotals, Nanos};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use super::frames_once::{FramesOnce, idle_for};
use super::latest::{Kept, Latest};
use super::series::{Percentile, WeightedValues};
use isotherm_record::item::{Header, Item};

/// The query: time, idle times and percentiles.
#[derive(Clone, Debug)]
pub struct IdleOptions {
    /// Time since the beginning; `None` means the end.
    pub at: Option<Nanos>,
    /// Minimum idle times; the report counts the bytes that were idle for at least each of them.
    pub at_least: Vec<Nanos>,
    /// Shares of the bytes, in percent; the report gives the longest idle time of the least idle bytes of each share.
    pub percentiles: Vec<f64>,
}

impl Default for IdleOptions {
    fn default() -> Self {
        Self {
            at: None,
            at_least: [1, 5, 30, 120, 600]
                .map(|seconds| Nanos::from_millis(seconds * 1000))
                .to_vec(),
            percentiles: vec![0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 100.0],
        }
    }
}

/// Bytes with a minimum idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IdleBytes {
    /// The minimum idle time.
    pub at_least_ns: Nanos,
    /// The bytes; `null` if the target was watched for less than this time.
    pub bytes: Option<u64>,
}

/// The idle memory of a target, or of all targets.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IdleMemory {
    #[serde(flatten)]
    pub target: TargetInfo,
    pub time_ns: Nanos,
    /// Time for which the target had been watched by then.
    pub watched_ns: Nanos,
    /// All monitored addresses, with or without memory behind them.
    pub monitored_bytes: u64,
    /// Resident bytes of these addresses; `null` where the record's source cannot tell.
    pub resident_bytes: Option<u64>,
    /// Swapped-out bytes of these addresses; `null` where the record's source cannot tell.
    pub swapped_bytes: Option<u64>,
    /// Resident bytes that were accessed in the last interval.
    pub accessed_bytes: u64,
    /// Resident bytes of unknown state.
    pub unknown_bytes: u64,
    /// RSS at about that time, where the record has it.
    pub rss_bytes: Option<u64>,
    /// Idle bytes by minimum idle time.
    pub idle: Vec<IdleBytes>,
    /// `percent` of the known bytes have been idle for at most `value` nanoseconds.
    pub percentiles: Vec<Percentile>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IdleReport {
    /// `idle`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// The idle memory of each target that existed at the time.
    pub targets: Vec<IdleMemory>,
    /// The sum, if there is more than one target. Memory that several targets map counts once where the record has
    /// samples of frames; in percentiles it counts for each target.
    pub total: Option<IdleMemory>,
    /// Number of targets that had ended before.
    pub ended_targets: usize,
}

/// The accumulator.
#[derive(Debug)]
pub struct Idle {
    context: RecordContext,
    options: IdleOptions,
    latest: Latest,
    frames: FramesOnce,
    rss: BTreeMap<u32, u64>,
}

impl Idle {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: IdleOptions) -> Self {
        let latest = Latest::until(options.at);
        Self {
            context: RecordContext::new(header, scope),
            options,
            latest,
            frames: FramesOnce::new(header, scope),
            rss: BTreeMap::new(),
        }
    }
}

impl Accumulate for Idle {
    type Report = IdleReport;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Snapshot(snapshot) => self.latest.push(&mut self.context, snapshot, 0),
            Item::Machine(sample) if self.latest.reaches(self.context.offset(sample.time)) => {
                self.frames.push(sample);
            }
            Item::Usage(usage) if self.latest.reaches(self.context.offset(usage.time)) => {
                // A target keeps its last value when later samples lack it.
                self.rss.extend(&usage.rss);
            }
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> IdleReport {
        self.context.end(end);
        let (kept, ended_targets) = std::mem::take(&mut self.latest).finish();
        let mut total = Sum::default();
        let mut targets = Vec::with_capacity(kept.len());
        for kept in &kept {
            let mut sum = Sum::default();
            sum.add(kept, &mut self.context);
            total.add(kept, &mut self.context);
            let target = kept.snapshot.target;
            sum.rss = self.rss.get(&target.0).copied();
            if let Some(rss) = sum.rss {
                total.rss = Some(total.rss.unwrap_or(0).saturating_add(rss));
            }
            targets.push(sum.finish(self.context.target_info(target), &self.options));
        }
        let once = self.frames.of(targets.iter().map(|of| &of.target));
        let once = once.map(|(all, _)| all);
        if let [one] = &mut targets[..] {
            // With one target, only pages that KSM has merged would count twice.
            *one = counted_once(one.clone(), once.as_ref());
        }
        let total = (targets.len() > 1).then(|| {
            let sum = total.finish(TargetInfo::all(), &self.options);
            counted_once(sum, once.as_ref())
        });
        IdleReport {
            report: "idle",
            version: crate::VERSION,
            record: self.context.record_info(),
            targets,
            total,
            ended_targets,
        }
    }
}

/// Counts the bytes of `idle`, pairs of an idle time and bytes, by minimum idle time.
pub(crate) fn by_idle_time(
    idle: &[(Nanos, u64)],
    watched: Nanos,
    at_least: &[Nanos],
) -> Vec<IdleBytes> {
    let longest = idle.iter().map(|(time, _)| *time).max();
    let watched = watched.max(longest.unwrap_or_default());
    let counted = at_least.iter().map(|&at_least_ns| IdleBytes {
        at_least_ns,
        bytes: (at_least_ns <= watched).then(|| {
            let long_enough = idle.iter().filter(|(time, _)| at_least_ns <= *time);
            long_enough.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
        }),
    });
    counted.collect()
}

/// Counts memory once that several targets map, by the last samples of frames.
pub(crate) fn count_idle_once(idle: &mut [IdleBytes], all: &AgeBytes) {
    for idle in idle {
        idle.bytes = idle.bytes.and_then(|_| idle_for(all, idle.at_least_ns));
    }
}

/// Returns the sum with shared memory counted once, where the record has samples of frames.
fn counted_once(mut sum: IdleMemory, once: Option<&AgeBytes>) -> IdleMemory {
    let Some(all) = once else {
        return sum;
    };
    sum.resident_bytes = Some(all.total());
    sum.accessed_bytes = all.touched;
    sum.unknown_bytes = all.unknown;
    count_idle_once(&mut sum.idle, all);
    sum
}

#[derive(Default)]
struct Sum {
    time: Nanos,
    watched: Nanos,
    totals: MemoryTotals,
    rss: Option<u64>,
    idle: Vec<(Nanos, u64)>,
}

impl Sum {
    fn add(&mut self, kept: &Kept, context: &mut RecordContext) {
        let snapshot = &kept.snapshot;
        self.time = self.time.max(context.offset(snapshot.end));
        self.watched = self.watched.max(snapshot.end.since(kept.watched_since));
        for region in &snapshot.regions {
            self.totals.add(region);
            if region.untouched() > 0 {
                self.idle.push((kept.idle_for(region), region.untouched()));
            }
        }
    }

    fn finish(&self, target: TargetInfo, options: &IdleOptions) -> IdleMemory {
        let mut distribution = WeightedValues::default();
        if self.totals.touched > 0 {
            distribution.push(0, self.totals.touched as f64);
        }
        for &(time, bytes) in &self.idle {
            distribution.push(time.0, bytes as f64);
        }
        IdleMemory {
            target,
            time_ns: self.time,
            watched_ns: self.watched,
            monitored_bytes: self.totals.addresses,
            resident_bytes: self.totals.known_resident(),
            swapped_bytes: self.totals.known_swapped(),
            accessed_bytes: self.totals.touched,
            unknown_bytes: self.totals.unknown,
            rss_bytes: self.rss,
            idle: by_idle_time(&self.idle, self.watched, &options.at_least),
            percentiles: distribution.percentiles(&options.percentiles),
        }
    }
}
