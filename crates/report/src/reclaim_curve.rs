//! The reclaim curve: what reclaiming memory after any time of idleness would have saved and cost.
//!
//! Problem: how long must memory be idle before it is worth taking away? Trying each answer on the
//! running program takes as many runs as answers (DAMOOS makes 25 to 58).
//!
//! Approach: a page-granular record says of every page when it was accessed, whatever the policy. A
//! stretch of idleness that lasted `g` and ended in an access is, for every threshold `T <= g`, memory
//! saved for `g - T`, and one refault; for every other, nothing. So one pass that counts stretches by
//! their length gives the whole curve exactly (the same argument as Mattson's stack distances: Mattson
//! et al., *Evaluation Techniques for Storage Hierarchies*, 1970). A stretch that goes on at the end of
//! the record, or of the page, saves without a refault.
//!
//! Limits: times are the record's scan times: a stretch counts from the end of the scan interval with
//! the last access to the beginning of the one with the next, which is what a policy that looks at
//! the same times would have seen, and the least that it can have been. A page about which a scan knows
//! nothing is as if accessed, without a refault: unknown is not cold. That the program runs slower
//! after refaults, and so accesses later, is not followed.
//!
//! A second curve is of a policy under which pages that came back wait longer ([`patience`]).
//!
//! JSON: [`ReclaimCurveReport`].

pub mod patience;

use std::collections::{BTreeMap, HashMap};

use isotherm_engine::monitor::bits::count;
use isotherm_engine::{Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use serde::Serialize;

use super::Accumulate;
use patience::{Patience, Returned};

use super::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use isotherm_record::item::{Header, Item};
use isotherm_record::pages::{PageBits, PageBlock, PageSnapshot};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct ReclaimCurveOptions {
    /// Time that the program loses by a refault.
    pub refault_cost: Nanos,
    /// Choose the least threshold whose slowdown is at most this share, 0 to 1.
    pub max_slowdown: Option<f64>,
}

impl Default for ReclaimCurveOptions {
    /// 7 us: what a program loses with a page read back from zram (docs/benchmarks.md).
    fn default() -> Self {
        Self {
            refault_cost: Nanos(7_000),
            max_slowdown: None,
        }
    }
}

/// What one threshold comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReclaimPoint {
    /// Memory is reclaimed after being idle for this long.
    pub threshold_ns: Nanos,
    /// Stretches of idleness that lasted so long, in pages.
    pub idle_pages: u64,
    /// Bytes times seconds that it would not have been in memory.
    pub saved_byte_seconds: f64,
    /// Mean over time.
    pub saved_mean_bytes: u64,
    /// The same as a share of the mean resident memory.
    pub saved_share: f64,
    /// Pages read back per second.
    pub refaults_per_s: f64,
    /// Share of its time that the program would have lost by reading back.
    pub slowdown: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReclaimCurveReport {
    /// `reclaim_curve`.
    pub report: &'static str,
    /// The version of this JSON.
    pub version: u32,
    /// Where the facts come from.
    pub record: RecordInfo,
    /// From the first scan to the last.
    pub duration_ns: Nanos,
    /// Mean time that a scan speaks of: of shorter idleness nothing can be said.
    pub scan_interval_ns: Nanos,
    /// Mean over time of the memory that was there.
    pub resident_mean_bytes: u64,
    /// Mean over time of the memory about which nothing is known, which is never taken.
    pub unknown_mean_bytes: u64,
    /// Time that the program loses by a refault.
    pub refault_cost_ns: Nanos,
    /// The limit that was asked for.
    pub max_slowdown: Option<f64>,
    /// The least threshold within it; `null` if none is, or none was asked for.
    pub chosen: Option<ReclaimPoint>,
    /// One point for each length of idleness that there was, from the shortest: between two the curve
    /// has no corner. None is shorter than a scan interval.
    pub points: Vec<ReclaimPoint>,
    /// The same at some thresholds, where a page that came back waits four times as long, then sixteen and
    /// sixty-four times.
    pub patient_points: Vec<ReclaimPoint>,
}

/// The accumulator.
#[derive(Clone, Debug)]
pub struct ReclaimCurve {
    context: RecordContext,
    options: ReclaimCurveOptions,
    targets: HashMap<TargetId, Target>,
    counts: Counts,
    /// The shortest scan interval.
    shortest: Option<Nanos>,
    from: Option<Nanos>,
    to: Nanos,
    scanned: Nanos,
    nr_scans: u64,
    resident_page_seconds: f64,
    unknown_page_seconds: f64,
}

/// What all stretches of idleness come to.
#[derive(Clone, Debug, Default)]
struct Counts {
    stretches: BTreeMap<Nanos, Stretches>,
    patience: Patience,
}

/// Stretches of idleness of one length, in pages.
#[derive(Clone, Copy, Debug, Default)]
struct Stretches {
    ended_in_access: u64,
    went_on: u64,
}

/// What is known of a target's pages.
#[derive(Clone, Debug, Default)]
struct Target {
    blocks: HashMap<u64, Block>,
    /// When each of its scans ended.
    ends: Vec<Nanos>,
}

#[derive(Clone, Debug)]
struct Block {
    present: PageBits,
    /// By page: the last scan that saw an access, or nothing at all.
    last: Box<[u32; PAGES_PER_BLOCK]>,
    returned: Box<[Returned; PAGES_PER_BLOCK]>,
    /// The last scan that had the block.
    seen: u32,
}

impl ReclaimCurve {
    /// For a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: ReclaimCurveOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            options,
            targets: HashMap::new(),
            counts: Counts::default(),
            shortest: None,
            from: None,
            to: Nanos(0),
            scanned: Nanos(0),
            nr_scans: 0,
            resident_page_seconds: 0.0,
            unknown_page_seconds: 0.0,
        }
    }

    fn scan(&mut self, pages: &PageSnapshot) {
        let target = self.targets.entry(pages.target).or_default();
        let number = target.ends.len() as u32;
        target.ends.push(pages.end);
        self.from.get_or_insert(pages.start);
        self.to = self.to.max(pages.end);
        self.scanned = self.scanned + pages.end.since(pages.start);
        self.nr_scans += 1;
        let length = pages.end.since(pages.start);
        self.shortest = Some(
            self.shortest
                .map_or(length, |shortest| shortest.min(length)),
        );
        let length_s = length.as_secs_f64();
        for block in &pages.blocks {
            self.resident_page_seconds += length_s * f64::from(count(&block.present));
            self.unknown_page_seconds += length_s * f64::from(count(&block.unknown));
            let state = target.blocks.entry(block.block).or_insert_with(|| Block {
                present: [0; 8],
                last: Box::new([0; PAGES_PER_BLOCK]),
                returned: Box::new([Returned::default(); PAGES_PER_BLOCK]),
                seen: number,
            });
            let times = (number, pages.start, &target.ends[..]);
            state.scan(block, times, &mut self.counts);
        }
        // A block that is no more: what idled in it goes on no longer.
        let (ends, counts) = (&target.ends, &mut self.counts);
        target.blocks.retain(|_, block| {
            let is_there = block.seen == number;
            if !is_there {
                block.close(ends, pages.start, counts);
            }
            is_there
        });
    }

    fn points(&self, seconds: f64, resident: u64) -> Vec<ReclaimPoint> {
        // From the longest: each point holds all stretches that are as long or longer.
        let (mut refaults, mut pages, mut page_seconds) = (0, 0, 0.0);
        let mut points: Vec<ReclaimPoint> = Vec::with_capacity(self.counts.stretches.len());
        let least = self.shortest.unwrap_or_default();
        let told = self.counts.stretches.range(least..);
        for (&length, stretches) in told.rev() {
            let all = stretches.ended_in_access + stretches.went_on;
            refaults += stretches.ended_in_access;
            pages += all;
            page_seconds += all as f64 * length.as_secs_f64();
            let saved = (page_seconds - pages as f64 * length.as_secs_f64()) * PAGE_SIZE as f64;
            let lost_s = refaults as f64 * self.options.refault_cost.as_secs_f64();
            points.push(ReclaimPoint {
                threshold_ns: length,
                idle_pages: pages,
                saved_byte_seconds: saved,
                saved_mean_bytes: (saved / seconds) as u64,
                saved_share: saved / seconds / resident.max(1) as f64,
                refaults_per_s: refaults as f64 / seconds,
                slowdown: lost_s / seconds,
            });
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
            Item::Pages(pages)
                if self.context.admits_target(pages.target)
                    && self.context.admits_time(pages.start) =>
            {
                self.scan(pages);
            }
            Item::TargetExit(exit) => {
                if let Some(target) = self.targets.remove(&exit.target) {
                    target.close(&mut self.counts);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, end: RecordEnd) {
        self.context.end(end);
    }

    fn finish(mut self) -> Option<ReclaimCurveReport> {
        let from = self.from?;
        for (_, target) in self.targets.drain() {
            target.close(&mut self.counts);
        }
        let duration = self.to.since(from);
        let seconds = duration.as_secs_f64().max(1e-9);
        let mean = |page_seconds: f64| (page_seconds / seconds * PAGE_SIZE as f64) as u64;
        let resident = mean(self.resident_page_seconds);
        let points = self.points(seconds, resident);
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
            refault_cost_ns: self.options.refault_cost,
            max_slowdown: self.options.max_slowdown,
            chosen: points.iter().find(within).copied(),
            points,
            patient_points: self.counts.patience.points(
                self.shortest.unwrap_or_default()..duration,
                (seconds, resident),
                self.options.refault_cost,
            ),
            record: self.context.record_info(),
        })
    }
}

impl ReclaimCurveReport {
    /// What a threshold comes to, also between two points: the stretches that last so long are those of
    /// the next point, each of which saves that much longer.
    pub fn at(&self, threshold: Nanos) -> ReclaimPoint {
        let next = self
            .points
            .partition_point(|point| point.threshold_ns < threshold);
        let Some(&above) = self.points.get(next) else {
            return ReclaimPoint {
                threshold_ns: threshold,
                ..ReclaimPoint::default()
            };
        };
        let longer_s = above.threshold_ns.since(threshold).as_secs_f64();
        let more = (above.idle_pages * PAGE_SIZE) as f64 * longer_s;
        let mean = more / self.duration_ns.as_secs_f64().max(1e-9);
        ReclaimPoint {
            threshold_ns: threshold,
            saved_byte_seconds: above.saved_byte_seconds + more,
            saved_mean_bytes: above.saved_mean_bytes + mean as u64,
            saved_share: above.saved_share + mean / self.resident_mean_bytes.max(1) as f64,
            ..above
        }
    }
}

impl Target {
    fn close(self, counts: &mut Counts) {
        let Some(&end) = self.ends.last() else { return };
        for mut block in self.blocks.into_values() {
            block.close(&self.ends, end, counts);
        }
    }
}

/// How a stretch of idleness ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The page was accessed.
    Access,
    /// It is not there any more.
    Gone,
    /// Nothing more is known of it, or the record ends.
    Open,
}

impl Block {
    /// Takes in scan `number`, of what was accessed from `start` on; the earlier ones ended at `ends`.
    fn scan(
        &mut self,
        now: &PageBlock,
        (number, start, ends): (u32, Nanos, &[Nanos]),
        counts: &mut Counts,
    ) {
        for word in 0..now.present.len() {
            let was = self.present[word];
            let gone = was & !now.present[word];
            let accessed = now.present[word] & now.accessed[word];
            // What has just come was accessed, and of what is unknown nothing may be claimed.
            let restarted = now.present[word] & (now.unknown[word] | !was);
            for page in bits(gone) {
                self.end(word * 64 + page, (start, End::Gone), ends, counts);
            }
            for page in bits(accessed & was & !restarted) {
                self.end(word * 64 + page, (start, End::Access), ends, counts);
            }
            for page in bits(restarted & was) {
                self.end(word * 64 + page, (start, End::Open), ends, counts);
            }
            for page in bits(accessed | restarted) {
                self.last[word * 64 + page] = number;
            }
            self.present[word] = now.present[word];
        }
        self.seen = number;
    }

    fn close(&mut self, ends: &[Nanos], end: Nanos, counts: &mut Counts) {
        let present = self.present;
        for (word, present) in present.iter().enumerate() {
            for page in bits(*present) {
                self.end(word * 64 + page, (end, End::Open), ends, counts);
            }
        }
    }

    /// Counts a page's stretch that lasted until `until`.
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
        let returned = &mut self.returned[page];
        counts.patience.add(idle, is_accessed, returned);
        if how == End::Gone {
            *returned = Returned::default();
        }
    }
}

/// The numbers of a word's set bits.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(at)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{at, header};

    /// Scans of one block, a second each: for each page a character, `#` accessed, `.` idle, `?`
    /// unknown, a space not there.
    fn report(scans: &[&str], max_slowdown: Option<f64>) -> ReclaimCurveReport {
        let options = ReclaimCurveOptions {
            refault_cost: Nanos(1_000_000),
            max_slowdown,
        };
        let mut curve = ReclaimCurve::new(&header(), Scope::default(), options);
        for (second, picture) in scans.iter().enumerate() {
            let mask = |letters: &str| {
                let pages = picture.chars().enumerate();
                let set = pages.filter(|(_, letter)| letters.contains(*letter));
                let mut bits = [0; 8];
                set.for_each(|(page, _)| bits[page / 64] |= 1 << (page % 64));
                bits
            };
            let blocks = vec![PageBlock {
                block: 0x20_0000,
                huge: false,
                present: mask("#.?"),
                accessed: mask("#"),
                unknown: mask("?"),
            }];
            let second = second as u64 * 1000;
            curve.push(&Item::Pages(PageSnapshot {
                target: TargetId(0),
                start: at(second),
                end: at(second + 1000),
                blocks: if picture.trim().is_empty() {
                    Vec::new()
                } else {
                    blocks
                },
            }));
        }
        curve.finish().expect("there are scans")
    }

    /// Page-seconds saved and refaults at a threshold of so many seconds.
    fn at_threshold(report: &ReclaimCurveReport, seconds: u64) -> (f64, f64) {
        let point = report.at(Nanos::from_millis(seconds * 1000));
        let duration = report.duration_ns.as_secs_f64();
        (
            point.saved_byte_seconds / PAGE_SIZE as f64,
            (point.refaults_per_s * duration).round(),
        )
    }

    #[test]
    fn a_stretch_saves_what_is_over_the_threshold_and_costs_a_refault() {
        // Idle for 4 s between two accesses.
        let report = report(&["#", ".", ".", ".", ".", "#"], None);
        assert_eq!(at_threshold(&report, 1), (3.0, 1.0));
        assert_eq!(at_threshold(&report, 3), (1.0, 1.0));
        assert_eq!(at_threshold(&report, 4), (0.0, 1.0));
        assert_eq!(at_threshold(&report, 5), (0.0, 0.0));
    }

    #[test]
    fn what_idles_to_the_end_costs_nothing() {
        let report = report(&["##", "#.", "#.", "#."], None);
        assert_eq!(at_threshold(&report, 1), (2.0, 0.0));
        assert_eq!(report.resident_mean_bytes, 2 * PAGE_SIZE);
    }

    #[test]
    fn what_goes_away_saves_until_then() {
        let report = report(&["#", ".", ".", " ", " "], None);
        assert_eq!(at_threshold(&report, 1), (1.0, 0.0));
    }

    #[test]
    fn unknown_is_not_cold() {
        let report = report(&["#", "?", "?", "?", "#"], None);
        assert_eq!(at_threshold(&report, 1), (0.0, 0.0));
        assert_eq!(report.unknown_mean_bytes, PAGE_SIZE * 3 / 5);
    }

    #[test]
    fn the_least_threshold_within_the_limit_is_chosen() {
        // A page comes back after 1 s, one after 3 s; each costs 1 ms of 8 s.
        let scans = ["##", "..", "#.", "..", "##", "..", "..", ".."];
        let chosen = |limit| {
            let chosen = report(&scans, Some(limit)).chosen;
            chosen.map(|point| point.threshold_ns.as_secs_f64())
        };
        assert_eq!(chosen(1.0), Some(1.0));
        assert_eq!(chosen(0.0002), Some(3.0));
        assert_eq!(report(&scans, None).chosen, None);
    }

    #[test]
    fn nothing_is_told_of_less_than_a_scan_interval() {
        let report = report(&["##", "#.", "##"], None);
        assert_eq!(report.points[0].threshold_ns, Nanos(1_000_000_000));
        let patient = &report.patient_points;
        assert_eq!(patient[0].threshold_ns, Nanos(1_000_000_000));
    }

    #[test]
    fn a_page_that_came_back_waits_longer() {
        // Idle for 3 s, again and again: the first time it is taken after 2 s, then it would be after 8 s.
        let scans = [
            "#", ".", ".", ".", "#", ".", ".", ".", "#", ".", ".", ".", "#",
        ];
        let report = report(&scans, None);
        assert_eq!(at_threshold(&report, 2), (3.0, 3.0));
        let two = Nanos(2_000_000_000);
        let mut patient = report.patient_points.iter();
        let patient = patient
            .find(|point| point.threshold_ns == two)
            .expect("told");
        let saved = patient.saved_byte_seconds / PAGE_SIZE as f64;
        assert_eq!(
            (saved.round(), (patient.refaults_per_s * 13.0).round()),
            (1.0, 1.0)
        );
        assert_eq!(patient.idle_pages, 1);
    }

    /// Reclaims after `threshold` scans without an access, scan by scan.
    fn by_hand(scans: &[Vec<bool>], threshold: u64) -> (f64, f64) {
        let (mut saved, mut refaults) = (0.0, 0.0);
        for page in 0..scans[0].len() {
            let mut idle = 0;
            for scan in scans {
                if scan[page] {
                    refaults += f64::from(u8::from(idle >= threshold && idle > 0));
                    idle = 0;
                } else {
                    saved += f64::from(u8::from(idle >= threshold));
                    idle += 1;
                }
            }
        }
        (saved, refaults)
    }

    proptest! {
        #[test]
        fn one_pass_says_what_every_policy_would_have_done(
            scans in prop::collection::vec(prop::collection::vec(any::<bool>(), 5), 2..20),
            threshold in 1_u64..12,
        ) {
            // Everything is accessed at first, as what has just come is.
            let scans: Vec<Vec<bool>> = std::iter::once(vec![true; 5]).chain(scans).collect();
            let letter = |accessed: &bool| if *accessed { '#' } else { '.' };
            let pictures: Vec<String> = scans.iter().map(|scan| scan.iter().map(letter).collect()).collect();
            let pictures: Vec<&str> = pictures.iter().map(String::as_str).collect();
            let report = report(&pictures, None);
            let (saved, refaults) = at_threshold(&report, threshold);
            let (expected_saved, expected_refaults) = by_hand(&scans, threshold);
            prop_assert!((saved - expected_saved).abs() < 1e-6, "{saved} {expected_saved}");
            prop_assert!((refaults - expected_refaults).abs() < 1e-6, "{refaults} {expected_refaults}");
        }
    }
}
