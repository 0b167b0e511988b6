//! The second curve: a refaulted page waits longer, four times the threshold after one refault, then sixteen and
//! sixty-four times. Schemes do so under the guard ([`isotherm_engine::monitor::idle_pages::PageAgeRule`]).
//!
//! The result of an idle period depends on earlier periods, and so on the threshold. The module therefore simulates the
//! policy page by page for each of [`THRESHOLDS`]. A page that was absent for a time counts as new.

use std::ops::Range;

use isotherm_engine::Nanos;

use super::{ReclaimPoint, Scale};

pub(crate) const THRESHOLDS: [Nanos; 12] = [
    Nanos::from_millis(200),
    Nanos::from_millis(500),
    Nanos::from_millis(1_000),
    Nanos::from_millis(2_000),
    Nanos::from_millis(5_000),
    Nanos::from_millis(10_000),
    Nanos::from_millis(20_000),
    Nanos::from_millis(30_000),
    Nanos::from_millis(60_000),
    Nanos::from_millis(120_000),
    Nanos::from_millis(300_000),
    Nanos::from_millis(600_000),
];

/// Number of refaults of a page, up to three: two bits for each threshold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Returned(u32);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff([Sums; THRESHOLDS.len()]);

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    pages: u64,
    page_seconds: f64,
    refaults: u64,
}

impl Backoff {
    /// Adds an idle period of `length`, which ended in a refault if the page `is_accessed` then.
    pub(super) fn add(&mut self, length: Nanos, is_accessed: bool, returned: &mut Returned) {
        if length < THRESHOLDS[0] {
            return;
        }
        for (at, (sums, threshold)) in self.0.iter_mut().zip(THRESHOLDS).enumerate() {
            let nr = returned.0 >> (2 * at) & 3;
            let wait = Nanos(threshold.0 << (2 * nr));
            if length < wait {
                continue;
            }
            sums.pages += 1;
            sums.page_seconds += length.since(wait).as_secs_f64();
            if is_accessed {
                sums.refaults += 1;
                returned.0 += u32::from(nr < 3) << (2 * at);
            }
        }
    }

    pub(super) fn points(&self, thresholds: Range<Nanos>, scale: Scale) -> Vec<ReclaimPoint> {
        let all = THRESHOLDS.into_iter().zip(&self.0);
        let reported = all.filter(|(threshold, _)| thresholds.contains(threshold));
        reported
            .map(|(at, sums)| scale.point(at, sums.pages, sums.page_seconds, sums.refaults))
            .collect()
    }
}
