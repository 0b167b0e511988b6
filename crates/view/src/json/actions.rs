//! The work of schemes, and the state of guards.

use std::collections::BTreeMap;

use isotherm_policy::Refusal;
use isotherm_report::actions::{GuardCourse, ProcessActions, SchemeActions};
use isotherm_report::render::reason;
use serde_json::{Value, json};

use super::{scaled, series};
use crate::container::Arrays;

pub(super) fn scheme(of: &SchemeActions, arrays: &mut Arrays) -> Value {
    // Source node, destination node, bytes.
    let moved = of.moved.iter().map(|way| (way.from, way.to, way.bytes));
    json!({
        "label": labelled(of.context.as_deref(), &format!("scheme {}", of.scheme)),
        "action": of.action,
        "dry_run": of.dry_run,
        "nr_tried": of.nr_tried,
        "tried": of.tried_bytes,
        "applied": of.applied_bytes,
        "refused": refused(&of.refused_bytes),
        "took_s": of.took_ns.as_secs_f64(),
        "from_s": of.from_ns.as_secs_f64(),
        "to_s": of.to_ns.as_secs_f64(),
        "course": series(&of.series, arrays),
        "moved": moved.collect::<Vec<_>>(),
    })
}

pub(super) fn guard(of: &GuardCourse, arrays: &mut Arrays) -> Value {
    // Start and end.
    let stopped = of.stopped.iter();
    let stopped = stopped.map(|of| (of.from_ns.as_secs_f64(), of.to_ns.as_secs_f64()));
    json!({
        "label": labelled(of.context.as_deref(), "guard"),
        "stops": of.stops,
        "closed_s": of.closed_ns.as_secs_f64(),
        "limit_ratio_max": of.limit_ratio_max,
        "slowdown_mean": of.slowdown_mean,
        "slowdown_max": of.slowdown_max,
        "refaults_mean": of.refaults_per_s_mean,
        "refaults_max": of.refaults_per_s_max,
        "limit_ratio": scaled(&of.limit_ratio_ppm, 1e-6, arrays),
        "refaults": scaled(&of.refaults_per_1000_s, 1e-3, arrays),
        "allowed": series(&of.allowed, arrays),
        "stopped": stopped.collect::<Vec<_>>(),
    })
}

pub(super) fn process(of: &ProcessActions) -> Value {
    json!({
        "label": of.target.label(),
        "tried": of.tried_bytes,
        "applied": of.applied_bytes,
        "refused": refused(&of.refused_bytes),
    })
}

fn labelled(context: Option<&str>, what: &str) -> String {
    context.map_or_else(|| what.to_owned(), |context| format!("{context}, {what}"))
}

/// Returns the reasons, the most bytes first.
fn refused(by_reason: &BTreeMap<Refusal, u64>) -> Vec<(String, u64)> {
    let reasons = by_reason.iter().map(|(why, bytes)| (reason(*why), *bytes));
    let mut reasons: Vec<(String, u64)> = reasons.collect();
    reasons.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    reasons
}
