//! Requests that this machine cannot meet.

use isotherm_config::{ContextSpec, SessionSpec, TargetSpec, World};
use isotherm_linux::{act, node};
use isotherm_policy::scheme::{Action, GoalMetric, Scheme};

/// Returns the parts of a session that this machine cannot do, each with the reason and a remedy.
///
/// The limits of the kernel's DAMON are known only once its tree is written: the session's start reports them.
pub fn lacking(spec: &SessionSpec) -> Vec<String> {
    if spec.world == World::Kernel {
        return Vec::new();
    }
    let of_context = |context: &ContextSpec| {
        let mut problems = of_schemes(context.schemes(), context.samples_frames());
        problems.extend(moves_nowhere(context));
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
        let mut nodes = scheme.destinations.iter().map(|to| to.node);
        // With one node there is no destination at all, which is reported above.
        if node::count() > 1
            && let Some(why) = nodes.find_map(node::lacks)
        {
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

/// Reports schemes that would move a node's memory to that very node.
fn moves_nowhere(context: &ContextSpec) -> Vec<String> {
    let Some(home) = only_node(context) else {
        return Vec::new();
    };
    let stays = |scheme: &Scheme| {
        let mut nodes = scheme.destinations.iter().map(|to| to.node);
        !scheme.destinations.is_empty() && nodes.all(|node| node == home)
    };
    let schemes = context.schemes().iter().enumerate();
    schemes
        .filter(|(_, scheme)| stays(scheme))
        .map(|(i, scheme)| {
            format!(
                "scheme {i} ({}) cannot be run here: the memory that it is about is on node {home} already; \
                 name another node to move it to",
                scheme.action
            )
        })
        .collect()
}

/// Returns the node that all watched memory is on, if its addresses are all of one node.
fn only_node(context: &ContextSpec) -> Option<u32> {
    let TargetSpec::Physical { node, .. } = context.targets else {
        return None;
    };
    if node.is_some() || context.ranges.is_empty() {
        return node;
    }
    let of_all = node::all().ok()?;
    let is_watched = |range| {
        context
            .ranges
            .iter()
            .any(|of| of.intersection(range).is_some())
    };
    let mut nodes = of_all.iter().filter(|(_, range)| is_watched(*range));
    let first = nodes.next()?.0;
    nodes.all(|(node, _)| *node == first).then_some(first)
}
