//! Plans for tiers of memory: identical to HMSDK's and damo's output (`fixtures/make.py`), and to the result of reading
//! them back.

use isotherm_config::{
    ConfigFormat, Configuration, Extent, Move, TierError, TierPlan, Topology, load, text_of,
    to_json, to_yaml,
};
use isotherm_engine::AddressRange;
use isotherm_policy::scheme::{Action, Tuner};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

/// Fast nodes 0 and 1, slow node 2; as in `fixtures/make.py`.
fn machine() -> Topology {
    let range = |start, end| Extent::Range(AddressRange::new(start, end));
    let extents = [
        (0, range(4096, 651_264)),
        (0, range(1 << 20, 3 * GIB)),
        (0, range(4 * GIB, 16 * GIB)),
        (1, range(16 * GIB, 32 * GIB)),
        (2, range(32 * GIB, 60 * GIB)),
    ];
    Topology::new(extents).expect("no overlap")
}

fn migrate(fast: u32, slow: u32) -> TierPlan {
    let mut plan = TierPlan::default();
    plan.migrate(fast, slow);
    plan
}

fn planned(plan: &TierPlan, topology: &Topology) -> Configuration {
    plan.configuration(topology).expect("a plan")
}

/// The file of a single pair is checked by the command's tests (crates/isotherm/tests/it/tier.rs).
#[test]
fn several_pairs_and_cut_ranges_are_written_as_hmsdk_writes_them() {
    let mut plan = TierPlan {
        demotions: vec![Move { from: 0, to: 2 }],
        region_max: Some(8 * GIB),
        ..TierPlan::default()
    };
    plan.migrate(1, 2);
    let written = to_yaml(&planned(&plan, &machine()));
    // HMSDK ends its file with an empty line.
    assert_eq!(written + "\n", include_str!("../fixtures/hmsdk_cut.yaml"));
}

#[test]
fn goals_are_written_as_damos_example_has_them() {
    let plan = TierPlan {
        goals: Some(Tuner::Consist),
        ..migrate(0, 1)
    };
    let planned = planned(&plan, &machine());
    let yaml = include_str!("../fixtures/damo_mem_tier.yaml");
    assert_eq!(to_yaml(&planned), yaml);
    let json = include_str!("../fixtures/damo_mem_tier.json");
    assert_eq!(to_json(&planned).trim_end(), json.trim_end());
}

#[test]
fn what_contradicts_itself_is_refused() {
    let steps = |demotions: &[(u32, u32)], promotions: &[(u32, u32)]| {
        let steps = |steps: &[(u32, u32)]| {
            let steps = steps.iter().map(|(from, to)| Move {
                from: *from,
                to: *to,
            });
            steps.collect::<Vec<_>>()
        };
        TierPlan {
            demotions: steps(demotions),
            promotions: steps(promotions),
            ..TierPlan::default()
        }
    };
    let fails = |plan: &TierPlan| plan.configuration(&machine()).expect_err("wrong");
    assert_eq!(fails(&TierPlan::default()), TierError::Nothing);
    assert_eq!(fails(&migrate(1, 1)), TierError::SameNode { node: 1 });
    let says = |plan: &TierPlan, words: [&str; 2]| {
        let said = fails(plan).to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    says(&migrate(0, 3), ["no NUMA node 3", "only 0, 1, 2"]);
    let twice = TierError::SourceTwice { node: 0 };
    assert_eq!(fails(&steps(&[(0, 1), (0, 2)], &[])), twice);
    assert_eq!(fails(&steps(&[(0, 1)], &[(0, 2)])), twice);
    let circle = steps(&[(0, 1), (1, 2), (2, 0)], &[]);
    says(&circle, ["cold memory of node 0", "1, 2"]);
    let circle = fails(&steps(&[], &[(0, 1), (1, 0)]));
    assert!(matches!(circle, TierError::Circle { what: "hot", .. }));
    let cut = |bytes| TierPlan {
        region_max: Some(bytes),
        ..migrate(0, 1)
    };
    for bytes in [0, 4095, GIB + 1] {
        assert_eq!(fails(&cut(bytes)), TierError::NoPages { bytes });
    }
    let bytes = 4096;
    assert_eq!(fails(&cut(bytes)), TierError::TooMany { bytes });
    let small = Topology::new([(4, Extent::Size(GIB))]).expect("a machine");
    let alone = migrate(4, 5).configuration(&small).expect_err("one node");
    assert!(alone.to_string().contains("--topology"), "{alone}");
}

#[test]
fn a_step_down_each_tier_is_no_circle() {
    let mut plan = migrate(0, 1);
    plan.demotions.push(Move { from: 1, to: 2 });
    // Node 1 is already a source: its hot memory goes up.
    let twice = TierError::SourceTwice { node: 1 };
    assert_eq!(plan.configuration(&machine()), Err(twice));
    plan.promotions.clear();
    assert_eq!(planned(&plan, &machine()).contexts.len(), 2);
}

/// Machines of 2 to 5 nodes with a hole before each, and valid and invalid plans for them.
fn cases() -> impl Strategy<Value = (Topology, TierPlan)> {
    let node = (1u64..1 << 22, 0u64..1 << 12);
    let step = (0u32..6, 0u32..6).prop_map(|(from, to)| Move { from, to });
    let steps = || prop::collection::vec(step.clone(), 0..3);
    let tuner = prop::sample::select(vec![Tuner::Consist, Tuner::Temporal]);
    (
        prop::collection::vec(node, 2..6),
        steps(),
        steps(),
        prop::option::of("/[a-z0-9 '\":#{-]{1,20}"),
        prop::option::of((1u64..1 << 22).prop_map(|pages| pages * 4096)),
        prop::option::of(tuner),
    )
        .prop_map(|(nodes, demotions, promotions, memcg, region_max, goals)| {
            let mut at = 0;
            let extents = nodes.into_iter().zip(0..).map(|((pages, hole), node)| {
                let start = at + hole * 4096;
                at = start + pages * 4096;
                (node, Extent::Range(AddressRange::new(start, at)))
            });
            let topology = Topology::new(extents).expect("no overlap");
            let plan = TierPlan {
                demotions,
                promotions,
                memcg,
                region_max,
                goals,
            };
            (topology, plan)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_planned_covers_its_nodes_and_is_read_back_the_same((topology, plan) in cases()) {
        let Ok(planned) = plan.configuration(&topology) else {
            return Ok(());
        };
        for step in plan.demotions.iter().chain(&plan.promotions) {
            let of_node = planned.contexts.iter().filter(|context| {
                let scheme = &context.schemes[0];
                let is_cold = scheme.action == Action::MigrateCold;
                let steps = if is_cold { &plan.demotions } else { &plan.promotions };
                scheme.destinations[0].node == step.to && steps.contains(step)
            });
            let mut ranges: Vec<_> = of_node.flat_map(|c| c.targets[0].regions.clone()).collect();
            ranges.sort_unstable();
            let bytes = |ranges: &[AddressRange]| ranges.iter().map(|r| r.len()).sum::<u64>();
            let of_node = topology.regions(step.from).expect("valid");
            prop_assert!(bytes(&ranges) >= bytes(of_node));
            prop_assert!(ranges.iter().all(|r| r.len() <= plan.region_max.unwrap_or(u64::MAX)));
        }
        for (text, format) in [
            (to_yaml(&planned), ConfigFormat::Yaml),
            (to_json(&planned), ConfigFormat::Json),
        ] {
            if text_of(text.as_bytes()).is_err() {
                continue;
            }
            for format in [format, ConfigFormat::Detect] {
                let read = load(&text, format);
                prop_assert_eq!(read.as_ref(), Ok(&planned), "{}", text);
            }
        }
    }
}
