//! Policy curves from page scans: reclaim after any idle time, and huge pages within any bound on their waste.

use isotherm_report::ethp_curve::EthpPoint;
use isotherm_report::reclaim_curve::ReclaimPoint;
use serde::Serialize;

use crate::container::{Arrays, Ref};
use crate::document::Curves;

/// The largest number of points of a drawn curve.
const MOST: usize = 400;

#[derive(Serialize)]
pub(super) struct CurvesJson {
    scan_interval_s: f64,
    resident_mean: u64,
    unknown_mean: u64,
    refault_cost_s: f64,
    /// The policy that reclaims memory after the threshold.
    idle: ReclaimJson,
    /// The policy with a longer threshold after each refault.
    backoff: ReclaimJson,
    huge: Option<HugeJson>,
}

#[derive(Serialize)]
struct ReclaimJson {
    thresholds_s: Ref,
    saved: Ref,
    saved_share: Ref,
    refaults_per_s: Ref,
    slowdown: Ref,
}

#[derive(Serialize)]
struct HugeJson {
    resident_mean: u64,
    recorded_huge_mean: u64,
    touched_per_scan: f64,
    idle_s: f64,
    /// Policies by name.
    named: Vec<(&'static str, EthpPoint)>,
    /// Points from no waste to unlimited waste.
    bounds: Vec<EthpPoint>,
}

impl CurvesJson {
    pub(super) fn of(of: &Curves, arrays: &mut Arrays) -> Self {
        let reclaim = &of.reclaim;
        Self {
            scan_interval_s: reclaim.scan_interval_ns.as_secs_f64(),
            resident_mean: reclaim.resident_mean_bytes,
            unknown_mean: reclaim.unknown_mean_bytes,
            refault_cost_s: reclaim.refault_cost_ns.as_secs_f64(),
            idle: ReclaimJson::of(&reclaim.points, arrays),
            backoff: ReclaimJson::of(&reclaim.backoff_points, arrays),
            huge: of.huge.as_ref().map(|huge| HugeJson {
                resident_mean: huge.resident_mean_bytes,
                recorded_huge_mean: huge.recorded_huge_mean_bytes,
                touched_per_scan: huge.touched_per_scan,
                idle_s: huge.idle_ns.as_secs_f64(),
                named: vec![
                    ("never", huge.never),
                    ("always", huge.always),
                    ("ethp without a bound", huge.unbounded),
                    ("ethp as `run` does it", huge.chosen),
                ],
                bounds: huge.points.clone(),
            }),
        }
    }
}

impl ReclaimJson {
    fn of(points: &[ReclaimPoint], arrays: &mut Arrays) -> Self {
        // The curve has no corner between two of its points.
        let step = points.len().div_ceil(MOST).max(1);
        let shown: Vec<&ReclaimPoint> = points.iter().step_by(step).collect();
        let mut all =
            |of: fn(&ReclaimPoint) -> f64| arrays.f64(shown.iter().map(|point| of(point)));
        Self {
            thresholds_s: all(|point| point.threshold_ns.as_secs_f64()),
            saved: all(|point| point.saved_mean_bytes as f64),
            saved_share: all(|point| point.saved_share),
            refaults_per_s: all(|point| point.refaults_per_s),
            slowdown: all(|point| point.slowdown),
        }
    }
}
