//! The table monitor: reads every page table, clears few bits. The default for processes.
//!
//! The problem: DAMON samples one random page of each region, and the regions must find the hot
//! areas by splitting at random; small or scattered hot areas in large memory are found late or
//! never, and every sample costs a TLB flush of the running target. Measured on real kernels
//! (DESIGN.md), *reading* all accessed bits of a gigabyte costs 0.2 ms, less than *clearing* forty
//! of them. So reading everything is cheap, and what needs economy is clearing.
//!
//! The approach: memory in use is cut into *segments*, at first one for each page table (2 MiB) and
//! mapping. A segment starts `Fresh`; one cluster of 16 neighbouring pages is sampled (cleared, and
//! looked at one window of 20 ms later). If it is idle, the whole segment is *armed*: all its bits
//! are cleared with one range. From then on every read of the tables tells exactly which of its
//! pages were touched, and while none is, no further clear is needed: cold memory, most of memory,
//! costs only the reading. A segment of which many pages were touched is cut where touched and
//! untouched stretches meet, to the page, and the touched part is sampled again, so that its rate
//! follows. What may be spent is a share of one CPU; each tick spends from a purse that fills at that rate and
//! pays the measured cost, the monitor's own and the estimated flush time in the target. Fresh
//! segments are sampled in an order that halves the gaps, with the neighbours of busy ones first: a
//! hot area is found in the time that a small fraction of the memory takes.
//!
//! Rates are comparable with DAMON's: the share of sampling windows in which a page is touched. For
//! armed segments it is computed from the share touched between two reads, taking a page's accesses
//! as a Poisson process.
//!
//! Limits: within a segment of scattered touches only the mean rate is known (page granularity is
//! the scanner's business). A page that cannot be cleared says nothing; a segment of such pages is
//! unknown.

mod bits;
mod layout;
mod order;
mod purse;
mod report;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::address::{AddressRange, BLOCK_SIZE, Nanos};
use crate::port::{Cost, Sample, Touch};
use crate::snapshot::{Snapshot, TargetId};

pub use layout::MappedRange;
pub use segment::BlockFacts;

use purse::Purse;
use segment::{CLUSTER_PAGES, Segment, Verdict, Watch, block_of};

/// What the table monitor may spend, and how finely it looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableAttributes {
    /// Share of one CPU for monitoring and what it induces, 0 to 1.
    pub cpu_share: f64,
    /// Sampling window: how long after clearing a cluster it is looked at.
    pub window: Nanos,
    /// Shortest time between two snapshots; longer where reading the tables costs too much.
    pub aggregation_min: Nanos,
    /// Most regions in a snapshot of all targets together.
    pub max_nr_regions: u32,
}

impl Default for TableAttributes {
    fn default() -> Self {
        Self {
            cpu_share: 0.01,
            window: Nanos::from_millis(20),
            aggregation_min: Nanos::from_millis(400),
            max_nr_regions: 1000,
        }
    }
}

/// Pages to clear so that a segment is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmOrder {
    /// Whose.
    pub target: TargetId,
    /// One range to clear.
    pub range: AddressRange,
}

/// What to do now, in this order: clear `arms`, read their blocks again and pass them to
/// [`TableMonitor::armed`]; then arm `samples`; then sleep until `wake_at`.
#[derive(Clone, Debug, Default)]
pub struct TablePlan {
    /// Segments to clear whole.
    pub arms: Vec<ArmOrder>,
    /// Clusters to watch until the next tick.
    pub samples: Vec<Sample>,
    /// Finished snapshots, one for each target.
    pub snapshots: Vec<Snapshot>,
    /// When to tick again.
    pub wake_at: Nanos,
}

/// Segments of an unchanged layout are joined, where they have become alike, every this many times
/// that it is told.
const JOIN_EVERY: u32 = 8;
/// Quiet blocks are read every this many times.
const TURNS: u64 = 4;
/// How far around touched quiet memory, in segments, everything is looked at, and for how long.
const ALARM_REACH: usize = 128;
const ALERT: Nanos = Nanos::from_millis(2_000);
/// How far around memory that went idle, in segments, what was alike is sampled at once.
const SUSPECT_REACH: usize = 256;

type Key = (TargetId, u64);

/// The monitor. A driver calls, in a loop: [`set_layout`](Self::set_layout) now and then;
/// [`reading_due`](Self::reading_due), and if so [`look`](Self::look) for all
/// [`blocks_to_read`](Self::blocks_to_read); then [`tick`](Self::tick); then does what the plan
/// says.
#[derive(Debug)]
pub struct TableMonitor {
    attributes: TableAttributes,
    /// In order of target and address.
    segments: Vec<Segment>,
    fresh: VecDeque<Key>,
    /// Segments that are sampled, by when that is due.
    sampled: BTreeSet<(Nanos, Key)>,
    to_arm: VecDeque<Key>,
    /// Armed, and some of their pages were touched long ago: to be armed anew when there is means.
    stale: VecDeque<Key>,
    in_flight: Vec<Key>,
    purse: Purse,
    aggregation: Nanos,
    snapshot_from: BTreeMap<TargetId, Nanos>,
    /// What the segments were made for.
    layouts: BTreeMap<TargetId, layout::Known>,
    next_reading: Nanos,
    reading_at: Nanos,
    /// Counts readings: quiet blocks take turns in being read.
    turn: u64,
    reading_since: Option<(Nanos, Nanos)>,
    read_this_tick: bool,
}

impl TableMonitor {
    /// A monitor without targets.
    pub fn new(attributes: TableAttributes, now: Nanos) -> Self {
        Self {
            attributes,
            segments: Vec::new(),
            fresh: VecDeque::new(),
            sampled: BTreeSet::new(),
            to_arm: VecDeque::new(),
            stale: VecDeque::new(),
            in_flight: Vec::new(),
            purse: Purse::new(attributes.cpu_share, now),
            aggregation: attributes.aggregation_min,
            snapshot_from: BTreeMap::new(),
            layouts: BTreeMap::new(),
            next_reading: now,
            reading_at: now,
            turn: 0,
            reading_since: None,
            read_this_tick: false,
        }
    }

    /// Time between snapshots at present.
    pub fn aggregation_interval(&self) -> Nanos {
        self.aggregation
    }

    /// How many segments are kept.
    pub fn nr_segments(&self) -> usize {
        self.segments.len()
    }

    /// Whether all tables are to be read before the next tick. `cost` is the total so far, from
    /// which the reading's own cost is found.
    pub fn reading_due(&mut self, now: Nanos, cost: &Cost) -> bool {
        let due = now >= self.next_reading;
        if due {
            self.purse.note_other_work();
            self.reading_at = now;
            self.reading_since = Some((now, cost.monitor_cpu));
            self.read_this_tick = true;
        }
        due
    }

    /// Says which blocks of `target` have page tables and which mappings there are. Segments that
    /// lie in them are kept, others forgotten, new ones made. Both lists in address order.
    pub fn set_layout(
        &mut self,
        target: TargetId,
        mappings: &[MappedRange],
        blocks: &[u64],
        now: Nanos,
    ) {
        self.purse.note_other_work();
        let layout = self.layouts.entry(target).or_default();
        let is_same = layout.is(mappings, blocks);
        layout.nr_same = if is_same { layout.nr_same + 1 } else { 0 };
        if is_same && !layout.nr_same.is_multiple_of(JOIN_EVERY) {
            self.fresh = order::halving_gaps(&self.segments, now);
            return;
        }
        layout.keep(mappings, blocks);
        let first = self.segments.partition_point(|s| s.target < target);
        let end = self.segments.partition_point(|s| s.target <= target);
        let old: Vec<Segment> = self.segments.splice(first..end, []).collect();
        let new = layout::rebuild(target, old, mappings, blocks, now);
        self.segments.splice(first..first, new);
        self.snapshot_from.entry(target).or_insert(now);
        self.fresh = order::halving_gaps(&self.segments, now);
    }

    /// Lets memory in `range` count its age anew from `now`, as an action does in DAMON.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        let first = self
            .segments
            .partition_point(|s| (s.target, s.range.end) <= (target, range.start));
        for segment in self.segments[first..]
            .iter_mut()
            .take_while(|s| s.target == target && s.range.start < range.end)
        {
            segment.age_from = now;
        }
    }

    /// Forgets `target`.
    pub fn remove(&mut self, target: TargetId) {
        self.segments.retain(|s| s.target != target);
        self.snapshot_from.remove(&target);
        self.layouts.remove(&target);
    }

    /// The blocks of `target` whose tables are worth reading now, in address order. Of those that
    /// have long been idle only every [`TURNS`]th: what is touched in one piece is noticed all the
    /// same, and then its neighbours are to be read, too: ask again after looking at what was given,
    /// until there is nothing more.
    pub fn blocks_to_read(&self, target: TargetId) -> Vec<u64> {
        let first = self.segments.partition_point(|s| s.target < target);
        let segments = self.segments[first..]
            .iter()
            .take_while(|s| s.target == target);
        let mut blocks: Vec<u64> = segments
            .filter(|s| s.is_worth_a_look() && s.looked_at < self.reading_at)
            .filter(|s| {
                let its_turn = (s.block() / BLOCK_SIZE + self.turn).is_multiple_of(TURNS);
                its_turn || !s.is_quiet(self.reading_at)
            })
            .map(Segment::block)
            .collect();
        blocks.dedup();
        blocks
    }

    /// Takes in what a block's tables say.
    pub fn look(&mut self, target: TargetId, facts: &BlockFacts, now: Nanos) {
        let mut i = self.first_in_block(target, facts.address);
        while i < self.segments.len() && self.is_in_block(i, target, facts.address) {
            let was = self.segments[i].watch;
            let was_quiet = self.segments[i].is_quiet(now);
            let verdict = self.segments[i].look(facts, now, self.attributes.window);
            if was_quiet && self.segments[i].rate > 0.0 {
                self.alarm(i, now);
            }
            if was == Watch::Armed && verdict == Verdict::Stale {
                self.refresh(i);
            }
            if was == Watch::Armed && verdict == Verdict::Spent {
                i += self.spent(i, now);
            } else {
                i += 1;
            }
        }
    }

    /// Says what the tables of a block look like right after an [`ArmOrder`] for it was carried out.
    pub fn armed(&mut self, target: TargetId, facts: &BlockFacts, now: Nanos) {
        let mut i = self.first_in_block(target, facts.address);
        while i < self.segments.len() && self.is_in_block(i, target, facts.address) {
            let segment = &mut self.segments[i];
            if segment.arm_queued && !segment.arm(facts, now) {
                segment.arm_not_before = now + Nanos(30 * 1_000_000_000);
                let due = segment.sample_not_before;
                enqueue(&mut self.sampled, segment, due);
            }
            i += 1;
        }
    }

    /// Takes in the answers to the last plan's samples, and decides what comes next.
    pub fn tick(&mut self, now: Nanos, touches: &[Touch], cost: &Cost) -> TablePlan {
        self.take_touches(touches, now);
        let mut plan = TablePlan::default();
        if std::mem::take(&mut self.read_this_tick) {
            self.turn += 1;
            self.schedule_reading(now, cost);
            plan.snapshots = self.report(now);
        }
        let mut units = self.purse.allow(now, cost);
        self.plan_arms(&mut plan, &mut units, now);
        self.plan_samples(&mut plan, units, now);
        self.purse
            .spend(plan.samples.len() as f64 + purse::UNITS_PER_ARM * plan.arms.len() as f64);
        plan.wake_at = self.next_wake(&plan, now);
        plan
    }

    /// One window from now while samples are out or due; else when the next is, or the next reading.
    fn next_wake(&self, plan: &TablePlan, now: Nanos) -> Nanos {
        let next_window = now + self.attributes.window;
        if !plan.samples.is_empty() {
            return next_window;
        }
        let is_waiting =
            !self.fresh.is_empty() || !self.to_arm.is_empty() || !self.stale.is_empty();
        let due = match self.sampled.first() {
            _ if is_waiting => now,
            Some((due, _)) => *due,
            None => self.next_reading,
        };
        let affordable = now + self.purse.wait_for_batch();
        due.max(affordable).min(self.next_reading).max(next_window)
    }

    fn take_touches(&mut self, touches: &[Touch], now: Nanos) {
        let in_flight = std::mem::take(&mut self.in_flight);
        for (key, touch) in in_flight.into_iter().zip(touches) {
            let Some(i) = self.find(key) else { continue };
            let was_fresh = self.segments[i].watch == Watch::Fresh;
            self.segments[i].sampled(*touch, now, self.aggregation);
            if self.segments[i].is_surprise() {
                self.suspect_neighbours(i);
            }
            if matches!(touch, Touch::Seen { accessed: 1.., .. }) && was_fresh {
                self.prefer_neighbours(i);
            }
            self.queue(i, now);
        }
    }

    /// Puts segment `i`, just sampled, where it belongs next.
    fn queue(&mut self, i: usize, now: Nanos) {
        let segment = &mut self.segments[i];
        let key = (segment.target, segment.range.start);
        if segment.watch == Watch::Fresh {
            // Still unknown: it comes back with the fresh ones.
            return;
        }
        let wants_arming = (segment.nr_idle > 0 || segment.mixed) && !segment.is_surprise();
        if wants_arming && !segment.arm_queued && now >= segment.arm_not_before {
            segment.arm_queued = true;
            segment.mixed = false;
            self.to_arm.push_back(key);
        } else {
            let due = segment.sample_not_before;
            enqueue(&mut self.sampled, segment, due);
        }
    }

    /// Busy memory was found idle: what was just as busy around it probably is idle, too.
    fn suspect_neighbours(&mut self, i: usize) {
        let rate = self.segments[i].rate_before_idle;
        for j in self.neighbours(i, SUSPECT_REACH) {
            let segment = &mut self.segments[j];
            let alike = segment.watch == Watch::Sampled
                && !segment.arm_queued
                && segment.nr_idle == 0
                && (segment.rate - rate).abs() <= 0.3;
            if alike && segment.nr_steady > 0 {
                segment.nr_steady = 0;
                // Before all that is only due.
                enqueue(&mut self.sampled, segment, Nanos(0));
            }
        }
    }

    /// Quiet memory was touched: what lies around it is to be looked at now.
    fn alarm(&mut self, i: usize, now: Nanos) {
        let until = now + ALERT;
        for j in self.neighbours(i, ALARM_REACH) {
            self.segments[j].alert_until = until;
        }
    }

    /// Segments around `i` of the same target and without a gap, up to `reach` each way.
    fn neighbours(&self, i: usize, reach: usize) -> std::ops::RangeInclusive<usize> {
        let joined =
            |a: &Segment, b: &Segment| a.target == b.target && a.range.end == b.range.start;
        let (mut first, mut last) = (i, i);
        while first > 0
            && i - first < reach
            && joined(&self.segments[first - 1], &self.segments[first])
        {
            first -= 1;
        }
        while last + 1 < self.segments.len()
            && last - i < reach
            && joined(&self.segments[last], &self.segments[last + 1])
        {
            last += 1;
        }
        first..=last
    }

    /// Some pages of armed segment `i` were touched: they are to be watched again.
    fn refresh(&mut self, i: usize) {
        let segment = &mut self.segments[i];
        if !segment.arm_queued {
            segment.arm_queued = true;
            self.stale.push_back((segment.target, segment.range.start));
        }
    }

    /// Fresh neighbours of a busy segment are probably busy too: sample them next.
    fn prefer_neighbours(&mut self, i: usize) {
        for j in [i.wrapping_sub(1), i + 1] {
            if let Some(segment) = self.segments.get(j)
                && segment.watch == Watch::Fresh
            {
                self.fresh.push_front((segment.target, segment.range.start));
            }
        }
    }

    /// Segment `i` was armed, and many of its pages were touched: cut it, or sample it, or arm it
    /// anew. Returns how many segments stand in its place.
    fn spent(&mut self, i: usize, now: Nanos) -> usize {
        let segment = &mut self.segments[i];
        let target = segment.target;
        if !segment.whole {
            // Too few pages kept watch to say which parts are in use: sample, then arm them all.
            restart_sampling(segment);
            segment.mixed = true;
            enqueue(&mut self.sampled, segment, now);
            return 1;
        }
        if let Some(parts) = segment.parts() {
            let whole = segment.clone();
            let parts: Vec<Segment> = parts
                .into_iter()
                .map(|(range, busy)| {
                    let mut part = whole.part(range);
                    if busy {
                        restart_sampling(&mut part);
                        enqueue(&mut self.sampled, &mut part, now);
                    } else {
                        part.rate = 0.0;
                        part.age_rate = 0.0;
                    }
                    part
                })
                .collect();
            let nr = parts.len();
            self.segments.splice(i..=i, parts);
            return nr;
        }
        let lasted = now.since(segment.armed_at);
        if lasted > Nanos(2 * 1_000_000_000) && segment.rate < 0.1 {
            // Scattered, slow touches: arm it again when there is means for that.
            if !segment.arm_queued {
                segment.arm_queued = true;
                self.to_arm.push_back((target, segment.range.start));
            }
        } else {
            restart_sampling(segment);
            // It was told apart just now that it has no parts: do not try again at once.
            segment.arm_not_before = now + Nanos(5 * 1_000_000_000);
            let due = segment.sample_not_before;
            enqueue(&mut self.sampled, segment, due);
        }
        1
    }

    fn plan_arms(&mut self, plan: &mut TablePlan, units: &mut f64, now: Nanos) {
        // While memory is still unknown, knowing it comes first: arming a block whose bits were never
        // cleared costs several samples. What is alike for certain can wait to be watched.
        let share = if self.fresh.is_empty() { 0.6 } else { 0.05 };
        let mut units_for_arms = *units * share;
        while units_for_arms >= purse::UNITS_PER_ARM {
            let Some(key) = self.to_arm.pop_front().or_else(|| self.stale.pop_front()) else {
                break;
            };
            let Some(i) = self.find(key) else { continue };
            let segment = &mut self.segments[i];
            if !segment.arm_queued {
                continue;
            }
            // No bit set: arming needs no clear, but the look that follows it all the same.
            let range = segment.range_to_clear().unwrap_or(segment.range);
            plan.arms.push(ArmOrder {
                target: key.0,
                range,
            });
            segment.looked_at = now;
            units_for_arms -= purse::UNITS_PER_ARM;
            *units -= purse::UNITS_PER_ARM;
        }
    }

    fn plan_samples(&mut self, plan: &mut TablePlan, mut units: f64, now: Nanos) {
        let for_fresh = if self.sampled.is_empty() {
            units
        } else {
            units * 0.7
        };
        let mut picked: Vec<(Key, Sample)> = Vec::new();
        while units >= 1.0 {
            let prefer_fresh = (picked.len() as f64) < for_fresh;
            let Some(key) = self.next_to_sample(prefer_fresh, now) else {
                break;
            };
            let Some(i) = self.find(key) else { continue };
            let segment = &mut self.segments[i];
            let is_out = picked.iter().any(|(out, _)| *out == key);
            if segment.watch == Watch::Armed || segment.arm_queued || is_out {
                continue;
            }
            units -= 1.0;
            picked.push((key, order::cluster_in(segment, CLUSTER_PAGES)));
        }
        // The probe works target by target.
        picked.sort_by_key(|(_, sample)| (sample.target, sample.address));
        (self.in_flight, plan.samples) = picked.into_iter().unzip();
    }

    /// A fresh segment, or the one whose last sample is the oldest, if it is due.
    fn next_to_sample(&mut self, prefer_fresh: bool, now: Nanos) -> Option<Key> {
        if prefer_fresh && let Some(key) = self.fresh.pop_front() {
            return Some(key);
        }
        while self.sampled.first().is_some_and(|(due, _)| *due <= now) {
            let (due, key) = self.sampled.pop_first()?;
            let current = |i: usize| self.segments[i].queued_for == due;
            if self.find(key).is_some_and(current) {
                return Some(key);
            }
        }
        self.fresh.pop_front()
    }

    /// When the tables are read next: often enough for the shortest aggregation interval, but
    /// reading shall take at most four tenths of what may be spent.
    fn schedule_reading(&mut self, now: Nanos, cost: &Cost) {
        if let Some((_, cpu_before)) = self.reading_since.take() {
            let reading = cost.monitor_cpu.since(cpu_before).as_secs_f64();
            let needed = Nanos((reading / (self.attributes.cpu_share * 0.4) * 1e9) as u64);
            let longest = Nanos(60 * 1_000_000_000);
            // A single reading's cost is noisy: go half of the way.
            let middle = Nanos(u64::midpoint(self.aggregation.0, needed.0));
            self.aggregation = middle.clamp(self.attributes.aggregation_min, longest);
        }
        self.next_reading = now + self.aggregation;
    }

    fn find(&self, (target, start): Key) -> Option<usize> {
        self.segments
            .binary_search_by_key(&(target, start), |s| (s.target, s.range.start))
            .ok()
    }

    fn first_in_block(&self, target: TargetId, block: u64) -> usize {
        self.segments
            .partition_point(|s| (s.target, s.range.start) < (target, block))
    }

    fn is_in_block(&self, i: usize, target: TargetId, block: u64) -> bool {
        let segment = &self.segments[i];
        segment.target == target && block_of(segment.range.start) == block
    }
}

/// Puts a segment into the queue of those to sample, in place of where it stood before.
fn enqueue(sampled: &mut BTreeSet<(Nanos, Key)>, segment: &mut Segment, due: Nanos) {
    segment.queued_for = due;
    sampled.insert((due, (segment.target, segment.range.start)));
}

fn restart_sampling(segment: &mut Segment) {
    segment.watch = Watch::Sampled;
    // Its rate is known, roughly: the next samples refine it.
    segment.nr_samples = 1;
    segment.nr_idle = 0;
    segment.mixed = false;
    segment.arm_queued = false;
}
