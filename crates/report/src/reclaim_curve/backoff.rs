//! The second curve: a page whose idle times ended waits longer, as single pages do under the guard
//! ([`PageAgeRule::ByEnds`]). A page that was absent for a time counts as new.

use std::ops::Range;

use isotherm_engine::Nanos;
use isotherm_engine::monitor::idle_pages::{COUNTED_FROM, ENDS_HALVE_AFTER, ENDS_MAX, PageAgeRule};

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

/// Number of idle times of a page that ended in an access.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    nr: u8,
    /// Number of times that it should have been halved by the last end.
    halvings: u16,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff([Sums; THRESHOLDS.len()]);

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    pages: u64,
    page_seconds: f64,
    refaults: u64,
}

impl Backoff {
    /// Adds an idle period of `length` until `end`, a time of the record. It ended in a refault if the page `is_accessed`
    /// then.
    pub(super) fn add(
        &mut self,
        (length, end): (Nanos, Nanos),
        is_accessed: bool,
        ended: &mut Ended,
    ) {
        let halvings = u16::try_from(end.0 / ENDS_HALVE_AFTER.0).unwrap_or(u16::MAX);
        let due = u32::from(halvings.saturating_sub(ended.halvings));
        (ended.nr, ended.halvings) = (ended.nr.checked_shr(due).unwrap_or(0), halvings);
        let age = PageAgeRule::ByEnds.age(length, ended.nr.into());
        for (sums, threshold) in self.0.iter_mut().zip(THRESHOLDS) {
            if age < threshold {
                break;
            }
            sums.pages += 1;
            let out = age.since(threshold).0 as f64 / age.0.max(1) as f64;
            sums.page_seconds += out * length.as_secs_f64();
            sums.refaults += u64::from(is_accessed);
        }
        if is_accessed && length >= COUNTED_FROM {
            ended.nr = (ended.nr + 1).min(ENDS_MAX as u8);
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
