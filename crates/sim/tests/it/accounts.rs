//! The machine's accounts: used memory belongs to its users, and a process's time is work or lost, whatever is done to
//! it.

use isotherm_engine::table::TableAttributes;
use isotherm_engine::{Nanos, PAGE_SIZE};
use isotherm_policy::scheme::{AccessPattern, Action, Destination, Scheme};
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, Rates, SimMachine, SimProcess, SimProcessSpec, Swap,
    SwapKind, ThpMode, Use,
};
use isotherm_sim::simulation::{Simulation, Watch};
use proptest::prelude::*;

use crate::common::{MIB, area, context, program, seconds};

/// A process with anonymous memory and files; each page of the first half of both is accessed at `rate`.
fn process((anon_mib, file_mib, rate): (u64, u64, f32)) -> SimProcessSpec {
    let steps = |mib: u64| Pattern::steady(Rates::Steps(vec![((mib * 128) as u32, rate)]));
    let file = AreaSpec {
        name: "file".into(),
        purpose: Use::File,
        ..area(0x7f80_0000_0000, file_mib, steps(file_mib))
    };
    program(vec![
        area(0x7f00_0000_0000, anon_mib, steps(anon_mib)),
        file,
    ])
}

/// A scheme that pages out, moves, splits or makes huge everything at every snapshot.
fn scheme(action: Action) -> Scheme {
    let mut scheme = Scheme::new(AccessPattern::ANY, action);
    if matches!(action, Action::MigrateHot | Action::MigrateCold) {
        scheme.destinations = vec![Destination { node: 1, weight: 1 }];
    }
    scheme
}

const ACTIONS: [Action; 6] = [
    Action::Pageout,
    Action::MigrateCold,
    Action::MigrateHot,
    Action::Hugepage,
    Action::Nohugepage,
    Action::Willneed,
];

/// Most memory that compaction holds free between two steps, to move pages to: one block of the buddy allocator.
const HELD_MAX: u64 = 4 * MIB;

/// Checks that used memory belongs to processes or to compressed swap, and that swapped pages are in swap or were read
/// back.
fn check_memory(machine: &SimMachine) -> Result<(), TestCaseError> {
    let processes = machine.processes();
    let resident: u64 = processes.iter().map(SimProcess::rss).sum();
    let swapped: u64 = processes.iter().map(SimProcess::swapped).sum();
    let pool = machine.swap().map_or(0, Swap::pool_pages);
    let held = machine.used().checked_sub(resident + pool * PAGE_SIZE);
    prop_assert!(
        held.is_some_and(|held| held < HELD_MAX),
        "{held:?} are of no process"
    );
    let stats = machine.stats();
    if stats.oom_kills == 0 {
        prop_assert_eq!(swapped, (stats.swapped_out - stats.swapped_in) * PAGE_SIZE);
    }
    Ok(())
}

/// Checks that a process's time is work or lost, except for a wait that is not over yet.
fn check_time(machine: &SimMachine) -> Result<(), TestCaseError> {
    for process in machine.processes().iter().filter(|p| p.is_running()) {
        let elapsed = machine.now().since(process.started).as_secs_f64();
        let reported = process.work().as_secs_f64() + process.losses.total();
        let is_all = reported >= elapsed - 1e-6 && process.work().as_secs_f64() <= elapsed + 1e-6;
        prop_assert!(
            is_all,
            "{} s: {} s reported, {:?}",
            elapsed,
            reported,
            process.losses
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_time_are_accounted_for(
        swap in prop::option::of((1.0..4.0_f64, 0..64_u64)),
        thp in prop::sample::select(vec![ThpMode::Always, ThpMode::Madvise]),
        programs in prop::collection::vec((1..40_u64, 1..20_u64, 0.0..4.0_f32), 1..4),
        actions in prop::collection::vec(prop::sample::select(ACTIONS.to_vec()), 1..4),
        seed in any::<u64>(),
    ) {
        let machine = SimMachine::new(MachineSpec {
            nodes: vec![NodeSpec::new(64 * MIB), NodeSpec { latency: Nanos(250), ..NodeSpec::new(32 * MIB) }],
            swap: swap.map(|(ratio, mib)| (SwapKind::Zram { ratio }, mib * MIB)),
            thp,
            seed,
            ..MachineSpec::default()
        });
        prop_assert_eq!(machine.used(), 0);
        let tables = Watch::Tables(TableAttributes::default());
        let context = context(tables, actions.into_iter().map(scheme).collect());
        let starts = (0..).zip(programs).map(|(i, program)| (seconds(i), process(program)));
        let simulation = Simulation::new(machine, starts.collect(), vec![context], seconds(10));
        let mut simulation = simulation.expect("it can be simulated");
        let mut events = Vec::new();
        while simulation.step(&mut events) {
            events.clear();
            check_memory(simulation.machine())?;
            check_time(simulation.machine())?;
        }
        prop_assert_eq!(simulation.machine().check(), Ok(()));
    }
}
