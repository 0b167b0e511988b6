//! Selects the samples: random pages, and their number in each region.
//!
//! Problem: each sample of a page costs CPU time, most of all if the page was accessed: its accessed bit must then be
//! cleared (about 7 us against 0.5 us: docs/results/overhead.md). DAMON samples one page of every region at every
//! check, in the empty gigabyte and the well-known hot megabyte alike.
//!
//! Approach: *clusters*: some neighbouring pages cost hardly more than one, and together give a fraction instead of a
//! yes or no. *Weights*: stratified sampling with optimal allocation (Neyman 1934; Cochran, *Sampling Techniques*,
//! 5.5). For a given cost, the error of a sum over strata is least with samples in proportion to size x deviation /
//! sqrt(cost). A share of the samples is allocated evenly, since a region that seems all cold may hide a hot corner.
//!
//! Limits: the pages of a cluster are mostly alike, so a cluster of 16 has less information than 16 pages that lie
//! apart.

use super::regions::Region;
use super::rng::Rng;
use crate::address::{AddressRange, PAGE_SIZE};
use crate::port::Sample;
use crate::snapshot::TargetId;

/// The unit of [`Region::quota`].
const WHOLE: u32 = 256;
/// Most samples of one region in one check.
const SAMPLES_MAX: u32 = 8;
/// Share of samples that is allocated evenly.
const EVEN_SHARE: f64 = 0.3;
/// Extra cost of sampling an accessed page, as a multiple of the cost for an idle page.
const ACCESSED_EXTRA_COST: f64 = 9.0;

/// Returns a random page of `range` with its neighbours: `cluster_pages` of them, aligned to their number (so they
/// never cross a page table). Pages outside of `range` are left out.
pub(crate) fn cluster(
    target: TargetId,
    range: AddressRange,
    cluster_pages: u32,
    rng: &mut Rng,
) -> Sample {
    let page = range.start + rng.below(range.len() / PAGE_SIZE) * PAGE_SIZE;
    let size = u64::from(cluster_pages) * PAGE_SIZE;
    // The size is a power of two ([`Strategy`](crate::Strategy)): a division would cost as much as everything else
    // here.
    let aligned = page & !(size - 1);
    let start = aligned.max(range.start);
    let end = (aligned.saturating_add(size)).min(range.end);
    Sample {
        target,
        address: start,
        nr_pages: ((end - start) / PAGE_SIZE) as u32,
    }
}

impl Region {
    /// Returns the number of samples to take now. A remaining fraction is saved for the next check.
    pub(crate) fn draw(&mut self) -> u32 {
        let credit = u32::from(self.credit) + u32::from(self.quota);
        self.credit = (credit % WHOLE) as u16;
        credit / WHOLE
    }
}

/// Allocates samples to regions for the next interval: on average `per_region` per region and check, more in regions
/// with more information. Every region gets at least one in the whole interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleAllocation {
    even: f64,
    per_weight: f64,
    floor: u32,
    full: f64,
}

impl SampleAllocation {
    pub(crate) fn new<'a>(
        regions: impl Iterator<Item = &'a Region>,
        per_region: f64,
        nr_samples: u32,
        fraction: u32,
    ) -> Self {
        let full = f64::from(nr_samples) * f64::from(fraction);
        let (mut nr_regions, mut weights) = (0_u32, 0.0);
        for region in regions {
            nr_regions += 1;
            weights += weight(region, full);
        }
        let total = per_region * f64::from(nr_regions);
        Self {
            even: per_region * EVEN_SHARE,
            per_weight: total * (1.0 - EVEN_SHARE) / f64::max(weights, f64::MIN_POSITIVE),
            // Two in the interval: one of them is drawn for any initial credit.
            floor: (2 * WHOLE).div_ceil(nr_samples).clamp(WHOLE / 8, WHOLE),
            full,
        }
    }

    /// Sets the region's quota, and a random credit so that rarely sampled regions are spread over the checks.
    pub(crate) fn apply(&self, region: &mut Region, rng: &mut Rng) {
        let share = self.even + self.per_weight * weight(region, self.full);
        let quota = (share * f64::from(WHOLE)) as u32;
        region.quota = quota.clamp(self.floor, SAMPLES_MAX * WHOLE) as u16;
        region.credit = rng.below(u64::from(WHOLE)) as u16;
    }
}

/// Returns size x deviation / sqrt(cost). The rate is moved a little to the middle: a few pages without an access do
/// not prove that a region is cold.
fn weight(region: &Region, full: f64) -> f64 {
    let rate = if region.known {
        f64::from(region.last_nr_accesses) / full
    } else {
        0.5
    };
    let rate = 0.02 + 0.96 * rate.min(1.0);
    let deviation = (rate * (1.0 - rate)).sqrt();
    region.range.len() as f64 * deviation / (1.0 + ACCESSED_EXTRA_COST * rate).sqrt()
}
