//! The reclaim curve: the savings and the cost of reclaiming memory after any idle time.
//!
//! Problem: how long must memory be idle before reclaiming it pays off? Trying each answer on the running program takes
//! as many runs as answers (DAMOOS makes 25 to 58).
//!
//! Approach: a page-granular record shows when each page was accessed, whatever the policy. Take an idle period that
//! lasted `g` and ended in an access. For every threshold `T <= g`, it saves memory for `g - T` and causes one refault;
//! for every other threshold it does neither. One pass that counts idle periods by length therefore gives the whole
//! curve exactly. The argument is that of Mattson's stack distances (Mattson et al., *Evaluation Techniques for Storage
//! Hierarchies*, 1970). An idle period that still lasts at the end of the record, or of the page, saves memory without
//! a refault.
//!
//! Limits: times are the record's scan times. An idle period begins at the end of the scan interval with the last
//! access. It ends at the beginning of the interval with the next access. A policy with the same scan times would have
//! seen this length, and it is the shortest possible one. A page of unknown state counts as accessed, without a
//! refault: unknown is not cold. The same holds for pages of unreclaimable mappings. The program runs slower after
//! refaults, and so accesses later; the model ignores this.
//!
//! A second curve describes a policy with a longer threshold for pages whose idle times ended before ([`backoff`]).
//!
//! JSON: [`ReclaimCurveReport`].

pub mod backoff;

use std::collections::{BTreeMap, HashMap};

use isotherm_engine::monitor::bits::{NONE, and, and_not, count, each, mask, or};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use serde::Serialize;

use super::Accumulate;
use backoff::{Backoff, Ended};

use super::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use super::mapping::MappingTable;
use isotherm_record::item::{Header, Item};
use isotherm_record::pages::{PageBits, PageBlock, PageSnapshot};

/// The query: refault cost and slowdown limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimCurveOptions {
    /// Time that the program loses by a refault; `None` means the record's measured cost, or [`REFAULT_COST`].
    pub refault_cost: Option<Nanos>,
    /// Highest acceptable slowdown, 0 to 1; the report chooses the smallest threshold within it.
    pub max_slowdown: Option<f64>,
}

/// Time that a program loses when it reads a page back from zram (docs/results/overhead.md).
pub(crate) const REFAULT_COST: Nanos = Nanos(7_000);

/// The source of the refault cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RefaultCostSource {
    /// The user gave it.
    Given,
    /// The recorder measured it with the target's pages.
    Measured,
    /// Nothing was measured: the default of other machines.
    Default,
}

/// The result of one threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReclaimPoint {
    /// Memory is reclaimed after being idle for this long.
    pub threshold_ns: Nanos,
    /// Idle periods of at least the threshold, in pages.
    pub idle_pages: u64,
    /// Saved memory in bytes times seconds.
    pub saved_byte_seconds: f64,
    /// Saved memory, mean over time.
    pub saved_mean_bytes: u64,
    /// Mean saved memory as a share of the mean resident memory.
    pub saved_share: f64,
    /// `saved_share` without the first `threshold_ns` of the record, in which no page can reach the threshold. `null`
    /// if that is more than half of the record.
    pub steady_share: Option<f64>,
    /// Pages read back per second.
    pub refaults_per_s: f64,
    /// Share of its time that the program would have lost by reading pages back.
    pub slowdown: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReclaimCurveReport {
    /// `reclaim_curve`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Time from the first scan to the last.
    pub duration_ns: Nanos,
    /// Mean interval of the scans, and the shortest idle time that they can show.
    pub scan_interval_ns: Nanos,
    /// Resident memory, mean over time.
    pub resident_mean_bytes: u64,
    /// Memory of unknown state, which is never reclaimed; mean over time.
    pub unknown_mean_bytes: u64,
    /// Memory in unreclaimable mappings, which is never reclaimed; mean over time.
    pub unreclaimable_mean_bytes: u64,
    /// Time that the program loses by a refault.
    pub refault_cost_ns: Nanos,
    /// The source of the refault cost.
    pub refault_cost_source: RefaultCostSource,
    /// The requested slowdown limit.
    pub max_slowdown: Option<f64>,
    /// The smallest threshold within the limit; `null` without such a threshold or without a limit.
    pub chosen: Option<ReclaimPoint>,
    /// One point for each length of idle time that occurred, from the shortest. The curve has no corner between two
    /// points. No point is shorter than a scan interval.
    pub points: Vec<ReclaimPoint>,
    /// The second curve at some thresholds: a page waits longer, by the square of one plus the number of its idle times
    /// that ended.
    pub backoff_points: Vec<ReclaimPoint>,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct ReclaimCurve {
    context: RecordContext,
    options: ReclaimCurveOptions,
    measured: Option<Nanos>,
    mappings: MappingTable,
    targets: HashMap<TargetId, Target>,
    counts: Counts,
    shortest: Option<Nanos>,
    from: Option<Nanos>,
    to: Nanos,
    scanned: Nanos,
    nr_scans: u64,
    resident_page_seconds: f64,
    unknown_page_seconds: f64,
    unreclaimable_page_seconds: f64,
}

/// The whole that sums over a record refer to.
#[derive(Clone, Copy)]
struct Scale {
    seconds: f64,
    /// Mean resident bytes.
    resident: u64,
    refault_cost: Nanos,
}

impl Scale {
    /// Returns the result of a threshold from its sums; `saved` is in pages times seconds.
    fn point(
        self,
        threshold_ns: Nanos,
        idle_pages: u64,
        saved: f64,
        refaults: u64,
    ) -> ReclaimPoint {
        let saved = saved * PAGE_SIZE as f64;
        let saved_share = saved / self.seconds / self.resident.max(1) as f64;
        let lost_s = refaults as f64 * self.refault_cost.as_secs_f64();
        ReclaimPoint {
            threshold_ns,
            idle_pages,
            saved_byte_seconds: saved,
            saved_mean_bytes: (saved / self.seconds) as u64,
            saved_share,
            steady_share: steady(saved_share, threshold_ns, self.seconds),
            refaults_per_s: refaults as f64 / self.seconds,
            slowdown: lost_s / self.seconds,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Counts {
    stretches: BTreeMap<Nanos, Stretches>,
    backoff: Backoff,
}

/// Idle periods of one length, in pages.
#[derive(Clone, Copy, Debug, Default)]
struct Stretches {
    ended_in_access: u64,
    went_on: u64,
}

#[derive(Clone, Debug, Default)]
struct Target {
    blocks: HashMap<u64, Block>,
    /// End times of the target's scans.
    ends: Vec<Nanos>,
}

#[derive(Clone, Debug)]
struct Block {
    present: PageBits,
    /// The last scan of each page that saw an access or an unknown state.
    last: Box<[u32; PAGES_PER_BLOCK]>,
    ended: Box<[Ended; PAGES_PER_BLOCK]>,
    seen: u32,
}

impl ReclaimCurve {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: ReclaimCurveOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            options,
            ..Self::default()
        }
    }

    fn scan(&mut self, pages: &PageSnapshot) {
        let target = self.targets.entry(pages.target).or_default();
        let number = target.ends.len() as u32;
        target.ends.push(pages.end);
        self.from.get_or_insert(pages.start);
        self.to = self.to.max(pages.end);
        let length = pages.end.since(pages.start);
        self.scanned = self.scanned + length;
        self.nr_scans += 1;
        let shortest = self.shortest.map_or(length, |known| known.min(length));
        self.shortest = Some(shortest);
        let length_s = length.as_secs_f64();
        for block in &pages.blocks {
            let range = AddressRange::new(block.block, block.block + BLOCK_SIZE);
            let parts = self.mappings.unreclaimable(pages.target, range);
            let kept = parts.fold(NONE, |all, part| or(&all, &mask(block.block, part)));
            let kept = and_not(&and(&block.present, &kept), &block.unknown);
            self.resident_page_seconds += length_s * f64::from(count(&block.present));
            self.unknown_page_seconds += length_s * f64::from(count(&block.unknown));
            self.unreclaimable_page_seconds += length_s * f64::from(count(&kept));
            let block = &PageBlock {
                unknown: or(&block.unknown, &kept),
                ..*block
            };
            let state = target.blocks.entry(block.block).or_insert_with(|| Block {
                present: [0; 8],
                last: Box::new([0; PAGES_PER_BLOCK]),
                ended: Box::new([Ended::default(); PAGES_PER_BLOCK]),
                seen: number,
            });
            let times = (number, pages.start, &target.ends[..]);
            state.scan(block, times, &mut self.counts);
        }
        // A block that has vanished ends the idle periods of its pages.
        let (ends, counts) = (&target.ends, &mut self.counts);
        target.blocks.retain(|_, block| {
            let is_there = block.seen == number;
            if !is_there {
                block.close(ends, pages.start, counts);
            }
            is_there
        });
    }

    fn refault_cost(&self) -> (Nanos, RefaultCostSource) {
        match (self.options.refault_cost, self.measured) {
            (Some(cost), _) => (cost, RefaultCostSource::Given),
            (None, Some(cost)) => (cost, RefaultCostSource::Measured),
            (None, None) => (REFAULT_COST, RefaultCostSource::Default),
        }
    }

    fn points(&self, scale: Scale) -> Vec<ReclaimPoint> {
        // The loop starts at the longest: each point includes all idle periods of its length or longer.
        let (mut refaults, mut pages, mut page_seconds) = (0, 0, 0.0);
        let mut points: Vec<ReclaimPoint> = Vec::with_capacity(self.counts.stretches.len());
        let least = self.shortest.unwrap_or_default();
        let reported = self.counts.stretches.range(least..);
        for (&length, stretches) in reported.rev() {
            let all = stretches.ended_in_access + stretches.went_on;
            refaults += stretches.ended_in_access;
            pages += all;
            page_seconds += all as f64 * length.as_secs_f64();
            let saved = page_seconds - pages as f64 * length.as_secs_f64();
            points.push(scale.point(length, pages, saved, refaults));
        }
        points.reverse();
        points
    }
}

impl Accumulate for ReclaimCurve {
    type Report = Option<ReclaimCurveReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Pages(pages) if self.context.admits_scan(pages) => self.scan(pages),
            Item::Calibration(sample) => {
                let cost = sample.costs.refault_ns;
                let cost = cost.map(|cost| Nanos(cost.median as u64));
                self.measured = cost.or(self.measured);
            }
            Item::TargetExit(exit) => {
                if let Some(target) = self.targets.remove(&exit.target) {
                    target.close(&mut self.counts);
                }
            }
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<ReclaimCurveReport> {
        self.context.end(end);
        let from = self.from?;
        for (_, target) in self.targets.drain() {
            target.close(&mut self.counts);
        }
        let duration = self.to.since(from);
        let seconds = duration.as_secs_f64().max(1e-9);
        let mean = |page_seconds: f64| (page_seconds / seconds * PAGE_SIZE as f64) as u64;
        let resident = mean(self.resident_page_seconds);
        let (refault_cost, refault_cost_source) = self.refault_cost();
        let scale = Scale {
            seconds,
            resident,
            refault_cost,
        };
        let points = self.points(scale);
        let reported = self.shortest.unwrap_or_default()..duration;
        let within = |point: &&ReclaimPoint| {
            let limit = self.options.max_slowdown;
            limit.is_some_and(|limit| point.slowdown <= limit)
        };
        Some(ReclaimCurveReport {
            report: "reclaim_curve",
            version: crate::VERSION,
            duration_ns: duration,
            scan_interval_ns: Nanos(self.scanned.0 / self.nr_scans.max(1)),
            resident_mean_bytes: resident,
            unknown_mean_bytes: mean(self.unknown_page_seconds),
            unreclaimable_mean_bytes: mean(self.unreclaimable_page_seconds),
            refault_cost_ns: refault_cost,
            refault_cost_source,
            max_slowdown: self.options.max_slowdown,
            chosen: points.iter().find(within).copied(),
            points,
            backoff_points: self.counts.backoff.points(reported, scale),
            record: self.context.record_info(),
        })
    }
}

impl ReclaimCurveReport {
    /// Returns the result of a threshold, also between two points. Its idle periods are those of the next point, and
    /// each of them saves the difference in addition.
    pub fn at(&self, threshold: Nanos) -> ReclaimPoint {
        let points = &self.points;
        let next = points.partition_point(|point| point.threshold_ns < threshold);
        let seconds = self.duration_ns.as_secs_f64();
        let Some(&above) = points.get(next) else {
            return ReclaimPoint {
                threshold_ns: threshold,
                steady_share: steady(0.0, threshold, seconds),
                ..ReclaimPoint::default()
            };
        };
        let longer_s = above.threshold_ns.since(threshold).as_secs_f64();
        let more = (above.idle_pages * PAGE_SIZE) as f64 * longer_s;
        let mean = more / seconds.max(1e-9);
        let saved_share = above.saved_share + mean / self.resident_mean_bytes.max(1) as f64;
        ReclaimPoint {
            threshold_ns: threshold,
            saved_byte_seconds: above.saved_byte_seconds + more,
            saved_mean_bytes: above.saved_mean_bytes + mean as u64,
            saved_share,
            steady_share: steady(saved_share, threshold, seconds),
            ..above
        }
    }
}

/// Converts a mean over the whole record to one without its first `threshold`; `None` if less than half is left.
fn steady(mean: f64, threshold: Nanos, seconds: f64) -> Option<f64> {
    let left = seconds - threshold.as_secs_f64();
    (left >= seconds / 2.0 && left > 0.0).then(|| (mean * seconds / left).min(1.0))
}

impl Target {
    fn close(self, counts: &mut Counts) {
        let Some(&end) = self.ends.last() else { return };
        for mut block in self.blocks.into_values() {
            block.close(&self.ends, end, counts);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The page was accessed.
    Access,
    /// The page has vanished.
    Gone,
    /// The page's state is unknown from now on, or the record ends.
    Open,
}

impl Block {
    /// Takes in scan `number` of the accesses from `start` on; the earlier scans ended at `ends`.
    fn scan(
        &mut self,
        now: &PageBlock,
        (number, start, ends): (u32, Nanos, &[Nanos]),
        counts: &mut Counts,
    ) {
        let was = self.present;
        let accessed = and(&now.present, &now.accessed);
        // A new page counts as accessed, and an unknown page must not count as idle.
        let new = and_not(&now.present, &was);
        let restarted = or(&new, &and(&now.present, &now.unknown));
        let ended = [
            (and_not(&was, &now.present), End::Gone),
            (and_not(&and(&accessed, &was), &restarted), End::Access),
            (and(&restarted, &was), End::Open),
        ];
        for (pages, how) in ended {
            for page in each(&pages) {
                self.end(page, (start, how), ends, counts);
            }
        }
        for page in each(&or(&accessed, &restarted)) {
            self.last[page] = number;
        }
        self.present = now.present;
        self.seen = number;
    }

    fn close(&mut self, ends: &[Nanos], end: Nanos, counts: &mut Counts) {
        let present = self.present;
        for page in each(&present) {
            self.end(page, (end, End::Open), ends, counts);
        }
    }

    /// Counts a page's idle period, which lasted until `until`.
    fn end(
        &mut self,
        page: usize,
        (until, how): (Nanos, End),
        ends: &[Nanos],
        counts: &mut Counts,
    ) {
        let idle = until.since(ends[self.last[page] as usize]);
        let stretches = counts.stretches.entry(idle).or_default();
        let is_accessed = how == End::Access;
        if is_accessed {
            stretches.ended_in_access += 1;
        } else {
            stretches.went_on += 1;
        }
        let ended = &mut self.ended[page];
        let end = until.since(ends[0]);
        counts.backoff.add((idle, end), is_accessed, ended);
        if how == End::Gone {
            *ended = Ended::default();
        }
    }
}

#[cfg(test)]
mod tests;
