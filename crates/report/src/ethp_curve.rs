//! The curve of huge pages: the cost and the benefit of any bound on their waste.
//!
//! Problem: huge pages save translations, but waste the part of each 2 MiB that is never written. How much waste buys
//! how much coverage? Trying each answer on the running program takes as many runs as answers.
//!
//! Approach: a page-granular record of small pages shows the present and the touched pages of each block, scan by scan,
//! whatever the policy. The module therefore tries every bound at once, with the ranking of `run --max-waste`
//! ([`isotherm_policy::scheme::huge`]). After each scan, the best blocks become huge until the bound is reached. A
//! block that was idle for the idle time frees its waste. The cost of huge pages is their waste; their benefit is the
//! share of touched pages that lie in them.
//!
//! Limits: the benefit is coverage: the share of translations of 4 KiB that huge pages would have covered. It is *not*
//! time: accessed bits show neither the TLB miss rate nor the cost of a miss. A page counts once a scan, however often
//! it was touched. Blocks that were already huge during recording show one accessed bit for all of their pages. They
//! are left out and reported apart, so record with huge pages off. The model ignores that huge pages fault in at once,
//! and that copying costs time.
//!
//! JSON: [`EthpCurveReport`].

use std::collections::HashMap;

use isotherm_engine::monitor::bits::{and, and_not, count};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_policy::scheme::huge::{Candidate, MAX_WASTE, SAVED_MIN, UNUSED_MIN, fitting, rank};
use isotherm_record::item::{Header, Item};
use isotherm_record::pages::{PageBlock, PageSnapshot};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use super::mapping::{ANONYMOUS, MappingLabel, MappingTable};

const BOUNDS: [f64; 16] = [
    0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1e9,
];
/// Number of policies: the bounds, `ethp` without a bound, and the requested bound.
const POLICIES: usize = BOUNDS.len() + 2;
const UNBOUNDED: usize = BOUNDS.len();
const CHOSEN: usize = BOUNDS.len() + 1;

/// Thresholds of `ethp`: a block becomes huge from this share of accesses and this number of present pages on.
const ETHP_RATE: f64 = 0.05;
const ETHP_PRESENT: u32 = PAGES_PER_BLOCK as u32 / 2;

/// The query: bound and idle time.
#[derive(Clone, Copy, Debug)]
pub struct EthpCurveOptions {
    /// The requested bound, a share of the resident memory.
    pub max_waste: f64,
    /// Idle time after which a huge page frees its waste.
    pub idle: Nanos,
}

impl Default for EthpCurveOptions {
    /// Returns the values of `run --preset ethp`.
    fn default() -> Self {
        Self {
            max_waste: MAX_WASTE,
            idle: Nanos::from_millis(7_000),
        }
    }
}

/// The result of one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EthpPoint {
    /// The bound, a share of the resident memory; `null` where the policy has none.
    pub max_waste: Option<f64>,
    /// Memory in huge pages, mean over time.
    pub huge_mean_bytes: u64,
    /// Bytes in huge pages that were never written, mean over time.
    pub waste_mean_bytes: u64,
    /// Waste as a share of the resident memory.
    pub waste_share: f64,
    /// Waste as a share of the waste of huge pages everywhere, 0 to 1.
    pub waste_of_always: f64,
    /// Share of touched translations that huge pages covered, 0 to 1. It is not a share of time.
    pub coverage: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EthpCurveReport {
    /// `ethp_curve`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Time from the first scan to the last.
    pub duration_ns: Nanos,
    /// Mean interval of the scans, in which a page counts once.
    pub scan_interval_ns: Nanos,
    /// Memory in small pages that could be huge, mean over time.
    pub resident_mean_bytes: u64,
    /// Part of this memory in an unknown state, which counts as untouched.
    pub unknown_mean_bytes: u64,
    /// Memory in huge pages during recording, which is left out.
    pub recorded_huge_mean_bytes: u64,
    /// Pages touched in a scan, mean over scans; huge pages can cover these translations.
    pub touched_per_scan: f64,
    /// Idle time after which a huge page freed its waste.
    pub idle_ns: Nanos,
    /// No huge pages.
    pub never: EthpPoint,
    /// Huge pages in every block with a present page: THP `always`.
    pub always: EthpPoint,
    /// `ethp` without a bound: huge where 5 % are touched and half is present.
    pub unbounded: EthpPoint,
    /// The requested bound, or the default of `run`.
    pub chosen: EthpPoint,
    /// One point for each bound that was tried, from none to unlimited.
    pub points: Vec<EthpPoint>,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct EthpCurve {
    context: RecordContext,
    options: EthpCurveOptions,
    mappings: MappingTable,
    targets: HashMap<TargetId, HashMap<u64, Block>>,
    sums: Sums,
    from: Option<Nanos>,
    to: Nanos,
    scanned: Nanos,
    nr_scans: u64,
}

/// Sums over scans, in pages times seconds, and in pages.
#[derive(Clone, Debug, Default)]
struct Sums {
    resident: f64,
    unknown: f64,
    recorded_huge: f64,
    touched: f64,
    /// Huge pages everywhere.
    always: PolicySums,
    policies: [PolicySums; POLICIES],
}

#[derive(Clone, Copy, Debug, Default)]
struct PolicySums {
    huge: f64,
    waste: f64,
    covered: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    is_huge: [bool; POLICIES],
    touched_until: Nanos,
    scan: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    block: u64,
    touched: u32,
    present: u32,
}

impl Seen {
    fn missing(&self) -> u32 {
        PAGES_PER_BLOCK as u32 - self.present
    }
}

impl EthpCurve {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: EthpCurveOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            options,
            ..Self::default()
        }
    }

    fn scan(&mut self, pages: &PageSnapshot) {
        self.from.get_or_insert(pages.start);
        self.to = self.to.max(pages.end);
        let length = pages.end.since(pages.start);
        self.scanned = self.scanned + length;
        self.nr_scans += 1;
        let length_s = length.as_secs_f64();
        let mut all = Vec::with_capacity(pages.blocks.len());
        for block in &pages.blocks {
            if block.huge {
                let pages = f64::from(count(&block.present));
                self.sums.recorded_huge += length_s * pages;
            } else if self.is_anonymous(pages.target, block) {
                let touched = and_not(&and(&block.present, &block.accessed), &block.unknown);
                self.sums.unknown += length_s * f64::from(count(&block.unknown));
                all.push(Seen {
                    block: block.block,
                    touched: count(&touched),
                    present: count(&block.present),
                });
            }
        }
        let target = self.targets.entry(pages.target).or_default();
        for seen in &all {
            let block = target.entry(seen.block).or_default();
            block.scan = self.nr_scans;
            self.sums.add(seen, block, length_s);
        }
        target.retain(|_, block| block.scan == self.nr_scans);
        decide(target, &all, (pages.target, pages.end), &self.options);
    }

    /// Returns whether the block can be one huge page: a known mapping must be anonymous.
    fn is_anonymous(&self, target: TargetId, block: &PageBlock) -> bool {
        let range = AddressRange::new(block.block, block.block + BLOCK_SIZE);
        let label = self.mappings.label(target, range);
        label.is_none_or(|MappingLabel { name, .. }| {
            &*name == ANONYMOUS || name.starts_with("[heap") || name.starts_with("[anon")
        })
    }

    fn point(&self, policy: PolicySums, max_waste: Option<f64>) -> EthpPoint {
        let sums = &self.sums;
        EthpPoint {
            max_waste,
            huge_mean_bytes: self.mean(policy.huge),
            waste_mean_bytes: self.mean(policy.waste),
            waste_share: share(policy.waste, sums.resident),
            waste_of_always: share(policy.waste, sums.always.waste),
            coverage: share(policy.covered, sums.touched),
        }
    }

    /// Converts pages times seconds to mean bytes over time.
    fn mean(&self, page_seconds: f64) -> u64 {
        let duration = self.from.map(|from| self.to.since(from));
        let seconds = duration.unwrap_or_default().as_secs_f64();
        (page_seconds / seconds.max(1e-9) * PAGE_SIZE as f64) as u64
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl Sums {
    /// Adds a block during a scan, with the decisions after the scan before.
    fn add(&mut self, seen: &Seen, block: &Block, length_s: f64) {
        let touched = f64::from(seen.touched);
        let add = |sums: &mut PolicySums| {
            sums.huge += PAGES_PER_BLOCK as f64 * length_s;
            sums.waste += f64::from(seen.missing()) * length_s;
            sums.covered += touched;
        };
        self.resident += f64::from(seen.present) * length_s;
        self.touched += touched;
        if seen.present > 0 {
            add(&mut self.always);
        }
        for (sums, is_huge) in self.policies.iter_mut().zip(block.is_huge) {
            if is_huge {
                add(sums);
            }
        }
    }
}

/// Decides which blocks are huge from now on, under each policy.
fn decide(
    blocks: &mut HashMap<u64, Block>,
    all: &[Seen],
    (target, now): (TargetId, Nanos),
    options: &EthpCurveOptions,
) {
    let resident: u64 = all.iter().map(|seen| u64::from(seen.present)).sum();
    let mut wasted = [0; POLICIES];
    for seen in all {
        let Some(block) = blocks.get_mut(&seen.block) else {
            continue;
        };
        if seen.touched > 0 || block.touched_until == Nanos(0) {
            block.touched_until = now;
        }
        if now.since(block.touched_until) >= options.idle && seen.missing() >= UNUSED_MIN {
            block.is_huge = [false; POLICIES];
        }
        let rate = f64::from(seen.touched) / f64::from(seen.present.max(1));
        block.is_huge[UNBOUNDED] |= rate >= ETHP_RATE && seen.present >= ETHP_PRESENT;
        for (policy, is_huge) in block.is_huge.iter().enumerate() {
            wasted[policy] += u64::from(seen.missing()) * u64::from(*is_huge);
        }
    }
    let ranked = all.iter().map(|seen| Candidate {
        target,
        block: seen.block,
        saved: f64::from(seen.touched),
        waste: seen.missing(),
    });
    let ranked = ranked.filter(|candidate| candidate.saved >= SAVED_MIN);
    let mut ranked: Vec<Candidate> = ranked.collect();
    rank(&mut ranked);
    let bounds = BOUNDS.iter().enumerate();
    for (policy, bound) in bounds.chain(std::iter::once((CHOSEN, &options.max_waste))) {
        // The bound is a share of the memory at that time, waste included.
        let max = (bound * (resident + wasted[policy]) as f64) as u64;
        let room = max.saturating_sub(wasted[policy]);
        let is_new = |candidate: &Candidate| {
            let block = blocks.get(&candidate.block);
            block.is_none_or(|block| !block.is_huge[policy])
        };
        let new: Vec<Candidate> = ranked.iter().copied().filter(is_new).collect();
        for candidate in fitting(&new, room) {
            if let Some(block) = blocks.get_mut(&candidate.block) {
                block.is_huge[policy] = true;
            }
        }
    }
}

impl Accumulate for EthpCurve {
    type Report = Option<EthpCurveReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Pages(pages) if self.context.admits_scan(pages) => self.scan(pages),
            Item::TargetExit(exit) => drop(self.targets.remove(&exit.target)),
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<EthpCurveReport> {
        self.context.end(end);
        let from = self.from?;
        let sums = &self.sums;
        let bounds = BOUNDS.iter().zip(sums.policies);
        let points =
            bounds.map(|(bound, sums)| self.point(sums, (*bound <= 1.0).then_some(*bound)));
        Some(EthpCurveReport {
            report: "ethp_curve",
            version: crate::VERSION,
            duration_ns: self.to.since(from),
            scan_interval_ns: Nanos(self.scanned.0 / self.nr_scans.max(1)),
            resident_mean_bytes: self.mean(sums.resident),
            unknown_mean_bytes: self.mean(sums.unknown),
            recorded_huge_mean_bytes: self.mean(sums.recorded_huge),
            touched_per_scan: sums.touched / self.nr_scans.max(1) as f64,
            idle_ns: self.options.idle,
            never: EthpPoint::default(),
            always: self.point(sums.always, None),
            unbounded: self.point(sums.policies[UNBOUNDED], None),
            chosen: self.point(sums.policies[CHOSEN], Some(self.options.max_waste)),
            points: points.collect(),
            record: self.context.record_info(),
        })
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::monitor::bits::mask_of;

    use super::*;
    use crate::test_records::{at, header};

    /// Number of pages present from the start of a block on, and number of touched pages among them.
    type Picture = (u32, u32);

    fn report(scans: &[&[Picture]], options: EthpCurveOptions) -> EthpCurveReport {
        let mut curve = EthpCurve::new(&header(), Scope::default(), options);
        let first = |nr: u32| mask_of(0..nr as usize);
        for (second, blocks) in (0..).zip(scans) {
            let blocks = (1..).zip(*blocks).map(|(i, (present, touched))| PageBlock {
                block: i * BLOCK_SIZE,
                present: first(*present),
                accessed: first(*touched),
                ..PageBlock::default()
            });
            let times = (at(second * 1000), at(second * 1000 + 1000));
            let scan = PageSnapshot::new(TargetId(0), times, blocks.collect());
            curve.push(&Item::Pages(scan));
        }
        curve.finish().expect("there are scans")
    }

    fn bounded(max_waste: f64) -> EthpCurveOptions {
        EthpCurveOptions {
            max_waste,
            ..EthpCurveOptions::default()
        }
    }

    #[test]
    fn the_block_that_saves_most_for_its_waste_comes_first() {
        // The first block is full and half used. The second is half present and all of that used. The third is hardly
        // present.
        let scan: &[Picture] = &[(512, 256), (256, 256), (32, 32)];
        let report = report(&[scan; 11], bounded(0.25));
        // Nothing is huge in the first scan.
        let after = 10.0 / 11.0;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        let full = report.points[0];
        near(full.waste_share, 0.0);
        near(full.coverage, after * 256.0 / 544.0);
        // A quarter of the resident memory is less than the second block's waste; two fifths are not.
        near(report.chosen.waste_share, 0.0);
        near(report.points[10].waste_share, after * 256.0 / 800.0);
        let any = report.points[BOUNDS.len() - 1];
        near(any.coverage, after);
        near(any.waste_of_always, after);
        near(report.always.waste_share, (256.0 + 480.0) / 800.0);
        near(report.always.coverage, 1.0);
        near(report.unbounded.coverage, after * 512.0 / 544.0);
        near(report.never.coverage, 0.0);
        let points = &report.points;
        assert!(points.is_sorted_by(|a, b| a.waste_share <= b.waste_share));
        assert!(points.is_sorted_by(|a, b| a.coverage <= b.coverage));
    }

    #[test]
    fn idle_blocks_give_their_waste_back() {
        let (used, idle): (&[Picture], &[Picture]) = (&[(256, 256)], &[(256, 0)]);
        let mut scans = vec![used; 2];
        scans.extend(vec![idle; 18]);
        let options = EthpCurveOptions {
            max_waste: 2.0,
            idle: Nanos::from_millis(8_000),
        };
        let report = report(&scans, options);
        // The waste lasts from the second scan on, for eight scans after the last use.
        let wasted = report.chosen.waste_mean_bytes;
        assert_eq!(wasted, 9 * 256 * PAGE_SIZE / 20);
        assert_eq!(report.chosen.huge_mean_bytes, 9 * BLOCK_SIZE / 20);
    }

    #[test]
    fn what_was_huge_when_it_was_recorded_is_left_out() {
        let mut curve = EthpCurve::new(&header(), Scope::default(), EthpCurveOptions::default());
        let block = PageBlock {
            block: BLOCK_SIZE,
            huge: true,
            present: [u64::MAX; 8],
            accessed: [u64::MAX; 8],
            unknown: [0; 8],
        };
        let scan = PageSnapshot::new(TargetId(0), (at(0), at(1000)), vec![block]);
        curve.push(&Item::Pages(scan));
        let report = curve.finish().expect("a scan");
        assert_eq!(report.recorded_huge_mean_bytes, BLOCK_SIZE);
        assert_eq!(report.resident_mean_bytes, 0);
        assert_eq!(report.always.waste_mean_bytes, 0);
    }
}
