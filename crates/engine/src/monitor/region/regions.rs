//! Regions: neighbouring pages of about the same access frequency, kept in flat vectors.
//!
//! Problem: for terabytes of memory it is impossible to sample every page. DAMON assumes that the pages of a region
//! behave alike, checks a few of them, and then corrects the assumption. It merges neighbours that turned out alike and
//! splits every region at random, so unlike parts separate in the next interval.
//!
//! Approach: `mm/damon/core.c` of Linux 6.x (`damon_merge_regions_of`, `damon_split_regions_of`, `damon_set_regions`),
//! on vectors that are swept once, instead of lists of boxes. Unlike in the kernel, a region without any observation
//! stays apart from known ones: unknown is not cold.
//!
//! Limits: a region never spans two ranges, so there are at least as many regions as ranges. Random splits need very
//! many tries to single out a hot 2 MiB among cold gigabytes.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::address::{AddressRange, Nanos, PAGE_SIZE};
use crate::snapshot::RegionSnapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) range: AddressRange,
    /// Checks of this interval that found an access, among the `observed` ones with a result.
    pub(crate) accessed: u32,
    pub(crate) observed: u32,
    /// Estimate for the interval that just ended (see [`Region::estimate`]). Without an observation it is the previous
    /// estimate, and `known` is false.
    pub(crate) nr_accesses: u32,
    pub(crate) last_nr_accesses: u32,
    pub(crate) known: bool,
    pub(crate) age: u32,
    pub(crate) age_ns: Nanos,
}

impl Region {
    pub(crate) fn new(range: AddressRange) -> Self {
        Self {
            range,
            accessed: 0,
            observed: 0,
            nr_accesses: 0,
            last_nr_accesses: 0,
            known: false,
            age: 0,
            age_ns: Nanos(0),
        }
    }

    pub(crate) fn count(&mut self, is_accessed: bool) {
        self.observed = self.observed.saturating_add(1);
        self.accessed = self.accessed.saturating_add(is_accessed.into());
    }

    /// Turns the counts of the interval into `nr_accesses`: the number of checks that found an access, as in DAMON. If
    /// some of the `nr_samples` checks had no result, or more were made, it is scaled to the same measure.
    pub(crate) fn estimate(&mut self, nr_samples: u32) {
        self.known = self.observed > 0;
        if self.known {
            let accessed = u64::from(self.accessed) * u64::from(nr_samples);
            self.nr_accesses = (accessed / u64::from(self.observed)) as u32;
        } else {
            self.nr_accesses = self.last_nr_accesses;
        }
    }

    /// Adds one interval to the age, or restarts it if the access frequency changed: by more than `threshold`, or
    /// between none and some. An unknown region keeps its age.
    pub(crate) fn age(&mut self, threshold: u32, elapsed: Nanos) {
        if !self.known {
            return;
        }
        if self.nr_accesses.abs_diff(self.last_nr_accesses) > threshold
            || (self.nr_accesses == 0) != (self.last_nr_accesses == 0)
        {
            self.age = 0;
            self.age_ns = Nanos(0);
        } else {
            self.age = self.age.saturating_add(1);
            self.age_ns = self.age_ns + elapsed;
        }
    }

    pub(crate) fn reset(&mut self) {
        self.last_nr_accesses = self.nr_accesses;
        self.accessed = 0;
        self.observed = 0;
    }

    /// Returns the region as reported at the end of an interval.
    pub(crate) fn snapshot(&self) -> RegionSnapshot {
        let nr_accesses = self.known.then_some(self.nr_accesses as f32);
        RegionSnapshot::new(self.range, nr_accesses).aged(self.age, self.age_ns)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.range.len() / PAGE_SIZE
    }

    /// Takes in the right neighbour; values that both have are weighted by size.
    fn absorb(&mut self, right: &Self) {
        let (l, r) = (self.pages(), right.pages());
        let blend = |a: u64, b: u64| {
            let sum = u128::from(a) * u128::from(l) + u128::from(b) * u128::from(r);
            (sum / u128::from(l + r)) as u64
        };
        self.nr_accesses = match (self.known, right.known) {
            (true, false) => self.nr_accesses,
            (false, true) => right.nr_accesses,
            _ => blend(self.nr_accesses.into(), right.nr_accesses.into()) as u32,
        };
        let last = blend(self.last_nr_accesses.into(), right.last_nr_accesses.into());
        self.last_nr_accesses = last as u32;
        self.age = blend(self.age.into(), right.age.into()) as u32;
        self.age_ns = Nanos(blend(self.age_ns.0, right.age_ns.0));
        self.known |= right.known;
        self.accessed = self.accessed.saturating_add(right.accessed);
        self.observed = self.observed.saturating_add(right.observed);
        self.range.end = right.range.end;
    }
}

/// The condition for merging two neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Likeness {
    pub(crate) threshold: u32,
    /// Largest number of bytes together.
    pub(crate) size_limit: u64,
    /// Also merges if one of them is unknown: only for too many regions.
    pub(crate) forced: bool,
}

pub(crate) fn merge(regions: &mut Vec<Region>, like: Likeness) {
    regions.dedup_by(|right, left| {
        let are_alike = left.range.end == right.range.start
            && (like.forced || left.known == right.known)
            && left.nr_accesses.abs_diff(right.nr_accesses) <= like.threshold
            && left.range.len() + right.range.len() <= like.size_limit;
        if are_alike {
            left.absorb(right);
        }
        are_alike
    });
}

/// The engine's one source of randomness: the same seed gives the same sequence on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(Pcg64Mcg);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns a number from 0 to `bound - 1`, by multiply and shift. For the bounds used here (pages of an address
    /// space) the bias is under one in ten million.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// Returns a point about 10 to 90 % into `range`; `None` if it cannot be cut there.
fn random_cut(range: AddressRange, rng: &mut Rng) -> Option<u64> {
    let size = range.len();
    if size <= 2 * PAGE_SIZE {
        return None;
    }
    let tenths = 1 + rng.below(9);
    let offset = (u128::from(size) * u128::from(tenths) / 10) as u64;
    let cut = range.start + offset / PAGE_SIZE * PAGE_SIZE;
    (range.start < cut).then_some(cut)
}

/// Splits every region into up to `nr_parts` (2 or 3) at random, each with the values of the whole. `spare` is scratch
/// space.
pub(crate) fn split(
    regions: &mut Vec<Region>,
    spare: &mut Vec<Region>,
    nr_parts: u32,
    rng: &mut Rng,
) {
    spare.clear();
    for region in regions.iter() {
        let mut left = *region;
        let first = spare.len();
        // As in the kernel the left part is split again, so parts are found from right to left.
        for _ in 1..nr_parts {
            if let Some(cut) = random_cut(left.range, rng) {
                let range = AddressRange::new(cut, left.range.end);
                left.range.end = cut;
                spare.push(Region { range, ..left });
            }
        }
        spare.push(left);
        spare[first..].reverse();
    }
    std::mem::swap(regions, spare);
}

/// Divides regions of more than `size_limit` bytes evenly. `spare` is scratch space.
pub(crate) fn divide(regions: &mut Vec<Region>, spare: &mut Vec<Region>, size_limit: u64) {
    let fits = |region: &Region| region.range.len() <= size_limit;
    if regions.iter().all(fits) {
        return;
    }
    spare.clear();
    for region in regions.iter() {
        let pages = region.pages();
        let nr_parts = region.range.len().div_ceil(size_limit);
        let nr_parts = nr_parts.clamp(1, pages.max(1));
        let mut rest = *region;
        for i in 1..nr_parts {
            let pages_before = (u128::from(pages) * u128::from(i) / u128::from(nr_parts)) as u64;
            let cut = region.range.start + pages_before * PAGE_SIZE;
            let mut part = rest;
            part.range.end = cut;
            rest.range.start = cut;
            spare.push(part);
        }
        spare.push(rest);
    }
    std::mem::swap(regions, spare);
}

/// Fits `regions` to new `ranges` (ascending, apart). Parts outside of them are removed, and holes get regions of their
/// own. The first and last region of each range are stretched to its ends. `spare` is scratch space.
pub(crate) fn set_ranges(
    regions: &mut Vec<Region>,
    spare: &mut Vec<Region>,
    ranges: &[AddressRange],
) {
    spare.clear();
    let mut from = 0;
    for range in ranges {
        let first = spare.len();
        from += regions[from..].partition_point(|r| r.range.end <= range.start);
        let inside = regions[from..].iter();
        for region in inside.take_while(|r| r.range.start < range.end) {
            let Some(clipped) = region.range.intersection(*range) else {
                continue;
            };
            let last = spare[first..].last();
            let hole = last.and_then(|of| AddressRange::checked(of.range.end, clipped.start));
            spare.extend(hole.map(Region::new));
            spare.push(Region {
                range: clipped,
                ..*region
            });
        }
        match &mut spare[first..] {
            [] => spare.push(Region::new(*range)),
            [.., last] => {
                last.range.end = range.end;
                spare[first].range.start = range.start;
            }
        }
    }
    std::mem::swap(regions, spare);
}

#[cfg(test)]
mod tests;
