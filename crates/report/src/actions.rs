//! The actions report: the attempts and results of schemes, refusals and their reasons, and the state of the guard,
//! over time.
//!
//! JSON: [`ActionsReport`].

use std::collections::BTreeMap;

use isotherm_engine::{Nanos, NodeMoves, TargetId};
use isotherm_policy::Refusal;
use isotherm_policy::guard::Account;
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use super::series::{Point, Series};
use isotherm_record::item::{
    ActionSample, GuardSample, Header, Item, KernelMigrations, UsageSample,
};

/// The largest number of schemes and guards that are kept apart; only a foreign record has more.
const MOST: usize = 256;
const MOST_STOPS: usize = 1000;
const MOST_TARGETS: usize = 1 << 16;

/// The work of one scheme.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemeActions {
    /// The scheme's context, in a record of several contexts.
    pub context: Option<String>,
    /// The scheme's index in its context.
    pub scheme: u32,
    /// The action.
    pub action: String,
    /// Whether this was a dry run: the numbers predict actions that were not executed.
    pub dry_run: bool,
    /// Number of regions that were tried.
    pub nr_tried: u64,
    /// Bytes of memory in these regions.
    pub tried_bytes: u64,
    /// Bytes acted on.
    pub applied_bytes: u64,
    /// Bytes not acted on, by reason.
    pub refused_bytes: BTreeMap<Refusal, u64>,
    /// Bytes that moved between nodes.
    pub moved: NodeMoves,
    /// Time that the scheme took.
    pub took_ns: Nanos,
    /// Time of the first sample.
    pub from_ns: Nanos,
    /// Time of the last sample.
    pub to_ns: Nanos,
    /// The cumulative sum of bytes acted on, over time.
    pub series: Vec<Point>,
}

/// The actions on one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessActions {
    /// The process.
    #[serde(flatten)]
    pub target: TargetInfo,
    /// Bytes of memory that schemes tried.
    pub tried_bytes: u64,
    /// Bytes acted on.
    pub applied_bytes: u64,
    /// Bytes not acted on, by reason; none in older records.
    pub refused_bytes: BTreeMap<Refusal, u64>,
}

/// The guard of one context over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardCourse {
    /// The guard's context, in a record of several contexts.
    pub context: Option<String>,
    /// Number of times that it stopped the schemes.
    pub stops: u64,
    /// Time during which schemes were barred from processes' memory.
    pub closed_ns: Nanos,
    /// Time during which schemes were barred from the page cache, where they act on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_closed_ns: Option<Nanos>,
    /// Highest ratio of measured cost to limit.
    pub limit_ratio_max: Option<f64>,
    /// The last known account of the targets' losses and their limit: waits, CPU time that actions took from them, and
    /// interruptions by actions. `None` without a limit on the slowdown.
    pub account: Option<Account>,
    /// Mean share of their time that targets waited for memory, 0 to 1, over the measured intervals.
    pub slowdown_mean: Option<f64>,
    /// Highest share of their time that targets waited for memory.
    pub slowdown_max: Option<f64>,
    /// Mean number of refaults per second.
    pub refaults_per_s_mean: Option<f64>,
    /// Highest number of refaults per second.
    pub refaults_per_s_max: Option<f64>,
    /// Permitted bytes per second over time; 0 while stopped.
    pub allowed: Vec<Point>,
    /// Ratio of measured cost to limit over time, in millionths.
    pub limit_ratio_ppm: Vec<Point>,
    /// Refaults per thousand seconds, over time.
    pub refaults_per_1000_s: Vec<Point>,
    /// Periods in which schemes were barred from processes' memory: the first thousand.
    pub stopped: Vec<Stopped>,
}

/// A period in which a guard stopped its schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stopped {
    /// Start, since the beginning of the record.
    pub from_ns: Nanos,
    /// End, or the last report of the guard.
    pub to_ns: Nanos,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActionsReport {
    /// `actions`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Each scheme that did or tried anything.
    pub schemes: Vec<SchemeActions>,
    /// Actions by process, the largest applied bytes first; none in older records.
    pub processes: Vec<ProcessActions>,
    /// Each guard.
    pub guards: Vec<GuardCourse>,
    /// Pages that the kernel itself moved meanwhile, by its own counters; `None` where memory is on one node.
    pub kernel_migrations: Option<KernelMigrations>,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    context: RecordContext,
    schemes: BTreeMap<(Option<String>, u32, String), Scheme>,
    guards: BTreeMap<Option<String>, Guard>,
    /// The first and the last values of the kernel's counters.
    migrations: Option<(KernelMigrations, KernelMigrations)>,
    targets: BTreeMap<TargetId, ProcessActions>,
}

#[derive(Clone, Debug, Default)]
struct Scheme {
    sum: SchemeActions,
    from: Option<Nanos>,
    series: Series,
}

#[derive(Clone, Debug, Default)]
struct Guard {
    stops_before: Option<u64>,
    stops: u64,
    processes: Closed,
    page_cache: Option<Closed>,
    account: Option<Account>,
    limit_ratio: Most,
    slowdown: Most,
    refaults: Most,
    allowed: Series,
    limit_ratios: Series,
    refaults_seen: Series,
    stopped: Vec<Stopped>,
    last: Nanos,
}

/// Time for which one pool of memory was closed to schemes.
#[derive(Clone, Copy, Debug, Default)]
struct Closed {
    sum: Nanos,
    since: Option<Nanos>,
}

impl Closed {
    /// Takes a state, and returns the stop that it ended.
    fn push(&mut self, time: Nanos, is_open: bool) -> Option<Stopped> {
        if !is_open {
            self.since.get_or_insert(time);
            return None;
        }
        let from_ns = self.since.take()?;
        self.sum = self.sum + time.since(from_ns);
        let to_ns = time;
        Some(Stopped { from_ns, to_ns })
    }

    /// Returns the stop that still lasts at the end.
    fn open_end(self, to_ns: Nanos) -> Option<Stopped> {
        self.since.map(|from_ns| Stopped { from_ns, to_ns })
    }

    fn until(self, end: Nanos) -> Nanos {
        self.sum + self.since.map_or(Nanos(0), |since| end.since(since))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Most {
    sum: f64,
    count: u32,
    max: f64,
}

impl Most {
    fn push(&mut self, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.sum += value;
            self.count += 1;
            self.max = self.max.max(value);
        }
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    fn max(self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }
}

impl Actions {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            ..Self::default()
        }
    }

    fn usage(&mut self, sample: &UsageSample) {
        let now = &sample.migrations;
        if now.is_empty() {
            return;
        }
        match &mut self.migrations {
            Some((_, last)) => last.clone_from(now),
            None => self.migrations = Some((now.clone(), now.clone())),
        }
    }

    fn act(&mut self, sample: &ActionSample) {
        let time = self.context.offset(sample.time);
        let key = (sample.context.clone(), sample.scheme, sample.action.clone());
        if self.schemes.len() >= MOST && !self.schemes.contains_key(&key) {
            return;
        }
        for of in &sample.targets {
            if self.targets.len() < MOST_TARGETS || self.targets.contains_key(&of.target) {
                let sum = self.targets.entry(of.target).or_default();
                sum.tried_bytes = sum.tried_bytes.saturating_add(of.sz_tried);
                sum.applied_bytes = sum.applied_bytes.saturating_add(of.sz_applied);
                add_refused(&mut sum.refused_bytes, &of.refused);
            }
        }
        let scheme = self.schemes.entry(key).or_default();
        let sum = &mut scheme.sum;
        sum.nr_tried = sum.nr_tried.saturating_add(sample.nr_tried);
        sum.tried_bytes = sum.tried_bytes.saturating_add(sample.sz_tried);
        sum.applied_bytes = sum.applied_bytes.saturating_add(sample.sz_applied);
        sum.took_ns = sum.took_ns + sample.took;
        sum.moved.merge(&sample.moved);
        add_refused(&mut sum.refused_bytes, &sample.refused);
        sum.dry_run |= sample.dry_run;
        sum.from_ns = *scheme.from.get_or_insert(time);
        sum.to_ns = sum.to_ns.max(time);
        scheme.series.push(time, Nanos(1), sum.applied_bytes);
    }

    fn guard(&mut self, sample: &GuardSample) {
        let time = self.context.offset(sample.time);
        if self.guards.len() >= MOST && !self.guards.contains_key(&sample.context) {
            return;
        }
        let guard = self.guards.entry(sample.context.clone()).or_default();
        let status = &sample.status;
        let before = *guard.stops_before.get_or_insert(status.nr_stops);
        guard.stops = status.nr_stops.saturating_sub(before);
        let ended = guard.processes.push(time, status.is_open);
        let room = MOST_STOPS - guard.stopped.len();
        guard.stopped.extend(ended.into_iter().take(room));
        if let Some(page_cache) = status.page_cache {
            let closed = guard.page_cache.get_or_insert_default();
            closed.push(time, page_cache.is_open);
        }
        if status.since_start.allowed > Nanos(0) {
            guard.account = Some(status.since_start);
        }
        guard.limit_ratio.push(status.limit_ratio);
        let note = |series: &mut Series, value: Option<f64>, by: f64| {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                series.push(time, Nanos(1), (value * by).clamp(0.0, 1e15) as u64);
            }
        };
        note(&mut guard.limit_ratios, status.limit_ratio, 1e6);
        let signals = &status.signals;
        note(&mut guard.refaults_seen, signals.refaults_per_s, 1e3);
        guard.slowdown.push(signals.slowdown);
        guard.refaults.push(signals.refaults_per_s);
        if !status.is_open {
            guard.allowed.push(time, Nanos(1), 0);
        } else if let Some(allowed) = status.bytes_per_s {
            guard.allowed.push(time, Nanos(1), allowed);
        }
        guard.last = guard.last.max(time);
    }
}

impl Accumulate for Actions {
    type Report = Option<ActionsReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Action(sample) if self.context.admits_time(sample.time) => self.act(sample),
            Item::Usage(sample) if self.context.admits_time(sample.time) => self.usage(sample),
            Item::Guard(sample) if self.context.admits_time(sample.time) => self.guard(sample),
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<ActionsReport> {
        self.context.end(end);
        if self.schemes.is_empty() && self.guards.is_empty() {
            return None;
        }
        let processes = self
            .targets
            .into_iter()
            .map(|(target, sum)| ProcessActions {
                target: self.context.target_info(target),
                ..sum
            });
        let mut processes: Vec<ProcessActions> = processes.collect();
        processes.sort_by_key(|of| std::cmp::Reverse((of.applied_bytes, of.tried_bytes)));
        let schemes = self.schemes.into_iter();
        let schemes = schemes.map(|((context, scheme, action), done)| SchemeActions {
            context,
            scheme,
            action,
            series: done.series.points(),
            ..done.sum
        });
        let guards = self.guards.into_iter().map(|(context, mut guard)| {
            let goes_on = guard.processes.open_end(guard.last);
            let room = MOST_STOPS - guard.stopped.len();
            guard.stopped.extend(goes_on.into_iter().take(room));
            let page_cache = guard.page_cache.map(|closed| closed.until(guard.last));
            GuardCourse {
                context,
                stops: guard.stops,
                closed_ns: guard.processes.until(guard.last),
                page_cache_closed_ns: page_cache,
                limit_ratio_max: guard.limit_ratio.max(),
                account: guard.account,
                slowdown_mean: guard.slowdown.mean(),
                slowdown_max: guard.slowdown.max(),
                refaults_per_s_mean: guard.refaults.mean(),
                refaults_per_s_max: guard.refaults.max(),
                allowed: guard.allowed.points(),
                limit_ratio_ppm: guard.limit_ratios.points(),
                refaults_per_1000_s: guard.refaults_seen.points(),
                stopped: guard.stopped,
            }
        });
        Some(ActionsReport {
            report: "actions",
            version: crate::VERSION,
            record: self.context.record_info(),
            schemes: schemes.collect(),
            processes,
            guards: guards.collect(),
            kernel_migrations: self.migrations.map(|(first, last)| last.since(&first)),
        })
    }
}

fn add_refused(sum: &mut BTreeMap<Refusal, u64>, more: &BTreeMap<Refusal, u64>) {
    for (why, bytes) in more {
        let refused = sum.entry(*why).or_default();
        *refused = refused.saturating_add(*bytes);
    }
}
