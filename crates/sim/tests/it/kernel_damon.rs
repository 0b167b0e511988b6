//! The rules of the kernel's DAMON, where they differ from Isotherm's.

use isotherm_engine::{Attributes, Nanos};
use isotherm_policy::scheme::{Action, Scheme};
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, Rates, Rules, SimMachine, SimProcess, SimProcessSpec,
    SwapKind,
};
use isotherm_sim::simulation::{Simulation, Watch};

use crate::common::{self, MIB, area, context, program, scheme, seconds};

/// A process of 128 MiB: half of each block is filled within `fill`, and each page is accessed at `rate`.
fn process(rate: f32, fill: Nanos) -> SimProcessSpec {
    let heap = AreaSpec {
        fill: Some((Nanos(0), fill)),
        filled_of_block: Some(256),
        ..area(0x7f00_0000_0000, 256, Pattern::steady(Rates::Even(rate)))
    };
    SimProcessSpec {
        memory_bound: 0.0,
        ..program(vec![heap])
    }
}

/// Runs a process for 20 s, and returns it.
fn run(rules: Rules, watch: Watch, scheme: Scheme, process: SimProcessSpec) -> SimProcess {
    let machine = SimMachine::new(MachineSpec {
        nodes: vec![NodeSpec::new(32 << 30)],
        swap: Some((SwapKind::Zram { ratio: 3.0 }, 1024 * MIB)),
        rules,
        is_scattered: true,
        ..MachineSpec::default()
    });
    let context = context(watch, vec![scheme]);
    let starts = vec![(Nanos(0), process)];
    let simulation = Simulation::new(machine, starts, vec![context], seconds(20));
    let (simulation, _) = common::run(simulation.expect("a simulation of ours"), false);
    simulation.machine().processes()[0].clone()
}

#[test]
fn huge_pages_are_advised_and_come_with_first_faults_and_khugepaged() {
    let huge_mib = |rules, fill| {
        let watch = Watch::Regions(Attributes::default());
        let scheme = scheme(Action::Hugepage, (5.0, 100.0), Nanos(0));
        run(rules, watch, scheme, process(50.0, fill)).huge() / MIB
    };
    // All memory is filled before anything is advised: khugepaged makes eight blocks huge every 10 s.
    let at_once = huge_mib(Rules::KernelDamon, Nanos(0));
    assert!((2..=32).contains(&at_once), "{at_once}");
    // Memory that is filled later is advised by then, in part.
    let slowly = huge_mib(Rules::KernelDamon, seconds(15));
    assert!((64..=256).contains(&slowly), "{slowly}");
    assert!(huge_mib(Rules::Isotherm, Nanos(0)) >= 240);
}

#[test]
fn frames_that_nobody_maps_are_idle_for_the_kernel_and_unknown_for_isotherm() {
    let swapped_mib = |rules| {
        let watch = Watch::Physical(Attributes::default(), None);
        let scheme = scheme(Action::Pageout, (0.0, 0.0), seconds(5));
        run(rules, watch, scheme, process(0.0, seconds(1))).swapped() / MIB
    };
    let of_kernel = swapped_mib(Rules::KernelDamon);
    assert!(of_kernel >= 120, "{of_kernel}");
    // Memory lies in pieces of 4 MiB on a machine of 32 GiB: no region is known to be idle.
    let of_isotherm = swapped_mib(Rules::Isotherm);
    assert!(of_isotherm < 64, "{of_isotherm}");
}
