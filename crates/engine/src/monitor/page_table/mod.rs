//! The page-table monitor: reads every page table, clears few bits. The default for processes.
//!
//! The problem: DAMON samples one random page of each region, and the regions must find the hot
//! areas by splitting at random; small or scattered hot areas in large memory are found late or
//! never, and every sample costs a TLB flush of the running target. Measured on real kernels
//! (docs/benchmarks.md), *reading* all accessed bits of a gigabyte costs 0.2 ms, less than *clearing* forty
//! of them. So reading everything is cheap, and what needs economy is clearing.
//!
//! The approach: time is cut into intervals, each of which ends in a snapshot about *itself*. At its
//! start some accessed bits are cleared; at its end all tables are read. A page whose bit was clear
//! at the start is known exactly: touched in the interval, or not. Pages whose bit was set at the
//! start are blind, and told by an estimate: from those of their block that were cleared (16
//! neighbours or all), else from what is believed of them since earlier intervals or of their
//! neighbours. Idle memory, most of memory, stays clear and so exact without any further clear. Which
//! bits are cleared follows from one rule, what a clear is worth for what it costs
//! ([`belief`](self::belief)), within a token bucket that fills with the user's CPU budget and pays
//! what was measured: the monitor's own CPU time, and the estimated flush time in the target. Where
//! ranges are too many, or others map the memory as well, a whole address space is cleared
//! ([`space`](self::space)).
//!
//! What an interval costs in any case (reading, telling) decides how long it is: half of the budget
//! at most goes there ([`BudgetShares`]), so that with more memory intervals get longer, and the budget holds. They get
//! longer as well while much is told by estimates that could be watched with more time.
//!
//! Rates are comparable with DAMON's: the share of 20 ms windows in which a page is touched, from
//! reading what was cleared once more after the first window. Whether a page was touched at all in
//! the interval is another thing, and told beside it ([`crate::RegionMemory::touched`]).
//!
//! Where touched pages lie so scattered that they would make too many regions, bitmaps of their blocks
//! stand beside the regions ([`crate::BlockPages`]).
//!
//! Limits: ages are of 64 KiB, but for blocks of which some pages are in use, touched pages to the page. Which of a block's blind pages were touched
//! is not known where only some were watched: their number is. A page that cannot be cleared, and
//! untouched memory of a process whose page tables do not show all accesses (a KVM guest's), is
//! unknown.

mod belief;
mod block;
mod by_page;
mod idle;
mod infer;
mod page_ages;
mod pages;
mod plan;
mod report;
mod returns;
mod since;
mod space;
mod target;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, Nanos};
use crate::attributes::CPU_BUDGET;
use crate::port::Cost;
use crate::snapshot::{RegionSnapshot, Snapshot, TargetId};

pub use block::BlockFacts;

use super::bits::{self, and, count, is_empty};
use super::budget::{BudgetShares, FixedCost, TokenBucket, total_ns};
use super::idle_pages::PageAges;
pub use super::layout::MappedRange;
use super::ticks::ticks;
use infer::{AGREEMENT, infer, infer_from_around, observe};
use plan::Prices;
use target::Target;
use watch::Watch;
pub use watch::{ClearedBy, HOLD_MAX};

/// What the table monitor may spend, and how finely it looks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TableAttributes {
    /// Share of one CPU for monitoring and what it induces, 0 to 1.
    pub cpu_budget: f64,
    /// Sampling window: how long after clearing it is looked at how much was touched already.
    pub window: Nanos,
    /// Shortest time between two snapshots; longer where reading the tables costs too much.
    pub aggregation_min: Nanos,
    /// Most regions in a snapshot of all targets together, where they are needed to tell scattered
    /// pages apart and the budget pays for them.
    pub max_nr_regions: u32,
}

impl Default for TableAttributes {
    fn default() -> Self {
        Self {
            cpu_budget: CPU_BUDGET,
            window: Nanos::from_millis(20),
            aggregation_min: Nanos::from_millis(400),
            max_nr_regions: 40_000,
        }
    }
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Nothing,
    /// A window after the clears has passed: read the blocks of [`TableMonitor::watched_blocks`].
    Window,
    /// The interval ends: read all blocks.
    End,
}

/// A page whose accessed bit is set right after it was to be cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncleared {
    pub target: TargetId,
    pub address: u64,
    /// How it was to be cleared.
    pub by: ClearedBy,
}

/// More doubtful pages than this share of the touched ones, and these besides, make the interval longer:
/// what is told of a longer interval that was watched is true, and a guess about a shorter one is not.
const DOUBT_SHARE: f64 = 0.05;
const DOUBT_PAGES: f64 = 16.0;
const STRETCH_MAX: f64 = 5.0;
/// So many regions are told in any case: each 400 ms they are as many rows a second as DAMON's 1,000
/// each 100 ms. More are told where the interval stays shorter than this for it, and fewer again where
/// it got longer.
const REGIONS_AT_LEAST: usize = 4000;
/// For so many regions that may be told, one block may be told by page.
const REGIONS_PER_BLOCK: usize = 4;
const INTERVAL_FOR_MORE: Nanos = Nanos(1_600_000_000);
const INTERVAL_FOR_FEWER: Nanos = Nanos(6_000_000_000);
const INTERVAL_MAX: Nanos = Nanos(60 * 1_000_000_000);
/// How far around a block that changed, in blocks, others of the same behaviour become less sure.
const DOUBT_REACH: usize = 64;

/// The monitor. A driver (`drive::TableLoop`) asks [`due`](Self::due); at the end of an interval it
/// hands in what all tables say by [`take_answers`](Self::take_answers), takes the snapshots by
/// [`end_interval`](Self::end_interval), calls [`begin_interval`](Self::begin_interval), clears what [`plan_samples`](Self::plan_samples) says, and
/// hands in what came of it by [`cleared`](Self::cleared); a window later what was touched by then,
/// by [`look_after_window`](Self::look_after_window).
#[derive(Debug)]
pub struct TableMonitor {
    attributes: TableAttributes,
    shares: BudgetShares,
    targets: BTreeMap<TargetId, Target>,
    bucket: TokenBucket,
    prices: Prices,
    started: Nanos,
    interval: Nanos,
    interval_end: Nanos,
    window_end: Option<Nanos>,
    watches: Vec<Watch>,
    /// CPU time of the interval that is not for what every interval costs: clears and updates.
    other_ns: f64,
    /// The total cost when the last interval ended.
    cost_at_end: Option<f64>,
    fixed_cost: FixedCost,
    /// What the clears in progress were foretold to cost, in microseconds.
    planned_us: f32,
    nr_unclearable: u64,
    /// Cleared bits that were found set, since this was last asked.
    nr_set_again: u64,
    /// Targets whose address space is cleared as a whole.
    spaces: Vec<TargetId>,
    /// How many times longer than the shortest the interval is, so that more is watched in each.
    stretch: f64,
    /// Pages that the last snapshots tell as touched.
    nr_touched: f64,
    /// Regions of the last snapshots.
    nr_regions: usize,
    /// Most regions in a snapshot at present.
    nr_regions_max: usize,
    /// Which ages of single pages snapshots tell, if any.
    tells_idle_pages: Option<PageAges>,
}

impl TableMonitor {
    /// A monitor without targets.
    pub fn new(attributes: TableAttributes, now: Nanos) -> Self {
        Self {
            attributes,
            shares: BudgetShares::PROCESSES,
            targets: BTreeMap::new(),
            bucket: TokenBucket::new(attributes.cpu_budget, now),
            prices: Prices::default(),
            started: now,
            interval: attributes.aggregation_min,
            interval_end: now,
            window_end: None,
            watches: Vec::new(),
            other_ns: 0.0,
            cost_at_end: None,
            fixed_cost: FixedCost::default(),
            planned_us: 0.0,
            nr_unclearable: 0,
            nr_set_again: 0,
            spaces: Vec::new(),
            stretch: 1.0,
            nr_touched: 0.0,
            nr_regions: 0,
            nr_regions_max: attributes.max_nr_regions as usize,
            tells_idle_pages: None,
        }
    }

    /// Divides the budget otherwise than for watching processes.
    pub(crate) fn divide_budget(&mut self, shares: BudgetShares) {
        self.shares = shares;
    }

    /// Time between snapshots at present.
    pub fn aggregation_interval(&self) -> Nanos {
        self.interval
    }

    /// How often pages were found that cannot be cleared.
    pub fn nr_unclearable(&self) -> u64 {
        self.nr_unclearable
    }

    /// What is due at `now`.
    pub fn due(&self, now: Nanos) -> Due {
        if now >= self.interval_end {
            Due::End
        } else if self.window_end.is_some_and(|end| now >= end) {
            Due::Window
        } else {
            Due::Nothing
        }
    }

    /// When something is due next.
    pub fn next_due(&self) -> Nanos {
        let window = self.window_end.unwrap_or(self.interval_end);
        window.min(self.interval_end)
    }

    /// Whether `target` is watched.
    pub fn is_watched(&self, target: TargetId) -> bool {
        self.targets.contains_key(&target)
    }

    /// Says what `target` maps, in address order, as far as it is to be watched.
    pub fn update_layout(&mut self, target: TargetId, mappings: &[MappedRange], now: Nanos) {
        let target = self.targets.entry(target);
        target
            .or_insert_with(|| Target::new(now))
            .set_mappings(mappings);
    }

    /// Says which blocks of `target` have page tables, in address order. Blocks that lie in them are
    /// kept, others forgotten, new ones made.
    pub fn set_blocks(&mut self, target: TargetId, blocks: &[u64], now: Nanos) {
        let now = self.ticks(now);
        if let Some(target) = self.targets.get_mut(&target) {
            target.set_blocks(blocks, now);
        }
    }

    /// Says whether the page tables of `target` do not show all accesses to its memory: then what is
    /// not seen to be touched is unknown.
    pub fn set_hides_accesses(&mut self, target: TargetId, hides: bool) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.hides_accesses = hides;
        }
    }

    /// Lets memory in `range` count its age anew from `now`, as an action does in DAMON.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        let now = self.ticks(now);
        let Some(target) = self.targets.get_mut(&target) else {
            return;
        };
        let first = target
            .blocks
            .partition_point(|block| block.range().end <= range.start);
        for block in target.blocks[first..]
            .iter_mut()
            .take_while(|block| block.address < range.end)
        {
            block.reset_age(range, now);
        }
    }

    /// Forgets `target`.
    pub fn remove(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// The ranges that `target` maps.
    pub fn ranges(&self, target: TargetId) -> Vec<AddressRange> {
        let target = self.targets.get(&target);
        target.map_or_else(Vec::new, |t| t.mappings.iter().map(|m| m.range).collect())
    }

    /// All blocks of `target`, in address order.
    pub fn blocks(&self, target: TargetId) -> Vec<u64> {
        let target = self.targets.get(&target);
        target.map_or_else(Vec::new, |t| t.blocks.iter().map(|b| b.address).collect())
    }

    /// Takes in what a block's tables say at the end of the interval.
    pub fn take_answers(&mut self, target: TargetId, facts: &BlockFacts) {
        let interval_start = self.interval_start();
        let Some(target) = self.targets.get_mut(&target) else {
            return;
        };
        let Some(at) = target.find(facts.address) else {
            return;
        };
        let watched = target.watched(facts.address);
        let was_watched = target.from <= interval_start;
        let block = &mut target.blocks[at];
        let is_new = was_watched && block.made_at > ticks(target.from.since(self.started));
        self.nr_set_again += u64::from(block.look(facts, &watched, is_new));
    }

    /// Accessed bits that targets have set again since this was last asked, each in a page table entry that was cleared.
    pub fn take_set_again(&mut self) -> u64 {
        std::mem::take(&mut self.nr_set_again)
    }

    /// Ends the interval: yields a snapshot of each target over it. What is known of it can be asked for until
    /// the next one begins.
    pub fn end_interval(&mut self, now: Nanos) -> Vec<Snapshot> {
        self.observe_watches();
        self.estimate_the_rest();
        let ticks = self.ticks(now);
        for target in self.targets.values_mut() {
            for block in &mut target.blocks {
                block.update_states(ticks, target.hides_accesses);
            }
        }
        let snapshots = self.take_snapshots(now, ticks);
        let touched: u64 = snapshots.iter().map(|s| s.totals().touched).sum();
        self.nr_touched = touched as f64 / crate::address::PAGE_SIZE as f64;
        self.nr_regions = snapshots.iter().map(|s| s.regions.len()).sum();
        snapshots
    }

    /// Begins the next interval, after one has ended. `cost` is the total so far.
    pub fn begin_interval(&mut self, now: Nanos, cost: &Cost) {
        for target in self.targets.values_mut() {
            target.begin_interval(now);
        }
        self.adapt_to_cost(now, cost);
        self.choose_detail(self.nr_regions);
    }

    /// What is to be cleared now, in order of target and address. What came of it is to be said by
    /// [`TableMonitor::cleared`] for all [`TableMonitor::watched_blocks`] that were cleared by range.
    pub fn plan_samples(&mut self, now: Nanos, cost: &Cost) -> Vec<(TargetId, AddressRange)> {
        self.bucket.charge(now, cost);
        let allowance_us = self.bucket.allowance_ns(self.interval) / 1000.0;
        let targets = self.targets.iter_mut().map(|(id, target)| (*id, target));
        let plan = plan::plan(targets, now, allowance_us as f32, self.prices);
        self.watches = plan.watches;
        self.spaces = plan.spaces;
        let is_in_doubt = f64::from(plan.doubt) > DOUBT_SHARE * self.nr_touched + DOUBT_PAGES;
        let factor = if is_in_doubt { 1.25 } else { 0.9 };
        self.stretch = (self.stretch * factor).clamp(1.0, STRETCH_MAX);
        self.planned_us = plan.cost_us;
        let mut ranges = plan.ranges;
        ranges.sort_unstable();
        let window_end = now + self.attributes.window;
        let is_watching = !self.watches.is_empty() || !self.spaces.is_empty();
        self.window_end = is_watching.then_some(window_end);
        ranges
    }

    /// The blocks of which pages are watched, by target and in address order, and how they were cleared.
    pub fn watched_blocks(&self) -> Vec<(TargetId, ClearedBy, Vec<u64>)> {
        let groups = self.watches.chunk_by(|a, b| a.target == b.target);
        groups
            .map(|group| {
                let blocks = group.iter().map(|w| w.address).collect();
                (group[0].target, group[0].by, blocks)
            })
            .collect()
    }

    /// Takes in what the tables of a watched block say right after it was cleared.
    pub fn cleared(&mut self, target: TargetId, facts: &BlockFacts) {
        let Some((watch, block)) = self.watch_of(target, facts.address) else {
            return;
        };
        (watch.watched, watch.uncleared) = block.cleared(facts, &watch.pages);
    }

    /// One page of each watched block of which some bits are set in spite of clearing: were they
    /// touched at once, or can they not be cleared? To be answered by [`TableMonitor::answer_uncleared`].
    pub fn uncleared(&self) -> Vec<Uncleared> {
        let uncleared = self.watches.iter().filter(|w| !is_empty(&w.uncleared));
        uncleared
            .filter(|w| !w.is_uncleared_touched)
            .map(|w| Uncleared {
                target: w.target,
                address: w.address
                    + bits::next(&w.uncleared, 0).unwrap_or(0) as u64 * crate::address::PAGE_SIZE,
                by: w.by,
            })
            .collect()
    }

    /// Says whether the uncleared pages of the block of `address` can be cleared at all.
    pub fn answer_uncleared(
        &mut self,
        target: TargetId,
        address: u64,
        is_clearable: bool,
        now: Nanos,
    ) {
        let Some((watch, block)) = self.watch_of(target, target::block_of(address)) else {
            return;
        };
        watch.is_uncleared_touched = is_clearable;
        if !is_clearable {
            block.give_up(&watch.uncleared, now);
            self.nr_unclearable += 1;
        }
    }

    /// Says what clearing and looking again cost.
    pub fn clears_done(&mut self, before: &Cost, after: &Cost) {
        let took_ns = total_ns(after) - total_ns(before);
        self.other_ns += took_ns;
        self.prices
            .learn(self.planned_us, (took_ns / 1000.0) as f32);
    }

    /// Says that CPU time was spent on something that not every interval needs.
    pub fn note_other_work(&mut self, before: &Cost, after: &Cost) {
        self.other_ns += total_ns(after) - total_ns(before);
    }

    /// CPU seconds that the work of one share may take in a second. Each keeps to its own, but what comes besides may
    /// leave nothing for clears: then all have less.
    pub fn rate(&self, share: impl Fn(&BudgetShares) -> f64) -> f64 {
        self.attributes.cpu_budget * share(&self.shares) / self.bucket.slowness()
    }

    /// CPU time that has been saved up and that clears have no use for.
    pub fn spare(&self) -> Nanos {
        self.bucket.spare()
    }

    /// Says that so much CPU time was spent on something that has a rhythm of its own.
    pub(crate) fn note_other_cpu(&mut self, cpu: Nanos) {
        self.other_ns += cpu.0 as f64;
    }

    /// Takes in what the tables of a watched block say after a window.
    pub fn look_after_window(&mut self, target: TargetId, facts: &BlockFacts) {
        if let Some((watch, _)) = self.watch_of(target, facts.address) {
            let mut touched = count(&and(&watch.watched, &facts.accessed));
            if watch.is_uncleared_touched {
                touched += count(&watch.uncleared);
            }
            watch.touched_in_window = Some(touched);
        }
    }

    /// The window is over.
    pub fn end_window(&mut self) {
        self.window_end = None;
    }

    fn watch_of(
        &mut self,
        target: TargetId,
        address: u64,
    ) -> Option<(&mut Watch, &mut block::Block)> {
        let at = self
            .watches
            .binary_search_by_key(&(target, address), |w| (w.target, w.address))
            .ok()?;
        let target = self.targets.get_mut(&target)?;
        let block = target.find(address)?;
        Some((&mut self.watches[at], &mut target.blocks[block]))
    }

    fn ticks(&self, now: Nanos) -> u32 {
        ticks(now.since(self.started))
    }

    fn interval_start(&self) -> Nanos {
        Nanos(self.interval_end.0.saturating_sub(self.interval.0))
    }

    /// What the watched pages say of their blocks.
    fn observe_watches(&mut self) {
        let mut changed: Vec<(TargetId, usize, f32)> = Vec::new();
        for watch in std::mem::take(&mut self.watches) {
            let Some(target) = self.targets.get_mut(&watch.target) else {
                continue;
            };
            let Some(at) = target.find(watch.address) else {
                continue;
            };
            let block = &mut target.blocks[at];
            if let Some(before) = observe(&watch, block) {
                changed.push((watch.target, at, before));
            }
        }
        for (target, at, before) in changed {
            let Some(target) = self.targets.get_mut(&target) else {
                continue;
            };
            let from = at.saturating_sub(DOUBT_REACH);
            let to = (at + DOUBT_REACH + 1).min(target.blocks.len());
            for block in &mut target.blocks[from..to] {
                if block.estimate.is_none() && (block.belief.touched - before).abs() < AGREEMENT {
                    block.belief.doubt();
                }
            }
        }
    }

    /// Estimates for the blocks that were not watched.
    fn estimate_the_rest(&mut self) {
        for target in self.targets.values_mut() {
            for block in &mut target.blocks {
                if !block.is_fresh() {
                    block.miss();
                } else if block.estimate.is_none() {
                    block.estimate_unwatched();
                }
                block.join_touched();
            }
            infer(target);
            infer_from_around(target);
        }
    }

    fn take_snapshots(&self, now: Nanos, ticks: u32) -> Vec<Snapshot> {
        let regions = report::regions(self.targets.values(), ticks, self.nr_regions_max);
        let mut snapshots = Vec::new();
        let mut blocks_left = self.nr_regions_max / REGIONS_PER_BLOCK;
        let since_start = now.since(self.started);
        for ((id, target), drafts) in self.targets.iter().zip(regions) {
            // Where the target was added just now there was no interval yet.
            let interval = now.since(target.from);
            if interval == Nanos(0) {
                continue;
            }
            let nr_samples = (interval.0 / self.attributes.window.0).max(1) as u32;
            let finish = |draft: &report::Draft| draft.finish(since_start, interval, nr_samples);
            let regions: Vec<RegionSnapshot> = drafts.iter().map(finish).collect();
            let blocks = by_page::blocks(target, &regions, ticks, blocks_left);
            blocks_left -= blocks.len();
            snapshots.push(Snapshot {
                target: *id,
                start: target.from,
                end: now,
                nr_samples,
                regions,
                blocks,
                idle_pages: Arc::new(self.idle_pages(target, ticks)),
            });
        }
        snapshots
    }

    /// Sets how many regions the next snapshots may have; the last had `nr_regions`.
    fn choose_detail(&mut self, nr_regions: usize) {
        let most = self.attributes.max_nr_regions as usize;
        let least = REGIONS_AT_LEAST.min(most);
        if self.interval > INTERVAL_FOR_FEWER {
            let part = INTERVAL_FOR_FEWER.0 as f64 / self.interval.0 as f64;
            let fewer = (self.nr_regions_max as f64 * part.min(0.75)) as usize;
            self.nr_regions_max = fewer.max(least);
        } else if self.interval < INTERVAL_FOR_MORE && nr_regions > self.nr_regions_max / 4 {
            self.nr_regions_max = (self.nr_regions_max * 2).min(most);
        }
    }

    /// Sets the length of the next interval, so that what every interval costs stays within its part
    /// of the budget.
    fn adapt_to_cost(&mut self, now: Nanos, cost: &Cost) {
        let total = total_ns(cost);
        if let Some(before) = self.cost_at_end.replace(total) {
            let fixed_ns = (total - before - self.other_ns).max(0.0);
            self.fixed_cost.add(fixed_ns);
            let rate = self.rate(|shares| shares.interval);
            let next = self.fixed_cost.next_interval(self.interval, rate);
            let least = self.attributes.aggregation_min.0 as f64 * self.stretch;
            self.interval = next.clamp(Nanos(least as u64), INTERVAL_MAX);
        }
        self.other_ns = 0.0;
        self.window_end = None;
        self.interval_end = now + self.interval;
    }
}
