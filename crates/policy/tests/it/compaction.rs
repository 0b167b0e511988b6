//! Properties of the compaction controller for arbitrary nodes and outcomes.

use isotherm_engine::Nanos;
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, CompactionState, NodeFacts,
    ZoneFacts, node_score, zone_score,
};
use proptest::prelude::*;

fn any_zone() -> impl Strategy<Value = ZoneFacts> {
    (
        0..1_u64 << 28,
        prop::array::uniform11(prop_oneof![Just(0), 0..1_u64 << 24]),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(present_pages, free_blocks, contended)| ZoneFacts {
            name: "Normal".into(),
            present_pages,
            free_blocks,
            contended,
        })
}

fn any_node() -> impl Strategy<Value = NodeFacts> {
    (
        prop::collection::vec(any_zone(), 0..5),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(zones, kswapd_active)| NodeFacts {
            node: 0,
            zones,
            kswapd_active,
        })
}

fn any_attributes() -> impl Strategy<Value = CompactionAttributes> {
    (0..=10_u8, 0..=100_u32, 1..2000_u64).prop_map(|(order, proactiveness, ms)| {
        CompactionAttributes {
            order,
            proactiveness,
            check_interval: Nanos::from_millis(ms),
        }
    })
}

/// Joins small blocks of a zone to one of the wanted order, if there are any.
fn compact_a_little(zone: &mut ZoneFacts, order: usize) {
    for small in (0..order).rev() {
        let joined = (zone.free_blocks[small] >> (order - small)).min(1 << 20);
        zone.free_blocks[small] -= joined << (order - small);
        zone.free_blocks[order] += joined;
        if joined > 0 {
            return;
        }
    }
    // The remaining blocks cannot be joined: the scanners have met.
    zone.free_blocks[..order].fill(0);
}

proptest! {
    #[test]
    fn scores_are_shares(node in any_node(), order in 0..=11_u8) {
        let sum: f64 = (0..node.zones.len()).map(|zone| zone_score(&node, zone, order)).sum();
        let score = node_score(&node, order);
        prop_assert!((0.0..=100.0).contains(&score));
        prop_assert!((sum - score).abs() < 1e-6);
        // A larger block is never easier to find.
        prop_assert!(order == 0 || node_score(&node, order - 1) <= score + 1e-9);
    }

    #[test]
    fn only_what_is_fragmented_is_compacted_and_nobody_is_in_the_way(
        node in any_node(),
        attributes in any_attributes(),
    ) {
        let mut controller = CompactionController::new(attributes);
        let now = Nanos::from_millis(1);
        let decision = controller.check(now, &node);
        let score = node_score(&node, attributes.order);
        let is_due = attributes.proactiveness > 0 && score > attributes.high();
        match decision {
            CompactionDecision::Nothing => prop_assert!(!is_due),
            CompactionDecision::BackOff(_) => prop_assert!(
                is_due && (node.kswapd_active || node.zones.iter().any(|zone| zone.contended))
            ),
            CompactionDecision::Compact { zones } => {
                prop_assert!(is_due && !node.kswapd_active && !zones.is_empty());
                for zone in zones {
                    prop_assert!(controller.keeps_going(&node, zone));
                    prop_assert!(!node.zones[zone].contended);
                }
            }
            CompactionDecision::Deferred { .. } => prop_assert!(false, "no round yet"),
        }
    }

    #[test]
    fn a_round_that_compacts_ends_at_low(node in any_node(), attributes in any_attributes()) {
        let mut controller = CompactionController::new(attributes);
        let mut facts = node;
        if let CompactionDecision::Compact { zones } = controller.check(Nanos(0), &facts) {
            for zone in zones {
                let mut steps = 0;
                while controller.keeps_going(&facts, zone) {
                    compact_a_little(&mut facts.zones[zone], usize::from(attributes.order));
                    steps += 1;
                    prop_assert!(steps < 10_000);
                }
            }
            controller.done(Nanos(1), &facts);
            let is_clear = facts.zones.iter().all(|zone| !zone.contended);
            prop_assert!(!is_clear || node_score(&facts, attributes.order) <= attributes.low());
        }
    }

    #[test]
    fn between_two_rounds_of_which_the_first_brought_nothing_there_is_a_deferral(
        nodes in prop::collection::vec((any_node(), any_node(), 0..3_000_u64), 1..60),
        attributes in any_attributes(),
    ) {
        let mut controller = CompactionController::new(attributes);
        let mut now = Nanos(0);
        let mut none_before = Nanos(0);
        for (before, after, wait_ms) in nodes {
            now = now + Nanos::from_millis(wait_ms);
            let decision = controller.check(now, &before);
            if let CompactionDecision::Compact { .. } = decision {
                prop_assert!(now >= none_before);
                controller.done(now, &after);
                let order = attributes.order;
                if node_score(&after, order) >= node_score(&before, order) {
                    none_before = now + attributes.deferral();
                    let is_deferred =
                        matches!(controller.status().state, CompactionState::Deferred { .. });
                    prop_assert!(is_deferred);
                }
            }
            prop_assert!(controller.next_check() >= now);
        }
    }
}
