//! Reads the tree of a scheme's quotas into the engine's [`Quota`].

use isotherm_engine::Nanos;
use isotherm_engine::units::{MICROSECOND, MILLISECOND};
use isotherm_policy::scheme::{FailCharge, Goal, GoalMetric, Quota, Tuner, Weights};

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
    let time = fields.required("time_ms", |c| c.time(MILLISECOND));
    let bytes = fields.required("sz_bytes", Cursor::size);
    let reset = fields.required("reset_interval_ms", |c| c.time(MILLISECOND));
    let weights = fields.get("weights");
    let weights = weights.map_or(Some(Weights::default()), |c| read_weights(&c));
    let numerator = fields.optional("fail_charge_num", Cursor::count_u32);
    let denominator = fields.optional("fail_charge_denom", Cursor::count_u32);
    let goals = fields.get("goals").map(|list| list.items(read_goal));
    let tuner = fields.optional("goal_tuner", |c| c.word(&["consist", "temporal"]));
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
    let permil = |key| fields.required(key, |c| c.parts(1000));
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
        let current = fields.optional("current_value_bp", |c| c.count(u64::MAX));
        fields.finish();
        return Some(Goal {
            metric: GoalMetric::UserInput,
            target_value: target_value?,
            current_value: current.unwrap_or(0),
            complement: false,
        });
    }
    let name = fields.required("metric", |c| c.word(&METRICS));
    let name = name.map(|index| METRICS[index]);
    let metric = name.and_then(|name| read_metric(name, &fields));
    let target_value = fields.required("target_value", |c| match name {
        Some("some_mem_psi_us") => c.time(MICROSECOND).map(|Nanos(ns)| ns / MICROSECOND.0),
        Some(name) if name.ends_with("_bp") => c.parts(10_000).map(u64::from),
        _ => c.count(u64::MAX),
    });
    let current_value = fields.required("current_value", |c| c.count(u64::MAX));
    let complement = fields.get("complement");
    let is_complement = complement.as_ref().and_then(Cursor::flag) == Some(true);
    if let (true, Some(metric), Some(complement)) = (is_complement, &metric, &complement)
        && !metric.is_share()
    {
        complement.wrong(
            format!("the complement of `{}`", metric.name()),
            "that of a share",
        );
    }
    fields.skip(&["nid", "memcg_path"]);
    fields.finish();
    Some(Goal {
        metric: metric?,
        target_value: target_value?,
        current_value: current_value?,
        complement: is_complement,
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
