//! Shared by the tests: units, programs, schemes and contexts.

use isotherm_engine::{AddressRange, Nanos};
use isotherm_policy::scheme::{AccessPattern, Action, Age, Bounds, Frequency, Scheme};
use isotherm_sim::machine::{AreaSpec, Pattern, SimProcessSpec};
use isotherm_sim::simulation::{Event, SimContextSpec, Simulation, Watch};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn seconds(n: u64) -> Nanos {
    Nanos::from_millis(1000 * n)
}

/// A scheme for memory that has been accessed in this share of the checks for at least `age`.
pub(crate) fn scheme(action: Action, percent: (f64, f64), age: Nanos) -> Scheme {
    let pattern = AccessPattern {
        nr_accesses: Bounds::new(Frequency::Percent(percent.0), Frequency::Percent(percent.1)),
        age: Bounds::new(Age::Time(age), Age::Time(Nanos(u64::MAX))),
        ..AccessPattern::ANY
    };
    Scheme::new(pattern, action)
}

pub(crate) fn context(watch: Watch, schemes: Vec<Scheme>) -> SimContextSpec {
    SimContextSpec::new(watch, schemes)
}

/// Anonymous memory that is filled within the first second.
pub(crate) fn area(start: u64, mib: u64, pattern: Pattern) -> AreaSpec {
    let range = AddressRange::new(start, start + mib * MIB);
    AreaSpec {
        fill: Some((Nanos(0), seconds(1))),
        ..AreaSpec::new("heap", range, pattern)
    }
}

/// A process of these mappings, which reaches its memory for three tenths of its time.
pub(crate) fn program(areas: Vec<AreaSpec>) -> SimProcessSpec {
    SimProcessSpec {
        name: "program".into(),
        memory_bound: 0.3,
        areas,
        ..SimProcessSpec::default()
    }
}

/// Runs to the end, checks the machine at every step if `checks` is set, and returns the events.
pub(crate) fn run(mut simulation: Simulation, checks: bool) -> (Simulation, Vec<Event>) {
    let mut events = Vec::new();
    while simulation.step(&mut events) {
        if checks {
            simulation.machine().check().expect("the books are right");
        }
    }
    simulation.machine().check().expect("the books are right");
    (simulation, events)
}
