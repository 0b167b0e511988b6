//! Attribution of idle memory to code: bytes by the stack that touched them first.
//!
//! The report joins the last snapshot (idle bytes and their age) with the samples of page faults up to it. The samples
//! show the code that touched each address first. An allocator can reuse memory without a new fault. A stack is
//! therefore the one that *touched the memory first*, not its current owner.
//!
//! The report states the certainty: `likely_bytes` lie between samples of different stacks, and count for the nearer
//! one. Bytes that existed before sampling began, and bytes far from any sample, are unknown. With the unknown bytes,
//! all parts add up to the total.
//!
//! The waste of huge pages is attributed to code in the same way ([`Measure::Waste`]). It consists of the pages that
//! were read, and that were never written.
//!
//! JSON: [`BlameReport`].

mod by;
mod diff;
mod export;
mod flame;
mod pprof;
#[cfg(test)]
pub(crate) mod samples;
mod stacks;
mod touches;
mod waste;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, RegionSnapshot, TargetId};
use isotherm_record::item::{Header, Item};
use isotherm_record::stacks::STACKS_SETTING;
use isotherm_record::{FaultSample, FrameTable, StackId, StackSamples};
use serde::Serialize;

use crate::Accumulate;
use crate::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use crate::latest::{Kept, Latest};
use crate::mapping::{ANONYMOUS, MappingTable};
use stacks::StackTable;
use touches::{Owner, Touches};
use waste::HugePages;

pub use by::{Blamed, By};
pub use diff::{BlameDiffReport, BlameTotals, BlamedDiff, StackDiff, folded_diff};
pub(crate) use export::named;
pub use export::{folded, speedscope};
pub use flame::{FlameNode, PlacedNode};
pub use pprof::pprof;
pub use waste::HugeBytes;

/// The measure of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Resident bytes that were not accessed for the idle time.
    #[default]
    Idle,
    /// All resident bytes.
    Resident,
    /// Bytes that were accessed in the last interval.
    Accessed,
    /// Bytes that were read back from swap, each time counted; they are attributed to the code that accessed them.
    Refaulted,
    /// Pages never written, within the huge pages that were read.
    Waste,
}

/// Candidates for the default idle time.
pub(crate) const AGES: [Nanos; 5] = [
    Nanos::from_millis(5_000),
    Nanos::from_millis(10_000),
    Nanos::from_millis(30_000),
    Nanos::from_millis(60_000),
    Nanos::from_millis(600_000),
];

/// Returns the longest of [`AGES`] that is at most two thirds of the watched time.
fn longest_age(watched: Nanos) -> Nanos {
    let fits = |age: &&Nanos| age.0.saturating_mul(3) <= watched.0.saturating_mul(2);
    *AGES.iter().rev().find(fits).unwrap_or(&AGES[0])
}

/// The query: bytes, time and grouping.
#[derive(Clone, Debug, Default)]
pub struct BlameOptions {
    /// The bytes to count.
    pub measure: Measure,
    /// Minimum idle time; `None` means the longest of [`AGES`] that fits the watched time.
    pub at_least: Option<Nanos>,
    /// Time since the beginning; `None` means the end.
    pub at: Option<Nanos>,
    /// The grouping of the sums.
    pub by: By,
}

/// Bytes of one stack in one thread and one mapping of one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StackBytes {
    pub target: TargetId,
    /// The thread's name.
    pub thread: String,
    /// The mapping's name.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(serialize_with = "crate::mapping::serialize_name")]
    pub mapping: Arc<str>,
    /// Functions, the outermost first.
    pub stack: Vec<String>,
    /// The files of the functions; `null` for code that was generated at run time.
    pub libraries: Vec<Option<String>>,
    /// The function that requested the memory: the innermost one outside allocators, copy functions and run times.
    pub function: String,
    /// Source line of the innermost function, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    pub bytes: u64,
    /// Bytes of these that count for the nearer of two stacks.
    pub likely_bytes: u64,
}

impl StackBytes {
    /// Returns the file of the function that requested the memory.
    fn library(&self) -> Option<&str> {
        let at = self.stack.iter().rposition(|name| *name == self.function)?;
        self.libraries.get(at)?.as_deref()
    }
}

/// Bytes without a known stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NotBlamed {
    /// Bytes that existed before sampling began.
    pub before_sampling: u64,
    /// Bytes without a sample nearby: the kernel filled them without a fault, or there were too few samples.
    pub not_sampled: u64,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlameReport {
    /// `blame`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// The measure of the bytes.
    pub measure: Measure,
    /// Minimum idle time, where idle bytes are counted.
    pub at_least_ns: Nanos,
    /// The time of the last snapshots in the report.
    pub time_ns: Nanos,
    /// The longest time that a target had been watched until then.
    pub watched_ns: Nanos,
    /// All bytes of the measure.
    pub total_bytes: u64,
    /// Bytes with a known stack.
    pub blamed_bytes: u64,
    /// Blamed bytes that count for the nearer of two stacks.
    pub likely_bytes: u64,
    /// Bytes without a known stack.
    pub unknown: NotBlamed,
    /// Bytes of huge pages that were read, where their waste is counted; `null` where the record lacks them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge: Option<HugeBytes>,
    /// Number of samples that the report is based on.
    pub nr_samples: u64,
    /// Number of samples lost to full buffers.
    pub nr_lost: u64,
    /// Time without counted faults, because counting would have cost more than the budget.
    pub not_counted_ns: Nanos,
    /// The grouping of `blamed`.
    pub by: By,
    /// Bytes by group, the largest first.
    pub blamed: Vec<Blamed>,
    /// Bytes by stack, the largest first.
    pub stacks: Vec<StackBytes>,
}

impl BlameReport {
    /// Returns bytes requested by a Python interpreter with unknown Python callers.
    pub(crate) fn unnamed_python_bytes(&self) -> u64 {
        let is_python = |stack: &&StackBytes| stack.library().is_some_and(stacks::is_python);
        self.stacks.iter().filter(is_python).map(|s| s.bytes).sum()
    }
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Blame {
    context: RecordContext,
    options: BlameOptions,
    latest: Latest,
    mappings: MappingTable,
    table: StackTable,
    touches: BTreeMap<TargetId, Touches>,
    /// Pages that were read back from swap, by stack, thread, target and mapping.
    refaults: Sums,
    huge: HugePages,
    has_stacks: bool,
    nr_samples: u64,
    nr_lost: u64,
    not_counted: Nanos,
}

type Key = (TargetId, StackId, u32, Arc<str>);

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sure: f64,
    likely: f64,
}

type Sums = HashMap<Key, Sum>;

impl Blame {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: BlameOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            latest: Latest::until(options.at),
            options,
            has_stacks: header.settings.contains_key(STACKS_SETTING),
            ..Self::default()
        }
    }

    /// Returns the frames of all stacks, so that the caller can name them.
    pub fn frames(&mut self) -> &mut FrameTable {
        &mut self.table.frames
    }

    fn take_samples(&mut self, samples: &StackSamples) {
        self.has_stacks = true;
        self.table.extend(samples);
        self.nr_lost = samples.nr_lost;
        self.not_counted = samples.not_counted;
        let is_later = !self.is_due(samples.time);
        if is_later {
            return;
        }
        for target in &samples.begun_before {
            self.touches.entry(*target).or_default().begin_before();
        }
        let mut moved = samples.moved.iter().peekable();
        for (at, sample) in (0..).zip(&samples.samples) {
            while let Some(moved) = moved.next_if(|moved| moved.before_sample <= at) {
                if let Some(touches) = self.touches.get_mut(&moved.target) {
                    touches.relocate(moved);
                }
            }
            if self.context.admits_target(sample.target) && self.is_due(sample.time) {
                self.take_sample(sample);
            }
        }
    }

    fn take_sample(&mut self, sample: &FaultSample) {
        self.nr_samples += 1;
        let mapping = self.mapping_at(sample.target, sample.address);
        let is_file = mapping.as_ref().is_some_and(|name| name.starts_with('/'));
        if !sample.is_major || is_file {
            // A fault that reads a page of a file counts as a touch like any other.
            self.touches.entry(sample.target).or_default().push(sample);
            return;
        }
        let is_admitted = self.context.admits_time(sample.time);
        if is_admitted {
            let mapping = mapping.unwrap_or_else(|| ANONYMOUS.into());
            let key = (sample.target, sample.stack, sample.thread, mapping);
            let sum = self.refaults.entry(key).or_default();
            sum.sure += sample.pages.saturating_mul(PAGE_SIZE) as f64;
        }
    }

    fn mapping_at(&self, target: TargetId, address: u64) -> Option<Arc<str>> {
        let page = AddressRange::new(address, address.saturating_add(PAGE_SIZE));
        let (_, name) = self.mappings.parts(target, page).next()?;
        Some(Arc::clone(name))
    }

    /// Returns whether this time lies within the report's period.
    fn is_due(&mut self, time: Nanos) -> bool {
        let offset = self.context.offset(time);
        self.latest.reaches(offset)
    }

    /// Adds the bytes of one target's last snapshot by the touches that own them.
    fn add(&self, kept: &Kept, at_least: Nanos, whole: &mut Whole) {
        let snapshot = &kept.snapshot;
        let nothing = Touches::default();
        let touches = self.touches.get(&snapshot.target).unwrap_or(&nothing);
        for region in &snapshot.regions {
            let bytes = self.counted(kept, region, at_least);
            if bytes == 0 {
                continue;
            }
            whole.total += bytes;
            let density = bytes as f64 / region.range.len() as f64;
            let mut seen = 0;
            for (part, name) in self.mappings.parts(snapshot.target, region.range) {
                let mapping = self.mappings.whole(snapshot.target, part);
                seen += part.len();
                touches.owners(part, mapping, &mut |part, share, owner| {
                    let bytes = part.len() as f64 * share * density;
                    whole.take(bytes, owner, |touch: &touches::Touch| {
                        (snapshot.target, touch.stack, touch.thread, Arc::clone(name))
                    });
                });
            }
            // A region can outlive its mapping.
            whole.not_sampled +=
                (region.range.len() - seen.min(region.range.len())) as f64 * density;
        }
    }

    fn counted(&self, kept: &Kept, region: &RegionSnapshot, at_least: Nanos) -> u64 {
        match self.options.measure {
            Measure::Resident => region.resident(),
            Measure::Accessed => region.touched(),
            Measure::Idle if kept.idle_for(region) >= at_least => region.untouched(),
            _ => 0,
        }
    }
}

#[derive(Default)]
struct Whole {
    total: u64,
    sums: Sums,
    before: f64,
    not_sampled: f64,
}

impl Whole {
    fn take(&mut self, bytes: f64, owner: Owner, key: impl FnOnce(&touches::Touch) -> Key) {
        match owner {
            Owner::Touch { touch, is_sure } => {
                let sum = self.sums.entry(key(&touch)).or_default();
                if is_sure {
                    sum.sure += bytes;
                } else {
                    sum.likely += bytes;
                }
            }
            Owner::Before => self.before += bytes,
            Owner::NotSampled => self.not_sampled += bytes,
        }
    }
}

impl Accumulate for Blame {
    type Report = Option<BlameReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Snapshot(snapshot) => {
                if !self.context.admits_target(snapshot.target) || !self.is_due(snapshot.start) {
                    return;
                }
                let by_page = (!snapshot.blocks.is_empty()).then(|| snapshot.clone().by_page());
                let snapshot = by_page.as_ref().unwrap_or(snapshot);
                if let Some(touches) = self.touches.get_mut(&snapshot.target) {
                    touches.look(snapshot);
                }
                self.latest.push(&mut self.context, snapshot, 0);
            }
            Item::Mappings(change) if self.is_due(change.time) => {
                self.mappings.apply(change);
                self.huge.apply(change);
                if let Some(touches) = self.touches.get_mut(&change.target) {
                    touches.apply(change);
                }
            }
            Item::Stacks(samples) => self.take_samples(samples),
            Item::Symbols(symbols) => self.table.frames.name(symbols),
            Item::HugePages(sample) if self.is_due(sample.time) => {
                let context = &self.context;
                self.huge
                    .take(sample, |target| context.admits_target(target));
            }
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<BlameReport> {
        self.context.end(end);
        self.report()
    }
}

impl Blame {
    /// Describes the end of a record that is not whole, for the reports from now on.
    pub fn end(&mut self, end: RecordEnd) {
        self.context.end(end);
    }

    /// Returns a report like [`Blame::report`] with another measure and another idle time.
    pub fn report_of(&mut self, measure: Measure, at_least: Nanos) -> Option<BlameReport> {
        self.options.measure = measure;
        self.options.at_least = Some(at_least);
        self.report()
    }

    /// Returns the report of all items so far; more items may follow. Returns `None` without stacks.
    pub fn report(&mut self) -> Option<BlameReport> {
        if !self.has_stacks {
            return None;
        }
        let (kept, _) = self.latest.clone().finish();
        self.join_stacks();
        let watched = kept.iter().map(Kept::known_for).max().unwrap_or_default();
        let at_least = self.options.at_least;
        let at_least = at_least.unwrap_or_else(|| longest_age(watched));
        let (mut whole, mut huge) = (Whole::default(), None);
        for kept in &kept {
            match self.options.measure {
                Measure::Waste => self.add_waste(kept.snapshot.target, &mut whole, &mut huge),
                _ => self.add(kept, at_least, &mut whole),
            }
        }
        if self.options.measure == Measure::Refaulted {
            whole.sums.clone_from(&self.refaults);
            whole.total = whole.sums.values().map(|sum| sum.sure).sum::<f64>() as u64;
        }
        let time = kept.iter().map(|kept| kept.snapshot.end).max();
        let time = time.map(|end| self.context.offset(end)).unwrap_or_default();
        let stacks = self.stacks(&whole.sums);
        let likely = whole.sums.values().map(|sum| sum.likely).sum::<f64>() as u64;
        let unknown = NotBlamed {
            before_sampling: whole.before as u64,
            not_sampled: whole.not_sampled as u64,
        };
        let blamed = by::sum_up(self.options.by, &stacks, &self.context);
        Some(BlameReport {
            report: "blame",
            version: crate::VERSION,
            record: self.context.record_info(),
            measure: self.options.measure,
            at_least_ns: at_least,
            time_ns: time,
            watched_ns: watched,
            total_bytes: whole.total,
            blamed_bytes: (whole.total)
                .saturating_sub(unknown.before_sampling + unknown.not_sampled),
            likely_bytes: likely.min(whole.total),
            unknown,
            huge,
            nr_samples: self.nr_samples,
            nr_lost: self.nr_lost,
            not_counted_ns: self.not_counted,
            by: self.options.by,
            blamed,
            stacks,
        })
    }

    /// Joins stacks that differ in return addresses only, and call the same functions.
    fn join_stacks(&mut self) {
        let mut first: HashMap<Vec<stacks::Function>, StackId> = HashMap::new();
        let mut numbers: HashMap<StackId, StackId> = HashMap::new();
        let table = &self.table;
        let mut number = |stack: StackId| {
            *numbers.entry(stack).or_insert_with(|| {
                let mut functions = table.functions(stack);
                for function in &mut functions {
                    function.line = None;
                }
                *first.entry(functions).or_insert(stack)
            })
        };
        for touches in self.touches.values_mut() {
            touches.renumber(&mut number);
        }
    }

    /// Returns the sums by function names; stacks that differ in return addresses only are one.
    fn stacks(&self, sums: &Sums) -> Vec<StackBytes> {
        let mut by_name: BTreeMap<_, (StackBytes, Sum)> = BTreeMap::new();
        let mut functions: HashMap<StackId, Vec<stacks::Function>> = HashMap::new();
        for ((target, stack, thread, mapping), sum) in sums {
            let functions = functions.entry(*stack);
            let functions = functions.or_insert_with(|| self.table.functions(*stack));
            let thread = self.table.threads.get(*thread as usize);
            let thread = thread.map_or_else(String::new, Clone::clone);
            let names: Vec<String> = functions.iter().map(|f| f.name.clone()).collect();
            let key = (*target, thread.clone(), Arc::clone(mapping), names.clone());
            let entry = by_name.entry(key).or_insert_with(|| {
                let owner = stacks::owner(functions);
                let line = functions.last().and_then(|function| function.line.as_ref());
                let bytes = StackBytes {
                    target: *target,
                    thread,
                    mapping: Arc::clone(mapping),
                    stack: names,
                    libraries: functions.iter().map(|f| f.library.clone()).collect(),
                    function: owner.map_or_else(String::new, |function| function.name.clone()),
                    line: line.map(|(file, line)| format!("{file}:{line}")),
                    bytes: 0,
                    likely_bytes: 0,
                };
                (bytes, Sum::default())
            });
            entry.1.sure += sum.sure;
            entry.1.likely += sum.likely;
        }
        let all = by_name.into_values().map(|(stack, sum)| StackBytes {
            bytes: (sum.sure + sum.likely).round() as u64,
            likely_bytes: sum.likely.round() as u64,
            ..stack
        });
        let mut all: Vec<StackBytes> = all.filter(|stack| stack.bytes > 0).collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.stack.cmp(&b.stack)));
        all
    }
}
