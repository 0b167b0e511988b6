//! The simulated machine: nothing is lost or doubled, and the same seed gives the same bytes, whatever goes wrong.

use isotherm_engine::table::TableAttributes;
use isotherm_engine::{AddressRange, Attributes, Nanos};
use isotherm_policy::scheme::{AccessPattern, Action, Bounds, Destination, Frequency, Scheme};
use isotherm_policy::{Refusal, Unreclaimable};

use isotherm_sim::machine::{
    Defrag, FaultKind, InjectedFault, MachineSpec, NodeSpec, Pattern, Rates, Rules, SimMachine,
    SimProcessSpec, SwapKind, ThpMode, Use,
};
use isotherm_sim::memory::Owner;
use isotherm_sim::simulation::{Event, SimContextSpec, Simulation, Watch};
use proptest::prelude::*;

use crate::common::{self, MIB, area, context, program, run, seconds};

fn machine(nodes: &[u64], swap_mib: Option<u64>, thp: ThpMode, seed: u64) -> MachineSpec {
    let node = |(i, mib): (usize, &u64)| NodeSpec {
        latency: Nanos(90 * (i as u64 + 1)),
        ..NodeSpec::new(mib * MIB)
    };
    MachineSpec {
        nodes: nodes.iter().enumerate().map(node).collect(),
        swap: swap_mib.map(|mib| (SwapKind::Zram { ratio: 3.0 }, mib * MIB)),
        thp,
        seed,
        ..MachineSpec::default()
    }
}

/// A process of `mib`; each page of its first `hot` MiB is accessed at `rate`.
fn process(mib: u64, hot: u64, rate: f32) -> SimProcessSpec {
    let steps = Rates::Steps(vec![((hot * 256) as u32, rate)]);
    SimProcessSpec {
        accesses_per_s: Some(1e7),
        ..program(vec![area(0x7f00_0000_0000, mib, Pattern::steady(steps))])
    }
}

/// A scheme for memory that has been idle for some seconds.
fn scheme(action: Action, idle_s: u64) -> Scheme {
    common::scheme(action, (0.0, 0.0), seconds(idle_s))
}

fn tables() -> Watch {
    Watch::Tables(TableAttributes::default())
}

fn simulate(
    spec: MachineSpec,
    processes: Vec<SimProcessSpec>,
    contexts: Vec<SimContextSpec>,
    length: Nanos,
) -> (Simulation, Vec<Event>) {
    let starts = processes.into_iter().map(|p| (Nanos(0), p)).collect();
    let simulation = Simulation::new(SimMachine::new(spec), starts, contexts, length);
    run(simulation.expect("it can be simulated"), false)
}

fn refused(events: &[Event], why: Refusal) -> u64 {
    let outcomes = events.iter().filter_map(|event| match event {
        Event::Acted { outcomes, .. } => Some(outcomes),
        _ => None,
    });
    let outcomes = outcomes.flatten();
    outcomes.filter_map(|o| o.refused.get(&why)).sum()
}

fn has_end(events: &[Event], by_kill: bool) -> bool {
    let is_it =
        |event: &Event| matches!(event, Event::Ended { was_killed, .. } if *was_killed == by_kill);
    events.iter().any(is_it)
}

#[test]
fn idle_memory_is_paged_out_and_the_rest_stays() {
    let spec = machine(&[512], Some(512), ThpMode::Never, 1);
    let prcl = context(tables(), vec![scheme(Action::Pageout, 5)]);
    let (simulation, _) = simulate(spec, vec![process(256, 32, 50.0)], vec![prcl], seconds(30));
    let process = &simulation.machine().processes()[0];
    assert!(process.rss() <= 33 * MIB, "{}", process.rss() / MIB);
    assert!(process.rss() >= 31 * MIB);
    assert!(process.major_faults < 100);
    // The pool holds it compressed to a third.
    let swap = simulation.machine().swap().expect("there is some");
    assert_eq!(swap.pool_pages(), swap.stored().div_ceil(3));
}

#[test]
fn unreclaimable_memory_is_refused_once_and_stays() {
    let spec = machine(&[512], Some(512), ThpMode::Never, 1);
    let prcl = context(tables(), vec![scheme(Action::Pageout, 5)]);
    let mut program = process(256, 32, 50.0);
    program.areas[0].purpose = Use::Unreclaimable(Unreclaimable::Locked);
    let (simulation, events) = simulate(spec, vec![program], vec![prcl], seconds(30));
    assert_eq!(simulation.machine().processes()[0].rss(), 256 * MIB);
    let refused = refused(&events, Refusal::Locked);
    assert!((200 * MIB..=256 * MIB).contains(&refused), "{refused}");
}

#[test]
fn what_comes_back_costs_what_a_fault_costs() {
    let spec = machine(&[512], Some(512), ThpMode::Never, 1);
    let costs = spec.costs;
    // Each page is accessed every 20 s or so, and taken after 2 s of idleness.
    let mut eager = context(tables(), vec![scheme(Action::Pageout, 2)]);
    let program = process(64, 64, 0.05);
    let (programs, contexts) = (vec![program.clone()], vec![eager.clone()]);
    let (simulation, _) = simulate(spec.clone(), programs, contexts, seconds(60));
    let process = &simulation.machine().processes()[0];
    let expected = process.major_faults as f64 * costs.refault_zram.as_secs_f64();
    assert!(process.major_faults > 10_000, "{}", process.major_faults);
    assert!((process.losses.refaults - expected).abs() < 1e-6);

    // A guard does not let it go that far.
    eager.guard.max_refaults_per_s = Some(50.0);
    let (guarded, events) = simulate(spec, vec![program], vec![eager], seconds(60));
    let faults = guarded.machine().processes()[0].major_faults;
    assert!(faults < process.major_faults / 3, "{faults}");
    let is_guard = |event: &Event| matches!(event, Event::Guard { .. });
    assert!(events.iter().any(is_guard));
}

#[test]
fn the_kernel_reclaims_when_memory_is_short_and_kills_when_there_is_none() {
    // Two processes of 200 MiB run in 256 MiB: idle memory goes to swap.
    let spec = machine(&[256], Some(512), ThpMode::Never, 1);
    let two = vec![process(200, 20, 50.0), process(200, 20, 50.0)];
    let (simulation, _) = simulate(spec.clone(), two.clone(), Vec::new(), seconds(10));
    let stats = simulation.machine().stats();
    assert!(stats.reclaimed_pages * 4096 > 200 * MIB && stats.oom_kills == 0);
    assert!(stats.reclaim_cpu > Nanos(0));
    let spec = MachineSpec { swap: None, ..spec };
    let watching = vec![context(tables(), Vec::new())];
    let (simulation, events) = simulate(spec, two, watching, seconds(10));
    assert_eq!(simulation.machine().stats().oom_kills, 1);
    assert!(has_end(&events, true));
}

#[test]
fn huge_pages_save_translations() {
    let mut sparse = process(256, 0, 0.0);
    // The first 64 pages of each block are filled and used; the rest is never touched.
    let rates = (0..256 * 256).map(|page| if page % 512 < 64 { 20.0 } else { 0.0 });
    sparse.areas[0].pattern = Pattern::steady(Rates::Each(rates.collect::<Vec<_>>().into()));
    let always = machine(&[1024], Some(512), ThpMode::Always, 1);
    let rss = |thp, contexts| {
        let spec = MachineSpec {
            thp,
            ..always.clone()
        };
        let (simulation, _) = simulate(spec, vec![sparse.clone()], contexts, seconds(30));
        let process = &simulation.machine().processes()[0];
        let saved = process.losses.translations;
        (process.rss() / MIB, process.huge() / MIB, saved)
    };
    let (with, huge, saved) = rss(ThpMode::Always, Vec::new());
    assert_eq!((with, huge), (256, 256));
    assert!(saved < 0.0, "fewer translations are missed: {saved}");
    let (without, huge, saved) = rss(ThpMode::Never, Vec::new());
    assert_eq!((without, huge), (256, 0));
    assert!(saved.abs() < 1e-9);
}

#[test]
fn nohugepage_gives_back_what_was_never_written_and_keeps_data() {
    let check = |(filled, hot_mib): (u32, u64), swap, sizes: (u64, u64), applied_min: u64| {
        let mut sparse = process(256, hot_mib, 20.0);
        sparse.areas[0].filled_of_block = Some(filled);
        let spec = machine(&[1024], swap, ThpMode::Always, 1);
        let contexts = vec![context(tables(), vec![scheme(Action::Nohugepage, 3)])];
        let (simulation, events) = simulate(spec, vec![sparse], contexts, seconds(30));
        let applied = events.iter().map(|event| match event {
            Event::Acted { outcomes, .. } => outcomes.iter().map(|o| o.applied).sum::<u64>(),
            _ => 0,
        });
        let process = &simulation.machine().processes()[0];
        assert_eq!(process.swapped(), 0);
        assert_eq!((process.rss() / MIB, process.huge() / MIB), sizes);
        // khugepaged makes some of it huge again.
        let applied = applied.sum::<u64>() / MIB;
        let expected = applied_min..=applied_min * 5 / 4;
        assert!(expected.contains(&applied), "{applied}");
    };
    // An eighth is data. The split needs no swap, and makes none.
    check((64, 0), None, (32, 0), 224);
    check((64, 0), Some(512), (32, 0), 224);
    // Memory in use stays huge.
    check((64, 128), None, (128 + 16, 128), 112);
    // There is nothing to give back, or too little to lose huge pages for.
    check((512, 0), None, (256, 256), 0);
    check((500, 0), None, (256, 256), 0);
}

#[test]
fn huge_pages_waste_no_more_than_they_may_and_go_where_they_save_most() {
    // There are two mappings, all of whose data are hot. Data are an eighth of one, and seven eighths of the other.
    let both = |max_waste| {
        let mut program = process(128, 128, 20.0);
        let mut dense = program.areas[0].clone();
        dense.range = AddressRange::new(dense.range.start + 256 * MIB, dense.range.end + 256 * MIB);
        for (area, data) in [(&mut program.areas[0], 64_u32), (&mut dense, 448)] {
            let rates = (0..128 * 256).map(|page| if page % 512 < data { 20.0 } else { 0.0 });
            area.pattern = Pattern::steady(Rates::Each(rates.collect::<Vec<_>>().into()));
            area.filled_of_block = Some(data);
        }
        program.areas.push(dense);
        let mut hot = Scheme::new(AccessPattern::ANY, Action::Hugepage);
        hot.pattern.nr_accesses.min = Frequency::Percent(5.0);
        // With this budget the hot data of all blocks are known before any block is made huge: none is left over as
        // known last.
        let watch = Watch::Tables(TableAttributes {
            cpu_budget: 0.05,
            ..TableAttributes::default()
        });
        let contexts = vec![context(watch, vec![hot])];
        let machine = SimMachine::new(machine(&[1024], None, ThpMode::Never, 1));
        let simulation = Simulation::new(machine, vec![(Nanos(0), program)], contexts, seconds(30));
        let mut simulation = simulation.expect("it can be simulated");
        simulation.set_max_waste(0, max_waste);
        let (simulation, _) = run(simulation, false);
        let process = &simulation.machine().processes()[0];
        let (rss, huge) = (process.rss() / MIB, process.huge() / MIB);
        (rss, huge, simulation.waste(0))
    };
    let data = 16 + 112;
    // Without a bound, huge pages are made wherever half of a block is populated.
    let (rss, huge, waste) = both(None);
    assert_eq!((rss, huge, waste), (data + 16, 128, None));
    // All dense blocks are made huge, and then others for another tenth of waste.
    let (rss, huge, waste) = both(Some(0.2));
    let waste = waste.expect("it is bounded");
    assert_eq!(waste.wasted / MIB, rss - data);
    assert!(waste.wasted <= rss * MIB / 5, "{waste:?}");
    assert!(waste.wasted >= rss * MIB / 6, "{waste:?}");
    assert!(huge > 128 && waste.huge == huge * MIB, "{huge} {waste:?}");
    // A tenth is less than the waste of all dense blocks.
    let (rss, huge, waste) = both(Some(0.1));
    let waste = waste.expect("it is bounded");
    assert!((90..128).contains(&huge), "{huge}");
    assert_eq!(rss - data, huge / 8, "only dense ones: {waste:?}");
    assert!(waste.kept_small >= 128 * MIB, "{waste:?}");
}

#[test]
fn cold_memory_goes_to_the_far_node_and_hot_memory_comes_back() {
    let spec = machine(&[256, 512], None, ThpMode::Never, 1);
    let to = |action, node, idle: bool| {
        let mut scheme = if idle {
            scheme(action, 3)
        } else {
            let mut scheme = Scheme::new(AccessPattern::ANY, action);
            scheme.pattern.nr_accesses =
                Bounds::new(Frequency::Percent(5.0), Frequency::Percent(100.0));
            scheme
        };
        scheme.destinations = vec![Destination { node, weight: 1 }];
        scheme
    };
    let watch = |node| {
        let attributes = Attributes {
            sample_interval: Nanos::from_millis(20),
            aggregation_interval: Nanos::from_millis(400),
            ..Attributes::default()
        };
        Watch::Physical(attributes, Some(node))
    };
    let contexts = vec![
        context(watch(0), vec![to(Action::MigrateCold, 1, true)]),
        context(watch(1), vec![to(Action::MigrateHot, 0, false)]),
    ];
    // The hot part is filled last, and so begins on the far node.
    let mut program = process(300, 0, 0.0);
    program.areas[0].pattern =
        Pattern::steady(Rates::Steps(vec![(250 * 256, 0.0), (300 * 256, 200.0)]));
    let plain = simulate(spec.clone(), vec![program.clone()], Vec::new(), seconds(60)).0;
    let tiered = simulate(spec, vec![program], contexts, seconds(60)).0;
    let lost = |simulation: &Simulation| simulation.machine().processes()[0].losses.tiers;
    assert!(lost(&plain) > 1.0, "{}", lost(&plain));
    let (tiered, plain) = (lost(&tiered), lost(&plain));
    assert!(tiered < plain / 2.0, "{tiered} of {plain}");
}

#[test]
fn what_goes_wrong_is_refused_by_its_name() {
    let always = |kind| InjectedFault {
        kind,
        from: Nanos(0),
        until: seconds(1000),
    };
    let with = |kind| {
        let mut machine = SimMachine::new(machine(&[512], Some(512), ThpMode::Never, 1));
        machine.set_faults(vec![always(kind)]);
        let prcl = context(tables(), vec![scheme(Action::Pageout, 3)]);
        let starts = vec![(Nanos(0), process(64, 0, 0.0))];
        let simulation = Simulation::new(machine, starts, vec![prcl], seconds(10));
        run(simulation.expect("fine"), true)
    };
    assert!(refused(&with(FaultKind::SwapFull).1, Refusal::SwapFull) > 0);
    assert!(refused(&with(FaultKind::Contention(0.5)).1, Refusal::Locked) > 0);
    let (simulation, events) = with(FaultKind::Exit(0));
    assert!(!simulation.machine().processes()[0].is_running());
    assert!(has_end(&events, false));
}

/// Returns all events and the processes as text, which must be the same for the same seed.
fn reported(seed: u64) -> String {
    let mut machine = SimMachine::new(machine(&[128, 128], Some(64), ThpMode::Always, seed));
    machine.set_faults(vec![InjectedFault {
        kind: FaultKind::Migration(0.3),
        from: Nanos(0),
        until: seconds(100),
    }]);
    let context = context(tables(), vec![scheme(Action::Pageout, 2)]);
    let starts = vec![
        (Nanos(0), process(96, 48, 0.3)),
        (seconds(2), process(96, 8, 40.0)),
    ];
    let simulation = Simulation::new(machine, starts, vec![context], seconds(15));
    let (simulation, events) = run(simulation.expect("fine"), false);
    format!("{events:?}{:?}", simulation.machine().processes())
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_thread() {
    let alone = reported(7);
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| reported(7))).collect();
    for thread in threads {
        assert!(thread.join().expect("it ends") == alone, "another story");
    }
    assert!(reported(8) != alone, "another seed tells another");
}

#[test]
fn zones_are_as_on_x86_and_the_kernel_takes_nothing_movable() {
    let mut spec = machine(&[4096, 256], Some(512), ThpMode::Never, 1);
    spec.nodes[0].movable = 512 * MIB;
    spec.nodes[1].movable = u64::MAX;
    let machine = SimMachine::new(spec);
    let zones = machine.memory().zones().iter();
    let zones: Vec<(&str, u64)> = zones.map(|z| (z.name, z.pages / 256)).collect();
    let wanted = [
        ("DMA32", 3072),
        ("Normal", 512),
        ("Movable", 512),
        ("Movable", 256),
    ];
    assert_eq!(zones, wanted);
    assert_eq!(machine.node_of(machine.memory().frames_of(1).start), 1);

    // Pages are paged out to zram, whose pool is the kernel's: node 1 is filled by pages alone.
    let mut spec = self::machine(&[64, 64], Some(512), ThpMode::Never, 1);
    spec.nodes[1].movable = 64 * MIB;
    let (simulation, _) = simulate(spec, vec![process(160, 16, 50.0)], vec![], seconds(5));
    let machine = simulation.machine();
    assert!(machine.swap().expect("there is some").pool_pages() > 0);
    let is_kernel = |frame| machine.memory().owner(frame) == Owner::Kernel;
    assert!(!machine.memory().frames_of(1).any(is_kernel));
    assert!(machine.memory().frames_of(0).any(is_kernel));
}

#[test]
fn nodes_fill_one_after_the_other_before_anything_is_reclaimed() {
    let spec = machine(&[64, 64], Some(512), ThpMode::Never, 1);
    let (simulation, _) = simulate(spec, vec![process(100, 10, 50.0)], vec![], seconds(5));
    let machine = simulation.machine();
    assert_eq!(machine.stats().swapped_out, 0);
    assert!(machine.memory().free_on(0) < machine.memory().free_on(1));
}

/// Runs a machine whose free memory one process fragments. Another asks for 64 MiB of huge pages some seconds later.
fn fragmented(defrag: Defrag, compaction_proactiveness: u32) -> Simulation {
    let spec = MachineSpec {
        defrag,
        compaction_proactiveness,
        ..machine(&[512], None, ThpMode::Madvise, 1)
    };
    let mut fragmenter = process(496, 0, 0.0);
    fragmenter.areas[0].released = Some((seconds(2), 0.75));
    let mut huge = process(64, 64, 50.0);
    huge.areas[0].huge = Some(true);
    let starts = vec![(Nanos(0), fragmenter), (seconds(10), huge)];
    let simulation = Simulation::new(SimMachine::new(spec), starts, vec![], seconds(15));
    run(simulation.expect("it can be simulated"), true).0
}

#[test]
fn huge_pages_are_made_by_whoever_is_allowed_to() {
    let none = fragmented(Defrag::Never, 0);
    let stats = none.machine().stats();
    // Only blocks that the other process left free as a whole are used.
    assert!(stats.huge_faults <= 8, "{stats:?}");
    assert_eq!(stats.huge_faults + stats.huge_fallbacks, 32);
    assert_eq!(none.machine().processes()[1].rss(), 64 * MIB);
    assert_eq!(none.machine().fragmentation(0).2.nr_rounds, 0);

    let direct = fragmented(Defrag::Madvise, 0);
    let stats = direct.machine().stats();
    assert_eq!((stats.huge_faults, stats.huge_fallbacks), (32, 0));
    assert!(stats.compaction_successes >= 24, "{stats:?}");
    let lost = direct.machine().processes()[1].losses.compaction;
    assert!((lost - stats.compaction_stall.as_secs_f64()).abs() < 1e-6);
    assert!(lost > 0.0);

    let ahead = fragmented(Defrag::Never, 100);
    let stats = ahead.machine().stats();
    assert_eq!((stats.huge_faults, stats.compaction_stall), (32, Nanos(0)));
    assert!(stats.kcompactd_cpu > Nanos(0));
    assert!(ahead.machine().fragmentation(0).2.nr_rounds > 0);
}

#[test]
fn a_node_delivers_no_more_than_it_can() {
    // 10 million accesses a second are 640 MB/s.
    let seconds_of_work = |bandwidth| {
        let mut spec = machine(&[512], None, ThpMode::Never, 1);
        spec.nodes[0].bandwidth = bandwidth;
        let (simulation, _) = simulate(spec, vec![process(64, 64, 50.0)], vec![], seconds(20));
        let process = &simulation.machine().processes()[0];
        (process.work().as_secs_f64(), process.losses.tiers)
    };
    let (most, _) = seconds_of_work(None);
    let (enough, lost) = seconds_of_work(Some(1_000_000_000));
    assert!((most - enough).abs() < 0.01, "{enough}");
    assert!(lost < 0.01, "{lost}");
    let (half, lost) = seconds_of_work(Some(320_000_000));
    assert!((half / most - 0.5).abs() < 0.05, "{half} of {most}");
    assert!((half + lost - most).abs() < 0.5, "{lost} s lost");
}

prop_compose! {
    fn any_fault()(
        which in 0..6_u8, share in 0.0..1.0_f64, from in 0..6_u64, length in 1..6_u64, far in -4..4_i64,
    ) -> InjectedFault {
        InjectedFault {
            kind: match which {
                0 => FaultKind::NodeFull(0),
                1 => FaultKind::SwapFull,
                2 => FaultKind::Migration(share),
                3 => FaultKind::Contention(share),
                4 => FaultKind::Exit(1),
                _ => FaultKind::ClockJump(far * 1_000_000_000),
            },
            from: seconds(from),
            until: seconds(from + length),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every frame and every page is in exactly one place after every step, for any machine, programs, schemes and
    /// faults.
    #[test]
    fn everything_is_in_one_place(
        nodes in prop::collection::vec(16..64_u64, 1..3),
        movable in prop::sample::select(vec![0, 8, 64_u64]),
        defrag in prop::sample::select(vec![Defrag::Always, Defrag::Madvise, Defrag::Never]),
        compaction_proactiveness in 0..=100_u32,
        released in prop::option::of(0.0..1.0),
        swap in prop::option::of(0..64_u64),
        thp in prop::sample::select(vec![ThpMode::Always, ThpMode::Madvise, ThpMode::Never]),
        sizes in prop::collection::vec((1..48_u64, 0.0..2.0_f32), 1..3),
        actions in prop::collection::vec(prop::sample::select(Action::ALL.to_vec()), 1..4),
        faults in prop::collection::vec(any_fault(), 0..4),
        is_physical in any::<bool>(),
        (rules, is_scattered) in (prop::sample::select(vec![Rules::Isotherm, Rules::KernelDamon]), any::<bool>()),
        seed in any::<u64>(),
    ) {
        let nodes: Vec<u64> = nodes.iter().map(|mib| mib / 4 * 4).collect();
        let mut spec = MachineSpec {
            defrag,
            compaction_proactiveness,
            rules,
            is_scattered,
            ..machine(&nodes, swap, thp, seed)
        };
        spec.nodes.iter_mut().for_each(|node| node.movable = movable * MIB);
        let mut machine = SimMachine::new(spec);
        machine.set_faults(faults);
        let schemes = actions.into_iter().map(|action| {
            let mut scheme = scheme(action, 1);
            if matches!(action, Action::Hugepage | Action::Collapse | Action::MigrateHot) {
                scheme.pattern = AccessPattern::ANY;
            }
            if matches!(action, Action::MigrateHot | Action::MigrateCold) {
                scheme.destinations = vec![Destination { node: nodes.len() as u32 - 1, weight: 1 }];
            }
            scheme
        });
        let watch = if is_physical {
            Watch::Physical(Attributes::default(), None)
        } else {
            tables()
        };
        let context = context(watch, schemes.collect());
        let starts = sizes.iter().enumerate().map(|(i, (mib, rate))| {
            let mut program = process(*mib, mib / 2, *rate);
            program.areas[0].released = released.map(|share| (seconds(2), share));
            (seconds(i as u64), program)
        });
        let simulation = Simulation::new(machine, starts.collect(), vec![context], seconds(8));
        let mut simulation = simulation.expect("it can be simulated");
        let mut events = Vec::new();
        let mut step = 0;
        while simulation.step(&mut events) {
            step += 1;
            // Every step is checked where that is affordable.
            if step % 7 == 0 || events.iter().any(|e| matches!(e, Event::Acted { .. })) {
                prop_assert_eq!(simulation.machine().check(), Ok(()));
            }
            events.clear();
        }
        prop_assert_eq!(simulation.machine().check(), Ok(()));
    }
}
