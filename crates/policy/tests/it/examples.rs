//! The complete examples of documentation comments.

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot, Snapshot};
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, NodeFacts, ZoneFacts,
};
use isotherm_policy::scheme::{AccessPattern, Action, SchemeEngine, SystemFacts};
use isotherm_policy::{Outcome, Scheme};

#[test]
fn a_scheme_engine_plans_and_learns_what_was_done() {
    let everything = Scheme::new(AccessPattern::ANY, Action::Stat);
    let mut engine = SchemeEngine::new(vec![everything]).expect("a good scheme");
    let region = RegionSnapshot {
        range: AddressRange::new(0x1000, 0x3000),
        nr_accesses: Some(0.0),
        age: 0,
        age_ns: Nanos(0),
        memory: None,
    };
    let snapshot = Snapshot {
        nr_samples: 20,
        regions: vec![region],
        ..Snapshot::default()
    };
    let plan = engine.plan(Nanos(0), &[snapshot], &SystemFacts::default());
    let outcomes: Vec<_> = plan.iter().map(Outcome::assumed).collect();
    engine.done(&plan, &outcomes);
    assert_eq!(engine.stats(0).map(|stats| stats.sz_tried), Some(0x2000));
}

#[test]
fn a_compaction_controller_is_asked_before_each_step() {
    let mut facts = NodeFacts {
        zones: vec![ZoneFacts {
            name: "Normal".into(),
            present_pages: 4096,
            free_blocks: [1024, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            contended: false,
        }],
        ..NodeFacts::default()
    };
    let mut controller = CompactionController::new(CompactionAttributes::default());
    let decision = controller.check(Nanos(0), &facts);
    assert_eq!(decision, CompactionDecision::Compact { zones: vec![0] });
    while controller.keeps_going(&facts, 0) {
        // A step of compaction makes a whole huge page here.
        facts.zones[0].free_blocks[0] -= 512;
        facts.zones[0].free_blocks[9] += 1;
    }
    controller.done(Nanos(1000), &facts);
    assert_eq!(controller.status().score, Some(50.0));
}
