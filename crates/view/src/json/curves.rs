//! Policy curves from page scans: reclaim after any idle time, and huge pages within any bound on their waste.

use isotherm_report::EthpCurveReport;
use isotherm_report::reclaim_curve::ReclaimPoint;
use serde_json::{Value, json};

use crate::container::Arrays;
use crate::document::Curves;

const MOST: usize = 400;

pub(super) fn json(of: &Curves, arrays: &mut Arrays) -> Value {
    let of_reclaim = &of.reclaim;
    json!({
        "scan_interval_s": of_reclaim.scan_interval_ns.as_secs_f64(),
        "resident_mean": of_reclaim.resident_mean_bytes,
        "unknown_mean": of_reclaim.unknown_mean_bytes,
        "refault_cost_s": of_reclaim.refault_cost_ns.as_secs_f64(),
        "idle": reclaim(&of_reclaim.points, arrays),
        "backoff": reclaim(&of_reclaim.backoff_points, arrays),
        "huge": of.huge.as_ref().map(huge),
        "needed": of.needed.map(|needed| needed.words()),
    })
}

fn huge(of: &EthpCurveReport) -> Value {
    let named = [
        ("never", of.never),
        ("always", of.always),
        ("ethp without a bound", of.unbounded),
        ("ethp as `run` does it", of.chosen),
    ];
    json!({
        "resident_mean": of.resident_mean_bytes,
        "recorded_huge_mean": of.recorded_huge_mean_bytes,
        "touched_per_scan": of.touched_per_scan,
        "idle_s": of.idle_ns.as_secs_f64(),
        "named": named,
        "bounds": of.points,
    })
}

fn reclaim(points: &[ReclaimPoint], arrays: &mut Arrays) -> Value {
    // The curve has no corner between two of its points.
    let step = points.len().div_ceil(MOST).max(1);
    let shown: Vec<&ReclaimPoint> = points.iter().step_by(step).collect();
    let mut all = |of: fn(&ReclaimPoint) -> f64| arrays.f64(shown.iter().map(|point| of(point)));
    json!({
        "thresholds_s": all(|point| point.threshold_ns.as_secs_f64()),
        "saved": all(|point| point.saved_mean_bytes as f64),
        "saved_share": all(|point| point.saved_share),
        "refaults_per_s": all(|point| point.refaults_per_s),
        "slowdown": all(|point| point.slowdown),
    })
}
