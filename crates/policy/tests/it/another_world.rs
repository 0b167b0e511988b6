//! Tests of the traits by which schemes act in a world: [`Actuator`] and [`Platform`].

use std::collections::BTreeSet;
use std::convert::Infallible;

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE, RegionSnapshot, Snapshot, TargetId};
use isotherm_policy::guard::{GuardLimits, STEP, StepTime};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, Frequency, Metric, SchemeEngine, SystemFacts,
};
use isotherm_policy::{Actuator, Context, Operation, Outcome, Platform, Refusal, Scheme};

/// A world of resident pages, one of which is locked.
struct Pages {
    present: BTreeSet<u64>,
    locked: u64,
    young_again: Vec<AddressRange>,
}

impl Actuator for Pages {
    type Error = Infallible;

    fn lacks(&self, action: Action) -> Option<String> {
        (action != Action::Pageout).then(|| "nothing can be done here but to page out".into())
    }

    fn act(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Infallible> {
        outcomes.clear();
        for operation in operations {
            let mut outcome = Outcome::default();
            for page in operation.range.start / PAGE_SIZE..operation.range.end / PAGE_SIZE {
                if page == self.locked {
                    *outcome.refused.entry(Refusal::Locked).or_default() += PAGE_SIZE;
                } else if self.present.remove(&page) {
                    outcome.applied += PAGE_SIZE;
                }
            }
            outcomes.push(outcome);
        }
        Ok(())
    }
}

impl Platform for Pages {
    fn facts(&mut self, _: &[Metric], _: &SchemeEngine, _: &[Snapshot]) -> SystemFacts {
        SystemFacts::default()
    }

    fn reset_age(&mut self, _: TargetId, range: AddressRange) {
        self.young_again.push(range);
    }
}

#[test]
fn schemes_act_in_a_world_of_a_few_lines() {
    let region = |pages: (u64, u64), nr_accesses| {
        let range = AddressRange::new(pages.0 * PAGE_SIZE, pages.1 * PAGE_SIZE);
        RegionSnapshot::new(range, Some(nr_accesses)).aged(3, Nanos(15_000_000_000))
    };
    let regions = vec![region((0, 8), 20.0), region((8, 16), 0.0)];
    let times = (Nanos(0), Nanos(20_000_000_000));
    let snapshot = Snapshot::new(TargetId(0), times, 20, regions);
    let idle = AccessPattern {
        nr_accesses: Bounds::new(Frequency::Percent(0.0), Frequency::Percent(0.0)),
        age: Bounds {
            min: Age::Time(Nanos(5_000_000_000)),
            ..AccessPattern::ANY.age
        },
        ..AccessPattern::ANY
    };
    let mut world = Pages {
        present: (0..16).collect(),
        locked: 9,
        young_again: Vec::new(),
    };
    let schemes = vec![Scheme::new(idle, Action::Pageout)];
    let mut context = Context::new(schemes, GuardLimits::default(), false).expect("good schemes");
    let step = context.step(snapshot.end, &[snapshot], StepTime::usual(STEP), &mut world);
    let (done, outcomes) = step.expect("nothing fails here");
    assert_eq!((done.len(), outcomes.len()), (1, 1));
    assert_eq!(outcomes[0].applied, 7 * PAGE_SIZE);
    assert_eq!(outcomes[0].refused[&Refusal::Locked], PAGE_SIZE);
    assert!(world.present.into_iter().eq((0..8).chain([9])));
    assert_eq!(world.young_again, [region((8, 16), 0.0).range]);
    let stats = context.schemes().stats(0).expect("a scheme");
    let counted = (stats.sz_tried, stats.sz_applied);
    assert_eq!(counted, (8 * PAGE_SIZE, 7 * PAGE_SIZE));
}
