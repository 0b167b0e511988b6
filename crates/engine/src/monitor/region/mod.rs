//! The loop: read this first.
//!
//! Problem: measure how often each part of a program's memory is accessed, with as few page samples as possible.
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
//! [`Strategy`](crate::Strategy) switches the improvements on the kernel. They are in `sampler.rs` (clusters, weights),
//! `layout.rs` (populated memory), `regions.rs` (telling splits) and `budget`. Two things differ in every mode, as the
//! kernel's way would only harm. Unknown pages are not taken for idle, and an interval counts once for a region's age
//! however often merging is repeated.
//!
//! Limits: one generator serves all targets, so adding a target changes the others' random choices.

mod regions;
mod rng;
mod sampler;
mod tuner;

use super::Intervals;
use super::budget::BudgetController;
use super::layout::Layout;
use crate::address::{AddressRange, Nanos, PAGE_SIZE};
use crate::attributes::{Attributes, AttributesError, CpuBudget};
use crate::port::{Cost, Sample, Touch};
use crate::snapshot::{RegionSnapshot, Snapshot, TargetId};
pub(crate) use regions::Region;
use regions::{Cuts, Likeness};
use rng::Rng;
use sampler::SampleAllocation;
use tuner::Tuner;

/// The unit of fractional counts: 1/256 of an access.
const FRACTION: u32 = 256;
/// Bounds of the samples per region and check; under a budget they change before the interval does.
const DENSITY: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// The input of a tick.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    /// Results of the samples of the last plan, in their order; empty if the probe failed.
    pub touches: &'a [Touch],
    /// New targets, and known ones whose mappings were read again.
    pub layouts: Vec<(TargetId, Layout)>,
    /// Targets that have ended. Their counts of this interval are dropped.
    pub ended: &'a [TargetId],
    /// Cost of watching since the start.
    pub cost: Cost,
}

/// The work until the next tick.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Samples to watch until the next tick, by target and address.
    pub samples: Vec<Sample>,
    /// Snapshots that are complete now.
    pub snapshots: Vec<Snapshot>,
    /// Whether the driver should read the targets' mappings and pass them with the next tick.
    pub layouts_wanted: bool,
    /// Time of the next tick.
    pub next_tick: Nanos,
}

/// One monitored address space.
#[derive(Clone, Debug)]
struct Target {
    id: TargetId,
    ranges: Vec<AddressRange>,
    boundaries: Vec<u64>,
    regions: Vec<Region>,
}

/// A monitoring context: some targets that share intervals, regions and a budget.
#[derive(Clone, Debug)]
pub struct Engine {
    attributes: Attributes,
    /// Checks per aggregation interval.
    nr_samples: u32,
    /// Units of `nr_accesses` per access: 1 as in DAMON, or [`FRACTION`].
    fraction: u32,
    intervals: Intervals,
    /// Samples per region and check, on average.
    density: f64,
    tuner: Option<Tuner>,
    budget: Option<(CpuBudget, BudgetController)>,
    rng: Rng,
    /// Targets by id, so that the order in which they were added does not matter.
    targets: Vec<Target>,
    plan: Plan,
    /// Target and region of each sample of the plan.
    sampled: Vec<(u32, u32)>,
    /// Whether the plan had any target; by chance it may have no sample nevertheless.
    armed: bool,
    /// Checks made in this aggregation interval.
    checks: u32,
    interval_start: Nanos,
    next_update: Nanos,
    nr_regions_before: usize,
    spare_regions: Vec<Region>,
    spare_snapshots: Vec<Snapshot>,
}

impl Engine {
    /// Creates an engine without targets.
    pub fn new(attributes: Attributes) -> Result<Self, AttributesError> {
        attributes.validate()?;
        let budget = attributes
            .cpu_budget
            .map(|budget| (budget, controller(&attributes, budget)));
        Ok(Self {
            nr_samples: attributes.nr_samples(),
            fraction: if attributes.strategy.counts_whole() {
                1
            } else {
                FRACTION
            },
            intervals: Intervals {
                sample: attributes.sample_interval,
                aggregation: attributes.aggregation_interval,
                update: attributes.update_interval,
            },
            density: 1.0,
            tuner: attributes.intervals_goal.map(Tuner::new),
            budget,
            rng: Rng::new(attributes.seed),
            targets: Vec::new(),
            plan: Plan::default(),
            sampled: Vec::new(),
            armed: false,
            checks: 0,
            interval_start: Nanos(0),
            next_update: Nanos(0),
            nr_regions_before: 0,
            spare_regions: Vec::new(),
            spare_snapshots: Vec::new(),
            attributes,
        })
    }

    /// Returns the present intervals.
    pub fn intervals(&self) -> Intervals {
        self.intervals
    }

    /// Returns the checks per aggregation interval, the upper bound of `nr_accesses`.
    pub fn nr_samples(&self) -> u32 {
        self.nr_samples
    }

    /// Returns the mean number of samples per region and check; 1 unless a budget changes it.
    pub fn samples_per_region(&self) -> f64 {
        self.density
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
        let regions = self
            .find(target)
            .map_or(&[][..], |i| &self.targets[i].regions);
        regions.iter().map(|region| region.range)
    }

    /// Restarts the age of regions that lie mostly in `range`, as an action does in DAMON.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        let Some(i) = self.find(target) else { return };
        let regions = &mut self.targets[i].regions;
        let first = regions.partition_point(|region| region.range.end <= range.start);
        for region in regions[first..]
            .iter_mut()
            .take_while(|region| region.range.start < range.end)
        {
            let inside = region
                .range
                .intersection(range)
                .map_or(0, AddressRange::len);
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
        self.spare_snapshots.append(&mut self.plan.snapshots);
        self.take_answers(facts.touches);
        self.adapt_to_cost(now, facts.cost);
        if self.checks == 0 {
            // There were no samples to check: this is the first tick, or there are no targets.
            self.interval_start = now;
        } else if self.checks >= self.nr_samples {
            self.aggregate(now);
        }
        self.targets
            .retain(|target| !facts.ended.contains(&target.id));
        if !facts.layouts.is_empty() {
            self.update_layouts(facts.layouts);
        }
        self.plan_samples();
        self.plan.layouts_wanted = now >= self.next_update;
        if self.plan.layouts_wanted {
            self.next_update = now + self.intervals.update;
        }
        self.plan.next_tick = now + self.intervals.sample;
        &self.plan
    }

    /// Adds the results to the counts of the sampled regions.
    fn take_answers(&mut self, touches: &[Touch]) {
        assert!(
            touches.is_empty() || touches.len() == self.sampled.len(),
            "{} answers to {} samples",
            touches.len(),
            self.sampled.len(),
        );
        for (i, (touch, &(target, region))) in touches.iter().zip(&self.sampled).enumerate() {
            if let Touch::Seen { observed, accessed } = *touch {
                let region = &mut self.targets[target as usize].regions[region as usize];
                region.count(self.plan.samples[i].address, observed, accessed);
            }
        }
        if self.armed {
            self.checks += 1;
        }
    }

    /// Ends an aggregation interval.
    fn aggregate(&mut self, now: Nanos) {
        let start = self.interval_start;
        let full = self.nr_samples * self.fraction;
        let mut most_seen = 0;
        for region in all_mut(&mut self.targets) {
            region.estimate(self.nr_samples, self.fraction);
            if region.known {
                most_seen = most_seen.max(region.nr_accesses);
            }
        }
        let threshold = most_seen / 10;
        for region in all_mut(&mut self.targets) {
            region.age(threshold, self.fraction, now.since(start));
        }
        self.merge(threshold);
        self.take_snapshots(start, now);
        if let Some(tuner) = &mut self.tuner {
            let regions = all(&self.targets);
            let sample = tuner.next(self.intervals.sample, regions, full);
            self.set_sample_interval(sample);
        }
        self.checks = 0;
        self.interval_start = now;
        self.split();
        for region in all_mut(&mut self.targets) {
            region.reset();
        }
        self.follow_pace();
        self.allocate_samples();
    }

    /// Merges similar regions, and less similar ones while there are too many.
    fn merge(&mut self, mut threshold: u32) {
        let size_limit = self.size_limit();
        let full = self.nr_samples * self.fraction;
        loop {
            for target in &mut self.targets {
                let like = Likeness {
                    threshold,
                    size_limit,
                    forced: false,
                };
                regions::merge(&mut target.regions, like);
            }
            if self.nr_regions() <= self.nr_regions_max() || threshold >= full {
                return;
            }
            threshold = (threshold * 2).max(self.fraction);
        }
    }

    /// Takes a snapshot of every target.
    fn take_snapshots(&mut self, start: Nanos, end: Nanos) {
        let (nr_samples, fraction) = (self.nr_samples, self.fraction as f32);
        for target in self
            .targets
            .iter()
            .filter(|target| !target.regions.is_empty())
        {
            let mut snapshot = self.spare_snapshots.pop().unwrap_or_default();
            snapshot.target = target.id;
            snapshot.start = start;
            snapshot.end = end;
            snapshot.nr_samples = nr_samples;
            snapshot.regions.clear();
            snapshot
                .regions
                .extend(target.regions.iter().map(|region| RegionSnapshot {
                    range: region.range,
                    nr_accesses: region.known.then(|| region.nr_accesses as f32 / fraction),
                    age: region.age,
                    age_ns: region.age_ns,
                    memory: None,
                }));
            self.plan.snapshots.push(snapshot);
        }
    }

    /// Splits every region at random while there are few, as the kernel's `kdamond_split_regions` does.
    fn split(&mut self) {
        let full = self.nr_samples * self.fraction;
        let nr_regions = self.nr_regions();
        let max = self.attributes.max_nr_regions as usize;
        if nr_regions > max / 2 {
            return;
        }
        // An unchanged number may mean that the odd part is in the middle of a region.
        let stuck = nr_regions == self.nr_regions_before && nr_regions < max / 3;
        let nr_parts = if stuck { 3 } else { 2 };
        let mut extra = max.saturating_sub(nr_regions * nr_parts as usize);
        for target in &mut self.targets {
            let cuts = if self.attributes.strategy.aligned_splits {
                Cuts::Telling {
                    full,
                    crowded: nr_regions > max / 10,
                    boundaries: &target.boundaries,
                }
            } else {
                Cuts::Anywhere
            };
            let spare = &mut self.spare_regions;
            regions::split(
                &mut target.regions,
                spare,
                nr_parts,
                &mut extra,
                cuts,
                &mut self.rng,
            );
        }
        self.nr_regions_before = nr_regions;
    }

    /// Sets the number of samples for each region in the next interval.
    fn allocate_samples(&mut self) {
        if !self.attributes.strategy.weighted_samples {
            return;
        }
        let regions = all(&self.targets);
        let allocation =
            SampleAllocation::new(regions, self.density, self.nr_samples, self.fraction);
        for region in all_mut(&mut self.targets) {
            allocation.apply(region, &mut self.rng);
        }
    }

    /// Fits regions to new layouts.
    fn update_layouts(&mut self, layouts: Vec<(TargetId, Layout)>) {
        let nr_ranges_max = self.attributes.max_nr_regions as usize / 4 / self.targets.len().max(1);
        for (id, layout) in layouts {
            let populated_only = self.attributes.strategy.populated_only;
            let i = self.targets.binary_search_by_key(&id, |target| target.id);
            let i = i.unwrap_or_else(|i| {
                let (ranges, boundaries, regions) = (Vec::new(), Vec::new(), Vec::new());
                self.targets.insert(
                    i,
                    Target {
                        id,
                        ranges,
                        boundaries,
                        regions,
                    },
                );
                i
            });
            let target = &mut self.targets[i];
            target.ranges = layout.ranges(populated_only, nr_ranges_max.max(3));
            target.boundaries = layout.boundaries();
            let spare = &mut self.spare_regions;
            regions::set_ranges(&mut target.regions, spare, &target.ranges);
        }
        let size_limit = self.size_limit();
        for target in &mut self.targets {
            regions::divide(&mut target.regions, &mut self.spare_regions, size_limit);
        }
        self.merge_to_limit(size_limit);
        self.allocate_samples();
    }

    /// Merges regions without a test of similarity, as new ranges have made too many of them.
    fn merge_to_limit(&mut self, mut size_limit: u64) {
        while self.nr_regions() > self.nr_regions_max() {
            let like = Likeness {
                threshold: u32::MAX,
                size_limit,
                forced: true,
            };
            for target in &mut self.targets {
                regions::merge(&mut target.regions, like);
            }
            if size_limit == u64::MAX {
                return;
            }
            size_limit = size_limit.saturating_mul(2);
        }
    }

    fn plan_samples(&mut self) {
        self.plan.samples.clear();
        self.sampled.clear();
        self.armed = !self.targets.is_empty();
        let strategy = self.attributes.strategy;
        for (t, target) in self.targets.iter_mut().enumerate() {
            for (r, region) in target.regions.iter_mut().enumerate() {
                let nr = if strategy.weighted_samples {
                    region.draw()
                } else {
                    1
                };
                let first = self.plan.samples.len();
                for _ in 0..nr {
                    let pages = strategy.cluster_pages;
                    let sample = sampler::cluster(target.id, region.range, pages, &mut self.rng);
                    self.plan.samples.push(sample);
                    self.sampled.push((t as u32, r as u32));
                }
                self.plan.samples[first..].sort_unstable_by_key(|sample| sample.address);
            }
        }
    }

    /// Takes in the spent CPU time. Overspending has an effect at once, underspending from the next interval on.
    fn adapt_to_cost(&mut self, now: Nanos, cost: Cost) {
        let Some((_, controller)) = &mut self.budget else {
            return;
        };
        let before = controller.pace();
        if controller.update(now, cost) < before {
            self.follow_pace();
            self.allocate_samples();
        }
    }

    /// Converts the pace that the budget allows into samples per region and a sampling interval. The samples are
    /// reduced first: that costs accuracy, while longer intervals also cost timeliness.
    fn follow_pace(&mut self) {
        let Some((budget, controller)) = &self.budget else {
            return;
        };
        let pace = controller.pace();
        self.density = if self.attributes.strategy.weighted_samples {
            pace.clamp(*DENSITY.start(), *DENSITY.end())
        } else {
            1.0
        };
        let base = self.attributes.sample_interval.0 as f64;
        let sample = Nanos((base * self.density / pace) as u64);
        let sample = sample.clamp(self.attributes.sample_interval, budget.max_sample_interval);
        self.set_sample_interval(sample);
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

/// Creates the controller of the pace. A pace of 1 is the given interval, which is also the shortest; the bounds of the
/// pace are those of the interval and of the density. More samples give more information than shorter intervals would,
/// in which a hot page may stay untouched.
fn controller(attributes: &Attributes, budget: CpuBudget) -> BudgetController {
    let base = attributes.sample_interval.0 as f64;
    let slowest = base / budget.max_sample_interval.0 as f64;
    let bounds = if attributes.strategy.weighted_samples {
        slowest * DENSITY.start()..=*DENSITY.end()
    } else {
        slowest..=1.0
    };
    BudgetController::new(budget.share, bounds)
}
