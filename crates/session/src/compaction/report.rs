//! Reports of compaction for the user: tables and sentences, or JSON.

use std::fmt::Write as _;

use isotherm_engine::PAGE_SIZE;
use isotherm_policy::compaction::{
    BackOff, CompactionAttributes, CompactionDecision, CompactionState, CompactionStatus,
    NR_ORDERS, NodeFacts, RoundEnd, node_score, zone_score,
};
use serde_json::{Value, json};

use isotherm_engine::units::{format_bytes, format_time};

use super::{CompactionEvent, CompactionRound, NodeCheck};
use crate::columns::columns;

/// One check of all nodes, and its results.
pub struct CompactionReport {
    /// Attributes with the thresholds.
    pub attributes: CompactionAttributes,
    /// The kernel's own `vm.compaction_proactiveness`, if it has one.
    pub kernel_proactiveness: Option<u32>,
    /// Whether nothing was compacted.
    pub dry_run: bool,
    /// Check of each node.
    pub nodes: Vec<NodeCheck>,
}

impl CompactionReport {
    /// Returns the report as text.
    pub fn text(&self) -> String {
        let order = self.attributes.order;
        let mut text = String::new();
        for node in &self.nodes {
            let _ = writeln!(
                text,
                "Node {} for order {order} (blocks of {}): score {}; compacts above {}, down to {}\n",
                node.before.node,
                format_bytes(PAGE_SIZE << order),
                score(node_score(&node.before, order)),
                score(self.attributes.high()),
                score(self.attributes.low()),
            );
            text += &table(&node.before, order);
            let _ = writeln!(text, "\n{}", self.outcome(node));
            if let Some(round) = &node.round {
                let _ = writeln!(text);
                text += &table(&round.after, order);
            }
            let _ = writeln!(text);
        }
        let _ = writeln!(text, "{}", kernels_own(self.kernel_proactiveness));
        text
    }

    fn outcome(&self, node: &NodeCheck) -> String {
        let attributes = &self.attributes;
        match (&node.decision, &node.round) {
            (_, Some(round)) => sentence(round),
            (CompactionDecision::Nothing, _) if attributes.proactiveness == 0 => {
                "nothing to do: proactiveness is 0".into()
            }
            (CompactionDecision::Nothing, _) => format!(
                "nothing to do: the score is not above {}",
                score(attributes.high())
            ),
            (CompactionDecision::BackOff(why), _) => backs_off(*why).into(),
            (CompactionDecision::Deferred { .. }, _) => "put off".into(),
            (CompactionDecision::Compact { zones }, None) => {
                let names: Vec<&str> = zones
                    .iter()
                    .map(|zone| &*node.before.zones[*zone].name)
                    .collect();
                format!(
                    "would compact {} until the score is down to {} (dry run)",
                    names.join(", "),
                    score(attributes.low())
                )
            }
        }
    }

    /// Returns the output of `isotherm compact --json`, without the version.
    pub fn json(&self) -> Value {
        let order = self.attributes.order;
        let node = |node: &NodeCheck| {
            json!({
                "node": node.before.node,
                "before": facts_json(&node.before, order),
                "decision": node.decision,
                "round": node.round,
                "after": node.round.as_ref().map(|round| facts_json(&round.after, order)),
            })
        };
        json!({
            "attributes": self.attributes,
            "low": self.attributes.low(),
            "high": self.attributes.high(),
            "kernel_proactiveness": self.kernel_proactiveness,
            "dry_run": self.dry_run,
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    }
}

impl CompactionEvent<'_> {
    /// Returns the event as text of a line or two.
    pub fn text(&self) -> String {
        match self {
            CompactionEvent::Start {
                attributes,
                kernel_proactiveness,
                dry_run,
                nodes,
            } => {
                let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                format!(
                    "{} node {} for order {}, looking every {}: above a score of {}, down to {}\n{}",
                    if *dry_run {
                        "would compact"
                    } else {
                        "compacting"
                    },
                    nodes.join(", "),
                    attributes.order,
                    format_time(attributes.check_interval),
                    score(attributes.high()),
                    score(attributes.low()),
                    kernels_own(*kernel_proactiveness)
                )
            }
            CompactionEvent::State {
                at,
                node,
                status,
                high,
                dry_run,
            } => format!(
                "{:>8}  node {node}: {}",
                format_time(*at),
                state(status, *high, *dry_run)
            ),
            CompactionEvent::Round { at, node, round } => {
                format!("{:>8}  node {node}: {}", format_time(*at), sentence(round))
            }
            CompactionEvent::End {
                elapsed,
                rounds,
                statuses,
                own_cpu,
            } => {
                let sum = |count: fn(&CompactionStatus) -> u64| -> u64 {
                    statuses.iter().map(count).sum()
                };
                format!(
                    "in {}: {} rounds of compaction, {} ({} of CPU time); {} back-offs, {} deferrals; looking took {} of CPU time",
                    format_time(*elapsed),
                    rounds.count,
                    format_time(rounds.took_ns),
                    format_time(rounds.cpu_ns),
                    sum(|status| status.nr_back_offs),
                    sum(|status| status.nr_deferrals),
                    format_time(*own_cpu),
                )
            }
        }
    }
}

fn state(status: &CompactionStatus, high: f64, dry_run: bool) -> String {
    let what = match status.state {
        CompactionState::Idle => format!("nothing to do up to {}", score(high)),
        CompactionState::Compacting if dry_run => "would compact (dry run)".into(),
        CompactionState::Compacting => "compacts".into(),
        CompactionState::BackedOff(why) => backs_off(why).into(),
        CompactionState::Deferred { .. } => "put off".into(),
    };
    let points = status.score.map_or_else(|| "?".into(), score);
    format!("score {points}: {what}")
}

fn sentence(round: &CompactionRound) -> String {
    let ended = match round.ended {
        RoundEnd::AtLow => "down to the low threshold",
        RoundEnd::Kswapd => "stopped for kswapd",
        RoundEnd::Contended => "stopped, as others waited for a zone's lock",
        RoundEnd::ToTheEnd => "until the kernel found nothing more to move",
        RoundEnd::Interrupted => "until interrupted",
    };
    let mut text = format!(
        "compacted for {} ({} of CPU time), {ended}: score {} -> {}; {} pages looked at to move, {} to move to, {} isolated",
        format_time(round.took_ns),
        format_time(round.cpu_ns),
        score(round.score_before),
        score(round.score_after),
        round.counters.migrate_scanned,
        round.counters.free_scanned,
        round.counters.isolated,
    );
    if let Some(time) = round.deferred_ns {
        let _ = write!(text, "; it brought nothing: none for {}", format_time(time));
    }
    text
}

fn backs_off(why: BackOff) -> &'static str {
    match why {
        BackOff::Kswapd => "backs off: kswapd is reclaiming",
        BackOff::Contended => "backs off: others wait for the zones' locks",
    }
}

fn kernels_own(proactiveness: Option<u32>) -> String {
    match proactiveness {
        Some(0) => "the kernel's own proactive compaction is off".into(),
        Some(n) => format!(
            "the kernel compacts proactively as well: vm.compaction_proactiveness is {n} (order 9)"
        ),
        None => "this kernel has no proactive compaction of its own".into(),
    }
}

/// Formats a score or a threshold, with one decimal unless it is 0.
fn score(points: f64) -> String {
    let text = format!("{points:.1}");
    text.strip_suffix(".0").map_or(text.clone(), Into::into)
}

fn facts_json(facts: &NodeFacts, order: u8) -> Value {
    let zone = |(index, zone): (usize, &isotherm_policy::compaction::ZoneFacts)| {
        json!({
            "name": zone.name,
            "present_bytes": zone.present_pages * PAGE_SIZE,
            "free_bytes": zone.free_pages() * PAGE_SIZE,
            "free_blocks": zone.free_blocks,
            "extfrag": zone.extfrag(order),
            "score": zone_score(facts, index, order),
        })
    };
    json!({
        "score": node_score(facts, order),
        "kswapd_active": facts.kswapd_active,
        "zones": facts.zones.iter().enumerate().map(zone).collect::<Vec<_>>(),
    })
}

/// Returns a table of a node's zones: sizes, scores, and the number of free blocks of each size.
fn table(facts: &NodeFacts, order: u8) -> String {
    let mut head = vec!["ZONE".into(), "SIZE".into(), "FREE".into()];
    head.extend(["EXTFRAG", "SCORE"].map(String::from));
    head.extend((0..NR_ORDERS).map(|order| short(PAGE_SIZE << order)));
    let mut rows: Vec<Vec<String>> = vec![head];
    for (index, zone) in facts.zones.iter().enumerate() {
        let mut row = vec![
            zone.name.clone(),
            format_bytes(zone.present_pages * PAGE_SIZE),
            format_bytes(zone.free_pages() * PAGE_SIZE),
            score(zone.extfrag(order)),
            score(zone_score(facts, index, order)),
        ];
        row.extend(zone.free_blocks.map(|blocks| blocks.to_string()));
        rows.push(row);
    }
    columns(&rows)
}

/// Returns the head of a column, such as `64K` or `2M`.
fn short(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{}K", bytes >> 10)
    } else {
        format!("{}M", bytes >> 20)
    }
}
