//! The work of schemes, and the state of guards.

use std::collections::BTreeMap;

use isotherm_policy::Refusal;
use isotherm_report::actions::{GuardCourse, ProcessActions, SchemeActions};
use isotherm_report::render::reason;
use serde::Serialize;

use super::SeriesJson;
use crate::container::Arrays;

#[derive(Serialize)]
pub(super) struct SchemeJson<'a> {
    label: String,
    action: &'a str,
    dry_run: bool,
    nr_tried: u64,
    tried: u64,
    applied: u64,
    refused: Vec<(String, u64)>,
    took_s: f64,
    from_s: f64,
    to_s: f64,
    /// Bytes acted on since the beginning.
    course: SeriesJson,
    /// Source node, destination node, bytes.
    moved: Vec<(u32, u32, u64)>,
}

#[derive(Serialize)]
pub(super) struct GuardJson {
    label: String,
    stops: u64,
    closed_s: f64,
    limit_ratio_max: Option<f64>,
    slowdown_mean: Option<f64>,
    slowdown_max: Option<f64>,
    refaults_mean: Option<f64>,
    refaults_max: Option<f64>,
    /// Ratio of measured cost to limit.
    limit_ratio: SeriesJson,
    /// Refaults per second.
    refaults: SeriesJson,
    /// Permitted bytes per second.
    allowed: SeriesJson,
    /// Start and end of each period in which the guard stopped the schemes.
    stopped: Vec<(f64, f64)>,
}

#[derive(Serialize)]
pub(super) struct ProcessJson {
    label: String,
    tried: u64,
    applied: u64,
    refused: Vec<(String, u64)>,
}

impl<'a> SchemeJson<'a> {
    pub(super) fn of(of: &'a SchemeActions, arrays: &mut Arrays) -> Self {
        Self {
            label: labelled(of.context.as_deref(), &format!("scheme {}", of.scheme)),
            action: &of.action,
            dry_run: of.dry_run,
            nr_tried: of.nr_tried,
            tried: of.tried_bytes,
            applied: of.applied_bytes,
            refused: refused(&of.refused_bytes),
            took_s: of.took_ns.as_secs_f64(),
            from_s: of.from_ns.as_secs_f64(),
            to_s: of.to_ns.as_secs_f64(),
            course: SeriesJson::of(&of.series, arrays),
            moved: { of.moved.iter() }
                .map(|way| (way.from, way.to, way.bytes))
                .collect(),
        }
    }
}

impl GuardJson {
    pub(super) fn of(of: &GuardCourse, arrays: &mut Arrays) -> Self {
        Self {
            label: labelled(of.context.as_deref(), "guard"),
            stops: of.stops,
            closed_s: of.closed_ns.as_secs_f64(),
            limit_ratio_max: of.limit_ratio_max,
            slowdown_mean: of.slowdown_mean,
            slowdown_max: of.slowdown_max,
            refaults_mean: of.refaults_per_s_mean,
            refaults_max: of.refaults_per_s_max,
            limit_ratio: SeriesJson::scaled(&of.limit_ratio_ppm, 1e-6, arrays),
            refaults: SeriesJson::scaled(&of.refaults_per_1000_s, 1e-3, arrays),
            allowed: SeriesJson::of(&of.allowed, arrays),
            stopped: { of.stopped.iter() }
                .map(|of| (of.from_ns.as_secs_f64(), of.to_ns.as_secs_f64()))
                .collect(),
        }
    }
}

impl ProcessJson {
    pub(super) fn of(of: &ProcessActions) -> Self {
        Self {
            label: of.target.label(),
            tried: of.tried_bytes,
            applied: of.applied_bytes,
            refused: refused(&of.refused_bytes),
        }
    }
}

fn labelled(context: Option<&str>, what: &str) -> String {
    context.map_or_else(|| what.to_owned(), |context| format!("{context}, {what}"))
}

/// Returns the reasons, the most bytes first.
fn refused(by_reason: &BTreeMap<Refusal, u64>) -> Vec<(String, u64)> {
    let mut reasons: Vec<(String, u64)> = by_reason
        .iter()
        .map(|(why, bytes)| (reason(*why), *bytes))
        .collect();
    reasons.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    reasons
}
