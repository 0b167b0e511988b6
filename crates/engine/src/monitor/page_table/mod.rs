//! The page-table monitor: reads every page table, clears few bits. The default for processes.
//!
//! The problem: DAMON samples one random page of each region, and the regions must find the hot areas by splitting at
//! random. Small or scattered hot areas in large memory are found late or never, and every sample costs a TLB flush of
//! the running target. Measured on real kernels (docs/results/overhead.md), *reading* all accessed bits of a gigabyte
//! costs 0.2 ms, less than *clearing* forty of them. Reading everything is cheap; clears must be few.
//!
//! The approach: time is cut into intervals, and each ends in a snapshot about *itself*. At its start some accessed
//! bits are cleared; at its end all tables are read. For a page whose bit was clear at the start the answer is exact:
//! touched in the interval, or not. A page whose bit was set at the start is unsampled. It is estimated from the
//! cleared pages of its block (16 neighbours or all). Without any, the estimate comes from the results of earlier
//! intervals or from neighbouring blocks. Idle memory, most of memory, stays clear and therefore exact without any
//! further clear. One rule selects the bits to clear: the value of a clear per cost ([`estimate`]). A token
//! bucket limits the clears: it fills with the user's CPU budget and pays the measured cost. That cost is the monitor's
//! own CPU time and the estimated flush time in the target. If there are too many ranges, or other processes map the
//! memory too, a whole address space is cleared ([`clears`](self::clears)).
//!
//! The fixed cost of an interval (reading, reporting) sets its length. At most half of the budget goes there
//! ([`BudgetShares`]): with more memory, intervals get longer and the budget holds. They also get longer while many
//! pages are estimated that could be watched with more time.
//!
//! Rates are comparable with DAMON's: the share of 20 ms windows in which a page is touched. To measure them, the
//! cleared pages are read once more after the first window. Whether a page was touched at all in the interval is a
//! separate value ([`crate::RegionMemory::touched`]).
//!
//! If touched pages are so scattered that they would make too many regions, the snapshot adds bitmaps of their blocks
//! ([`crate::BlockPages`]).
//!
//! Limits: the resolution of ages is 64 KiB, except in blocks with some pages in use; touched pages are exact to the
//! page. If only some pages of a block were watched, the number of touched unsampled pages is known, but not their
//! addresses. A page that cannot be cleared is unknown. Untouched memory is unknown if the page tables of its process
//! do not show all accesses (a KVM guest).

mod block;
mod clears;
mod estimate;
mod infer;
mod pages;
mod plan;
mod report;
mod target;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, Nanos, PAGES_PER_BLOCK};
use crate::attributes::CPU_BUDGET;
use crate::port::Cost;
use crate::snapshot::{RegionSnapshot, Snapshot, TargetId};

pub use block::BlockFacts;

use super::bits::{and, count, or};
use super::budget::{BudgetShares, FixedCost, TokenBucket, total_ns};
use super::frames::PageAge;
use super::idle_pages::{ENDS_HALVE_AFTER, PageAgeRule};
use super::page_since::ticks;
use infer::{AGREEMENT, infer, infer_from_around, observe};
pub use plan::ClearPlan;
use plan::Prices;
use target::Target;
use watch::Watch;
pub use watch::{ClearedBy, HOLD_MAX};

/// The table monitor's budget, intervals and resolution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TableAttributes {
    /// Share of one CPU for monitoring and what it induces, 0 to 1.
    pub cpu_budget: f64,
    /// Sampling window: the time after a clear at which the touched pages are counted.
    pub window: Nanos,
    /// Shortest time between two snapshots; longer if reading the tables costs too much.
    pub aggregation_min: Nanos,
    /// Most regions in one snapshot of all targets together, used only to separate scattered pages and if the budget
    /// pays for them.
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

/// The next step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Nothing,
    /// A window after the clears has passed: read the blocks of [`TableMonitor::watched_blocks`].
    Window,
    /// The interval ends: read all blocks.
    End,
}

/// Pages in doubt beyond this share of the touched ones plus [`DOUBT_PAGES`] make the interval longer. A longer
/// interval that was watched gives true values; a shorter one gives guesses.
const DOUBT_SHARE: f64 = 0.05;
const DOUBT_PAGES: f64 = 16.0;
const STRETCH_MAX: f64 = 5.0;
/// Regions that are always reported. One such snapshot each 400 ms gives the row rate of 1,000 DAMON regions each 100
/// ms. The number rises while the interval stays below [`INTERVAL_FOR_MORE`], and falls above [`INTERVAL_FOR_FEWER`].
const REGIONS_AT_LEAST: usize = 4000;
/// Allowed regions for each block that may be reported page by page.
const REGIONS_PER_BLOCK: usize = 4;
const INTERVAL_FOR_MORE: Nanos = Nanos(1_600_000_000);
const INTERVAL_FOR_FEWER: Nanos = Nanos(6_000_000_000);
/// Some terabytes in huge pages take this long at 1 % of a CPU.
const INTERVAL_MAX: Nanos = Nanos(600 * 1_000_000_000);
/// Distance in blocks from a changed block within which similar blocks lose certainty.
const DOUBT_REACH: usize = 64;

/// The page-table monitor.
///
/// A driver (`drive::TableLoop`) asks [`due`](Self::due). At the end of an interval it passes all tables' bits to
/// [`take_answers`](Self::take_answers). It takes the snapshots from [`end_interval`](Self::end_interval) and calls
/// [`begin_interval`](Self::begin_interval). Then it makes the clears of [`plan_samples`](Self::plan_samples), and
/// passes the results to [`take_cleared`](Self::take_cleared). A window later it passes the touched bits to
/// [`look_after_window`](Self::look_after_window).
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
    /// CPU time of the interval that is not part of its fixed cost: clears and updates.
    other_ns: f64,
    cost_at_end: Option<f64>,
    fixed_cost: FixedCost,
    /// Predicted cost of the clears in progress, in microseconds.
    planned_us: f32,
    nr_unclearable: u64,
    /// Cleared bits that were found set since the last call of [`take_set_again`](Self::take_set_again).
    nr_set_again: u64,
    /// Factor of the interval over the shortest one; more is watched in a longer interval.
    stretch: f64,
    nr_touched: f64,
    nr_regions: usize,
    /// Most regions in a snapshot at present.
    nr_regions_max: usize,
    /// Kind of page ages that snapshots report, if any.
    tells_idle_pages: Option<PageAgeRule>,
    /// Number of times that the numbers of ended idle times have been halved.
    nr_halvings: u64,
}

impl TableMonitor {
    /// A monitor without targets, whose budget is divided by `shares`.
    pub fn new(attributes: TableAttributes, shares: BudgetShares, now: Nanos) -> Self {
        Self {
            attributes,
            shares,
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
            stretch: 1.0,
            nr_touched: 0.0,
            nr_regions: 0,
            nr_regions_max: attributes.max_nr_regions as usize,
            tells_idle_pages: None,
            nr_halvings: 0,
        }
    }

    /// Time between snapshots at present.
    pub fn aggregation_interval(&self) -> Nanos {
        self.interval
    }

    /// Number of times that an unclearable page was found.
    pub fn nr_unclearable(&self) -> u64 {
        self.nr_unclearable
    }

    /// Returns the step that is due at `now`.
    pub fn due(&self, now: Nanos) -> Due {
        if now >= self.interval_end {
            Due::End
        } else if self.window_end.is_some_and(|end| now >= end) {
            Due::Window
        } else {
            Due::Nothing
        }
    }

    /// Time of the next step.
    pub fn next_due(&self) -> Nanos {
        let window = self.window_end.unwrap_or(self.interval_end);
        window.min(self.interval_end)
    }

    /// Whether `target` is watched.
    pub fn is_watched(&self, target: TargetId) -> bool {
        self.targets.contains_key(&target)
    }

    /// Sets the watched mappings of `target`, in address order.
    pub fn update_layout(&mut self, target: TargetId, mappings: &[AddressRange], now: Nanos) {
        let target = self.targets.entry(target);
        let target = target.or_insert_with(|| Target::new(now));
        target.set_mappings(mappings);
    }

    /// Sets the blocks of `target` that have page tables, in address order. Known blocks are kept, others are dropped,
    /// and new ones are made.
    pub fn set_blocks(&mut self, target: TargetId, blocks: &[u64], now: Nanos) {
        let now = self.ticks(now);
        if let Some(target) = self.targets.get_mut(&target) {
            target.set_blocks(blocks, now);
        }
    }

    /// Sets whether the page tables of `target` do not show all accesses to its memory. If so, memory that was not seen
    /// touched is unknown.
    pub fn set_hides_accesses(&mut self, target: TargetId, hides: bool) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.hides_accesses = hides;
        }
    }

    /// Restarts the age of memory in `range` at `now`, as an action does in DAMON.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange, now: Nanos) {
        let now = self.ticks(now);
        let Some(target) = self.targets.get_mut(&target) else {
            return;
        };
        let blocks = &mut target.blocks;
        let first = blocks.partition_point(|block| block.range().end <= range.start);
        let blocks = blocks[first..].iter_mut();
        for block in blocks.take_while(|block| block.address < range.end) {
            block.reset_age(range, now);
        }
    }

    /// Removes `target`.
    pub fn remove(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// The ranges that `target` maps.
    pub fn ranges(&self, target: TargetId) -> Vec<AddressRange> {
        let target = self.targets.get(&target);
        target.map_or_else(Vec::new, |t| t.mappings.clone())
    }

    /// All blocks of `target`, in address order.
    pub fn blocks(&self, target: TargetId) -> Vec<u64> {
        let target = self.targets.get(&target);
        target.map_or_else(Vec::new, |t| t.blocks.iter().map(|b| b.address).collect())
    }

    /// Takes in a block's accessed bits at the end of the interval.
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
        let ages = self.tells_idle_pages.unwrap_or(PageAgeRule::Idle);
        let now = ticks(interval_start.since(self.started));
        let counts = [&mut target.idle_ends, &mut target.age_ends];
        block.count_idle_ends(facts, &watched, (now, ages), counts);
        self.nr_set_again += u64::from(block.look(facts, &watched, is_new));
    }

    /// Returns and resets the count of page table entries that were cleared and that targets have set again.
    pub fn take_set_again(&mut self) -> u64 {
        std::mem::take(&mut self.nr_set_again)
    }

    /// Ends the interval and returns a snapshot of each target over it. The results can be queried until the next
    /// interval begins.
    pub fn end_interval(&mut self, now: Nanos) -> Vec<Snapshot> {
        self.observe_watches();
        self.estimate_the_rest();
        let ticks = self.ticks(now);
        let halvings = now.since(self.started).0 / ENDS_HALVE_AFTER.0;
        let due = halvings - std::mem::replace(&mut self.nr_halvings, halvings);
        for target in self.targets.values_mut() {
            for block in &mut target.blocks {
                block.halve_ends(due);
                block.update_states(ticks, target.hides_accesses);
            }
        }
        let snapshots = self.take_snapshots(now, ticks);
        let touched: u64 = snapshots.iter().map(|s| s.totals().touched).sum();
        self.nr_touched = touched as f64 / crate::address::PAGE_SIZE as f64;
        self.nr_regions = snapshots.iter().map(|s| s.regions.len()).sum();
        snapshots
    }

    /// Begins the next interval after one has ended. `cost` is the total of all steps until now.
    pub fn begin_interval(&mut self, now: Nanos, cost: &Cost) {
        for target in self.targets.values_mut() {
            target.begin_interval(now);
        }
        self.adapt_to_cost(now, cost);
        self.choose_detail(self.nr_regions);
    }

    /// Returns the clears to make now, of whole folios of `folio_pages` pages. Afterwards the caller reads all blocks of
    /// the spaces that it has cleared, and the [`watched_blocks`](Self::watched_blocks) of the ranges. It passes them to
    /// [`TableMonitor::take_cleared`].
    pub fn plan_samples(&mut self, now: Nanos, cost: &Cost, folio_pages: usize) -> ClearPlan {
        self.bucket.charge(now, cost);
        let allowance_us = self.bucket.allowance_ns(self.interval) / 1000.0;
        let targets = self.targets.iter_mut().map(|(id, target)| (*id, target));
        let mut plan = plan::plan(targets, now, allowance_us as f32, self.prices, folio_pages);
        self.watches = std::mem::take(&mut plan.watches);
        let is_in_doubt = f64::from(plan.doubt) > DOUBT_SHARE * self.nr_touched + DOUBT_PAGES;
        let factor = if is_in_doubt { 1.25 } else { 0.9 };
        self.stretch = (self.stretch * factor).clamp(1.0, STRETCH_MAX);
        self.planned_us = plan.cost_us;
        let window_end = now + self.attributes.window;
        let is_watching = !self.watches.is_empty() || !plan.spaces.is_empty();
        self.window_end = is_watching.then_some(window_end);
        plan
    }

    /// Returns the blocks with watched pages, by target and in address order.
    pub fn watched_blocks(&self) -> Vec<(TargetId, Vec<u64>)> {
        let groups = self.watches.chunk_by(|a, b| a.target == b.target);
        let blocks = |group: &[Watch]| group.iter().map(|w| w.address).collect();
        groups.map(|of| (of[0].target, blocks(of))).collect()
    }

    /// Records the cost of clearing and of reading again.
    pub fn clears_done(&mut self, before: &Cost, after: &Cost) {
        let took_ns = total_ns(after) - total_ns(before);
        self.other_ns += took_ns;
        let took_us = (took_ns / 1000.0) as f32;
        self.prices.learn(self.planned_us, took_us);
    }

    /// Records CPU time of work that not every interval needs.
    pub fn note_other_work(&mut self, before: &Cost, after: &Cost) {
        self.other_ns += total_ns(after) - total_ns(before);
    }

    /// Returns the CPU seconds per second for the work of one share. Each share keeps its limit. If work outside the
    /// shares leaves nothing for clears, all shares shrink.
    pub fn rate(&self, share: impl Fn(&BudgetShares) -> f64) -> f64 {
        self.attributes.cpu_budget * share(&self.shares) / self.bucket.slowness
    }

    /// Returns saved CPU time that clears do not need.
    pub fn spare(&self) -> Nanos {
        self.bucket.spare()
    }

    /// Takes in a watched block's bits after a window.
    pub fn look_after_window(&mut self, target: TargetId, facts: &BlockFacts) {
        let place = (target, facts.address);
        if let Ok(at) = self.watches.binary_search_by_key(&place, Watch::place) {
            let watch = &mut self.watches[at];
            let in_window = and(&watch.watched, &facts.accessed);
            watch.touched_in_window = Some(count(&or(&in_window, &watch.touched_at_once)));
        }
    }

    /// Ends the window.
    pub fn end_window(&mut self) {
        self.window_end = None;
    }

    /// Makes all later snapshots report [idle pages](Snapshot::idle_pages), for callers that act. `ages` selects the kind
    /// of the pages' ages, also for [`Snapshot::age_ends`].
    pub fn tell_idle_pages(&mut self, ages: PageAgeRule) {
        self.tells_idle_pages = Some(ages);
    }

    /// Returns the age of each page of the block at `address`, after an interval has ended. A page that was not present
    /// then counts as touched, and so does a page that was touched after `since`. Returns `None` if the block is not
    /// watched.
    pub fn page_ages(
        &self,
        target: TargetId,
        address: u64,
        since: Nanos,
        now: Nanos,
    ) -> Option<[PageAge; PAGES_PER_BLOCK]> {
        let target = self.targets.get(&target)?;
        let blocks = &target.blocks;
        let at = blocks.binary_search_by_key(&address, |block| block.address);
        let (since, now) = (self.ticks(since), self.ticks(now));
        Some(blocks[at.ok()?].page_ages(since, now, target.hides_accesses))
    }

    fn ticks(&self, now: Nanos) -> u32 {
        ticks(now.since(self.started))
    }

    fn interval_start(&self) -> Nanos {
        Nanos(self.interval_end.0.saturating_sub(self.interval.0))
    }

    fn observe_watches(&mut self) {
        let mut changed: Vec<(TargetId, usize, f32)> = Vec::new();
        for watch in std::mem::take(&mut self.watches) {
            if let Some(target) = self.targets.get_mut(&watch.target)
                && let Some(at) = target.find(watch.address)
                && let Some(before) = observe(&watch, &mut target.blocks[at])
            {
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
                if block.estimate.is_none()
                    && (block.access_estimate.touched - before).abs() < AGREEMENT
                {
                    block.access_estimate.doubt();
                }
            }
        }
    }

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
            // A target that was added just now has no interval yet.
            let interval = now.since(target.from);
            if interval == Nanos(0) {
                continue;
            }
            let nr_samples = (interval.0 / self.attributes.window.0).max(1) as u32;
            let finish = |draft: &report::Draft| draft.finish(since_start, interval, nr_samples);
            let regions: Vec<RegionSnapshot> = drafts.iter().map(finish).collect();
            let blocks = report::blocks_by_page(target, &regions, ticks, blocks_left);
            blocks_left -= blocks.len();
            let ages = self.tells_idle_pages.filter(|_| !target.hides_accesses);
            let idle_pages = ages.map_or_else(Vec::new, |ages| target.idle_pages(ticks, ages));
            snapshots.push(Snapshot {
                blocks,
                idle_pages: Arc::new(idle_pages),
                age_ends: ages.map(|_| Box::new(target.age_ends)),
                idle_ends: (!target.hides_accesses).then(|| Box::new(target.idle_ends)),
                ..Snapshot::new(*id, (target.from, now), nr_samples, regions)
            });
        }
        snapshots
    }

    /// Sets the most regions of the next snapshots; the last had `nr_regions`.
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

    /// Sets the length of the next interval such that the fixed cost stays within its part of the budget.
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
