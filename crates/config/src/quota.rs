//! Reads the tree of a scheme's quotas into the engine's [`Quota`].

use isotherm_engine::Nanos;
use isotherm_engine::scheme::{FailCharge, Goal, GoalMetric, Quota, Tuner, Weights};
use isotherm_engine::units::{MICROSECOND, MILLISECOND};

use crate::cursor::{Cursor, Fields};

/// Metrics of goals, by DAMOS's names.
const METRICS: [&str; 9] = [
    "user_input",
    "some_mem_psi_us",
    "node_mem_used_bp",
    "node_mem_free_bp",
    "node_memcg_used_bp",
    "node_memcg_free_bp",
    "active_mem_bp",
    "inactive_mem_bp",
    "node_eligible_mem_bp",
];

pub(crate) fn read(cursor: &Cursor) -> Option<Quota> {
    let fields = cursor.map()?;
    let time = fields.need("time_ms").and_then(|c| c.time(MILLISECOND));
    let bytes = fields.need("sz_bytes").and_then(|c| c.size());
    let reset = fields
        .need("reset_interval_ms")
        .and_then(|c| c.time(MILLISECOND));
    let weights = match fields.get("weights") {
        Some(weights) => read_weights(&weights),
        None => Some(Weights::default()),
    };
    let numerator = fields.get("fail_charge_num").and_then(|c| c.count_u32());
    let denominator = fields.get("fail_charge_denom").and_then(|c| c.count_u32());
    let goals = fields.get("goals").map(|list| {
        let items = list.list();
        items.iter().filter_map(read_goal).collect::<Vec<_>>()
    });
    let tuner = fields
        .get("goal_tuner")
        .and_then(|c| c.word(&["consist", "temporal"]));
    fields.skip(&["effective_sz_bytes"]);
    fields.finish();
    let fail_charge = FailCharge {
        numerator: numerator.unwrap_or(0),
        denominator: denominator.unwrap_or(0),
    };
    Some(Quota {
        time: time?,
        bytes: bytes?,
        reset_interval: reset?,
        weights: weights?,
        goals: goals.unwrap_or_default(),
        tuner: if tuner == Some(1) {
            Tuner::Temporal
        } else {
            Tuner::Consist
        },
        // damo writes 0 / 0 if there is no such charge.
        fail_charge: (fail_charge.numerator > 0 || fail_charge.denominator > 0)
            .then_some(fail_charge),
    })
}

fn read_weights(cursor: &Cursor) -> Option<Weights> {
    let fields = cursor.map()?;
    let permil = |key| fields.need(key).and_then(|c| c.parts(1000));
    let size = permil("sz_permil");
    let nr_accesses = permil("nr_accesses_permil");
    let age = permil("age_permil");
    fields.finish();
    Some(Weights {
        size_permil: size?,
        nr_accesses_permil: nr_accesses?,
        age_permil: age?,
    })
}

fn read_goal(cursor: &Cursor) -> Option<Goal> {
    let fields = cursor.map()?;
    // damo's oldest goals have only a number that the user feeds in.
    if let Some(target) = fields.get("target_value_bp") {
        let target_value = target.count(u64::MAX);
        let current = fields
            .get("current_value_bp")
            .and_then(|c| c.count(u64::MAX));
        fields.finish();
        return Some(Goal {
            metric: GoalMetric::UserInput,
            target_value: target_value?,
            current_value: current.unwrap_or(0),
        });
    }
    let name = fields.need("metric").and_then(|c| c.word(&METRICS));
    let name = name.map(|index| METRICS[index]);
    let metric = name.and_then(|name| read_metric(name, &fields));
    let target_value = fields.need("target_value").and_then(|c| match name {
        Some("some_mem_psi_us") => c.time(MICROSECOND).map(|Nanos(ns)| ns / MICROSECOND.0),
        Some(name) if name.ends_with("_bp") => c.parts(10_000).map(u64::from),
        _ => c.count(u64::MAX),
    });
    let current_value = fields.need("current_value").and_then(|c| c.count(u64::MAX));
    if let Some(complement) = fields.get("complement")
        && complement.flag() == Some(true)
    {
        complement.wrong("a complement, which Isotherm does not have", "false");
    }
    fields.skip(&["nid", "memcg_path"]);
    fields.finish();
    Some(Goal {
        metric: metric?,
        target_value: target_value?,
        current_value: current_value?,
    })
}

fn read_metric(name: &str, fields: &Fields) -> Option<GoalMetric> {
    let node = || fields.need("nid")?.count_u32();
    let memcg_path = || Some(fields.need("memcg_path")?.text("a path")?.to_owned());
    Some(match name {
        "user_input" => GoalMetric::UserInput,
        "some_mem_psi_us" => GoalMetric::SomeMemPsiUs,
        "active_mem_bp" => GoalMetric::ActiveMemBp,
        "inactive_mem_bp" => GoalMetric::InactiveMemBp,
        "node_mem_used_bp" => GoalMetric::NodeMemUsedBp { node: node()? },
        "node_mem_free_bp" => GoalMetric::NodeMemFreeBp { node: node()? },
        "node_eligible_mem_bp" => GoalMetric::NodeEligibleMemBp { node: node()? },
        _ => {
            let (node, memcg_path) = (node(), memcg_path());
            let (node, memcg_path) = (node?, memcg_path?);
            if name == "node_memcg_used_bp" {
                GoalMetric::NodeMemcgUsedBp { node, memcg_path }
            } else {
                GoalMetric::NodeMemcgFreeBp { node, memcg_path }
            }
        }
    })
}
