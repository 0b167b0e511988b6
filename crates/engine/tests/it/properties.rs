//! Properties of the engine in arbitrary worlds: ranges appear, change and disappear; pages are touched, idle or
//! unknown, in any order.

use isotherm_engine::{
    AddressRange, Attributes, Engine, Facts, Gap, IntervalsGoal, Nanos, PAGE_SIZE, Plan, TargetId,
    Touch,
};
use proptest::prelude::*;

/// Event between two ticks.
#[derive(Clone, Debug)]
enum Event {
    Nothing,
    Ranges(u32, Vec<AddressRange>),
    End(u32),
    ProbeFailed,
}

fn any_ranges() -> impl Strategy<Value = Vec<AddressRange>> {
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

fn any_event() -> impl Strategy<Value = Event> {
    let ranges = (0..3_u32, any_ranges()).prop_map(|(id, ranges)| Event::Ranges(id, ranges));
    prop_oneof![
        12 => Just(Event::Nothing),
        2 => ranges,
        1 => (0..3_u32).prop_map(Event::End),
        1 => Just(Event::ProbeFailed),
    ]
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    (1..8_u64, 3..20_u32, 0..60_u32, any::<bool>(), any::<u64>()).prop_map(
        |(nr_samples, min, more, has_goal, seed)| Attributes {
            aggregation_interval: Nanos::from_millis(5 * nr_samples),
            min_nr_regions: min,
            max_nr_regions: min + more,
            intervals_goal: has_goal.then(IntervalsGoal::default),
            seed,
            ..Attributes::default()
        },
    )
}

/// Returns whether a page is accessed, idle or unknown, by its address and the tick.
fn touch(address: u64, tick: usize) -> Touch {
    let mixed = (address / PAGE_SIZE / 700 + tick as u64 / 9).wrapping_mul(0x9e37_79b9) >> 7;
    match mixed % 5 {
        0 => Touch::Unknown(Gap::Unclearable),
        rest => Touch::of(rest == 1),
    }
}

/// Runs through the events; calls `inspect` after each tick.
fn drive(attributes: Attributes, events: &[Event], mut inspect: impl FnMut(&Engine, &Plan)) {
    let mut engine = Engine::new(attributes).expect("valid attributes");
    let (mut now, mut touches) = (Nanos(0), Vec::new());
    for (tick, event) in events.iter().enumerate() {
        let mut facts = Facts {
            touches: &touches,
            ..Facts::default()
        };
        let mut ended = Vec::new();
        match event {
            Event::Nothing => (),
            Event::ProbeFailed => facts.touches = &[],
            Event::End(id) => ended.push(TargetId(*id)),
            Event::Ranges(id, ranges) => facts.ranges.push((TargetId(*id), ranges.clone())),
        }
        facts.ended = &ended;
        let plan = engine.tick(now, facts).clone();
        inspect(&engine, &plan);
        touches.clear();
        touches.extend(plan.samples.iter().map(|s| touch(s.address, tick)));
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
    let nr = engine.nr_regions();
    assert!(nr <= most, "{nr} regions, {most} allowed");
}

fn check_plan(engine: &Engine, plan: &Plan) {
    let mut samples = plan.samples.iter();
    for target in (0..3).map(TargetId) {
        for region in engine.regions(target) {
            let sample = samples.next().expect("a sample of each region");
            assert!(sample.target == target && region.contains(sample.address));
            assert!(sample.address.is_multiple_of(PAGE_SIZE));
        }
    }
    assert_eq!(samples.next(), None);
    for snapshot in &plan.snapshots {
        assert!(snapshot.start < snapshot.end);
        let regions = &snapshot.regions;
        assert!(regions.is_sorted_by(|a, b| a.range.end <= b.range.start));
        let most = snapshot.nr_samples as f32;
        for region in regions {
            let nr = region.nr_accesses.unwrap_or(0.0);
            assert!((0.0..=most).contains(&nr), "{region:?}");
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
            check_plan(engine, plan);
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
    let ranges = Event::Ranges(0, vec![AddressRange::new(0, 1 << 30)]);
    let run = |seed: u64| {
        let mut samples: Vec<u64> = Vec::new();
        let events = [ranges.clone(), Event::Nothing];
        let attributes = Attributes {
            seed,
            ..Attributes::default()
        };
        drive(attributes, &events, |_, plan| {
            samples.extend(plan.samples.iter().map(|s| s.address));
        });
        samples
    };
    assert_ne!(run(1), run(2));
}
