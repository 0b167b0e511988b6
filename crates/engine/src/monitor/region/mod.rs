//! The loop: read this first.
//!
//! Problem: measure how often each part of a program's memory is accessed, with as few page samples as possible. A
//! sample costs CPU time, most of all if the page was accessed: its accessed bit must then be cleared (about 7 us
//! against 0.5 us: docs/results/overhead.md).
//!
//! Approach: DAMON's (`kdamond_fn` in Linux's `mm/damon/core.c`; Park et al., *Profiling Dynamic Data
//! Access Patterns with Controlled Overhead and Quality*, Middleware Industry 2019). Memory is cut
//! into regions. One *tick* per sampling interval:
//!
//! ```text
//! facts: was the page that we chose last time accessed? ──► count it for its region
//!        after an aggregation interval:  merge regions that are alike
//!                                        take a snapshot of each target
//!                                        begin to count anew, split the regions
//!        new mappings? ──► fit the regions to them
//! plan:  a page of each region, to be looked at until the next tick
//! ```
//!
//! The engine does not sample pages itself: a driver passes the plan to a probe, waits until `next_tick`, and returns
//! the probe's results. Therefore it runs the same on this machine, in a simulation, and in a test.
//!
//! Two things differ, as the kernel's way would only harm. Unknown pages are not taken for idle, and an interval counts
//! once for a region's age however often merging is repeated.
//!
//! Limits: one generator serves all targets, so adding a target changes the others' random choices.

pub(crate) mod layout;
mod regions;
mod tuner;

use super::Intervals;
use crate::address::{AddressRange, Nanos, PAGE_SIZE};
use crate::attributes::{Attributes, AttributesError};
use crate::port::{Sample, Touch};
use crate::snapshot::{Snapshot, TargetId};
pub(crate) use regions::Region;
use regions::{Likeness, Rng};
use tuner::Tuner;

/// The input of a tick.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    /// Results of the samples of the last plan, in their order; empty if the probe failed.
    pub touches: &'a [Touch],
    /// Ranges to monitor of new targets, and of known ones whose mappings were read again.
    pub ranges: Vec<(TargetId, Vec<AddressRange>)>,
    /// Targets that have ended. Their counts of this interval are dropped.
    pub ended: &'a [TargetId],
}

/// The work until the next tick.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Samples to watch until the next tick, by target and address.
    pub samples: Vec<Sample>,
    /// Snapshots that are complete now.
    pub snapshots: Vec<Snapshot>,
    /// Whether the driver should read the targets' mappings and pass their ranges with the next tick.
    pub ranges_wanted: bool,
    /// Time of the next tick.
    pub next_tick: Nanos,
}

/// One monitored address space.
#[derive(Clone, Debug, Default)]
struct Target {
    id: TargetId,
    ranges: Vec<AddressRange>,
    regions: Vec<Region>,
}

/// A monitoring context: some targets that share intervals and regions.
#[derive(Clone, Debug)]
pub struct Engine {
    attributes: Attributes,
    /// Checks per aggregation interval.
    nr_samples: u32,
    intervals: Intervals,
    tuner: Option<Tuner>,
    rng: Rng,
    /// Targets by id, so that the order in which they were added does not matter.
    targets: Vec<Target>,
    plan: Plan,
    checks: u32,
    interval_start: Nanos,
    next_update: Nanos,
    nr_regions_before: usize,
    spare_regions: Vec<Region>,
}

impl Engine {
    /// Creates an engine without targets.
    pub fn new(attributes: Attributes) -> Result<Self, AttributesError> {
        attributes.validate()?;
        Ok(Self {
            nr_samples: attributes.nr_samples(),
            intervals: Intervals {
                sample: attributes.sample_interval,
                aggregation: attributes.aggregation_interval,
                update: attributes.update_interval,
            },
            tuner: attributes.intervals_goal.map(Tuner::new),
            rng: Rng::new(attributes.seed),
            targets: Vec::new(),
            plan: Plan::default(),
            checks: 0,
            interval_start: Nanos(0),
            next_update: Nanos(0),
            nr_regions_before: 0,
            spare_regions: Vec::new(),
            attributes,
        })
    }

    /// Returns the present intervals.
    pub fn intervals(&self) -> Intervals {
        self.intervals
    }

    /// Returns the number of regions of all targets together.
    pub fn nr_regions(&self) -> usize {
        self.targets.iter().map(|target| target.regions.len()).sum()
    }

    /// Returns the ranges in which a target is monitored.
    pub fn ranges(&self, target: TargetId) -> &[AddressRange] {
        self.find(target).map_or(&[], |i| &self.targets[i].ranges)
    }

    /// Returns a target's present regions, in address order.
    pub fn regions(&self, target: TargetId) -> impl Iterator<Item = AddressRange> + '_ {
        let target = self.find(target).map(|i| &self.targets[i]);
        let regions = target.into_iter().flat_map(|target| &target.regions);
        regions.map(|region| region.range)
    }

    /// Restarts the age of regions that lie mostly in `range`, as an action does in DAMON.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        let Some(i) = self.find(target) else { return };
        let regions = &mut self.targets[i].regions;
        let first = regions.partition_point(|region| region.range.end <= range.start);
        let regions = regions[first..].iter_mut();
        for region in regions.take_while(|region| region.range.start < range.end) {
            let inside = region.range.intersection(range);
            let inside = inside.map_or(0, AddressRange::len);
            if inside > region.range.len() / 2 {
                region.age = 0;
                region.age_ns = Nanos(0);
            }
        }
    }

    /// Does one round: counts the accesses, and selects the next samples.
    ///
    /// # Panics
    /// Panics if there are results, but not one for each sample of the last plan: that is a bug of the driver.
    pub fn tick(&mut self, now: Nanos, facts: Facts<'_>) -> &Plan {
        self.plan.snapshots.clear();
        self.take_answers(facts.touches);
        if self.checks == 0 {
            // Nothing was checked: this is the first tick, or there are no targets.
            self.interval_start = now;
        } else if self.checks >= self.nr_samples {
            self.aggregate(now);
        }
        self.targets
            .retain(|target| !facts.ended.contains(&target.id));
        if !facts.ranges.is_empty() {
            self.update_layouts(facts.ranges);
        }
        self.plan_samples();
        self.plan.ranges_wanted = now >= self.next_update;
        if self.plan.ranges_wanted {
            self.next_update = now + self.intervals.update;
        }
        self.plan.next_tick = now + self.intervals.sample;
        &self.plan
    }

    fn take_answers(&mut self, touches: &[Touch]) {
        let nr_samples = self.plan.samples.len();
        assert!(
            touches.is_empty() || touches.len() == nr_samples,
            "{} answers to {nr_samples} samples",
            touches.len(),
        );
        // The regions are still those of the plan, which has a sample of each.
        for (touch, region) in touches.iter().zip(all_mut(&mut self.targets)) {
            match touch {
                Touch::Accessed => region.count(true),
                Touch::Idle => region.count(false),
                Touch::Unknown(_) => {}
            }
        }
        if !self.targets.is_empty() {
            self.checks += 1;
        }
    }

    fn aggregate(&mut self, now: Nanos) {
        let start = self.interval_start;
        let mut most_seen = 0;
        for region in all_mut(&mut self.targets) {
            region.estimate(self.nr_samples);
            if region.known {
                most_seen = most_seen.max(region.nr_accesses);
            }
        }
        let threshold = most_seen / 10;
        for region in all_mut(&mut self.targets) {
            region.age(threshold, now.since(start));
        }
        self.merge(threshold);
        self.take_snapshots(start, now);
        if let Some(tuner) = &mut self.tuner {
            let regions = all(&self.targets);
            let sample = tuner.next(self.intervals.sample, regions, self.nr_samples);
            self.set_sample_interval(sample);
        }
        self.checks = 0;
        self.interval_start = now;
        self.split();
        for region in all_mut(&mut self.targets) {
            region.reset();
        }
    }

    /// Merges similar regions, and less similar ones while there are too many.
    fn merge(&mut self, mut threshold: u32) {
        let size_limit = self.size_limit();
        loop {
            self.merge_by(Likeness {
                threshold,
                size_limit,
                forced: false,
            });
            if self.nr_regions() <= self.nr_regions_max() || threshold >= self.nr_samples {
                return;
            }
            threshold = (threshold * 2).max(1);
        }
    }

    fn take_snapshots(&mut self, start: Nanos, end: Nanos) {
        let targets = self.targets.iter();
        let targets = targets.filter(|target| !target.regions.is_empty());
        self.plan.snapshots.extend(targets.map(|target| {
            let regions = target.regions.iter().map(Region::snapshot).collect();
            Snapshot::new(target.id, (start, end), self.nr_samples, regions)
        }));
    }

    /// Splits every region at random while there are few, as the kernel's `kdamond_split_regions` does.
    fn split(&mut self) {
        let nr_regions = self.nr_regions();
        let max = self.attributes.max_nr_regions as usize;
        if nr_regions > max / 2 {
            return;
        }
        // An unchanged number may mean that the odd part is in the middle of a region.
        let stuck = nr_regions == self.nr_regions_before && nr_regions < max / 3;
        let nr_parts = if stuck { 3 } else { 2 };
        for target in &mut self.targets {
            let spare = &mut self.spare_regions;
            regions::split(&mut target.regions, spare, nr_parts, &mut self.rng);
        }
        self.nr_regions_before = nr_regions;
    }

    fn update_layouts(&mut self, layouts: Vec<(TargetId, Vec<AddressRange>)>) {
        for (id, ranges) in layouts {
            let i = self.targets.binary_search_by_key(&id, |target| target.id);
            let i = i.unwrap_or_else(|i| {
                let target = Target {
                    id,
                    ..Target::default()
                };
                self.targets.insert(i, target);
                i
            });
            let target = &mut self.targets[i];
            target.ranges = layout::in_whole_pages(&ranges);
            let spare = &mut self.spare_regions;
            regions::set_ranges(&mut target.regions, spare, &target.ranges);
        }
        let size_limit = self.size_limit();
        for target in &mut self.targets {
            regions::divide(&mut target.regions, &mut self.spare_regions, size_limit);
        }
        self.merge_to_limit(size_limit);
    }

    /// Merges regions without a test of similarity, as new ranges have made too many of them.
    fn merge_to_limit(&mut self, mut size_limit: u64) {
        while self.nr_regions() > self.nr_regions_max() {
            self.merge_by(Likeness {
                threshold: u32::MAX,
                size_limit,
                forced: true,
            });
            if size_limit == u64::MAX {
                return;
            }
            size_limit = size_limit.saturating_mul(2);
        }
    }

    fn merge_by(&mut self, like: Likeness) {
        for target in &mut self.targets {
            regions::merge(&mut target.regions, like);
        }
    }

    /// Selects a random page of each region.
    fn plan_samples(&mut self) {
        self.plan.samples.clear();
        for target in &self.targets {
            for region in &target.regions {
                let page = self.rng.below(region.pages());
                self.plan.samples.push(Sample {
                    target: target.id,
                    address: region.range.start + page * PAGE_SIZE,
                });
            }
        }
    }

    /// Sets both intervals; ages count in aggregation intervals and are converted.
    fn set_sample_interval(&mut self, sample: Nanos) {
        let before = self.intervals.sample;
        if sample == before {
            return;
        }
        self.intervals.sample = sample;
        self.intervals.aggregation = Nanos(sample.0.saturating_mul(self.nr_samples.into()));
        for region in all_mut(&mut self.targets) {
            let age = u128::from(region.age) * u128::from(before.0) / u128::from(sample.0);
            region.age = u32::try_from(age).unwrap_or(u32::MAX);
        }
    }

    /// Returns the most bytes of a region that results from merging.
    fn size_limit(&self) -> u64 {
        let ranges = self.targets.iter().flat_map(|target| &target.ranges);
        let total: u64 = ranges.map(|range| range.len()).sum();
        (total / u64::from(self.attributes.min_nr_regions)).max(PAGE_SIZE)
    }

    fn nr_regions_max(&self) -> usize {
        let nr_ranges = self.targets.iter().map(|target| target.ranges.len()).sum();
        (self.attributes.max_nr_regions as usize).max(nr_ranges)
    }

    fn find(&self, target: TargetId) -> Option<usize> {
        self.targets.binary_search_by_key(&target, |t| t.id).ok()
    }
}

fn all(targets: &[Target]) -> impl Iterator<Item = &Region> {
    targets.iter().flat_map(|target| &target.regions)
}

fn all_mut(targets: &mut [Target]) -> impl Iterator<Item = &mut Region> {
    targets.iter_mut().flat_map(|target| &mut target.regions)
}
