//! What this machine cannot do of what is asked for.

use isotherm_config::SessionSpec;
use isotherm_engine::scheme::{Action, GoalMetric, Scheme};
use isotherm_linux::{act, node};

/// What this machine cannot do of a session, each with the reason and what would help.
pub fn lacking(spec: &SessionSpec) -> Vec<String> {
    let of_context = |context: &isotherm_config::ContextSpec| {
        let problems = of_schemes(context.schemes(), context.targets.is_physical());
        let name = context.name.clone();
        problems.into_iter().map(move |problem| match &name {
            Some(name) => format!("{name}, {problem}"),
            None => problem,
        })
    };
    spec.contexts.iter().flat_map(of_context).collect()
}

fn of_schemes(schemes: &[Scheme], is_physical: bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (i, scheme) in schemes.iter().enumerate() {
        let mut lacks = |why: String| {
            problems.push(format!(
                "scheme {i} ({}) cannot be run here: {why}",
                scheme.action
            ));
        };
        if let Some(why) = act::lacks(scheme.action) {
            lacks(why);
        }
        for goal in &scheme.quota.goals {
            if let GoalMetric::NodeEligibleMemBp { node } = goal.metric
                && let Some(why) = node::lacks(node)
            {
                lacks(format!("the goal node_eligible_mem_bp: {why}"));
            }
        }
        if is_physical && scheme.action == Action::Willneed {
            lacks("what is not in memory has no physical address".into());
        }
    }
    problems
}
