//! Properties of the engine in arbitrary worlds: layouts appear, change and disappear; pages are touched, idle or
//! unknown, in any order.

use std::collections::BTreeMap;

use isotherm_engine::{
    AddressRange, Attributes, BLOCK_SIZE, Cost, CpuBudget, Engine, Facts, Gap, IntervalsGoal,
    Layout, Nanos, PAGE_SIZE, Plan, Strategy, TargetId, Touch,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;

/// Event between two ticks.
#[derive(Clone, Debug)]
enum Event {
    Nothing,
    Layout(u32, Vec<AddressRange>, Vec<AddressRange>, bool),
    End(u32),
    ProbeFailed,
}

fn any_ranges() -> impl Generator<Value = Vec<AddressRange>> {
    prop::collection::vec((0..9000_u64, 1..4000_u64), 0..12).prop_map(|all| {
        let mut at = 0;
        let range = |(gap, pages): (u64, u64)| {
            let start = at + gap * PAGE_SIZE;
            at = start + pages * PAGE_SIZE;
            AddressRange::new(start, at)
        };
        all.into_iter().map(range).collect()
    })
}

fn any_event() -> impl Generator<Value = Event> {
    let layout = (0..3_u32, any_ranges(), any_ranges(), any::<bool>())
        .prop_map(|(id, mappings, populated, fixed)| Event::Layout(id, mappings, populated, fixed));
    prop_oneof![
        12 => Just(Event::Nothing),
        2 => layout,
        1 => (0..3_u32).prop_map(Event::End),
        1 => Just(Event::ProbeFailed),
    ]
}

fn any_attributes() -> impl Generator<Value = Attributes> {
    let strategy = (0..=5_u32, any::<[bool; 3]>()).prop_map(|(log, flags)| Strategy {
        cluster_pages: 1 << log,
        populated_only: flags[0],
        weighted_samples: flags[1],
        aligned_splits: flags[2],
    });
    (
        strategy,
        1..8_u64,
        3..20_u32,
        0..60_u32,
        0..3_u8,
        any::<u64>(),
    )
        .prop_map(
            |(strategy, nr_samples, min, more, ruler, seed)| Attributes {
                aggregation_interval: Nanos::from_millis(5 * nr_samples),
                min_nr_regions: min,
                max_nr_regions: min + more,
                intervals_goal: (ruler == 1).then(IntervalsGoal::default),
                cpu_budget: (ruler == 2).then(|| CpuBudget::new(0.01)),
                strategy,
                seed,
                ..Attributes::faithful()
            },
        )
}

/// Returns whether sampled pages are accessed, idle or unknown, by their address and the tick.
fn touch(address: u64, nr_pages: u32, tick: usize) -> Touch {
    let mixed = (address / PAGE_SIZE / 700 + tick as u64 / 9).wrapping_mul(0x9e37_79b9) >> 7;
    match mixed % 5 {
        0 => Touch::Unknown(Gap::Unclearable),
        1 => Touch::Seen {
            observed: nr_pages,
            accessed: nr_pages,
        },
        2 => Touch::Seen {
            observed: nr_pages.div_ceil(2),
            accessed: nr_pages / 3,
        },
        _ => Touch::Seen {
            observed: nr_pages,
            accessed: 0,
        },
    }
}

/// Runs through the events; calls `inspect` after each tick.
fn drive(attributes: Attributes, events: &[Event], mut inspect: impl FnMut(&Engine, &Plan)) {
    let mut engine = Engine::new(attributes).expect("valid attributes");
    let (mut now, mut touches, mut cost) = (Nanos(0), Vec::new(), Cost::default());
    for (tick, event) in events.iter().enumerate() {
        let mut facts = Facts {
            touches: &touches,
            cost,
            ..Facts::default()
        };
        let mut ended = Vec::new();
        match event {
            Event::Nothing => (),
            Event::ProbeFailed => facts.touches = &[],
            Event::End(id) => ended.push(TargetId(*id)),
            Event::Layout(id, ranges, _, true) => {
                facts
                    .layouts
                    .push((TargetId(*id), Layout::Fixed(ranges.clone())));
            }
            Event::Layout(id, mappings, populated, false) => {
                let (mappings, populated) = (mappings.clone(), Some(populated.clone()));
                facts.layouts.push((
                    TargetId(*id),
                    Layout::Mappings {
                        mappings,
                        populated,
                    },
                ));
            }
        }
        facts.ended = &ended;
        let plan = engine.tick(now, facts).clone();
        inspect(&engine, &plan);
        touches.clear();
        touches.extend(
            plan.samples
                .iter()
                .map(|s| touch(s.address, s.nr_pages, tick)),
        );
        cost.monitor_cpu = cost.monitor_cpu + Nanos(9_000 * plan.samples.len() as u64);
        now = plan.next_tick;
    }
}

fn check_regions(engine: &Engine, attributes: &Attributes) {
    let mut nr_ranges = 0;
    for target in (0..3).map(TargetId) {
        let ranges = engine.ranges(target);
        nr_ranges += ranges.len();
        let mut regions = engine.regions(target);
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let region = regions.next().expect("regions fill the range");
                assert_eq!(region.start, at, "no gap and no overlap in {range:?}");
                assert!(region.end.is_multiple_of(PAGE_SIZE));
                at = region.end;
            }
            assert_eq!(at, range.end, "a region leaves {range:?}");
        }
        assert_eq!(regions.next(), None, "a region outside of {ranges:?}");
    }
    let most = (attributes.max_nr_regions as usize).max(nr_ranges);
    assert!(
        engine.nr_regions() <= most,
        "{} regions, {most} allowed",
        engine.nr_regions()
    );
}

fn check_plan(engine: &Engine, plan: &Plan, attributes: &Attributes) {
    for sample in &plan.samples {
        assert!((1..=attributes.strategy.cluster_pages).contains(&sample.nr_pages));
        let last = sample.address + u64::from(sample.nr_pages) * PAGE_SIZE - 1;
        assert_eq!(
            sample.address / BLOCK_SIZE,
            last / BLOCK_SIZE,
            "{sample:?} crosses a block"
        );
        let holder = engine
            .regions(sample.target)
            .find(|region| region.contains(sample.address));
        assert!(
            holder.is_some_and(|region| region.contains(last)),
            "{sample:?}"
        );
    }
    assert!(
        plan.samples
            .is_sorted_by_key(|sample| (sample.target, sample.address))
    );
    for snapshot in &plan.snapshots {
        assert!(snapshot.start < snapshot.end);
        assert!(
            snapshot
                .regions
                .is_sorted_by(|a, b| a.range.end <= b.range.start)
        );
        for region in &snapshot.regions {
            if let Some(nr) = region.nr_accesses {
                assert!(
                    (0.0..=snapshot.nr_samples as f32).contains(&nr),
                    "{region:?}"
                );
            }
        }
    }
}

proptest! {

    #[test]
    fn regions_fill_their_ranges_whatever_happens(
        attributes in any_attributes(), events in prop::collection::vec(any_event(), 1..150),
    ) {
        drive(attributes, &events, |engine, plan| {
            check_regions(engine, &attributes);
            check_plan(engine, plan, &attributes);
        });
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes(
        attributes in any_attributes(), events in prop::collection::vec(any_event(), 1..80),
    ) {
        let run = || {
            let mut plans = Vec::new();
            drive(attributes, &events, |_, plan| plans.push(format!("{plan:?}")));
            plans
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn another_seed_gives_other_samples() {
    let layout = Event::Layout(0, vec![AddressRange::new(0, 1 << 30)], Vec::new(), true);
    let run = |seed: u64| {
        let mut samples: BTreeMap<u64, u32> = BTreeMap::new();
        let events = [layout.clone(), Event::Nothing];
        drive(
            Attributes {
                seed,
                ..Attributes::faithful()
            },
            &events,
            |_, plan| {
                samples.extend(plan.samples.iter().map(|s| (s.address, s.nr_pages)));
            },
        );
        samples
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
